"""Superwords: two stages of merging, against the definition, and the finished tokenizer in every library."""

import json
import random
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command import piecemill as run
from piecemill import reference
from piecemill._core import FlatCorpus, Progress, split_text, splits
from piecemill.errors import PlanError
from piecemill.tokenizers import load_tokenizer
from piecemill.tokenizers.models.byte_level import BYTE_ORDER, bytes_of
from piecemill.training import train_bpe
from vocabularies import END, NASTY, SCRIPTS, library_texts

JOINED = [row["name"] for row in splits() if row["name"].endswith("-superwords")]
TEXTS = st.lists(st.text("ab c\u00e9\n!1", max_size=24), min_size=1, max_size=6).filter(any)


def cut(text, pretokenizer):
    data = text.encode()
    return [data[start:end] for start, end in pairwise([0, *split_text(text, pretokenizer).tolist()])]


def definition(texts, pretokenizer, other, n_first, n_merges, special_tokens=(END,), **options):
    """The merges of both stages, counted anew at every step."""
    byte_ids = [0] * 256
    for rank, byte in enumerate(BYTE_ORDER):
        byte_ids[byte] = len(special_tokens) + rank
    words, longer = ([word for text in texts for word in cut(text, one)] for one in (pretokenizer, other))
    special = [bytes_of(token) or b"" for token in special_tokens]
    return reference.bpe.train_superwords(
        words, longer, n_first, n_merges, byte_ids=byte_ids, special_tokens=special, **options
    )


def merged(ids, merges):
    """`ids` after all merges, one after another; `merges` are pairs and what each makes."""
    for pair, token in merges:
        ids = reference.bpe.merge_word(ids, pair, token)
    return list(ids)


def test_three_words_by_hand():
    # First stage, within words: " a" (5 times) leads, then " b" (5; a tie, and 97 < 98). Then across them.
    texts = ["x a b", "y a b", " a b a b a b"]
    grown = train_bpe(texts, vocab_size=260, superwords=258, pretokenizer="gpt2", special_tokens=[])
    assert [grown.bytes_of(i) for i in range(256, 260)] == [b" a", b" b", b" a b", b" a b a b"]
    assert grown.encode(" a b a b a b").tolist() == [259, 258]
    narrow = train_bpe(texts, vocab_size=260, superwords=258, pretokenizer="gpt2", special_tokens=[], max_words=2)
    assert [narrow.bytes_of(i) for i in range(258, narrow.vocab_size)] == [b" a b"]  # "x a b" has three words
    assert narrow.pretokenizer == "gpt2-superwords"


@settings(deadline=None, max_examples=120)
@given(
    TEXTS,
    st.sampled_from([("gpt2", "gpt2-superwords"), ("cl100k", "none"), ("cl100k", r"[^\n]+"), ("gpt2", "cl100k")]),
    st.integers(0, 8),
    st.integers(0, 16),
    st.integers(1, 4),
    st.sampled_from([(END,), ("ab", "b a", "!\u0120a", "a\u0120")]),
)
def test_both_stages_equal_the_definition(texts, both, k, n, max_words, special_tokens):
    pretokenizer, other = both
    first = 256 + len(special_tokens)
    grown = train_bpe(
        texts, vocab_size=first + k + n, superwords=first + k, pretokenizer=pretokenizer, superword_pretokenizer=other,
        max_words=max_words, special_tokens=special_tokens,
    )  # fmt: skip
    if n:
        want = definition(texts, pretokenizer, other, k, k + n, special_tokens, max_words=max_words)
        assert [tuple(pair) for pair in grown.merges.tolist()] == want
        assert grown.pretokenizer == other
    assert grown.vocab_size <= first + k + n
    assert "mapping.json" not in grown.model.beside


@settings(deadline=None, max_examples=60)
@given(TEXTS, st.integers(0, 10), st.integers(0, 10), st.sampled_from(["gpt2", "cl100k", r"\w+"]))
def test_where_the_settings_coincide_it_is_plain_training(texts, k, n, pretokenizer):
    plain = train_bpe(texts, vocab_size=257 + k + n, pretokenizer=pretokenizer)
    same = train_bpe(
        texts,
        vocab_size=257 + k + n,
        superwords=257 + k,
        pretokenizer=pretokenizer,
        superword_pretokenizer=pretokenizer,
    )
    assert same.identity == plain.identity
    assert (
        train_bpe(texts, vocab_size=257 + k, superwords=257 + k, pretokenizer=pretokenizer).pretokenizer
        == plain.pretokenizer
    )
    by_hand = train_bpe(
        texts,
        start=train_bpe(texts, vocab_size=257 + k, pretokenizer=pretokenizer),
        pretokenizer="none",
        vocab_size=600,
    )
    unlimited = train_bpe(
        texts,
        vocab_size=600,
        superwords=257 + k,
        pretokenizer=pretokenizer,
        superword_pretokenizer="none",
        max_words=99,
    )
    assert unlimited.identity == by_hand.identity


@settings(deadline=None, max_examples=80)
@given(TEXTS, st.sampled_from(JOINED), st.integers(0, 8), st.integers(1, 12), st.integers(1, 3))
def test_texts_are_encoded_as_training_ended(texts, pretokenizer, k, n, max_words):
    grown = train_bpe(
        texts,
        vocab_size=257 + k + n,
        superwords=257 + k,
        pretokenizer=pretokenizer.removesuffix("-superwords"),
        max_words=max_words,
    )
    named = {grown.bytes_of(i): i for i in range(1, grown.vocab_size)}
    merges = [
        ((left, right), named[grown.bytes_of(left) + grown.bytes_of(right)]) for left, right in grown.merges.tolist()
    ]
    for text in texts:
        want = [i for piece in cut(text, pretokenizer) for i in merged([named[bytes([b])] for b in piece], merges)]
        assert grown.encode(text).tolist() == want
        assert grown.decode(want) == text
    for i in range(257 + k, grown.vocab_size):
        assert reference.bpe.count_words(grown.bytes_of(i)) <= max_words


@pytest.mark.parametrize("pretokenizer", JOINED)
def test_a_second_stage_takes_cuts_away_and_adds_none(pretokenizer):
    rng = random.Random(pretokenizer)
    first = pretokenizer.removesuffix("-superwords")
    texts = [*NASTY, SCRIPTS, *library_texts(4)]
    texts += ["".join(rng.choices(" \n\r\tab.'/A1\u0301\u4e2d\u30fb\u3000é", k=300)) for _ in range(200)]
    for text in texts:
        cuts, kept = set(split_text(text, first).tolist()), split_text(text, pretokenizer).tolist()
        assert cuts.issuperset(kept)
        for piece in cut(text, pretokenizer):
            # A line's end, or text without one; a number, or text without any.
            shown = piece.decode()
            assert "\n" not in shown or piece in cut(text, first), piece
            assert not re.search(r"\d", shown) or re.fullmatch(r" ?\d+", shown), piece


@pytest.mark.parametrize("pretokenizer", ["cl100k", "gpt2", "o200k", "qwen2"])
def test_the_standard_library_gets_shorter_and_no_first_token_is_lost(pretokenizer):
    texts = list(library_texts())
    grown = train_bpe(texts, vocab_size=1500, superwords=1000, pretokenizer=pretokenizer)
    first = train_bpe(texts, vocab_size=1000, pretokenizer=pretokenizer)
    plain = train_bpe(texts, vocab_size=1500, pretokenizer=pretokenizer)
    assert grown.merges[: len(first.merges)].tolist() == first.merges.tolist()
    sizes = [(len(grown.encode(text)), len(first.encode(text))) for text in (*texts, *NASTY)]
    assert all(now <= before for now, before in sizes)
    assert sum(now for now, _ in sizes) < sum(len(plain.encode(text)) for text in (*texts, *NASTY))
    spans = [grown.bytes_of(i) for i in range(1000, 1500)]
    assert sum(reference.bpe.count_words(token) > 1 for token in spans) > 50
    assert not any(b"\n" in token.strip(b"\r\n") for token in spans)
    assert (
        train_bpe(texts, vocab_size=1500, superwords=1000, pretokenizer=pretokenizer, threads=1).identity
        == grown.identity
    )
    assert train_bpe(
        texts[::-1], vocab_size=1500, superwords=1000, pretokenizer=pretokenizer, memory="64MiB"
    ).identity == (grown.identity)


def test_the_command_saves_what_every_library_reads(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    texts = [*library_texts(6), SCRIPTS]
    (tmp_path / "in").mkdir()
    for at, text in enumerate(texts):
        (tmp_path / f"in/{at}.txt").write_text(text, encoding="utf-8", newline="")
    out = tmp_path / "out"
    done = run(
        *("train", tmp_path / "in", "--superwords", 800, "--vocab-size", 1200, "--max-words", 3),
        *("--pad-to", 128, "--out", out, "--quiet"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1,280 tokens (943 merges, 400 across words) from 7 documents")
    record = json.loads((out / "training.json").read_text())
    assert record["plan"]["pretokenizer"] == "cl100k"
    assert record["plan"]["superword_pretokenizer"] == "cl100k-superwords"
    assert (record["plan"]["superwords"], record["plan"]["max_words"]) == (800, 3)
    assert (record["merges"], record["second_stage"]["begins"], record["second_stage"]["merges"]) == (943, 800, 400)
    assert [stage["stage"] for stage in record["stages"]] == ["count", "merge", "segment", "merge"]
    assert not (out / "mapping.json").exists()
    tok = load_tokenizer(out)
    assert (tok.pretokenizer, tok.vocab_size, tok.engine.name) == ("cl100k-superwords", 1280, "piecemill")
    theirs = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    auto = transformers.AutoTokenizer.from_pretrained(out)
    # Of a long run each character looked at to the end of the run would take an hour.
    long = ["!" * 300_000, "! " * 100_000, " " * 300_000 + "a", "ab cd" * 50_000, "\t!" * 100_000]
    for text in (*texts, *NASTY, *long):
        ids = tok.encode(text, special="parse").tolist()
        assert theirs.encode(text, add_special_tokens=False).ids == ids
        assert auto.encode(text, add_special_tokens=False) == ids
    assert tok.encode("return self.value if self.value is not None else 12345\n").tolist() == (
        theirs.encode("return self.value if self.value is not None else 12345\n").ids
    )


@pytest.mark.parametrize(
    "options",
    [
        *({"pretokenizer": pretokenizer.removesuffix("-superwords")} for pretokenizer in JOINED),
        {"superword_pretokenizer": r"[^\n]{1,40}\n?|\n"},
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_the_ids_of_every_second_stage_are_those_of_tokenizers(options):
    tokenizers = pytest.importorskip("tokenizers")
    texts = [*library_texts(4), SCRIPTS]
    tok = train_bpe(texts, vocab_size=900, superwords=600, **options)
    assert sum(reference.bpe.count_words(tok.bytes_of(i)) > 1 for i in range(600, 900)) > 30
    theirs = tokenizers.Tokenizer.from_str(tok.model.tokenizer_json(tok.special_tokens))
    rng = random.Random(4)
    texts += ["".join(rng.choices(" \n\r\tab.'/A1\u0301\u4e2d\u30fb\u3000é", k=300)) for _ in range(100)]
    for text in (*texts, *NASTY):
        assert theirs.encode(text).ids == tok.encode(text, special="parse").tolist(), text[:80]


def test_a_given_tokenizer_gets_superwords(tmp_path):
    texts = list(library_texts(8))
    start = train_bpe(texts[:4], vocab_size=700, pretokenizer="gpt2")
    grown = train_bpe(texts, start=start, superwords=700, vocab_size=900)
    assert grown.pretokenizer == "gpt2-superwords"
    assert grown.vocabulary.tokens[:700] == start.vocabulary.tokens
    assert all(len(grown.encode(text)) < len(start.encode(text)) for text in texts)
    both = train_bpe(texts, start=start, superwords=800, vocab_size=900)
    first = train_bpe(texts, start=start, vocab_size=800)
    assert both.merges[: len(first.merges)].tolist() == first.merges.tolist()
    mapping = json.loads(both.model.beside["mapping.json"])
    assert list(map(int, mapping)) == list(range(700, 900))
    assert max(max(parts) for parts in mapping.values()) < 700


def test_other_executors_count_both_stages(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    for at, text in enumerate(library_texts(5)):
        (tmp_path / f"{at}.py").write_text(text, encoding="utf-8", newline="")
    want = train_bpe(tmp_path, vocab_size=700, superwords=500)
    with ThreadPoolExecutor(2) as pool:
        there = train_bpe(tmp_path, vocab_size=700, superwords=500, executor=pool)
    assert there.identity == want.identity
    assert there.training["corpus"] == want.training["corpus"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"superwords": 100}, "superwords=100: expected a whole number from 257 to 300"),
        ({"superwords": 301}, "superwords=301: expected a whole number from 257 to 300"),
        (
            {"superwords": 280, "pretokenizer": "none"},
            "pretokenizer='none': none of a second stage .* gpt2, cl100k, .*-then-gpt2",
        ),
        (
            {"superwords": 280, "pretokenizer": r"\w+"},
            "Give one: superword_pretokenizer='cl100k-superwords', or a regex",
        ),
        ({"superword_pretokenizer": "gpt2"}, "superword_pretokenizer is for the second stage: superwords begins it"),
        ({"superwords": 280, "max_words": 0}, "max_words=0: expected a whole number from 1"),
        ({"superwords": 280, "save_counts": "counts.parquet"}, "superwords reads documents"),
        ({"superwords": 280, "from_counts": ["counts.parquet"]}, "superwords reads documents"),
    ],
)
def test_what_makes_no_second_stage_is_refused(options, message):
    with pytest.raises(PlanError, match=message):
        train_bpe(["a b"], vocab_size=300, **options)


def test_a_second_stage_before_the_end_of_the_start_is_refused():
    start = train_bpe(["a b a b"], vocab_size=258, pretokenizer="gpt2")
    with pytest.raises(PlanError, match="superwords=257: start has 258 tokens already"):
        train_bpe(["a b"], start=start, superwords=257, vocab_size=300)


def test_too_few_pairs_are_told(tmp_path):
    (tmp_path / "a.txt").write_text("a b c d e f")
    done = run("train", tmp_path, "--superwords", 258, "--vocab-size", 400, "--max-words", 2, "--out", tmp_path / "t")
    assert "or a higher --max-words than 2" in done.stdout


def test_the_limit_of_words_counts_runs_of_other_bytes():
    count = reference.bpe.count_words
    assert [count(token) for token in (b"", b" ", b"a", b" a\t", b"a b", b"a\x0bb", b"a\xc2\xa0b", b"\na\r\fb")] == [
        0, 0, 1, 1, 2, 1, 1, 2,
    ]  # fmt: skip
    # Every two neighbours make a token of two words, whatever stands between them.
    for space in (b" ", b"\n", b"\f", b"\x0b", b"\xa0"):
        corpus = FlatCorpus(600, 0, None, (), start=([bytes([i]) for i in range(256)], [], []), max_words=1)
        word = np.frombuffer(b"a" + space + b"b", np.uint8).astype(np.uint32)
        corpus.add_ids(word, np.array([3], np.int64))
        assert len(corpus.train(Progress()).merges) == 1 + (count(b"a" + space + b"b") == 1)
