"""Encoding with tiktoken, the library a `.tiktoken` file comes from. Optional: only compared with, or asked for."""

from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import SplitError
from piecemill.tokenizers.engine import Encoded
from piecemill.tokenizers.texts import pack, texts_of


def missing() -> str | None:
    """Why tiktoken cannot be used here; None if it can."""
    return None if find_spec("tiktoken") is not None else "tiktoken is not installed (pip install tiktoken)"


class TiktokenEngine:
    """One `tiktoken.Encoding`, built when first needed."""

    name = "tiktoken"
    bytes_per_token = 80

    def __init__(self, ranks: dict[bytes, int], pattern: str, special_tokens: dict[str, int], why: str) -> None:
        self._ranks = ranks
        self._pattern = pattern
        self._special_tokens = special_tokens
        self.why = why

    @property
    def version(self) -> str:
        from importlib.metadata import version

        return version("tiktoken")

    def forget(self) -> None:
        """Nothing: the library keeps little."""

    def encode(self, text: str, *, parse: bool) -> NDArray[np.uint32]:
        return np.array(self._ids(text, parse), np.uint32)

    def encode_flat(
        self, data: NDArray[np.uint8], ends: NDArray[np.int64], *, parse: bool, parallel: bool | None
    ) -> Encoded:
        texts = texts_of(data, ends)
        if parallel is False:
            return pack(self._ids(text, parse) for text in texts)
        if parse:
            return pack(self._encoding.encode_batch(texts, allowed_special="all"))
        return pack(self._encoding.encode_ordinary_batch(texts))

    def _ids(self, text: str, parse: bool) -> list[int]:
        encoding = self._encoding
        ids: list[int] = encoding.encode(text, allowed_special="all") if parse else encoding.encode_ordinary(text)
        return ids

    @cached_property
    def _encoding(self) -> Any:
        import tiktoken

        try:
            return tiktoken.Encoding(
                "ranks", pat_str=self._pattern, mergeable_ranks=self._ranks, special_tokens=self._special_tokens
            )
        except ValueError as error:
            raise SplitError(
                f"split {self._pattern!r}: tiktoken cannot compile it ({error}). Write it in fancy-regex's syntax."
            ) from error
