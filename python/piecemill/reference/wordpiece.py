"""WordPiece as BERT has it, as plainly as it can be written: encoding, and at the end learning a vocabulary.

Text is cleaned, ideographs get spaces around them, accents go, letters become small, white space and punctuation
separate words, and each word is spelled with the longest tokens from left to right. This is the definition;
`Encoder.wordpiece` must give the same ids.

One thing is not defined here: the age of the Unicode tables. Python's own are used. The Rust core has those of HF
`tokenizers` (Unicode 8 and 9), so characters that came or changed later may be treated differently.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from piecemill.reference.bpe import count_pairs, merge_word

IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
"The ranges that BERT's authors took for Chinese, as `tokenizers` has them."

WHITE = frozenset("\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | set(map(chr, range(0x2000, 0x200B)))
"Unicode's property White_Space. `str.isspace` has four controls more."


def clean(text: str) -> str:
    r"""`text` without controls, formats and private use; white space that is left becomes a space.

    >>> clean("a\tb\x0bc\u200bd\xa0e")
    'a bcd e'
    """
    kept = [c for c in text if c in "\t\n\r" or (c != "\ufffd" and unicodedata.category(c) not in ("Cc", "Cf", "Co"))]
    return "".join(" " if c in WHITE else c for c in kept)


def separate_ideographs(text: str) -> str:
    """`text` with a space on either side of each ideograph.

    >>> separate_ideographs("a中文b")
    'a 中  文 b'
    """
    return "".join(f" {c} " if any(low <= ord(c) <= high for low, high in IDEOGRAPHS) else c for c in text)


def strip_marks(text: str) -> str:
    """`text` decomposed, without its nonspacing marks.

    >>> strip_marks("é≠")
    'e='
    """
    return "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")


def is_punctuation(c: str) -> bool:
    """Unicode's punctuation, and the symbols of ASCII."""
    return unicodedata.category(c).startswith("P") or c in "$+<=>^`|~"


def pretokenize(text: str) -> Iterator[str]:
    """The words of a normalized text: white space is dropped, each punctuation mark is a word.

    >>> list(pretokenize("don't  stop!"))
    ['don', "'", 't', 'stop', '!']
    """
    word = ""
    for c in text:
        if c in WHITE or is_punctuation(c):
            if word:
                yield word
            word = ""
            if c not in WHITE:
                yield c
        else:
            word += c
    if word:
        yield word


def spell(word: str, vocabulary: Mapping[str, int], *, unk: int, prefix: str = "##", max_chars: int = 100) -> list[int]:
    """The longest token that `word` starts with, then the longest with `prefix` that the rest starts with, and so on.

    A word that cannot be spelled to its end, or has more than `max_chars` characters, is `unk` as a whole.

    >>> spell("unable", {"un": 1, "una": 2, "##ble": 3, "##b": 4}, unk=0)
    [2, 3]
    >>> spell("unbend", {"un": 1, "una": 2, "##ble": 3, "##b": 4}, unk=0)
    [0]
    """
    if len(word) > max_chars:
        return [unk]
    ids: list[int] = []
    start = 0
    while start < len(word):
        for end in range(len(word), start, -1):
            token = (prefix if start > 0 else "") + word[start:end]
            if token in vocabulary:
                ids.append(vocabulary[token])
                start = end
                break
        else:
            return [unk]
    return ids


def encode(
    text: str,
    vocabulary: Mapping[str, int],
    *,
    unk: int,
    prefix: str = "##",
    max_chars: int = 100,
    clean_text: bool = True,
    chinese: bool = True,
    strip_accents: bool | None = None,
    lowercase: bool = True,
) -> list[int]:
    """The ids of `text`. `strip_accents=None` means: if letters become small.

    >>> encode("Été 中", {"et": 1, "##e": 2, "中": 3}, unk=0)
    [1, 2, 3]
    """
    found = words(text, clean_text=clean_text, chinese=chinese, strip_accents=strip_accents, lowercase=lowercase)
    return [token for word in found for token in spell(word, vocabulary, unk=unk, prefix=prefix, max_chars=max_chars)]


def words(
    text: str,
    *,
    clean_text: bool = True,
    chinese: bool = True,
    strip_accents: bool | None = None,
    lowercase: bool = True,
) -> Iterator[str]:
    """The words of `text`, normalized."""
    if clean_text:
        text = clean(text)
    if chinese:
        text = separate_ideographs(text)
    if lowercase if strip_accents is None else strip_accents:
        text = strip_marks(text)
    if lowercase:
        text = "".join(c.lower() for c in text)  # each by itself: `str.lower` of a text knows the final sigma
    return pretokenize(text)


def train(
    counts: Mapping[str, int],
    vocab_size: int,
    *,
    special_tokens: Sequence[str] = (),
    min_frequency: int = 0,
    limit_alphabet: int | None = None,
    prefix: str = "##",
    inside: Sequence[str] | None = None,
) -> list[str]:
    """The vocabulary, by id, learned from words and how often each occurs.

    First come the special tokens, then the characters of all words by code point, the most frequent if there is a limit
    (of equal ones the smaller), then those that stand inside a word, with the prefix, by code point or in the order of
    `inside`. A character beyond the limit is left out of its word. Then the most frequent pair of neighbours (of equal
    ones the smaller pair of ids) is merged everywhere, until the vocabulary is full.

    >>> train({"ab": 3, "abc": 2, "bc": 1}, 8)
    ['a', 'b', 'c', '##b', '##c', 'ab', 'abc', 'bc']
    """
    seen: Counter[str] = Counter()
    for word, count in counts.items():
        for c in word:
            seen[c] += count
    alphabet = sorted(sorted(seen, key=lambda c: (-seen[c], c))[:limit_alphabet])
    tokens = list(dict.fromkeys([*special_tokens, *alphabet]))
    known = frozenset(tokens)
    later = {c for word in counts for c in word[1:] if c in known}
    tokens = list(dict.fromkeys([*tokens, *(prefix + c for c in inside or sorted(later))]))
    ids = {token: i for i, token in enumerate(tokens)}
    corpus: Counter[tuple[int, ...]] = Counter()
    for word, count in counts.items():
        corpus[tuple(ids[(prefix if at else "") + c] for at, c in enumerate(word) if c in known)] += count
    while len(tokens) < vocab_size:
        pairs = count_pairs(corpus)
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < max(min_frequency, 1):
            break
        token = tokens[best[0]] + tokens[best[1]].removeprefix(prefix)
        if ids.setdefault(token, len(tokens)) == len(tokens):
            tokens.append(token)
        merged: Counter[tuple[int, ...]] = Counter()
        for symbols, count in corpus.items():
            merged[merge_word(symbols, best, ids[token])] += count
        corpus = merged
    return tokens
