"""Encoding with HF `tokenizers`: any split its regex engine (Oniguruma) can compile."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import SplitError, TokenizerError
from piecemill.tokenizers.tokenizer_json import tokenizer_json
from piecemill.tokenizers.vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers


class HFEngine:
    """Two `tokenizers.Tokenizer`s, each loaded when first needed: special tokens as plain text, or as tokens."""

    name = "tokenizers"

    def __init__(self, vocabulary: Vocabulary, pattern: str | None, why: str) -> None:
        self._vocabulary = vocabulary
        self._pattern = pattern
        self.why = why

    def encode(self, text: str | bytes, *, parse: bool) -> NDArray[np.uint32]:
        engine = self._parsing if parse else self._plain
        return np.array(engine.encode(_as_str(text), add_special_tokens=False).ids, np.uint32)

    def encode_batch(
        self, texts: Sequence[str | bytes], *, parse: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        engine = self._parsing if parse else self._plain
        encoded = engine.encode_batch_fast([_as_str(text) for text in texts], add_special_tokens=False)
        rows = [np.array(one.ids, np.uint32) for one in encoded]
        ids = np.concatenate(rows) if rows else np.empty(0, np.uint32)
        return ids, np.cumsum([len(row) for row in rows], dtype=np.int64)

    @cached_property
    def _plain(self) -> "tokenizers.Tokenizer":
        engine = self._load()
        engine.encode_special_tokens = True
        return engine

    @cached_property
    def _parsing(self) -> "tokenizers.Tokenizer":
        return self._load()

    def _load(self) -> "tokenizers.Tokenizer":
        import tokenizers

        if self._pattern is not None:
            check_pattern(self._pattern)
        try:
            return tokenizers.Tokenizer.from_str(tokenizer_json(self._vocabulary, self._pattern))
        except Exception as error:
            raise TokenizerError(f"HF tokenizers {tokenizers.__version__} refused this tokenizer: {error}.") from error


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that Oniguruma cannot compile: no tokenizer.json with it would load anywhere."""
    import tokenizers

    try:
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    except Exception as error:
        raise SplitError(
            f"split {pattern!r}: HF tokenizers cannot compile it ({error}), so no tokenizer.json can carry it. "
            "Write it in Oniguruma's syntax; for 'dot matches newline' use [\\s\\S]."
        ) from error


def _as_str(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode()
