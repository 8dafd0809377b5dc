"""The options that every command with sources has: which documents are read, and how.

A plan of a command inherits them, so that flags, TOML keys, help and checks are the same everywhere. This module
does not know the command line: `piecemill.command` defines how flags are shown and parsed.
"""

import json
from dataclasses import asdict, dataclass
from dataclasses import field as dataclass_field
from typing import Any, Literal

from piecemill.errors import PlanError
from piecemill.sizes import parse_size
from piecemill.sources.packing import MAX_FILE_BYTES
from piecemill.sources.source import Source, open_source

NOT_STORED = ("storage_option",)
"Options that are never written anywhere, because they may contain credentials."


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Which documents of a source are read, and how."""

    field: str = "text"
    "Field (JSONL) or column (Parquet, Arrow) that holds a document."

    separator: str | None = None
    r"Cut text files into documents at this string; default: a file is a document. The flag knows \n, \r, \t and \0."

    include: tuple[str, ...] = ()
    "Of a folder, only files that match one of these globs; repeat the flag for more."

    exclude: tuple[str, ...] = ()
    "Of a folder, no files that match one of these globs; repeat the flag for more."

    gitignore: bool = True
    "Leave out what .gitignore files leave out."

    hidden: bool = False
    "Read hidden files and folders too."

    max_file_bytes: str = f"{MAX_FILE_BYTES >> 20}MiB"
    "Leave out text files larger than this when walking a folder."

    on_bad_document: Literal["stop", "skip"] = "stop"
    "What to do with a document that cannot be read: stop with its place, or skip, count and list it."

    bytes: bool = False
    "Documents are any bytes, not UTF-8 text: binary files, binary columns. They have no words (--pretokenizer none)."

    integers: bool = False
    (
        "Documents are integers: lists in a column, rows of .npy files, or digits with white space or commas between "
        "them. Tokens are sequences of integers."
    )

    upper: bool = False
    "Letters of FASTA and FASTQ files in upper case: soft-masked genomes have small ones."

    storage_option: tuple[str, ...] = dataclass_field(default=(), repr=False)
    "For sources that are URLs: key=value for fsspec, such as anon=true; repeat the flag for more. Stored nowhere."

    def __post_init__(self) -> None:
        for name in ("include", "exclude", "storage_option"):
            if not isinstance(value := getattr(self, name), tuple):
                shown = f"{name}={value!r}" if name not in NOT_STORED else name
                raise PlanError(f"{shown}: expected a list of strings.")
        parse_size(self.max_file_bytes, "max_file_bytes")
        if self.bytes and self.integers:
            raise PlanError("bytes and integers: documents are one or the other. Give one of them.")
        self.storage  # noqa: B018 - checks it

    def stored(self) -> dict[str, Any]:
        """The options as a record has them: ready for JSON, and without those that are never written."""
        kept = {name: value for name, value in asdict(self).items() if name not in NOT_STORED}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}

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
            raw=self.bytes,
            integers=self.integers,
            upper=self.upper,
            storage_options=self.storage,
            **more,
        )
