"""The vocabulary of a byte-level BPE tokenizer: which bytes each id stands for, and which merge makes it.

Ids of a trained vocabulary, as HF's BpeTrainer numbers them: special tokens in order, then the bytes in `BYTE_ORDER`
(all 256, or those of a smaller alphabet), then what each merge makes. A string that already has an id keeps it: if a
merge makes the very string of a special token, both share the special token's id and the vocabulary does not grow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import TokenizerError
from piecemill.tokenizers.models.byte_level import BYTE_ORDER, bytes_of


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What the ids mean. Build it with `from_merges`, or by `loading`."""

    tokens: list[bytes]
    "The bytes of each id; of a special token the UTF-8 of its text, unless ordinary bytes share its id."
    merges: NDArray[np.uint32]
    "Pairs of ids, best first; shape (n, 2), read-only."
    special_tokens: dict[str, int]
    "Text and id of each special token."
    ranked: list[int]
    "Every id that ordinary text can reach, in the order made: bytes first, then merges."

    @classmethod
    def from_merges(
        cls, merges: NDArray[np.uint32], special_tokens: Sequence[str], alphabet: bytes | None = None
    ) -> "Vocabulary":
        """Number the tokens that `merges` (pairs of final ids) make; `alphabet` are the bytes with ids, if not all."""
        pairs = checked_merges(merges)
        check_special_tokens(special_tokens)
        # A special token has no bytes (None) until ordinary bytes turn out to share its id.
        tokens: list[bytes | None] = [None] * len(special_tokens)
        ids = {key: i for i, text in enumerate(special_tokens) if (key := bytes_of(text)) is not None}
        ranked: list[int] = []

        def add(token: bytes) -> None:
            made = ids.setdefault(token, len(tokens))
            if made == len(tokens):
                tokens.append(token)
            elif tokens[made] is None:
                tokens[made] = token
            else:
                return
            ranked.append(made)

        for byte in BYTE_ORDER:
            if alphabet is None or byte in alphabet:
                add(bytes([byte]))
        try:
            for left, right in zip(*pairs.T.tolist(), strict=True):  # two columns: no list per pair to collect
                add(tokens[left] + tokens[right])
        except (IndexError, TypeError):
            raise TokenizerError(_unknown_pair(tokens, pairs)) from None
        named = {text: i for i, text in enumerate(special_tokens)}
        return cls(_filled(tokens, named), pairs, named, ranked)

    def with_special(self, texts: Sequence[str]) -> "Vocabulary":
        """The same with special tokens for `texts`: after the last id, or on that of the token that is spelled so."""
        check_special_tokens(texts)
        tokens, special = list(self.tokens), dict(self.special_tokens)
        for text in texts:
            special[text] = self.ids.get(bytes_of(text) or b"", len(tokens))
            tokens += [text.encode()] * (special[text] == len(tokens))
        return replace(self, tokens=tokens, special_tokens=special)

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """The id of each token that ordinary text can reach."""
        return {self.tokens[i]: i for i in self.ranked}

    @cached_property
    def alphabet(self) -> bytes:
        """The bytes that have a token: the first ones of `ranked`."""
        return b"".join(one for one in (self.tokens[i] for i in self.ranked[:256]) if len(one) == 1)


def checked_merges(merges: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """`merges` as a read-only (n, 2) copy."""
    given = np.asarray(merges)
    if given.size == 0:
        given = np.empty((0, 2), np.uint32)
    if given.ndim != 2 or given.shape[1] != 2 or given.dtype.kind not in "iu":
        raise TokenizerError(
            f"merges: got an array of shape {given.shape} and type {given.dtype}; "
            "expected pairs of token ids, shape (n, 2)."
        )
    if given.size and (given.min() < 0 or given.max() > np.iinfo(np.uint32).max):
        raise TokenizerError(f"merges: ids from {given.min()} to {given.max()}; expected ids from 0 to 4,294,967,295.")
    pairs = np.array(given, np.uint32, order="C")
    pairs.flags.writeable = False
    return pairs


def check_special_tokens(special_tokens: Sequence[str]) -> None:
    """Refuse special tokens that no text could name, or that name two ids."""
    if isinstance(special_tokens, str):
        raise TokenizerError(
            f"special_tokens={special_tokens!r}: expected a list of strings; write [{special_tokens!r}]."
        )
    seen: set[str] = set()
    for text in special_tokens:
        if not isinstance(text, str) or not text:
            raise TokenizerError(f"special token {text!r}: expected a string of at least one character.")
        if len(text) == 1 and bytes_of(text) is not None:
            raise TokenizerError(
                f"special token {text!r}: this is how tokenizer.json writes byte 0x{bytes_of(text).hex()}, so "  # type: ignore[union-attr]
                "every such byte in a text would become it. Give it a longer name, such as '<|end|>'."
            )
        if text in seen:
            raise TokenizerError(f"special token {text!r} is given twice; give each once.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"special token {text!r}: character {error.start} is half of a surrogate pair; "
                "expected text that UTF-8 can hold."
            ) from None
        seen.add(text)


def _filled(tokens: list[bytes | None], special_tokens: dict[str, int]) -> list[bytes]:
    texts = {i: text for text, i in special_tokens.items()}
    return [texts[i].encode() if token is None else token for i, token in enumerate(tokens)]


def _unknown_pair(tokens: list[bytes | None], pairs: NDArray[np.uint32]) -> str:
    # Found again from the start: the quick loop above does not keep its place.
    known = len(tokens)
    for row, pair in enumerate(pairs.tolist()):
        for i in pair:
            if i >= known:
                return (
                    f"merges[{row}] = {tuple(pair)}: id {i} is not made before it, only {known:,} ids are. "
                    "Expected final ids: special tokens, then 256 bytes, then what each merge makes."
                )
            if tokens[i] is None:
                return (
                    f"merges[{row}] = {tuple(pair)}: id {i} is a special token, which is not part of any text. "
                    "Expected final ids, counted from after the special tokens."
                )
    return "merges: a pair names an id that does not exist"  # pragma: no cover
