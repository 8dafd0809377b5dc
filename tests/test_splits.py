"""Splits: the scanners equal the regex, and the regex equals what HF tokenizers, tiktoken and `regex` make of it.

The Rust tests in src/pretoken/tests.rs walk every mix of short texts; here are long ones, real ones, and the oracles.
"""

import random
import sys
import sysconfig
import unicodedata
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import regex
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from piecemill._core import split_pattern, split_text, split_text_reference
from piecemill.errors import SplitError

NAMED = ["gpt2", "cl100k", "o200k"]
SCRIPTS = Path(__file__).with_name("scripts.txt").read_text(encoding="utf-8")

BLANKS = "\t\v\f\x1c\x1f \x85\xa0\u1680\u180e\u2000\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
CONTRACTIONS = [
    "'s",
    "'S",
    "'ſ",
    "'t",
    "'T",
    "'re",
    "'rE",
    "'VE",
    "'m",
    "'M",
    "'ll",
    "'lL",
    "'d",
    "'D",
    "'K",
    "’s",
    "''",
]
LETTERS = "aszAKZßéÉſKǅǈʰªºאعनกあ中한ᏣꮳᲗთ𐐀𐐨𝔘"
MARKS = "\u0301\u0308\u05b8\u064b\u093f\u0e31\u20dd\ufe0f\U000e0100"
NUMBERS = "0179٣१๓፲½²Ⅷ①〇３𝟙"
SYMBOLS = "!'\"/_-.()#$€—…“«¿。؟\u200d\x00\x7f👍🏽\ue000\uffff\U0010ffff"
PIECES = [*BLANKS, *CONTRACTIONS, *LETTERS, *MARKS, *NUMBERS, *SYMBOLS, "\r", "\n", "\r\n", "\n\n", " \n", "  ", "//"]


def pieces(text: str, split: str) -> list[str]:
    """The pretokens as strings: every cut is between two characters, or this raises."""
    data, start, out = text.encode(), 0, []
    for end in split_text(text, split).tolist():
        out.append(data[start:end].decode())
        start = end
    assert start == len(data)
    return out


def agree(text: str, split: str) -> None:
    got, want = split_text(text, split).tolist(), split_text_reference(text, split).tolist()
    if got != want:
        first = min(set(got) ^ set(want))
        near = text.encode()[max(first - 40, 0) : first + 40]
        pytest.fail(f"{split}: {'scanner' if first in got else 'regex'} alone cuts at byte {first}, in {near!r}")


# By hand


@pytest.mark.parametrize(
    ("split", "text", "want"),
    [
        ("gpt2", "Don't we'LL", "Don|'t| we|'|LL"),
        ("gpt2", "a  b\n\nc \n d  ", "a| | b|\n|\n|c| \n| d|  "),
        ("gpt2", "x = 'it's' !'s", "x| =| '|it|'s|'| !'|s"),
        ("gpt2", "12345 678é!?", "12345| 678|é|!?"),
        ("cl100k", "Don't we'LL 'ſo", "Don|'t| we|'LL| '|ſo"),
        ("cl100k", "(foo) !foo\tbar", "(foo|)| !|foo|\tbar"),
        ("cl100k", "12345 678", "123|45| |678"),
        ("cl100k", "a;\n\n  b \n\n   c\n", "a|;\n\n| | b| \n\n|  | c|\n"),
        ("o200k", "don't fooBar HTTPServer's ABC'Sx", "don't| foo|Bar| HTTPServer's| ABC'S|x"),
        ("o200k", "a's's https://x//\n/y", "a's|'s| https|://|x|//\n/|y"),
        # The mark is a word by itself before it is the first character of one that is all capitals.
        ("o200k", "\u0301AB \u0301Ab", "\u0301|AB| \u0301Ab"),
        # Caseless letters can end a word, capitals after them cannot.
        ("o200k", "中AB AB中 中Ab", "中|AB| AB中| 中Ab"),
        ("none", "a b\n", "a b\n"),
        (r"\d+", "ab12cd3", "ab|12|cd|3"),
        ("a*", "baac", "b|aa|c"),
    ],
)
def test_small_texts_are_cut_as_one_would_by_hand(split, text, want):
    assert pieces(text, split) == want.split("|")
    agree(text, split)


@pytest.mark.parametrize("split", [*NAMED, "none", r"\d+", "a*"])
def test_an_empty_text_has_no_pretokens(split):
    assert split_text("", split).tolist() == split_text_reference("", split).tolist() == []


# The scanners and the regex


@pytest.mark.parametrize("split", NAMED)
@settings(max_examples=400, deadline=None)
@given(st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join))
def test_scanner_and_regex_agree_on_anything(split, text):
    agree(text, split)


@pytest.mark.parametrize("split", NAMED)
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 70), st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.integers(0, 70))
def test_the_place_in_a_block_of_64_bytes_does_not_matter(split, before, text, after):
    agree("x = foo(1) " * 7 + "y" * before + text + "y" * after, split)


@pytest.mark.parametrize("split", NAMED)
def test_scanner_and_regex_agree_on_long_random_texts(split):
    rng = random.Random(0)
    planes = [range(0x80), range(0x80, 0x800), range(0x800, 0xD800), range(0xE000, 0x10000), range(0x10000, 0x110000)]
    for _ in range(120):
        strangers = [chr(rng.choice(rng.choice(planes))) for _ in range(8)]
        some = [*rng.sample(PIECES, rng.randint(2, 30)), *strangers]
        agree("".join(piece * rng.choice([1, 1, 1, 2, 3, 9, 80]) for piece in rng.choices(some, k=2000)), split)


@pytest.mark.parametrize("split", NAMED)
def test_scanner_and_regex_agree_around_every_code_point(split):
    # Every plane with assigned characters; the Rust tests compare the classes of all 17.
    points = [*range(0xD800), *range(0xE000, 0x20000), *range(0x2FF00, 0x31500), *range(0xE0000, 0xE0200), 0x10FFFF]
    agree("".join(f"{c}a{c}A {c}'s{c}'{c}1{c}\n{c}" for c in map(chr, points)), split)


@pytest.mark.parametrize("split", NAMED)
def test_scanner_and_regex_agree_on_real_text(split):
    agree(SCRIPTS, split)
    agree(SCRIPTS.upper(), split)
    agree(SCRIPTS.title(), split)
    agree(unicodedata.normalize("NFD", SCRIPTS), split)
    agree(library_text(), split)
    agree(" ".join(unicodedata.name(chr(point), "") + chr(point) for point in range(0x20, 0xD800)), split)


@pytest.mark.parametrize("split", NAMED)
def test_scanner_and_regex_agree_on_real_text_cut_up_and_put_together(split):
    rng = random.Random(1)
    parts = [SCRIPTS[at : at + rng.randint(1, 12)] for at in rng.choices(range(len(SCRIPTS)), k=150_000)]
    agree("".join(parts), split)


@pytest.mark.parametrize("split", NAMED)
def test_three_million_blanks_cost_no_more_than_reading_them(split):
    # The regex engine would run out of places to go back to.
    blanks = 3_000_000
    assert split_text(" " * blanks + "x", split).tolist() == [blanks - 1, blanks + 1]


@cache
def library_text() -> str:
    """A few megabytes of the standard library's own sources, those with text beyond ASCII first."""
    found: list[tuple[bool, str]] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*/*.py")) + sorted(Path(sys.prefix).glob("*.cfg")):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found.append((text.isascii(), text))
    found.sort(key=lambda entry: entry[0])
    return "\n".join(text for _, text in found)[:4_000_000]


# Other people's engines, on characters that no Unicode version between 3.2 and today has moved to another class


@cache
def settled(text: str) -> str:
    old = unicodedata.ucd_3_2_0
    return "".join(c for c in text if old.category(c) == unicodedata.category(c) != "Cn")


def oracle_texts() -> list[str]:
    rng = random.Random(2)
    kinds = [piece for piece in PIECES if settled(piece) == piece]
    mixes = ["".join(rng.choices(kinds, k=rng.randint(1, 40))) for _ in range(3000)]
    return [settled(line) for line in SCRIPTS.splitlines()] + [settled(SCRIPTS), library_text()[:300_000], *mixes]


def isolated(pattern: str, text: str) -> list[str]:
    return [piece for piece, _ in Split(Regex(pattern), behavior="isolated").pre_tokenize_str(text)]


@pytest.mark.parametrize("split", NAMED)
def test_hf_tokenizers_reads_our_pattern_the_same_way(split):
    for text in oracle_texts():
        assert pieces(text, split) == isolated(split_pattern(split), text)


@pytest.mark.parametrize("pattern", [r"\d+", "a*", "(?=b)", r"(?<=\s)", r"\s+|x?", "[^a]", r"\n", r"b*?", r"(a)\1|"])
def test_a_regex_of_ones_own_is_hf_tokenizers_isolated_split(pattern):
    rng = random.Random(3)
    for text in [
        "baab",
        "b中b",
        "12 ab 3\n",
        *("".join(rng.choices("ab1 \n中é", k=rng.randint(1, 12))) for _ in range(2000)),
    ]:
        assert pieces(text, pattern) == isolated(pattern, text)


@pytest.mark.parametrize("split", NAMED)
def test_the_regex_module_reads_our_pattern_the_same_way(split):
    # V1 folds fully; in V0, the default, simple case folding is what the Rust engine does.
    pattern = regex.compile(split_pattern(split))
    for text in oracle_texts():
        assert pieces(text, split) == pattern.findall(text)


def tiktoken_patterns() -> list[tuple[str, str]]:
    source = pytest.importorskip("tiktoken_ext.openai_public")
    # The constructors download the vocabulary; the pattern alone is wanted.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "load_tiktoken_bpe", lambda *_, **__: {})
        patch.setattr(source, "data_gym_to_mergeable_bpe_ranks", lambda *_, **__: {})
        return [
            ("gpt2", source.gpt2()["pat_str"]),
            ("gpt2", source.r50k_base()["pat_str"]),
            ("cl100k", source.cl100k_base()["pat_str"]),
            ("o200k", source.o200k_base()["pat_str"]),
        ]


@pytest.mark.parametrize(("split", "pattern"), tiktoken_patterns())
def test_tiktoken_itself_cuts_alike(split, pattern):
    # Its vocabulary here is every byte, every pretoken of ours and every two in a row. If it cut more finely, or
    # left two together, its tokens would not be our pretokens.
    for text in oracle_texts()[:400]:
        # cl100k in tiktoken takes white space at the end as one; see src/pretoken/pattern.rs.
        text = text.rstrip() + "x"
        want = [piece.encode() for piece in pieces(text, split)]
        both = [a + b for a, b in pairwise(want)]
        vocabulary = dict.fromkeys([*(bytes([byte]) for byte in range(256)), *want, *both])
        ranks = {token: rank for rank, token in enumerate(vocabulary)}
        encoding = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        assert encoding.decode_tokens_bytes(encoding.encode_ordinary(text)) == want


@pytest.mark.parametrize(("split", "pattern"), tiktoken_patterns())
def test_tiktokens_form_of_a_pattern_cuts_alike(split, pattern):
    for text in oracle_texts()[:1000]:
        text = text.rstrip() + "x"
        assert split_text(text, pattern).tolist() == split_text(text, split).tolist()


# What can go wrong


def test_a_bad_regex_says_what_is_wrong_and_what_would_do():
    with pytest.raises(SplitError, match=r"`\(a`.*parenthesis.*Choose gpt2, cl100k, o200k, none"):
        split_text("a", "(a")
    with pytest.raises(SplitError):
        split_pattern("[")


def test_a_regex_that_gives_up_names_itself_and_the_place():
    with pytest.raises(SplitError, match=r"\(a\|b\|ab\)\*\\1c.*after byte 4"):
        split_text("abbc" + "ab" * 60, r"(a|b|ab)*\1c")


def test_a_split_can_say_its_regex():
    assert split_pattern("none") is None
    assert split_pattern("x+") == "x+"
    for split in NAMED:
        assert split_pattern(split_pattern(split)) == split_pattern(split)
