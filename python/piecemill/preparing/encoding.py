"""The one place where preparing meets a tokenizer.

Documents come as a buffer and ends, and go as ids and ends. What a tokenizer cannot do with flat buffers is done
here document by document, with the same ids.
"""

from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PlanError
from piecemill.tokenizers import Tokenizer
from piecemill.tokenizers.saving import END_OF_TEXT, files_of

Ids = tuple[NDArray[np.uint32], NDArray[np.int64]]


class Encoder:
    """A tokenizer as a run needs it: bos and eos known, flat buffers in and out; can be called from many threads."""

    def __init__(self, tokenizer: Tokenizer, *, eos: str, bos: str, special: Literal["plain", "parse"]) -> None:
        self.tokenizer = tokenizer
        self.special = special
        auto = END_OF_TEXT if END_OF_TEXT in tokenizer.special_tokens else "none"
        self.eos = self._marker("eos", auto if eos == "auto" else eos)
        self.bos = self._marker("bos", bos)
        self._flat = self._flat_engine()

    def _marker(self, option: str, token: str) -> int | None:
        if token == "none":
            return None
        special = self.tokenizer.special_tokens
        if token not in special:
            known = ", ".join(sorted(special)) or "none at all"
            raise PlanError(
                f"{option}={token!r}: the tokenizer has no such special token; it has {known}. "
                f"Pass one of those, or --{option} none."
            )
        return special[token]

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return self.tokenizer.vocab_size

    def identity(self) -> dict[str, Any]:
        """What makes the tokenizer this one: the same for the same ids."""
        content = files_of(self.tokenizer)["tokenizer.json"]
        from piecemill._core import hash_documents

        low, high = hash_documents(np.frombuffer(content, np.uint8), np.array([len(content)], np.int64))[0]
        return {"vocab_size": self.vocab_size, "eos": self.eos, "bos": self.bos, "xxh3": f"{high:016x}{low:016x}"}

    def warm_up(self) -> None:
        """Load the engine now, so that its time and memory are not those of the first block."""
        text = np.frombuffer(b"a warm engine", np.uint8)
        self.encode(text, np.array([len(text)], np.int64))

    def encode(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> Ids:
        """The ids of every document, and where each document ends among them."""
        if self._flat is None:
            borders = [0, *ends.tolist()]
            texts = [data[start:end].tobytes() for start, end in pairwise(borders)]
            return self.tokenizer.encode_batch(texts, special=self.special)
        import awkward as ak

        starts = ak.index.Index64(np.concatenate([np.zeros(1, np.int64), ends]))
        letters = ak.contents.NumpyArray(data, parameters={"__array__": "char"})
        texts = ak.Array(ak.contents.ListOffsetArray(starts, letters, parameters={"__array__": "string"}))
        # On this thread: the run has as many threads as it wants, and they read and write beside it.
        layout = self._flat.encode_batch(texts, parallel=False).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        ids = np.asarray(layout.content.data, np.uint32)[offsets[0] : offsets[-1]]
        return ids, offsets[1:] - offsets[0]

    def _flat_engine(self) -> Any:
        """gigatoken itself where it takes flat buffers as they are: with a split it knows."""
        engine = self.tokenizer.engine
        if engine.name != "gigatoken" or self.tokenizer.pattern is None:
            return None
        return engine._engine(self.special == "parse")  # type: ignore[attr-defined]
