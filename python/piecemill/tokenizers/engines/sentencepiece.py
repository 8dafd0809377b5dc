"""Encoding with sentencepiece, the home library of a `.model`. Optional: `pip install piecemill[sentencepiece]`."""

from functools import cached_property
from importlib.metadata import version as version_of
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import TokenizerError
from piecemill.tokenizers.engines import Encoded, Parse
from piecemill.tokenizers.models.sentencepiece import SentencePiece
from piecemill.tokenizers.texts import check_flat, finish, texts_of

name = "sentencepiece"
reads = (SentencePiece,)


def can_encode(model: SentencePiece) -> str | None:
    """Why it cannot be used here: it may not be installed."""
    if find_spec("sentencepiece") is None:
        return "sentencepiece is not installed (pip install 'piecemill[sentencepiece]')"
    return None


def exact(model: SentencePiece) -> bool:
    """Its ids are right by definition."""
    return True


def load(model: SentencePiece) -> "SentencePieceEngine":
    """The engine; the library loads the model when it first encodes."""
    return SentencePieceEngine(model)


class SentencePieceEngine:
    """One SentencePieceProcessor. It never turns the text of a control token into the token."""

    name = name
    why = ""

    def __init__(self, model: SentencePiece) -> None:
        self._model = model

    @property
    def version(self) -> str:
        return version_of("sentencepiece")

    def encode(self, text: str, special: Parse) -> NDArray[np.uint32]:
        return np.array(self._processor.encode(text, out_type=int), np.uint32)

    def encode_flat(
        self,
        data: NDArray[np.uint8],
        ends: NDArray[np.int64],
        *,
        bos: int | None,
        eos: int | None,
        narrow: bool,
        special: Parse,
        threads: int,
    ) -> Encoded:
        texts = texts_of(*check_flat(data, ends))
        rows = self._processor.encode(texts, out_type=int, num_threads=threads or -1)  # -1: all cores
        return finish(rows, bos=bos, eos=eos, narrow=narrow)

    @cached_property
    def _processor(self) -> Any:
        import sentencepiece

        try:
            return sentencepiece.SentencePieceProcessor(model_proto=self._model.content)
        except (RuntimeError, OSError, ValueError) as error:
            raise TokenizerError(
                f"{self._model.file}: sentencepiece {self.version} refused this model: {error}. "
                "Expected a SentencePiece .model file."
            ) from error
