"""Encoding with sentencepiece, the library a `.model` comes from. Optional: `pip install piecemill[sentencepiece]`."""

import multiprocessing
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import TokenizerError
from piecemill.tokenizers.engine import Encoded
from piecemill.tokenizers.texts import pack, texts_of


def missing() -> str | None:
    """Why sentencepiece cannot be used here; None if it can."""
    if find_spec("sentencepiece") is None:
        return "sentencepiece is not installed (pip install 'piecemill[sentencepiece]')"
    return None


class SentencePieceEngine:
    """One SentencePieceProcessor. It never turns the text of a control token into the token."""

    name = "sentencepiece"
    bytes_per_token = 120

    def __init__(self, content: bytes, why: str) -> None:
        self._content = content
        self.why = why

    @property
    def version(self) -> str:
        from importlib.metadata import version

        return version("sentencepiece")

    def forget(self) -> None:
        """Nothing: the library keeps little."""

    def encode(self, text: str, *, parse: bool) -> NDArray[np.uint32]:
        return np.array(self.loaded.encode(text, out_type=int), np.uint32)

    def encode_flat(
        self, data: NDArray[np.uint8], ends: NDArray[np.int64], *, parse: bool, parallel: bool | None
    ) -> Encoded:
        alone = multiprocessing.parent_process() is not None if parallel is None else not parallel
        # -1 is a thread for every core.
        return pack(self.loaded.encode(texts_of(data, ends), out_type=int, num_threads=1 if alone else -1))

    @cached_property
    def loaded(self) -> Any:
        """sentencepiece's own object."""
        import sentencepiece

        try:
            return sentencepiece.SentencePieceProcessor(model_proto=self._content)
        except (RuntimeError, OSError, ValueError) as error:
            raise TokenizerError(
                f"sentencepiece {self.version} refused this model: {error}. Expected a SentencePiece .model file."
            ) from error
