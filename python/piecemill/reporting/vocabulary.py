"""Facts about a vocabulary and how a corpus uses it: the sections "compression by size", "vocabulary" and "numbers".

A section is a plain dict, ready for JSON: title, rule, figures, tables, curves. `html` draws it.
"""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import invalid_documents
from piecemill.reporting.shards import RARE
from piecemill.reporting.tokenizers import spelling
from piecemill.tokenizers import Tokenizer
from piecemill.tokenizers.models.byte_bpe import ByteBPE
from piecemill.tokenizers.models.ranks import Ranks, halves
from piecemill.tokenizers.texts import flat_tokens

Counts = NDArray[np.uint64]
Ints = NDArray[np.int64]

EXAMPLES = 12
_POINTS = 40
_RESIDUE = 0.01
"A token is a residue if it is emitted in less than this share of its uses; the others are inside larger tokens."

# Names of letters in Unicode begin with their script. Japanese mixes three, so they count as one.
_SCRIPTS = {
    **{name: name.capitalize() for name in ("LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "HEBREW", "ARABIC", "GEORGIAN")},
    **{name: name.capitalize() for name in ("DEVANAGARI", "BENGALI", "TAMIL", "TELUGU", "THAI", "HANGUL", "ETHIOPIC")},
    **dict.fromkeys(("CJK", "HIRAGANA", "KATAKANA"), "Han or Kana"),
}
_INDENTS = {f"{n} spaces": " " * n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24)} | {f"{n} tabs": "\t" * n for n in (1, 2, 4)}
_CODE = (
    *("snake_case_name", "camelCaseName", "PascalCaseName", "SCREAMING_SNAKE", "kebab-case-name", "__init__"),
    *("i", "x1", "self.assertEqual(", "for (int i = 0; i < n; i++) {", "std::unique_ptr<Node>", "return None"),
    *("=> {", "!==", "//"),
    *("https://example.org/a?b=c", "user@example.org", "0xDEADBEEF", "3.14159", "1,000,000", "2024-01-31", "\r\n\r\n"),
)


def section(key: str, title: str, rule: str, **parts: Any) -> dict[str, Any]:
    """One section: what it is, the rule behind its figures in a sentence, and its figures, tables and curves."""
    return {"id": key, "title": title, "rule": rule, **parts}


def table(title: str, rows: Iterable[Mapping[str, Any]], *, bar: str | None = None, note: str = "") -> dict[str, Any]:
    """Rows with the same keys; the column `bar` is drawn with a bar behind its numbers."""
    return {"title": title, "note": note, "bar": bar, "rows": [dict(row) for row in rows]}


@dataclass(frozen=True, slots=True)
class Merges:
    """A byte-level vocabulary as merges: which two tokens each token is made of, best first."""

    byte_ids: list[int]
    "The id of each byte; of a smaller alphabet, of the bytes in it."
    pairs: NDArray[np.int64]
    "Pairs of ids, a row for each merge."
    made: NDArray[np.int64]
    "The id that each merge makes; no id twice."
    whole: dict[bytes, int]
    "Tokens that no merges make; a pretoken that is one of them is that token (tiktoken's rule)."


def merges_of(tokenizer: Tokenizer) -> Merges | None:
    """The merges of byte-level BPE, also of ranks, which do not list them; None for other kinds of models."""
    model = tokenizer.model
    if isinstance(model, ByteBPE):
        vocabulary = tokenizer.vocabulary
        tokens, ids = vocabulary.tokens, vocabulary.ids
        pairs = vocabulary.merges.astype(np.int64)
        base = len(vocabulary.alphabet)
        if len(pairs) == len(vocabulary.ranked) - base:
            made = np.array(vocabulary.ranked[base:], np.int64)
        else:
            made = np.array([ids.get(tokens[left] + tokens[right], -1) for left, right in pairs.tolist()], np.int64)
            first = np.zeros(len(made), bool)
            first[np.unique(made, return_index=True)[1]] = True
            pairs, made = pairs[first & (made >= 0)], made[first & (made >= 0)]
        return Merges([ids[bytes([byte])] for byte in sorted(vocabulary.alphabet)], pairs, made, {})
    if isinstance(model, Ranks):
        return _merges_of_ranks(model.ranks)
    return None


def _merges_of_ranks(ranks: Mapping[bytes, int]) -> Merges:
    """Encode each token with the ranks below its own: the two parts that are left are what makes it."""
    pairs, made, whole = [], [], {}
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        left, right = halves(token, ranks, rank)
        if left:
            pairs.append((ranks[left], ranks[right]))
            made.append(rank)
        else:
            whole[token] = rank
    two_columns = np.array(pairs, np.int64).reshape(-1, 2)
    return Merges([ranks[bytes([byte])] for byte in range(256)], two_columns, np.array(made, np.int64), whole)


def uses_of_merges(merges: Merges, counts: Counts) -> tuple[Ints, Ints]:
    """How often each merge is applied when a corpus with these token counts is encoded, and each token is used.

    A token is used where it is emitted and where it is a part of a larger one. The parts of a token are always the
    same, so the counts of the tokens are enough: from the last merge to the first, its uses are passed to both parts.
    """
    uses, made, pairs = counts.astype(np.int64).tolist(), merges.made.tolist(), merges.pairs.tolist()
    applied = np.zeros(len(pairs), np.int64)
    for rank in range(len(pairs) - 1, -1, -1):
        if number := uses[made[rank]]:
            applied[rank] = number
            left, right = pairs[rank]
            uses[left] += number
            uses[right] += number
    return applied, np.array(uses, np.int64)


def compression_by_size(tokenizer: Tokenizer, merges: Merges | None, counts: Counts) -> dict[str, Any] | None:
    """Bytes per token for every smaller vocabulary with the same first merges; None where there are no merges."""
    if merges is None or not len(merges.made):
        return None
    applied, _ = uses_of_merges(merges, counts)
    made = np.concatenate([merges.byte_ids, merges.made])
    sizes = np.array([len(tokenizer.bytes_of(i)) for i in made.tolist()], np.int64)
    size = int((sizes * counts[made].astype(np.int64)).sum())
    if not size:
        return None
    tokens = size - np.concatenate([np.zeros(1, np.int64), np.cumsum(applied)])
    first = tokenizer.vocab_size - len(applied)
    steps = np.unique(np.geomspace(1, len(applied), _POINTS).astype(np.int64))
    last_tenth = max(0, len(applied) - tokenizer.vocab_size // 10)
    steps = np.unique(np.concatenate([np.zeros(1, np.int64), steps, [last_tenth]]))
    whole, shorter = (size / int(tokens[at]) for at in (-1, last_tenth))
    points = [[first + int(at), round(size / int(tokens[at]), 4)] for at in steps.tolist()]
    return {
        "figures": {
            "bytes_per_token": whole,
            "bytes_per_token_with_nine_tenths_of_the_vocabulary": shorter,
            "gain_of_the_last_tenth_share": whole / shorter - 1,
        },
        "curve": {
            "title": "Bytes per token by vocabulary size",
            "x": "tokens in the vocabulary",
            "y": "bytes per token",
            "log": True,
            "series": [{"name": "this vocabulary", "points": points}],
        },
    }


def vocabulary_section(tokenizer: Tokenizer, merges: Merges | None, counts: Counts | None) -> dict[str, Any]:
    """Which tokens are wasted, broken or doubled, with examples."""
    texts = [spelling(tokenizer, i) for i in range(tokenizer.vocab_size)]
    raw = bytes_of_tokens(tokenizer)
    special = set(tokenizer.special_tokens.values())
    plain = [i for i in range(tokenizer.vocab_size) if i not in special and texts[i]]
    found: dict[str, list[int]] = {}
    if counts is not None:
        found["never emitted"] = [i for i in plain if not counts[i]]
        found[f"emitted under {RARE} times"] = [i for i in plain if 0 < counts[i] < RARE]
    if raw is not None:
        broken = {plain[row] for row, _ in invalid_documents(*flat_tokens(raw[i] for i in plain))}
        if tokenizer.exact:
            whole = [i for i in plain if i not in broken]
            found["unreachable: its own text encodes to other tokens"] = _unreachable(tokenizer, whole, raw)
        found["incomplete UTF-8"] = sorted(broken)
    found["several scripts in one token"] = [i for i in plain if len(_scripts(texts[i])) > 1]
    if counts is not None and merges is not None:
        _, uses = uses_of_merges(merges, counts)
        emitted = counts.astype(np.int64)
        found["merge residue: hardly emitted, but part of other tokens"] = [
            i for i in plain if uses[i] >= RARE and emitted[i] < _RESIDUE * uses[i] and len(raw[i] if raw else "ab") > 1
        ]
    twins = _twins(plain, texts)
    longest = sorted(plain, key=lambda i: (-len(raw[i] if raw is not None else texts[i]), i))[:EXAMPLES]
    in_twins = sum(len(group) for group in twins)
    size = max(1, len(plain))
    rows = [{"finding": name, "tokens": len(ids), "tokens_share": len(ids) / size} for name, ids in found.items()]
    rows.append(
        {
            "finding": "near twins: equal but for case and leading space",
            "tokens": in_twins,
            "tokens_share": in_twins / size,
        }
    )
    examples = [
        {"finding": name, **_token(i, texts, counts)} for name, ids in found.items() for i in _spread(ids, EXAMPLES)
    ]
    return section(
        "vocabulary",
        "Vocabulary",
        f"A token that a corpus has under {RARE} times is hardly trained; an id that is never emitted costs a row of "
        "the embedding for nothing."
        + ("" if counts is not None else " There are no exact counts: give a prepared folder of this tokenizer."),
        figures={"tokens": tokenizer.vocab_size, "special_tokens": len(special)},
        tables=[
            table("Findings", rows, bar="tokens_share"),
            table("Examples", examples, note="Spread evenly over the ids."),
            table("Longest tokens", [{**_token(i, texts, counts), "bytes": len(texts[i].encode())} for i in longest]),
            table(
                "Near twins",
                [
                    {
                        "text": min((texts[i] for i in group), key=len).strip(),
                        "tokens": "  ".join(repr(texts[i]) for i in group),
                    }
                    for group in twins[:EXAMPLES]
                ],
            ),
        ],
    )


def numbers_section(tokenizer: Tokenizer) -> dict[str, Any]:
    """How numbers, white space and code are cut."""
    numbers = [str(n) for n in range(10_000)]
    _, ends = tokenizer.encode_batch(numbers)
    lengths = np.diff(ends, prepend=0)
    digits = np.array([len(number) for number in numbers])
    by_digits = [
        {
            "numbers": f"{10 ** (d - 1) if d > 1 else 0} to {10**d - 1}",
            "mean_tokens": float(lengths[digits == d].mean()),
            "most_tokens": int(lengths[digits == d].max()),
            "one_token_share": float((lengths[digits == d] == 1).mean()),
        }
        for d in range(1, 5)
    ]
    return section(
        "numbers",
        "Numbers, white space and code",
        "Numbers of the same length that are cut alike are easier to calculate with; indents and identifiers that take "
        "few tokens make code short.",
        tables=[
            table("The numbers 0 to 9999", by_digits, bar="one_token_share"),
            table(
                "Indents", [{"indent": name, "tokens": len(tokenizer.encode(text))} for name, text in _INDENTS.items()]
            ),
            table("Code and other text", [_cut(tokenizer, text) for text in _CODE]),
        ],
    )


def _cut(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    ids = tokenizer.encode(text).tolist()
    return {"text": text, "tokens": len(ids), "cut": " | ".join(spelling(tokenizer, i) for i in ids)}


def _token(i: int, texts: Sequence[str], counts: Counts | None) -> dict[str, Any]:
    return {"id": i, "token": texts[i], **({} if counts is None else {"count": int(counts[i])})}


def _spread(ids: Sequence[int], most: int) -> list[int]:
    return [ids[at * len(ids) // min(most, len(ids))] for at in range(min(most, len(ids)))]


def bytes_of_tokens(tokenizer: Tokenizer) -> list[bytes] | None:
    """The bytes of every token; None where tokens are not bytes."""
    table = tokenizer.model.decode_table()
    return None if table is None else [token or b"" for token in table.tokens]


def _unreachable(tokenizer: Tokenizer, tokens: Sequence[int], raw: Sequence[bytes]) -> list[int]:
    if not tokens:
        return []
    ids, ends = tokenizer.encode_flat(*flat_tokens(raw[i] for i in tokens))
    alone = np.diff(ends, prepend=0) == 1
    return [i for at, i in enumerate(tokens) if not alone[at] or int(ids[ends[at] - 1]) != i]


@lru_cache(maxsize=1 << 16)
def _script(letter: str) -> str | None:
    return _SCRIPTS.get(unicodedata.name(letter, "").partition(" ")[0]) if letter.isalpha() else None


def _scripts(text: str) -> set[str]:
    return {script for letter in set(text) if (script := _script(letter)) is not None} if not text.isascii() else set()


def _twins(tokens: Sequence[int], texts: Sequence[str]) -> list[list[int]]:
    """Tokens that are equal but for case and a leading space; the largest groups first."""
    groups: dict[str, list[int]] = defaultdict(list)
    for i in tokens:
        if any(map(str.isalpha, text := texts[i].strip(" ▁").casefold())):
            groups[text].append(i)
    return sorted((group for group in groups.values() if len(group) > 1), key=lambda group: (-len(group), group[0]))
