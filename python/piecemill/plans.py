"""Plans: what the records of options of all commands share."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from piecemill.errors import PlanError

P = TypeVar("P")

_SHOWN = 60


def check_names(given: Iterable[str], known: Sequence[str], what: str = "option") -> None:
    """PlanError for the first name that is not known, with the nearest one that is."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {list(known)}."
            raise PlanError(f"unknown {what} {name!r}; {hint}")


def with_options(plan: P, options: dict[str, Any]) -> P:
    """`plan` with `options` in place of its fields; an unknown one is an error that names the nearest."""
    known = [field.name for field in fields(plan)]  # type: ignore[arg-type] # a dataclass
    check_names(options, known)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return replace(plan, **given)  # type: ignore[type-var]


def check_same(where: str, name: str, old: Any, new: Any) -> None:
    """PlanError if a field of the plan that something was begun with is another now; says what differs in it."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        inner = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
        return check_same(where, inner if name == "options" else f"{name}.{inner}", old.get(inner), new.get(inner))
    raise PlanError(
        f"{where}: made with {name}={_short(old)}, asked for {name}={_short(new)}. "
        f"Going on needs the same plan: choose another --out, or the same --{name.replace('_', '-')}."
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
