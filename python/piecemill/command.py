"""What commands share: parameters with their help, sources and their flags, and one result on stdout."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from io import BufferedReader
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, BinaryIO, get_args

from cyclopts import CoercionError, Group, Parameter, Token, convert

from piecemill.errors import PlanError
from piecemill.sources.options import SourceOptions
from piecemill.sources.remote import Url, is_url

Flag = Annotated[bool, Parameter(negative=())]
Json = Annotated[Flag, Parameter(help="Print the result as JSON.")]
Quiet = Annotated[Flag, Parameter(help="No progress on stderr.")]
SourceName = Annotated[
    str,
    Parameter(
        help="Folders, files or globs: text and code, .jsonl(.gz|.zst), .parquet, .arrow, .feather, FASTA and FASTQ; "
        "or - for a text on standard input, which --separator cuts into documents."
    ),
]
TokenizerName = Annotated[
    str,
    Parameter(
        help="A folder saved by `piecemill train`, a tokenizer.json, .model or .tiktoken file, or a Hugging Face hub "
        "id."
    ),
]
PretokenizerName = Annotated[
    str | None,
    Parameter(
        help="Pretokenizer of a .tiktoken file, which has none: a name that `piecemill train --help` lists, or a regex."
    ),
]
Engine = Annotated[
    str | None,
    Parameter(
        help="What encodes: piecemill, tokenizers, sentencepiece, tiktoken or cuda (an NVIDIA GPU); default: the "
        "fastest on the processor that gives the same ids."
    ),
]

STDIN = "<standard input>"
"What `-` among the sources becomes; the parser would take `-` for an option."

CONFIG_SOURCES: list[str] = []
"The sources that `--config` names, for a command that is given none; the parser takes no positional from a file."

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_ESCAPE = re.compile(r"\\(?:([nrt0\\])|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8}))")


def as_flags(plan: type, **parameters: Parameter) -> None:
    """Set how the fields of a plan are shown and read on the command line; the plan itself does not know."""
    for name, parameter in parameters.items():
        plan.__annotations__[name] = Annotated[plan.__annotations__[name], parameter]


def read_value(kind: Any, tokens: Sequence[Token]) -> Any:
    """A value as the parser reads it; but a fraction is no whole number, which the parser would round."""
    for token in tokens if int in (kind, *get_args(kind)) else ():
        if "." in token.value:
            raise CoercionError(token=token, target_type=int)
    return convert(kind, tokens)


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


def paths(sources: tuple[str, ...]) -> list[PathLike[str]]:
    """Sources as paths, so that none is taken for a text; URLs as `Url`, as a Path would drop a slash."""
    if STDIN in sources:
        raise PlanError("-: standard input cannot be read here. Save it to a file, and name that.")
    return [Url(name) if is_url(name) else Path(name) for name in sources]


def read_sources(sources: tuple[str, ...], separator: str | None) -> list[PathLike[str]] | Iterator[bytes]:
    """Sources as paths; of the text on standard input, its documents."""
    sources = sources or tuple(CONFIG_SOURCES)
    if STDIN not in sources:
        return paths(sources)
    if len(sources) > 1:
        raise PlanError("-: standard input is the only source where it is named; name files beside it in another run.")
    given = sys.stdin.buffer
    if not separator and isinstance(given, BufferedReader) and given.peek(2)[:2] == b'{"':
        sys.stderr.write(
            "note: standard input is read as one text, and it begins like JSON lines; save those in a .jsonl file, of "
            "which --field names the text.\n"
        )
    return StandardInput(cut_documents(given, separator))


class StandardInput(chain[bytes]):
    """The documents on standard input: messages name a source in memory by its class."""


def cut_documents(stream: BinaryIO, separator: str | None) -> Iterator[bytes]:
    """The documents of a stream of text: one, or several with `separator` between them."""
    if not separator:
        yield stream.read()
        return
    between, rest = separator.encode(), b""
    while chunk := stream.read(1 << 20):
        *whole, rest = (rest + chunk).split(between)
        yield from whole
    yield rest
