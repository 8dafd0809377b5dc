"""Plans: what the records of options of all commands share."""

import difflib
from dataclasses import fields, replace
from typing import Any, TypeVar

from piecemill.errors import PlanError

P = TypeVar("P")


def with_options(plan: P, options: dict[str, Any]) -> P:
    """`plan` with `options` in place of its fields; an unknown one is an error that names the nearest."""
    known = [field.name for field in fields(plan)]  # type: ignore[arg-type] # a dataclass
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {known}."
            raise PlanError(f"unknown option {name!r}; {hint}")
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return replace(plan, **given)  # type: ignore[type-var]
