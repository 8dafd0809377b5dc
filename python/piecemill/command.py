"""What commands share: the flags of sources, a flag without a `--no-`, and one result on stdout."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter, Token

from piecemill.sources.options import SourceOptions

Flag = Annotated[bool, Parameter(negative=())]


@dataclass(frozen=True, slots=True)
class FolderKind:
    """A kind of folder that `show` and `check` know beside prepared ones; the room that writes it tells them."""

    is_at: Callable[[Path], bool]
    describe: Callable[[Path], dict[str, Any]]
    as_text: Callable[[dict[str, Any]], str]
    problems: Callable[[Path], list[str]]
    "What is not as it was written; none if all is well."


FOLDERS: list[FolderKind] = []


def kind_of(path: Path) -> FolderKind | None:
    """Which of the registered kinds of folder lies at `path`, if any."""
    return next((kind for kind in FOLDERS if path.is_dir() and kind.is_at(path)), None)


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}


def as_flags(plan: type, **parameters: Parameter) -> None:
    """Set how the fields of a plan are shown and read on the command line; the plan itself does not know."""
    for name, parameter in parameters.items():
        plan.__annotations__[name] = Annotated[plan.__annotations__[name], parameter]


def _unescaped(_: Any, tokens: Sequence[Token]) -> str:
    """A flag with the escapes that a shell leaves in; TOML has its own, so its strings stay as they are."""
    (token,) = tokens
    if token.source != "cli":
        return token.value
    return re.sub(r"\\([nrt0\\])", lambda escape: _ESCAPES[escape[1]], token.value)


_SOURCES = Group("Options of sources", sort_key=1)
as_flags(SourceOptions, **{field.name: Parameter(group=_SOURCES) for field in fields(SourceOptions)})
as_flags(SourceOptions, separator=Parameter(converter=_unescaped))


def print_result(result: dict[str, Any] | str) -> None:
    """A result for programs, as JSON, or for people, as it is."""
    sys.stdout.write((result if isinstance(result, str) else json.dumps(result)) + "\n")
