"""What commands share: the flags of sources, a flag without a `--no-`, and one result on stdout."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any

from cyclopts import Group, Parameter, Token

from piecemill.sources.options import SourceOptions

Flag = Annotated[bool, Parameter(negative=())]

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_ESCAPE = re.compile(r"\\(?:([nrt0\\])|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8}))")


def as_flags(plan: type, **parameters: Parameter) -> None:
    """Set how the fields of a plan are shown and read on the command line; the plan itself does not know."""
    for name, parameter in parameters.items():
        plan.__annotations__[name] = Annotated[plan.__annotations__[name], parameter]


def unescaped(_: Any, tokens: Sequence[Token]) -> str:
    """A flag with the escapes that a shell leaves in; TOML has its own, so its strings stay as they are."""
    (token,) = tokens
    if token.source != "cli":
        return token.value
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1]) or chr(int(found[found.lastindex or 0], 16)), token.value)


_SOURCES = Group("Options of sources", sort_key=1)
as_flags(SourceOptions, **{field.name: Parameter(group=_SOURCES) for field in fields(SourceOptions)})
as_flags(SourceOptions, separator=Parameter(converter=unescaped))


def print_result(result: dict[str, Any] | str) -> None:
    """A result for programs, as JSON, or for people, as it is."""
    sys.stdout.write((result if isinstance(result, str) else json.dumps(result)) + "\n")
