"""Encoding with gigatoken: the fastest engine, wherever it can load the tokenizer.

It takes the flat form as it is (an awkward array over the same buffers) and gives it back the same way, without a
Python object per text, and lets go of the interpreter while it encodes.

A gigatoken tokenizer keeps what it has seen in caches. Threads may share one, but two threads with a `Tokenizer` each
were faster in one of two cases measured (docs/tried.md).
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.tokenizers.engine import Encoded


class GigatokenEngine:
    """Two gigatoken tokenizers, each loaded when first needed: special tokens as plain text, or as tokens.

    `load(parse)` makes them. With `latin`, texts are handed over as Latin-1 reads their UTF-8: one character per byte.
    """

    name = "gigatoken"

    def __init__(self, load: Callable[[bool], Any], why: str, *, latin: bool = False) -> None:
        self._load = load
        self._latin = latin
        self._loaded: dict[bool, Any] = {}
        self.why = why

    @property
    def version(self) -> str:
        return version("gigatoken")

    def encode(self, text: str, *, parse: bool) -> NDArray[np.uint32]:
        given = text if not self._latin or text.isascii() else text.encode().decode("latin-1")
        ids: NDArray[np.uint32] = self.loaded(parse).encode(given)
        return ids

    def encode_flat(
        self, data: NDArray[np.uint8], ends: NDArray[np.int64], *, parse: bool, parallel: bool | None
    ) -> Encoded:
        if self._latin:
            data, ends = _as_latin(data, ends)
        layout = self.loaded(parse).encode_batch(_awkward(data, ends), parallel=parallel).layout
        offsets = np.asarray(layout.offsets.data)
        ids = np.asarray(layout.content.data)[offsets[0] : offsets[-1]]
        return ids, offsets[1:] - offsets[0]

    def loaded(self, parse: bool) -> Any:
        """gigatoken's own object; loads it."""
        if parse not in self._loaded:
            self._loaded[parse] = self._load(parse)
        return self._loaded[parse]


def refusal(load: Callable[[], Any]) -> str | None:
    """What gigatoken says against loading a tokenizer; None if it loads."""
    try:
        load()
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        # The first line says what; the others where in gigatoken's own sources.
        return f"gigatoken cannot load this tokenizer ({str(error).splitlines()[0]})"
    return None


def _awkward(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> Any:
    import awkward

    offsets = awkward.index.Index64(np.concatenate([np.zeros(1, np.int64), ends]))
    content = awkward.contents.NumpyArray(data, parameters={"__array__": "byte"})
    return awkward.Array(awkward.contents.ListOffsetArray(offsets, content, parameters={"__array__": "bytestring"}))


def _as_latin(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    # Every byte from 0x80 on becomes a character of two bytes, so each text grows by as many as it has.
    high = data >= 0x80
    if not high.any():
        return data, ends
    grown = np.concatenate([np.zeros(1, np.int64), np.cumsum(high, dtype=np.int64)])
    return np.frombuffer(data.tobytes().decode("latin-1").encode(), np.uint8), ends + grown[ends]
