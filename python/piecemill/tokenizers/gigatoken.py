"""Encoding with gigatoken: the three named splits, and whole documents.

For `none` gigatoken's byte-level loader has no answer: it always splits. Its SentencePiece loader does not,
but works on characters. So that loader is given a vocabulary in which byte b is the character U+00b, and the
text is passed as Latin-1 reads its UTF-8. ASCII text goes in as it is. The ids are those of byte-level BPE, and
for a megabyte of source code they come about 15 times sooner than from HF `tokenizers`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.tokenizers.splits import PATTERNS
from piecemill.tokenizers.tokenizer_json import assemble, pre_tokenizer
from piecemill.tokenizers.vocabulary import Vocabulary

_FALLBACKS = [f"<0x{byte:02X}>" for byte in range(256)]
"How SentencePiece vocabularies spell a byte."


def why_not(vocabulary: Vocabulary, pattern: str | None) -> str | None:
    """Why gigatoken cannot give HF's ids for this tokenizer; None if it can. Only splits we compared count."""
    if pattern is not None:
        return None if pattern in PATTERNS.values() else "gigatoken does not have this split"
    learned = next((name for name in _FALLBACKS if name.encode() in vocabulary.ids), None)
    return learned and f"gigatoken would take the learned token {learned!r} for a byte"


class GigatokenEngine:
    """Two gigatoken tokenizers, each loaded when first needed: special tokens as plain text, or as tokens."""

    name = "gigatoken"

    def __init__(self, vocabulary: Vocabulary, pattern: str | None) -> None:
        self._vocabulary = vocabulary
        self._pattern = pattern
        self.why = "it has this split" if pattern is not None else "it can merge over whole documents"

    def encode(self, text: str | bytes, *, parse: bool) -> NDArray[np.uint32]:
        ids: NDArray[np.uint32] = self._engine(parse).encode(self._given(text))
        return ids

    def encode_batch(
        self, texts: Sequence[str | bytes], *, parse: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        given = [self._given(text) for text in texts]
        if len({type(text) for text in given}) > 1:
            given = [text.encode() if isinstance(text, str) else text for text in given]
        layout = self._engine(parse).encode_batch(given).layout
        offsets = np.asarray(layout.offsets.data)
        ids = np.asarray(layout.content.data)[offsets[0] : offsets[-1]]
        return ids, offsets[1:] - offsets[0]

    def _given(self, text: str | bytes) -> str | bytes:
        if self._pattern is not None or text.isascii():
            return text
        return (text.encode() if isinstance(text, str) else text).decode("latin-1")

    def _engine(self, parse: bool) -> Any:
        return self._parsing if parse and self._vocabulary.special_tokens else self._plain

    @cached_property
    def _plain(self) -> Any:
        # Without added_tokens the text of a special token is text like any other.
        return self._load({})

    @cached_property
    def _parsing(self) -> Any:
        return self._load(self._vocabulary.special_tokens)

    def _load(self, added_tokens: dict[str, int]) -> Any:
        import gigatoken

        if self._pattern is not None:
            spelled = self._vocabulary.characters()
            text = assemble(
                spelled,
                self._vocabulary,
                added_tokens=added_tokens,
                pre_tokenizer=pre_tokenizer(self._pattern),
                decoder=None,
            )
            return gigatoken.Tokenizer.from_json(text)
        return gigatoken.Tokenizer.from_json(_whole_documents(self._vocabulary, added_tokens))


def _whole_documents(vocabulary: Vocabulary, added_tokens: dict[str, int]) -> str:
    spelled = [token.decode("latin-1") for token in vocabulary.tokens]
    for i in vocabulary.special_tokens.values():
        # Reached through added_tokens only: in the vocabulary it could stand in the way of a learned token
        # with the same bytes (" the" the special token and " the" the word are two).
        if i not in vocabulary.reachable:
            spelled[i] = f"\N{REPLACEMENT CHARACTER}{i}"
    # The loader asks for these; every byte has a token, so none is ever used.
    spelled += _FALLBACKS
    latin = {text.encode().decode("latin-1"): i for text, i in added_tokens.items()}
    return assemble(spelled, vocabulary, added_tokens=latin, pre_tokenizer=None, decoder=None, byte_fallback=True)
