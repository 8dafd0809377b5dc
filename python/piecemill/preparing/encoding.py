"""The one place where preparing meets a tokenizer: bos, eos, special tokens in documents, and verified trust."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.tokenizers import Tokenizer, resolve_bos, resolve_eos, verify
from piecemill.tokenizers.tokenizer import Special
from piecemill.tokenizers.verify import DOCUMENTS

Ids = tuple[NDArray[np.uint32], NDArray[np.int64]]


class Encoder:
    """A tokenizer as a run needs it: flat buffers in and out, from many threads at once."""

    def __init__(self, tokenizer: Tokenizer, *, eos: str, bos: str, special: Special) -> None:
        self.tokenizer = tokenizer
        self.special = special
        self.eos = resolve_eos(tokenizer, eos)
        self.bos = resolve_bos(tokenizer, bos)
        self.verified: dict[str, Any] = {}
        self._to_verify = DOCUMENTS

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return self.tokenizer.vocab_size

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
        """Load the engine now, so that its time and memory are not those of the first block, and compare it with the
        tokenizer's home library on nasty strings.
        """
        record = verify(self.tokenizer)
        # Who was compared with whom: the same for every run, where the documents of a resumed one are others.
        self.verified = {key: record[key] for key in ("engine", "engine_version", "home", "home_version")}

    def encode(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> Ids:
        """The ids of every document, and where each document ends among them."""
        # On this thread: the run has as many threads as it wants, and they read and write beside it.
        return self.tokenizer.encode_flat(data, ends, special=self.special, parallel=False)

    def trust(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        """Compares the engine with the tokenizer's home library on the first documents a run reads; call it with each
        block, in order. A difference ends the run.
        """
        if self._to_verify > 0 and len(ends):
            ends = ends[: self._to_verify]
            starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
            documents = [data[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]
            verify(self.tokenizer, documents)
            self._to_verify -= len(ends)
