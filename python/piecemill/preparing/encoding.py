"""The one place where preparing meets a tokenizer: bos, eos, and special tokens in documents."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.tokenizers import Tokenizer, resolve_bos, resolve_eos
from piecemill.tokenizers.tokenizer import Special

Ids = tuple[NDArray[Any], NDArray[np.int64]]

LARGE = 16 << 20
"Documents from this size on have their tokens estimated before they are encoded."
USUAL = 64 << 20
"Memory that encoding a document may take without reserving it first."
_SAMPLES, _SAMPLE_BYTES = 16, 1 << 16
# Bytes that an engine takes for each token while it encodes, its result included; measured. Piecemill's own writes
# final ids and needs nothing besides.
_BESIDES = {"piecemill": 0, "sentencepiece": 120, "tiktoken": 80, "tokenizers": 540}


class Encoder:
    """A tokenizer as a run needs it: flat buffers in, final ids out, from many threads at once."""

    def __init__(self, tokenizer: Tokenizer, *, eos: str, bos: str, special: Special, dtype: np.dtype[Any]) -> None:
        self.tokenizer = tokenizer
        self.eos = resolve_eos(tokenizer, eos)
        self.bos = resolve_bos(tokenizer, bos)
        self._special, self._dtype = special, dtype

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return self.tokenizer.vocab_size

    @property
    def verified(self) -> dict[str, Any]:
        """Which engine encodes, and the home library it was compared with on the nasty strings or is exact by test."""
        engine, home = self.tokenizer.engine, self.tokenizer.model.home
        try:
            home_version: str | None = version(home)
        except PackageNotFoundError:
            home_version = None
        return {
            "engine": engine.name,
            "engine_version": engine.version,
            "home": home,
            "home_version": home_version,
        }

    def identity(self) -> dict[str, Any]:
        """What makes the tokenizer this one: the same for the same ids."""
        return {
            "vocab_size": self.vocab_size,
            "eos": self.eos,
            "bos": self.bos,
            "kind": self.tokenizer.kind,
            "identity": self.tokenizer.identity,
        }

    def warm_up(self) -> None:
        """Load the engine now, so that its time and memory do not count as the first block's."""
        self.encode(np.frombuffer(b"warm", np.uint8), np.array([4], np.int64))

    def encode(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> Ids:
        """The ids of every document as they are written, bos and eos included, and where each document ends."""
        # On this thread: the run has as many encoders as it wants, and they read and write beside it.
        return self.tokenizer.encode_flat(
            data, ends, bos=self.bos, eos=self.eos, dtype=self._dtype, special=self._special, threads=1
        )

    def encode_bare(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> Ids:
        """The same without bos and eos, in uint32: for `gather_tokens`, which deals documents out to splits."""
        return self.tokenizer.encode_flat(data, ends, special=self._special, threads=1)

    def heavy(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> int:
        """Memory that encoding an unusually large document takes beyond its text; 0 if none is that large."""
        sizes = np.diff(ends, prepend=0)
        if not len(sizes):
            return 0
        number = int(sizes.argmax())
        size, each = int(sizes[number]), self._dtype.itemsize + _BESIDES.get(self.tokenizer.engine.name, 0)
        if size < LARGE and size * each < USUAL:
            return 0
        return int(self._tokens(data[int(ends[number]) - size : int(ends[number])]) * each)

    def _tokens(self, data: NDArray[np.uint8]) -> float:
        """How many tokens a document will have, estimated from samples of it."""
        step = max(len(data) // _SAMPLES, _SAMPLE_BYTES)
        tokens = size = 0
        for start in range(0, len(data), step):
            sample = data[_character(data, start) : _character(data, min(start + _SAMPLE_BYTES, len(data)))]
            tokens += len(self.encode(sample, np.array([len(sample)], np.int64))[0])
            size += len(sample)
        return len(data) * tokens / max(size, 1) * 1.05


def _character(data: NDArray[np.uint8], at: int) -> int:
    """The start of the character that byte `at` belongs to."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at
