"""Encoding with gigatoken: the fastest engine, wherever it can load the tokenizer.

It takes the flat form as it is (an awkward array over the same buffers) and gives it back the same way, without a
Python object per text, and lets go of the interpreter while it encodes.

A gigatoken tokenizer keeps what it has seen in caches, and threads that share one wait for each other: two were no
faster than one (docs/tried.md). So every call has one to itself, and as many are loaded as there are calls at once.
The caches have no bound: where words are ever new they grow by three times the text, until `forget`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.tokenizers.engine import Encoded

SCHEMES = {"gpt2": "gpt2", "cl100k": "gpt4", "o200k": "o200k"}
"gigatoken's names for the splits that we compared."


class GigatokenEngine:
    """gigatoken tokenizers, loaded when needed: some take special tokens for plain text, some for tokens.

    `load(parse)` makes one. With `latin`, texts are handed over as Latin-1 reads their UTF-8: one character per byte.
    """

    name = "gigatoken"
    bytes_per_token = 20

    def __init__(self, load: Callable[[bool], Any], why: str, *, latin: bool = False) -> None:
        self._load = load
        self._latin = latin
        self._idle: dict[bool, list[Any]] = {False: [], True: []}
        self._forgot = 0
        self.why = why

    @property
    def version(self) -> str:
        from importlib.metadata import version

        return version("gigatoken")

    def encode(self, text: str, *, parse: bool) -> NDArray[np.uint32]:
        given = text if not self._latin or text.isascii() else text.encode().decode("latin-1")
        with self._one(parse) as tokenizer:
            ids: NDArray[np.uint32] = tokenizer.encode(given)
        return ids

    def encode_flat(
        self, data: NDArray[np.uint8], ends: NDArray[np.int64], *, parse: bool, parallel: bool | None
    ) -> Encoded:
        if self._latin:
            data, ends = _as_latin(data, ends)
        with self._one(parse) as tokenizer:
            layout = tokenizer.encode_batch(_awkward(data, ends), parallel=parallel).layout
        offsets = np.asarray(layout.offsets.data)
        ids = np.asarray(layout.content.data)[offsets[0] : offsets[-1]]
        return ids, offsets[1:] - offsets[0]

    def forget(self) -> None:
        self._forgot += 1  # those that are in use now do not come back
        for idle in self._idle.values():
            idle.clear()

    @contextmanager
    def _one(self, parse: bool) -> Iterator[Any]:
        """gigatoken's own object, for nobody else until it is given back."""
        idle, forgot = self._idle[parse], self._forgot
        try:
            tokenizer = idle.pop()  # one step, so two threads never get the same
        except IndexError:
            tokenizer = self._load(parse)
        try:
            yield tokenizer
        finally:
            if forgot == self._forgot:
                idle.append(tokenizer)


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
