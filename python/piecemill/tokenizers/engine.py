"""What the rest of this room agrees on: a model knows its files, an engine encodes.

A model is one kind of tokenizer (byte-level BPE, a tokenizer.json of another kind, SentencePiece, tiktoken ranks). It
holds plain data, so it can be pickled, and says which engines can give its ids. An engine wraps one library; it is
imported when the first text is encoded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from piecemill.errors import TokenizerError

Encoded = tuple[NDArray[np.uint32], NDArray[np.int64]]
"All ids one after another, and where each text ends."

AnyPath = str | PathLike[str]


class Engine(Protocol):
    """A library that encodes. Texts come checked: valid UTF-8, cut between characters."""

    name: str
    why: str
    bytes_per_token: int
    "Memory that a call takes for each token of one text, its result included; as measured."

    @property
    def version(self) -> str: ...

    def encode(self, text: str, *, parse: bool) -> NDArray[np.uint32]: ...

    def encode_flat(
        self, data: NDArray[np.uint8], ends: NDArray[np.int64], *, parse: bool, parallel: bool | None
    ) -> Encoded: ...

    def forget(self) -> None:
        """Let go of what the library keeps of the texts it has seen, if there is no bound to that."""


@dataclass(frozen=True)
class Declared:
    """What a tokenizer's own files say about the start and the end of a text."""

    eos: str | None = None
    bos: str | None = None
    adds_bos: bool = False
    "Whether the library it comes from puts the bos before every text by itself."


class Model(Protocol):
    """One kind of tokenizer, as data."""

    @property
    def kind(self) -> str:
        """What it is, in words."""

    @property
    def special_tokens(self) -> Mapping[str, int]: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def declared(self) -> Declared: ...

    @property
    def home(self) -> str:
        """The engine whose ids are right by definition."""

    def why_not(self, engine: str) -> str | None:
        """Why `engine` cannot give this tokenizer's ids; None if it can."""

    @property
    def engines(self) -> Sequence[str]:
        """The engines that may be asked for, the preferred first."""

    def start(self, engine: str, why: str) -> Engine: ...

    def parse_refused(self) -> str | None:
        """Why the text of a special token cannot be turned into the token; None if it can."""

    def identity(self) -> str: ...

    def files(self) -> dict[str, bytes]: ...

    def id_of(self, token: str | bytes) -> int | None: ...

    def decode(self, ids: NDArray[Any]) -> str: ...

    def decode_bytes(self, ids: NDArray[Any]) -> bytes: ...


def checked_ids(ids: ArrayLike, vocab_size: int) -> NDArray[Any]:
    """`ids` as an array, if they are one row of ids that exist."""
    given = np.asarray(ids)
    if given.size == 0:
        return np.empty(0, np.uint32)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise TokenizerError(
            f"decode: got an array of shape {given.shape} and type {given.dtype}; expected one row of token ids."
        )
    outside = (given < 0) | (given >= vocab_size)
    if outside.any():
        at = int(outside.argmax())
        raise TokenizerError(f"decode: ids[{at}] is {given[at]}; expected 0 to {vocab_size - 1:,}.")
    return given


def choose(model: Model, asked: str | None) -> Engine:
    """The engine `asked` for, else the first that can; an error says why none or not that one."""
    refusals: dict[str, str] = {}
    for name in model.engines if asked is None else [asked]:
        reason = model.why_not(name) if name in model.engines else f"{name} is no engine for this kind"
        if reason is None:
            return model.start(name, "asked for" if asked else _why(model, name, refusals))
        refusals[name] = reason
    said = "; ".join(refusals.values())
    others = "" if asked is None else f" Engines of a {model.kind}: {', '.join(model.engines)}."
    raise TokenizerError(f"{'no engine can encode this' if asked is None else f'engine={asked!r}'}: {said}.{others}")


def _why(model: Model, name: str, refusals: Mapping[str, str]) -> str:
    if refusals:
        return "; ".join(refusals.values())
    return "the library it comes from" if name == model.home else "the fastest that can load it"
