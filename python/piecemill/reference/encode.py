"""Encoding, as it is defined: merge the best pair, the leftmost of equal ones, until nothing can be merged.

Slow and plain. `src/encode/` must give the same ids for every text. It takes one word at a time: what cuts a text into
words is the pretokenizer, whose definition is its regex (`_core.split_text_reference`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

Pair = tuple[bytes, bytes]


def by_ranks(ranks: Mapping[bytes, int]) -> Callable[[bytes, bytes], int | None]:
    """tiktoken and SentencePiece: two parts merge if they spell a token; its rank says how soon."""
    return lambda left, right: ranks.get(left + right)


def by_merges(merges: Sequence[Pair]) -> Callable[[bytes, bytes], int | None]:
    """HF `tokenizers`: two parts merge if the pair is listed; its place says how soon (the last, if listed twice)."""
    places = {pair: place for place, pair in enumerate(merges)}
    return lambda left, right: places.get((left, right))


def merge(units: Iterable[bytes], rank: Callable[[bytes, bytes], int | None]) -> list[bytes]:
    """The tokens of a word that is given as its units: bytes, or characters.

    >>> merge([b"a", b"b", b"a", b"b", b"c"], by_merges([(b"a", b"b"), (b"ab", b"ab")]))
    [b'abab', b'c']
    """
    parts = list(units)
    while True:
        ranked = [(rank(left, right), at) for at, (left, right) in enumerate(pairwise(parts))]
        candidates = [(found, at) for found, at in ranked if found is not None]
        if not candidates:
            return parts
        _, at = min(candidates)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def encode_bytes(
    word: bytes, ids: Mapping[bytes, int], merges: Sequence[Pair] | None, *, whole_words: bool = False
) -> list[int]:
    """Byte-level BPE of one word. Without `merges` the ids are ranks; with `whole_words` a word that is a token is that
    token before any merging.

    >>> ids = {b"a": 0, b"b": 1, b"ab": 2, b"aba": 3}
    >>> encode_bytes(b"aba", ids, None), encode_bytes(b"aab", ids, [(b"a", b"a")] * 0)
    ([3], [0, 0, 1])
    """
    if whole_words and word in ids:
        return [ids[word]]
    rank = by_ranks(ids) if merges is None else by_merges(merges)
    return [ids[part] for part in merge([bytes([byte]) for byte in word], rank)]


def encode_characters(text: str, ids: Mapping[str, int], byte_ids: Sequence[int], *, prefix: bool) -> list[int]:
    """SentencePiece BPE of a whole text, without normalization: a space is U+2581, `ids` are in the order of scores,
    and a character without a piece becomes its bytes.

    >>> encode_characters("a b", {"▁a": 7, "▁": 8, "a": 9}, range(100, 356), prefix=True)
    [7, 8, 198]
    """
    if not text:
        return []
    spelled = (" " + text if prefix else text).replace(" ", "▁")
    order = {piece.encode(): place for place, piece in enumerate(ids)}
    written: list[int] = []
    for part in merge([character.encode() for character in spelled], by_ranks(order)):
        known = ids.get(part.decode())
        written += [known] if known is not None else [byte_ids[byte] for byte in part]
    return written
