"""Pretokenizers: scanners equal the regex, and the regex equals what HF tokenizers, tiktoken and `regex` make of it.

The Rust tests in src/pretoken/tests.rs walk every mix of short texts; here are long ones, real ones, and the oracles.
"""

import gzip
import inspect
import json
import random
import re
import sys
import sysconfig
import unicodedata
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import regex
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

import piecemill as pm
from piecemill._core import resolve_split, split_text, split_text_reference, splits
from piecemill.errors import PretokenizerError
from piecemill.tokenizers.models.byte_bpe import NotPlain, pretokenizer_of
from piecemill.tokenizers.models.writing import pre_tokenizer
from piecemill.tokenizers.pretokenizers import NAMED as TABLE
from piecemill.tokenizers.pretokenizers import PATTERNS, name_of, pattern_of, specs_of
from piecemill.training.plan import TrainPlan

PATTERNS_OF = {row["name"]: row["patterns"] for row in splits() if row["patterns"]}
NAMED = list(PATTERNS_OF)
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


def pieces(text: str, pretokenizer: str | list[str]) -> list[str]:
    """The pretokens as strings: every cut is between two characters, or this raises."""
    data, start, out = text.encode(), 0, []
    for end in split_text(text, pretokenizer).tolist():
        out.append(data[start:end].decode())
        start = end
    assert start == len(data)
    return out


def agree(text: str, pretokenizer: str | list[str]) -> None:
    got, want = split_text(text, pretokenizer).tolist(), split_text_reference(text, pretokenizer).tolist()
    if got != want:
        first = min(set(got) ^ set(want))
        near = text.encode()[max(first - 40, 0) : first + 40]
        pytest.fail(f"{pretokenizer}: {'scanner' if first in got else 'regex'} alone cuts at byte {first}, in {near!r}")


# By hand


@pytest.mark.parametrize(
    ("pretokenizer", "text", "want"),
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
        ("qwen2", "Don't 12345 (foo)\n\n x", "Don|'t| |1|2|3|4|5| (|foo|)\n\n| x"),
        # A mark is part of a word, and what is no mark may stand before it.
        ("qwen2", "e\u0301te !\u0301", "e|\u0301te| !\u0301"),
        ("qwen3.5", "e\u0301te !\u0301 12's", "e\u0301te| !|\u0301| |1|2|'s"),
        ("tekken", "don't fooBar ABC'Sx 123//\n/y", "don|'t| foo|Bar| ABC|'Sx| |1|2|3|//\n/|y"),
        ("deepseek-v3", "a  12345 foo(bar) 'tis it's", "a|  |123|45| foo|(bar|)| '|tis| it|'s"),
        # ASCII letters alone follow punctuation; `・` is punctuation among ideographs.
        ("deepseek-v3", "!fooé 中文・カナabc 中1", "!foo|é| |中文|・|カナ|abc| |中|1"),
        # No rule begins at a control: it waits for the next, or for the word that takes it along.
        ("deepseek-v3", "a\x00\x00b\x01 \x02!\x03", "a|\x00|\x00b|\x01| |\x02|!|\x03"),
        ("digits-then-gpt2", "a  12 b's  3", "a|  |1|2| b|'s|  |3"),
        ("starcoder", "x1", "x|1"),
        ("none", "a b\n", "a b\n"),
        ([r"\d+", "gpt2"], "a  12", "a|  |12"),
        (r"\d+", "ab12cd3", "ab|12|cd|3"),
        ("a*", "baac", "b|aa|c"),
    ],
)
def test_small_texts_are_cut_as_one_would_by_hand(pretokenizer, text, want):
    assert pieces(text, pretokenizer) == want.split("|")
    agree(text, pretokenizer)


@pytest.mark.parametrize("pretokenizer", [*NAMED, "none", r"\d+", "a*"])
def test_an_empty_text_has_no_pretokens(pretokenizer):
    assert split_text("", pretokenizer).tolist() == split_text_reference("", pretokenizer).tolist() == []


# The scanners and the regex


@pytest.mark.parametrize("pretokenizer", NAMED)
@settings(max_examples=400, deadline=None)
@given(st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join))
def test_scanner_and_regex_agree_on_anything(pretokenizer, text):
    agree(text, pretokenizer)


@pytest.mark.parametrize("pretokenizer", NAMED)
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 70), st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.integers(0, 70))
def test_the_place_in_a_block_of_64_bytes_does_not_matter(pretokenizer, before, text, after):
    agree("x = foo(1) " * 7 + "y" * before + text + "y" * after, pretokenizer)


@pytest.mark.parametrize("pretokenizer", NAMED)
def test_scanner_and_regex_agree_on_long_random_texts(pretokenizer):
    rng = random.Random(0)
    planes = [range(0x80), range(0x80, 0x800), range(0x800, 0xD800), range(0xE000, 0x10000), range(0x10000, 0x110000)]
    for _ in range(120):
        strangers = [chr(rng.choice(rng.choice(planes))) for _ in range(8)]
        some = [*rng.sample(PIECES, rng.randint(2, 30)), *strangers]
        agree("".join(piece * rng.choice([1, 1, 1, 2, 3, 9, 80]) for piece in rng.choices(some, k=2000)), pretokenizer)


@pytest.mark.parametrize("pretokenizer", NAMED)
def test_scanner_and_regex_agree_around_every_code_point(pretokenizer):
    # Every plane with assigned characters; the Rust tests compare the classes of all 17.
    points = [*range(0xD800), *range(0xE000, 0x20000), *range(0x2FF00, 0x31500), *range(0xE0000, 0xE0200), 0x10FFFF]
    agree("".join(f"{c}a{c}A {c}'s{c}'{c}1{c}\n{c}中{c}!{c}{c} 1" for c in map(chr, points)), pretokenizer)
    for c in map(chr, points[:: 1 if pretokenizer == "deepseek-v3" else 7]):
        agree(c, pretokenizer)


@pytest.mark.parametrize("pretokenizer", NAMED)
def test_scanner_and_regex_agree_on_real_text(pretokenizer):
    agree(SCRIPTS, pretokenizer)
    agree(SCRIPTS.upper(), pretokenizer)
    agree(SCRIPTS.title(), pretokenizer)
    agree(unicodedata.normalize("NFD", SCRIPTS), pretokenizer)
    agree(library_text(), pretokenizer)
    agree(" ".join(unicodedata.name(chr(point), "") + chr(point) for point in range(0x20, 0xD800)), pretokenizer)


@pytest.mark.parametrize("pretokenizer", NAMED)
def test_scanner_and_regex_agree_on_real_text_cut_up_and_put_together(pretokenizer):
    rng = random.Random(1)
    parts = [SCRIPTS[at : at + rng.randint(1, 12)] for at in rng.choices(range(len(SCRIPTS)), k=150_000)]
    agree("".join(parts), pretokenizer)


@pytest.mark.parametrize("pretokenizer", NAMED)
def test_three_million_blanks_cost_no_more_than_reading_them(pretokenizer):
    # The regex engine would run out of places to go back to.
    blanks = 3_000_000
    assert split_text(" " * blanks + "x", pretokenizer).tolist() == [blanks - 1, blanks + 1]


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


def short_texts() -> list[str]:
    return [text for text in oracle_texts() if len(text) < 10_000]


def isolated(*patterns: str) -> Callable[[str], list[str]]:
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    cutter = pre_tokenizers.Sequence(cuts)
    return lambda text: [piece for piece, _ in cutter.pre_tokenize_str(text)]


@pytest.mark.parametrize("pretokenizer", NAMED)
def test_hf_tokenizers_reads_our_patterns_the_same_way(pretokenizer):
    theirs = isolated(*PATTERNS_OF[pretokenizer])
    for text in oracle_texts():
        assert pieces(text, pretokenizer) == theirs(text)


def test_digits_of_hf_tokenizers_are_numbers():
    digits = pre_tokenizers.Digits(individual_digits=True)
    points = [*range(0x20, 0xD800), *range(0xE000, 0x20000)]
    text = settled("".join(f"a{chr(point)}" for point in points))
    assert pieces(text, r"\p{N}") == [piece for piece, _ in digits.pre_tokenize_str(text)]


@pytest.mark.parametrize("pattern", [r"\d+", "a*", "(?=b)", r"(?<=\s)", r"\s+|x?", "[^a]", r"\n", r"b*?", r"(a)\1|"])
def test_a_regex_of_ones_own_is_hf_tokenizers_isolated_split(pattern):
    rng = random.Random(3)
    for text in [
        "baab",
        "b中b",
        "12 ab 3\n",
        *("".join(rng.choices("ab1 \n中é", k=rng.randint(1, 12))) for _ in range(2000)),
    ]:
        assert pieces(text, f"regex:{pattern}") == isolated(pattern)(text)


@pytest.mark.parametrize(
    "patterns",
    [
        # DeepSeek's first models, SuperBPE's second stage, and one after the other.
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
        (r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]{2,}[\r\n/]*| +(?!\S)",),
        (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", r" ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
        (r"(?=(?:\p{N}{3})+(?!\p{N}))", r"[^\s\p{L}]+"),
        (r"\s+(?!\S)", r"\S+"),
    ],
)
def test_a_sequence_of_ones_own_is_hf_tokenizers_sequence(patterns):
    theirs = isolated(*patterns)
    specs = specs_of(patterns)
    for text in short_texts()[:300]:
        assert pieces(text, specs) == theirs(text)
        agree(text, specs)


@pytest.mark.parametrize("pretokenizer", NAMED)
def test_the_regex_module_reads_our_pattern_the_same_way(pretokenizer):
    # V1 folds fully; in V0, the default, simple case folding is what the Rust engine does.
    patterns = [regex.compile(pattern) for pattern in PATTERNS_OF[pretokenizer]]
    for text in oracle_texts():
        want = [text]
        for pattern in patterns:
            want = [cut for piece in want for cut in cut_by(pattern, piece)]
        assert pieces(text, pretokenizer) == want


def cut_by(pattern: "regex.Pattern[str]", text: str) -> list[str]:
    """Matches, and what is between them; the patterns here match nothing empty."""
    cuts = [0, *(at for found in pattern.finditer(text) for at in found.span()), len(text)]
    return [text[start:end] for start, end in pairwise(cuts) if start < end]


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
            # Qwen and Mistral run their own patterns in tiktoken.
            *((pretokenizer, PATTERNS_OF[pretokenizer][0]) for pretokenizer in ("qwen2", "qwen3.5", "tekken")),
        ]


@pytest.mark.parametrize(("pretokenizer", "pattern"), tiktoken_patterns())
def test_tiktoken_itself_cuts_alike(pretokenizer, pattern):
    # Its vocabulary here is every byte, every pretoken of ours and every two in a row. If it cut more finely, or
    # left two together, its tokens would not be our pretokens.
    for text in oracle_texts()[:400]:
        # cl100k in tiktoken takes white space at the end as one; see src/pretoken/table.rs.
        text = text.rstrip() + "x"
        want = [piece.encode() for piece in pieces(text, pretokenizer)]
        both = [a + b for a, b in pairwise(want)]
        vocabulary = dict.fromkeys([*(bytes([byte]) for byte in range(256)), *want, *both])
        ranks = {token: rank for rank, token in enumerate(vocabulary)}
        encoding = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        assert encoding.decode_tokens_bytes(encoding.encode_ordinary(text)) == want


@pytest.mark.parametrize(("pretokenizer", "pattern"), tiktoken_patterns())
def test_tiktokens_form_of_a_pattern_cuts_alike(pretokenizer, pattern):
    for text in oracle_texts()[:1000]:
        text = text.rstrip() + "x"
        assert split_text(text, pattern).tolist() == split_text(text, pretokenizer).tolist()


# The table, and what is made of it


def test_the_published_deepseek_file_has_the_named_split(shared):
    file = shared / "vocabs/deepseek_v3.tokenizer.json.gz"
    if not file.exists():
        pytest.skip(f"needs {file.name}")
    published = json.loads(gzip.decompress(file.read_bytes()))["pre_tokenizer"]
    assert pretokenizer_of(published)[0] == "deepseek-v3"
    # Its pattern has line ends where ours has `\r\n`; what we write for the pattern is what we would read again.
    cutter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(step["pattern"]["Regex"]), "isolated") for step in published["pretokenizers"][:-1]]
    )
    for text in oracle_texts()[:1000]:
        assert pieces(text, "deepseek-v3") == [piece for piece, _ in cutter.pre_tokenize_str(text)]


@pytest.mark.parametrize("pretokenizer", [*TABLE, r"\d+|x", "regex:x"])
def test_tokenizer_json_carries_every_split_there_and_back(pretokenizer):
    name, pattern = pretokenizer_of(pre_tokenizer(pattern_of(pretokenizer)))
    assert (name, pattern) == (pretokenizer, pattern_of(pretokenizer))
    tok = pm.Tokenizer.from_merges(np.empty((0, 2)), pretokenizer=pretokenizer)
    assert (tok.pretokenizer, tok.pattern) == (pretokenizer, pattern)


@pytest.mark.parametrize("pretokenizer", TABLE)
def test_hf_tokenizers_reads_what_tokenizer_json_says_of_a_split(pretokenizer):
    made = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
    made["pre_tokenizer"] = pre_tokenizer(pattern_of(pretokenizer))
    cutter = tokenizers.Tokenizer.from_str(json.dumps(made)).pre_tokenizer
    for text in short_texts()[:500]:
        ends = [end for _, (_, end) in cutter.pre_tokenize_str(text)]
        assert ends == [len(text.encode()[:end].decode()) for end in split_text(text, pretokenizer).tolist()], text


@pytest.mark.parametrize(
    ("steps", "want"),
    [
        (["Digits", True], (r"\p{N}", PATTERNS["gpt2"])),
        (["Digits", False], r"\p{N}+"),
        ([r"\d", "x", False], (r"\d", "x")),
        ([r"\d", True], (r"\d", PATTERNS["gpt2"])),
        ([True], PATTERNS["gpt2"]),
        ([False], None),
        (["Punctuation", False], NotPlain),
        ([], NotPlain),
    ],
)
def test_other_sequences_are_read_for_what_they_are(steps, want):
    written = []
    for step in steps:
        if step in ("Digits", "Punctuation"):
            written.append({"type": step, "individual_digits": steps[1] is True})
        elif isinstance(step, bool):
            written.append({"type": "ByteLevel", "add_prefix_space": False, "use_regex": step})
        else:
            written.append({"type": "Split", "pattern": {"Regex": step}, "behavior": "Isolated", "invert": False})
    given = {"type": "Sequence", "pretokenizers": written}
    if want is NotPlain:
        with pytest.raises(NotPlain):
            pretokenizer_of(given)
    else:
        assert pretokenizer_of(given)[1] == want


def test_the_docs_list_the_table():
    docs = (Path(__file__).parents[1] / "docs/training.md").read_text("utf-8")
    section = docs.split("\n## Pretokenizers\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| `([^`]+)` \| ([^|]*) \| [^|]+ \|$", section, re.MULTILINE)
    rows = {name: tuple(re.findall("`([^`]+)`", aliases)) for name, aliases in found}
    assert rows == {row["name"]: row["aliases"] for row in splits()}


def test_help_names_every_split():
    source = inspect.getsource(TrainPlan)
    listed = source[source.index("Where words end: ") :].split(" (a document")[0]
    assert re.findall(r"[a-z][a-z0-9.-]+[a-z0-9]", listed.removeprefix("Where words end: ")) == [
        name for name in TABLE if not name.endswith("-superwords")
    ]


# What can go wrong


def test_a_bad_regex_says_what_is_wrong_and_what_would_do():
    with pytest.raises(PretokenizerError, match=r"`\(a`.*parenthesis.*Choose gpt2, cl100k, o200k, qwen2"):
        split_text("a", "(a")
    with pytest.raises(PretokenizerError):
        resolve_split("[")


@pytest.mark.parametrize("name", ["qwen9", "Qwen2", "gpt-2", "cl100k_base", "o200k_harmony", "llama-3"])
def test_a_name_that_no_split_has_is_an_error_with_the_nearest(name, tmp_path):
    match = f"pretokenizer `{name}`: none has this name. Choose gpt2, .*Did you mean `"
    with pytest.raises(PretokenizerError, match=match):
        split_text("a", name)
    with pytest.raises(PretokenizerError, match=match):
        pm.Tokenizer.from_merges(np.empty((0, 2)), pretokenizer=name)
    ranks = tmp_path / "a.tiktoken"
    ranks.write_bytes(b"".join(b"%b %d\n" % (b64encode(bytes([i])), i) for i in range(256)))
    with pytest.raises(PretokenizerError, match=match):
        pm.load_tokenizer(ranks, pretokenizer=name)
    assert pm.load_tokenizer(ranks, pretokenizer="llama4").model.pretokenizer == "o200k"


@pytest.mark.parametrize("word", ["hello", "a.b", "x", "a b", "#", "é"])
def test_a_regex_without_metacharacters_is_written_as_such(word):
    with pytest.raises(PretokenizerError, match=f"If it is a regex, write `regex:{word}`"):
        resolve_split(word)
    assert resolve_split(f"regex:{word}") == ("regex", (word,))
    assert name_of(word) == f"regex:{word}"


def test_a_regex_that_gives_up_names_itself_and_the_place():
    with pytest.raises(PretokenizerError, match=r"\(a\|b\|ab\)\*\\1c.*after byte 4"):
        split_text("abbc" + "ab" * 60, r"(a|b|ab)*\1c")


def test_a_split_can_say_its_regexes():
    assert resolve_split("none") == resolve_split([]) == ("none", ())
    assert resolve_split("x+") == ("regex", ("x+",))
    assert resolve_split(["x+", "gpt2"]) == ("sequence", ("x+", PATTERNS["gpt2"]))
    for row in splits():
        assert resolve_split(specs_of(row["patterns"])) == (row["name"], row["patterns"])
        for alias in row["aliases"]:
            assert resolve_split(alias) == (row["name"], row["patterns"])
