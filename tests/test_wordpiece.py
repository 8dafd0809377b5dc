"""WordPiece and the normalizers: the Rust core, the plain reference and HF `tokenizers` give the same ids and texts."""

import itertools
import random
import unicodedata
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

from piecemill import _core
from piecemill.errors import TokenizerError
from piecemill.reference import wordpiece as reference
from piecemill.tokenizers import nasty
from vocabularies import NASTY, library_texts

SCRIPTS = Path(__file__).with_name("scripts.txt").read_text(encoding="utf-8")
UNK = "[UNK]"
CODE_POINTS = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
KINDS = [(lower, strip) for lower in (True, False) for strip in (None, True, False)]
"Uncased and cased, with every answer to strip_accents."


class Both:
    """One vocabulary with one set of options, for `tokenizers` and for the core."""

    def __init__(self, vocabulary, *, clean=True, chinese=True, strip=None, lower=True, prefix="##", max_chars=100):
        self.vocabulary, self.prefix, self.max_chars = vocabulary, prefix, max_chars
        self.options = {"clean_text": clean, "chinese": chinese, "strip_accents": strip, "lowercase": lower}
        model = models.WordPiece(
            vocabulary, unk_token=UNK, continuing_subword_prefix=prefix, max_input_chars_per_word=max_chars
        )
        self.hf = tokenizers.Tokenizer(model)
        self.hf.normalizer = normalizers.BertNormalizer(
            clean_text=clean, handle_chinese_chars=chinese, strip_accents=strip, lowercase=lower
        )
        self.hf.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokens = [token.encode() for token in vocabulary]
        flat = np.frombuffer(b"".join(tokens), np.uint8), np.cumsum([len(token) for token in tokens], dtype=np.int64)
        self.encoders = [
            _core.Encoder.wordpiece(
                *flat,
                np.array(list(vocabulary.values()), np.uint32),
                unk=vocabulary[UNK],
                prefix=prefix,
                max_chars=max_chars,
                clean=clean,
                chinese=chinese,
                strip_accents=lower if strip is None else strip,
                lowercase=lower,
                **options,
            )
            for options in ({}, {"cache_bytes": 1, "instructions": "portable"})
        ]

    def wanted(self, text):
        return self.hf.encode(text, add_special_tokens=False).ids

    def reference(self, text):
        options = {"unk": self.vocabulary[UNK], "prefix": self.prefix, "max_chars": self.max_chars, **self.options}
        return reference.encode(text, self.vocabulary, **options)

    def check(self, text, *, plain=False):
        want = self.wanted(text)
        for encoder in self.encoders:
            assert encoder.encode(text, "plain").tolist() == want
        if plain:
            assert self.reference(text) == want


@cache
def trained(lower: bool, strip: bool | None) -> Both:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token=UNK))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=strip)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=4000, special_tokens=[UNK, "[CLS]"], show_progress=False)
    tokenizer.train_from_iterator([*library_texts(), SCRIPTS], trainer)
    return Both(tokenizer.get_vocab(), lower=lower, strip=strip)


@cache
def every_character() -> dict[str, int]:
    # Beyond the first two planes and the tags, what becomes of the letters around a character tells enough.
    points = [c for c in CODE_POINTS if ord(c) < 0x20000 or ord(c) in range(0x2F800, 0x2FA20)]
    return {token: id for id, token in enumerate([UNK, *points, *(f"##{c}" for c in points)])}


def settled(text: str) -> str:
    """Without characters that Unicode added or changed since version 3.2: the tables are of different age."""
    old = unicodedata.ucd_3_2_0
    return "".join(c for c in text if old.category(c) == unicodedata.category(c))


@pytest.mark.parametrize(("lower", "strip"), KINDS)
def test_real_text_and_nasty_text(lower, strip):
    both = trained(lower, strip)
    for text in [*NASTY, *nasty.NASTY, *SCRIPTS.splitlines()]:
        both.check(text)
        both.check(settled(text), plain=True)
    for text in library_texts():
        both.check(text)
    both.check(SCRIPTS, plain=True)
    both.check(SCRIPTS.upper())
    both.check(unicodedata.normalize("NFD", SCRIPTS), plain=True)


@pytest.mark.parametrize(("lower", "strip"), KINDS)
def test_real_text_cut_up_and_put_together(lower, strip):
    rng = random.Random(1)
    parts = [SCRIPTS[at : at + rng.randint(1, 9)] for at in rng.choices(range(len(SCRIPTS)), k=10_000)]
    odd = [rng.choice([" ", "\n", "!", "中", "\u0301", "\u200b", "\x0b", "≠", "İ", "\u302e"]) for _ in parts]
    trained(lower, strip).check("".join(itertools.chain.from_iterable(zip(parts, odd, strict=True))))


@pytest.mark.parametrize(("clean", "lower"), [(True, True), (False, False)])
def test_every_code_point_alone_and_between_letters(clean, lower):
    # The other options do not touch these characters in other ways; the Rust tests go through all sixteen.
    both = Both(every_character(), clean=clean, lower=lower, strip=lower)
    for at in range(0, len(CODE_POINTS), 1 << 14):
        both.check(" ".join(f"{c} a{c}b{c}\u0301" for c in CODE_POINTS[at : at + (1 << 14)]))


@cache
def small(clean: bool, chinese: bool, strip: bool, lower: bool) -> Both:
    tokens = [UNK, *(token for c in ODD + "ei\u2002=.;`" for token in (c, f"##{c}")), "ab", "##ab", "##eab", "##a!"]
    vocabulary = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    return Both(vocabulary, clean=clean, chinese=chinese, strip=strip, lower=lower, max_chars=12)


# Characters that one step or another treats in its own way; marks of classes 230, 220, 0, 224, 216, and Hangul.
ODD = (
    " \n\t\x0b\x0c\x01abAB1!$'éÉİ\u0301\u0323\u093f\u0941\u302e\U0001d165≠\u1fef\u037e\u0387中\uf900\U0002f800"
    "\u200b\xad\ufffd\ue000\xa0\x85\u2000\u3000—각аαΣς😀\u1fc1\u0344\u09cb"
)


@given(st.text(st.sampled_from(ODD), max_size=60), st.tuples(*[st.booleans()] * 4))
def test_any_mix_with_any_options(text, options):
    small(*options).check(text, plain=settled(text) == text)


@given(st.text(max_size=40), st.tuples(*[st.booleans()] * 4))
def test_any_text_with_any_options(text, options):
    small(*options).check(text)


def test_long_words_are_unknown_and_marks_that_go_do_not_count():
    both = trained(True, None)
    unk = both.vocabulary[UNK]
    for text, known in [("a" * 100, True), ("a" * 101, False), ("é" * 100, True), ("a\u0301" * 101, False)]:
        both.check(text, plain=True)
        assert (both.encoders[0].encode(text, "plain").tolist() != [unk]) is known
    both.check("a" * 1_000_000)


@pytest.mark.parametrize("prefix", ["##", "", "x", "é"])
def test_any_prefix(prefix):
    tokens = [UNK, "a", "ab", "x", "xa", "xab", "éa", "éab", "##a", "##ab", "e", "b", prefix + "b"]
    vocabulary = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    both = Both(vocabulary, prefix=prefix, lower=False, strip=False)
    for length in range(7):
        for word in itertools.product("abxé", repeat=length):
            both.check("".join(word), plain=True)


# Normalizers

STEPS = {
    "nfc": normalizers.NFC(),
    "nfd": normalizers.NFD(),
    "nfkc": normalizers.NFKC(),
    "nfkd": normalizers.NFKD(),
    "lowercase": normalizers.Lowercase(),
    "strip_accents": normalizers.StripAccents(),
}


@pytest.mark.parametrize("name", STEPS)
def test_each_step_on_every_code_point(name):
    for at in range(0, len(CODE_POINTS), 1 << 14):
        text = "".join(f"{c} a{c}e{c}\u0301" for c in CODE_POINTS[at : at + (1 << 14)])
        assert _core.normalize(text, [(name,)]) == STEPS[name].normalize_str(text)


@pytest.mark.parametrize("name", STEPS)
def test_each_step_on_real_and_nasty_text_and_rows_of_marks(name):
    rng = random.Random(1)
    marks = [c for c in CODE_POINTS[:0x20000] if unicodedata.combining(c)]
    rows = [
        "".join(rng.choice(marks) if rng.random() < 0.7 else rng.choice("aeoA=가ᄀ\u1161\u11a8 é") for _ in range(40))
        for _ in range(2000)
    ]
    for text in [*NASTY, *nasty.NASTY, *library_texts(5), SCRIPTS, unicodedata.normalize("NFD", SCRIPTS), *rows]:
        assert _core.normalize(text, [(name,)]) == STEPS[name].normalize_str(text)


def in_hf(step):
    if step[0] == "prepend":
        return normalizers.Prepend(step[1])
    return normalizers.Replace(step[1], step[2]) if step[0] == "replace" else STEPS[step[0]]


texts = st.text(st.sampled_from(ODD + "ab .*+?[]()|^$\\-#&~{}/<>,:;@%_`\"'\0"), max_size=30)
words = st.text(st.sampled_from("ab .*+?[]()|^$\\-#&~{}/<>,:;@%_`\"'\0\n\téα▁"), max_size=3)
steps = st.one_of(
    st.sampled_from([(name,) for name in STEPS]),
    st.tuples(st.just("prepend"), words.filter(bool)),  # with an empty one `tokenizers` may panic in a later step
    st.tuples(st.just("replace"), words.filter(bool), words),
)


@given(texts, st.lists(steps, max_size=4))
def test_steps_in_a_row(text, steps):
    sequence = normalizers.Sequence([in_hf(step) for step in steps])
    assert _core.normalize(text, steps) == sequence.normalize_str(text)


def test_a_step_that_is_not_known_and_an_empty_pattern_are_refused():
    with pytest.raises(TokenizerError, match=r'\["nfx"\].*expected .*"nfc"'):
        _core.normalize("a", [("nfx",)])
    with pytest.raises(TokenizerError, match="the text to replace is empty"):
        _core.normalize("a", [("replace", "", "x")])
