"""Encoding with sentencepiece, the home library of a `.model`. Optional: `pip install piecemill[sentencepiece]`."""

from functools import cached_property
from importlib.util import find_spec
from typing import Any

from numpy.typing import NDArray

from piecemill.errors import TokenizerError
from piecemill.tokenizers.engines import LibraryEngine, Parse
from piecemill.tokenizers.models.sentencepiece import SentencePiece

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


class SentencePieceEngine(LibraryEngine):
    """One SentencePieceProcessor. It never turns the text of a control token into the token."""

    name = name

    def __init__(self, model: SentencePiece) -> None:
        self._model = model

    def rows(self, texts: list[str], special: Parse, threads: int) -> Any:
        return self._processor.encode(texts, out_type=int, num_threads=threads or -1)  # -1: all cores

    def decode(self, ids: NDArray[Any]) -> str:
        """The text that `ids` stand for."""
        text: str = self._processor.decode(ids.tolist())
        return text

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
