"""BPE training, as plainly as it can be written.

Every step counts all pairs of neighbours in all words, takes the most frequent (ties: the smaller pair of
ids), and replaces it everywhere, left to right. Nothing is remembered between steps but the words themselves.
This is the definition; `_core.train_words` and `_core.FlatCorpus` must give the same merges.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

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


def train_superwords(
    words: Iterable[bytes], longer: Iterable[bytes], n_first: int, n_merges: int, *, max_words: int, **options: Any
) -> list[Pair]:
    """Two stages: merges of `words` until `n_first` ids are taken, then of `longer`, until `n_merges` are.

    `words` and `longer` are the same texts, cut by the split of each stage; `max_words` is the second stage's.
    """
    first = train(words, n_first, **options)
    return first + train(longer, n_merges, start=first, count_start=True, max_words=max_words, **options)
