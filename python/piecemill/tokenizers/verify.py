"""Does the engine give the ids of the library the tokenizer comes from?

An engine that is not exact by test is compared with the home library on the nasty strings when it is chosen.
`verify` compares them on any number of documents; `piecemill verify` does so from the command line.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import TokenizerError
from piecemill.plans import did_you_mean, option
from piecemill.sizes import plural
from piecemill.tokenizers.engines import Engine, encode_all, home_missing, load_engine, nasty
from piecemill.tokenizers.texts import first_difference, flatten, texts_of
from piecemill.tokenizers.tokenizer import Tokenizer

_BATCH, _BATCH_BYTES = 1000, 1 << 20
"Texts and bytes compared in one call: HF `tokenizers` holds 90 bytes for each byte of text."


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """An engine gave the home library's ids for everything that was compared."""

    engine: str
    engine_version: str
    home: str
    home_version: str
    strings: int
    "Nasty strings compared; 0 where the engine is the home library, as there is nothing to compare."
    documents: int
    bytes: int
    "Bytes of the documents."

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.engine == self.home:
            return f"{self.engine} {self.engine_version} is the home library: nothing to compare"
        return (
            f"{self.engine} {self.engine_version} gives the ids of {self.home} {self.home_version}: compared on "
            f"{self.strings} nasty strings and {plural(self.documents, 'document')}, {plural(self.bytes, 'byte')}"
        )


@did_you_mean
def verify(tokenizer: Tokenizer, documents: Any = (), *, most: int | None = None) -> Verified:
    """Compare the engine with the home library on the nasty strings and on `documents`.

    `documents` are anything `encode_batch` takes, an iterable of texts, or an opened source; at most `most` of them are
    compared. A difference is a TokenizerError with the text's name, its start and both rows of ids.

    >>> tok = Tokenizer.from_merges(np.array([[64, 65]]), pretokenizer="gpt2")
    >>> record = verify(tok, ["one document", "another"])
    >>> record.engine, record.home, record.documents
    ('piecemill', 'tokenizers', 2)
    """
    if not isinstance(tokenizer, Tokenizer):
        raise TokenizerError(f"tokenizer: found {type(tokenizer).__name__}, expected a Tokenizer; see load_tokenizer.")
    engine, home = tokenizer.engine, _home(tokenizer)
    record = {"engine": engine.name, "engine_version": engine.version}
    record |= {"home": home.name, "home_version": home.version}
    if engine.name == home.name:
        return Verified(**record, strings=0, documents=0, bytes=0)
    special = "".join(f" {text} x{text}y" for text in list(tokenizer.special_tokens)[:50])
    strings = nasty(tokenizer.model)
    strings = [*strings, special] if tokenizer.alphabet is None else strings
    _compare(engine, home, *flatten(strings), lambda i: f"nasty string {i}")
    compared = size = 0
    for data, ends, name in _batches(documents):
        left = len(ends) if most is None else min(len(ends), most - compared)
        if left <= 0:
            break
        ends, data = ends[:left], data[: ends[left - 1]]
        _compare(engine, home, data, ends, name)
        compared, size = compared + len(ends), size + len(data)
    return Verified(**record, strings=len(strings), documents=compared, bytes=size)


def _home(tokenizer: Tokenizer) -> Engine:
    reason = home_missing(tokenizer.model)
    if reason is not None:
        raise TokenizerError(
            f"verify: the ids of a {tokenizer.kind} are those of {tokenizer.model.home}, and {reason}. Install it, so "
            f"that {tokenizer.engine.name} can be compared with it."
        )
    return load_engine(tokenizer.model, tokenizer.model.home, "compared with")


Batch = tuple[NDArray[np.uint8], NDArray[np.int64], Callable[[int], str]]


def _batches(documents: Any) -> Iterator[Batch]:
    """The documents in batches of some megabytes, with a function that names each."""
    if hasattr(documents, "blocks"):  # an opened source
        for block in documents.blocks():
            yield block.data, block.ends, block.name
        return
    first = 0
    for texts in _lists(documents):
        data, ends = flatten(texts)
        yield data, ends, lambda i, first=first: f"document {first + i}"  # type: ignore[misc]
        first += len(ends)


def _lists(documents: Any) -> Iterator[Any]:
    arrow = hasattr(documents, "__arrow_c_stream__") or hasattr(documents, "__arrow_c_array__")
    if arrow or isinstance(documents, str | bytes) or not isinstance(documents, Iterable):
        yield documents  # `flatten` reads Arrow, and says what is wrong with anything else
        return
    texts = iter(documents)
    while batch := list(islice(texts, _BATCH)):
        yield batch


def _compare(
    engine: Engine, home: Engine, data: NDArray[np.uint8], ends: NDArray[np.int64], name: Callable[[int], str]
) -> None:
    """Raises TokenizerError at the first text that differs."""
    first = 0
    while first < len(ends):
        base = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, base + _BATCH_BYTES, side="right")))
        part, part_ends = data[base : ends[last - 1]], ends[first:last] - base
        got, wanted = encode_all(engine, part, part_ends), encode_all(home, part, part_ends)
        at = first_difference(got, wanted)
        if at is not None:
            text = texts_of(part, part_ends)[at]
            raise TokenizerError(_difference(engine, home, name(first + at), text, _row(got, at), _row(wanted, at)))
        first = last


def _row(encoded: tuple[NDArray[Any], NDArray[np.int64]], i: int) -> NDArray[Any]:
    ids, ends = encoded
    return ids[int(ends[i - 1]) if i else 0 : ends[i]]


def _difference(engine: Engine, home: Engine, name: str, text: str, got: NDArray[Any], want: NDArray[Any]) -> str:
    short = min(len(got), len(want))
    unequal = got[:short] != want[:short]
    at = int(unequal.argmax()) if unequal.any() else short
    return (
        f"verify: {name} gets other ids from {engine.name} {engine.version} than from {home.name} {home.version}, the "
        f"library this tokenizer comes from. It begins {text[:60]!r}. From id {at:,} of {len(got):,} and {len(want):,} "
        f"on: {_around(got, at)} and {_around(want, at)}. Use {option('engine', home.name)}."
    )


def _around(ids: NDArray[Any], at: int) -> str:
    shown = ", ".join(map(str, ids[max(0, at - 3) : at + 8].tolist()))
    return f"[{'..., ' if at > 3 else ''}{shown}{', ...' if at + 8 < len(ids) else ''}]"


def engine_record(tokenizer: Tokenizer) -> dict[str, Any]:
    """Which engine encodes, and the home library whose ids it gives, with their versions."""
    from importlib.metadata import PackageNotFoundError, version

    engine, home = tokenizer.engine, tokenizer.model.home
    try:
        home_version: str | None = version(home)
    except PackageNotFoundError:
        home_version = None
    # A GPU changes nothing that is written.
    used = {"engine": "piecemill" if engine.name == "cuda" else engine.name, "engine_version": engine.version}
    return {**used, "home": home, "home_version": home_version}
