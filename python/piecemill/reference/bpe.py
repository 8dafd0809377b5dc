"""BPE training, as plainly as it can be written.

Every step counts all pairs of neighbours in all words, takes the most frequent (ties: the smaller pair of
ids), and replaces it everywhere, left to right. Nothing is remembered between steps but the words themselves.
This is the definition; `_core.FlatCorpus` must give the same merges.
`train_balanced` chooses each pair for the group of words that is compressed worst so far.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

Pair = tuple[int, int]


def count_pairs(words: Mapping[tuple[int, ...], int]) -> Counter[Pair]:
    """How often each pair of neighbours occurs; `aaa` has (a, a) twice."""
    counts: Counter[Pair] = Counter()
    for word, weight in words.items():
        for pair in pairwise(word):
            counts[pair] += weight
    return counts


def merge_word(word: Sequence[int], pair: Pair, token: int) -> tuple[int, ...]:
    """`word` with every `pair` replaced by `token`, left to right: with (a, a), `aaa` becomes `aa a`."""
    merged: list[int] = []
    at = 0
    while at < len(word):
        if tuple(word[at : at + 2]) == pair:
            merged.append(token)
            at += 2
        else:
            merged.append(word[at])
            at += 1
    return tuple(merged)


def count_words(token: bytes) -> int:
    """How many words a token has: runs of bytes without white space (space, tab, newline, return, form feed).

    >>> count_words(b" of the"), count_words(b"the"), count_words(b"x=1"), count_words(b"  ")
    (2, 1, 1, 0)
    """
    return len(re.findall(rb"[^ \t\n\r\f]+", token))


def train(
    words: Iterable[bytes] | Mapping[bytes, int],
    n_merges: int,
    *,
    byte_ids: Sequence[int] = range(256),
    special_tokens: Sequence[bytes] = (),
    start: Sequence[Pair] = (),
    count_start: bool = False,
    min_frequency: int = 0,
    max_token_bytes: int | None = None,
    max_words: int | None = None,
) -> list[Pair]:
    """The merges learned from `words` (a mapping gives counts), at most until `n_merges` ids are taken.

    Merges in `start` were learned before, from these words or others: they are made first, in their order, take the
    first ids, and are not given back; only with `count_start` are their ids among the `n_merges`.

    `byte_ids` are the ids of the 256 bytes; new tokens take the ids after the largest of them. A new token
    whose bytes equal a special token takes that token's id (its place in `special_tokens`) and no new one.

    >>> train([b"aaabdaaabac"], n_merges=3)
    [(97, 97), (97, 98), (256, 257)]
    """
    counted = Counter(words)
    corpus: Counter[tuple[int, ...]] = Counter()
    for word, weight in counted.items():
        corpus[tuple(byte_ids[byte] for byte in word)] += weight
    strings = {byte_ids[byte]: bytes([byte]) for byte in range(256)}
    next_id = max(byte_ids) + 1
    merges: list[Pair] = []

    def merge(pair: Pair) -> None:
        nonlocal corpus, next_id
        string = strings[pair[0]] + strings[pair[1]]
        if string in special_tokens:
            token = special_tokens.index(string)
        else:
            token, next_id = next_id, next_id + 1
        strings[token] = string
        merged: Counter[tuple[int, ...]] = Counter()
        for ids, weight in corpus.items():
            merged[merge_word(ids, pair, token)] += weight
        corpus = merged

    last_id = next_id + n_merges
    for pair in start:
        merge(pair)
    if not count_start:
        last_id += next_id - max(byte_ids) - 1
    while next_id < last_id:
        counts = {
            pair: count
            for pair, count in count_pairs(corpus).items()
            if count >= max(min_frequency, 1)
            and (max_token_bytes is None or len(strings[pair[0]] + strings[pair[1]]) <= max_token_bytes)
            and (max_words is None or count_words(strings[pair[0]] + strings[pair[1]]) <= max_words)
        }
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merge(best)
        merges.append(best)
    return merges


def train_balanced(
    groups: Sequence[Mapping[bytes, int]],
    n_merges: int,
    *,
    measure_on: Sequence[Mapping[bytes, int]] | None = None,
    after: int = 0,
    window: int = 0,
    byte_ids: Sequence[int] = range(256),
    min_frequency: int = 0,
    ties: Literal["smaller ids", "larger strings"] = "smaller ids",
) -> tuple[list[Pair], list[int]]:
    """The merges learned from groups of words, each chosen for the group that is compressed worst; and how many tokens
    each group has at the end.

    The worst group has the fewest bytes per token; or, with `measure_on` (the same texts for every group), the most
    tokens of those. Of equal ones it is the first. The pair that is most frequent in it is merged in all. A group
    without a pair left is passed over. The first `after` merges are chosen by the counts over all groups. With
    `window`, groups that had more than twice their share of that many merges before come after those that had not.
    "larger strings" is the rule of HF `tokenizers` for pairs of equal counts.

    >>> train_balanced([{b"aab": 1}, {b"cccc": 9}], 2)[0]
    [(97, 97), (99, 99)]
    """
    corpora = [[([byte_ids[byte] for byte in word], weight) for word, weight in group.items()] for group in groups]
    measured = [
        [([byte_ids[byte] for byte in word], weight) for word, weight in group.items()] for group in measure_on or ()
    ]
    strings: dict[int, tuple[int, ...]] = {byte_ids[byte]: (byte_ids[byte],) for byte in range(256)}
    merges: list[Pair] = []
    chosen: list[int] = []

    def tokens(words: list[tuple[list[int], int]]) -> int:
        return sum(len(word) * weight for word, weight in words)

    size = [tokens(words) for words in corpora]

    def rate(group: int) -> Fraction:
        """Smaller is worse."""
        if measure_on is not None:
            return Fraction(-tokens(measured[group]))
        return Fraction(size[group], max(tokens(corpora[group]), 1))

    def best(words: list[tuple[list[int], int]]) -> Pair | None:
        counts: Counter[Pair] = Counter()
        for word, weight in words:
            for pair in pairwise(word):
                counts[pair] += weight
        frequent = [pair for pair, count in counts.items() if count >= max(min_frequency, 1)]
        if ties == "larger strings":
            return max(frequent, key=lambda pair: (counts[pair], strings[pair[0]], strings[pair[1]]), default=None)
        return min(frequent, key=lambda pair: (-counts[pair], pair), default=None)

    while len(merges) < n_merges:
        if len(merges) < after:
            pair = best([one for words in corpora for one in words])
        else:
            had = Counter(chosen[-window:] if window else ())
            late = [had[group] * len(corpora) > 2 * window for group in range(len(corpora))]
            order = sorted(range(len(corpora)), key=lambda group: (late[group], rate(group)))
            found = ((group, best(corpora[group])) for group in order)
            group, pair = next((one for one in found if one[1] is not None), (0, None))
            chosen.append(group)
        if pair is None:
            break
        token = max(byte_ids) + 1 + len(merges)
        strings[token] = strings[pair[0]] + strings[pair[1]]
        merges.append(pair)
        for words in (*corpora, *measured):
            words[:] = [(list(merge_word(word, pair, token)), weight) for word, weight in words]
    return merges, [tokens(words) for words in corpora]


def train_superwords(
    words: Iterable[bytes], longer: Iterable[bytes], n_first: int, n_merges: int, *, max_words: int, **options: Any
) -> list[Pair]:
    """Two stages: merges of `words` until `n_first` ids are taken, then of `longer`, until `n_merges` are.

    `words` and `longer` are the same texts, cut by the pretokenizer of each stage; `max_words` is the second stage's.
    """
    first = train(words, n_first, **options)
    return first + train(longer, n_merges, start=first, count_start=True, max_words=max_words, **options)
