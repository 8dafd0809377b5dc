"""Encoding with tiktoken, the home library of a `.tiktoken` file. Optional: `pip install tiktoken`."""

from functools import cached_property
from importlib.metadata import version as version_of
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PretokenizerError
from piecemill.tokenizers.engines import Encoded, Parse
from piecemill.tokenizers.models.ranks import Ranks
from piecemill.tokenizers.pretokenizers import WHOLE_DOCUMENT
from piecemill.tokenizers.texts import check_flat, finish, texts_of

name = "tiktoken"
reads = (Ranks,)


def can_encode(model: Ranks) -> str | None:
    """Why it cannot be used: it may not be installed, and it has no sequences of pretokenizers."""
    if isinstance(model.pattern, tuple):
        return "tiktoken has one pattern, and this pretokenizer is a sequence"
    return None if find_spec("tiktoken") is not None else "tiktoken is not installed (pip install tiktoken)"


def exact(model: Ranks) -> bool:
    """Its ids are right by definition."""
    return True


def load(model: Ranks) -> "TiktokenEngine":
    """The engine; the library loads the ranks when it first encodes."""
    return TiktokenEngine(model)


class TiktokenEngine:
    """One `tiktoken.Encoding`."""

    name = name
    why = ""

    def __init__(self, model: Ranks) -> None:
        self._model = model

    @property
    def version(self) -> str:
        return version_of("tiktoken")

    def encode(self, text: str, special: Parse) -> NDArray[np.uint32]:
        return np.array(self._ids(text, special), np.uint32)

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
        if threads == 1:
            rows: Any = (self._ids(text, special) for text in texts)
        elif special == "plain":
            rows = self._encoding.encode_ordinary_batch(texts, **_threads(threads))
        else:
            rows = self._encoding.encode_batch(
                texts, allowed_special=_allowed(special), disallowed_special=(), **_threads(threads)
            )
        return finish(rows, bos=bos, eos=eos, narrow=narrow)

    def _ids(self, text: str, special: Parse) -> Any:
        if special == "plain":
            return self._encoding.encode_ordinary(text)
        return self._encoding.encode(text, allowed_special=_allowed(special), disallowed_special=())

    @cached_property
    def _encoding(self) -> Any:
        import tiktoken

        pattern = self._model.pattern if isinstance(self._model.pattern, str) else WHOLE_DOCUMENT
        try:
            return tiktoken.Encoding(
                "ranks",
                pat_str=pattern,
                mergeable_ranks=self._model.ranks,
                special_tokens=dict(self._model.special_tokens),
            )
        except ValueError as error:
            raise PretokenizerError(
                f"pretokenizer {pattern!r}: tiktoken cannot compile it ({error}). Write it in fancy-regex's syntax."
            ) from error


def _allowed(special: Parse) -> Any:
    return "all" if special == "parse" else set(special)


def _threads(threads: int) -> dict[str, int]:
    return {"num_threads": threads} if threads else {}
