"""The options that every command with sources has: which documents are read, and how.

A plan of a command inherits them, so that flags, TOML keys, help and checks are the same everywhere.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter, Token

from piecemill.errors import PlanError
from piecemill.sizes import parse_size
from piecemill.sources.packing import MAX_FILE_BYTES
from piecemill.sources.source import Source, open_source

NOT_STORED = ("storage_option",)
"Options that are never written anywhere: there may be a key in them."

_SOURCES = Parameter(group=Group("Options of sources", sort_key=1))


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}


def _typed(_: Any, tokens: Sequence[Token]) -> str:
    """A flag with the escapes that a shell does not take out; TOML has its own, so its strings stay as they are."""
    (token,) = tokens
    if token.source != "cli":
        return token.value
    return re.sub(r"\\([nrt0\\])", lambda escape: _ESCAPES[escape[1]], token.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Which documents of a source are read, and how."""

    field: Annotated[str, _SOURCES] = "text"
    "Field (JSONL) or column (Parquet, Arrow) that holds a document."

    separator: Annotated[str | None, _SOURCES, Parameter(converter=_typed)] = None
    r"Cut text files into documents at this string; default: a file is a document. The flag knows \n, \r, \t and \0."

    include: Annotated[tuple[str, ...], _SOURCES] = ()
    "Of a folder, only files that match one of these globs; repeat the flag for more."

    exclude: Annotated[tuple[str, ...], _SOURCES] = ()
    "Of a folder, no files that match one of these globs; repeat the flag for more."

    gitignore: Annotated[bool, _SOURCES] = True
    "Leave out what .gitignore files leave out."

    hidden: Annotated[bool, _SOURCES] = False
    "Read hidden files and folders too."

    max_file_bytes: Annotated[str, _SOURCES] = f"{MAX_FILE_BYTES >> 20}MiB"
    "Leave out text files larger than this when walking a folder."

    on_bad_document: Annotated[Literal["stop", "skip"], _SOURCES] = "stop"
    "What to do with a document that cannot be read: stop with its place, or skip, count and list it."

    storage_option: Annotated[tuple[str, ...], _SOURCES] = dataclass_field(default=(), repr=False)
    "For sources that are URLs: key=value for fsspec, such as anon=true; repeat the flag for more. Stored nowhere."

    def __post_init__(self) -> None:
        for name in ("include", "exclude", "storage_option"):
            if not isinstance(value := getattr(self, name), tuple):
                shown = f"{name}={value!r}" if name not in NOT_STORED else name
                raise PlanError(f"{shown}: expected a list of strings.")
        parse_size(self.max_file_bytes, "max_file_bytes")
        self.storage  # noqa: B018 - checks it

    @property
    def storage(self) -> dict[str, Any]:
        """`storage_option` as fsspec takes it: a value that is JSON as what it says, any other as text."""
        options: dict[str, Any] = {}
        for option in self.storage_option:
            key, equals, value = option.partition("=")
            if not key or not equals:
                raise PlanError(
                    "storage_option: expected key=value, such as anon=true. "
                    "What was found is not shown: it may be a secret."
                )
            try:
                options[key] = json.loads(value)
            except ValueError:
                options[key] = value
        return options

    def open_source(self, source: object, **more: Any) -> Source:
        """The source, opened with these options."""
        return open_source(
            source,
            field=self.field,
            separator=self.separator,
            include=self.include,
            exclude=self.exclude,
            gitignore=self.gitignore,
            hidden=self.hidden,
            max_file_bytes=parse_size(self.max_file_bytes, "max_file_bytes"),
            on_bad_document=self.on_bad_document,
            storage_options=self.storage,
            **more,
        )
