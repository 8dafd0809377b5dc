"""Merges: the fast trainer against the definition, at every step, and against HF `tokenizers`."""

import itertools
import os
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from piecemill import reference
from piecemill._core import FlatCorpus, Learned, Progress, WordCounter
from piecemill.tokenizers.models.byte_level import BYTE_ORDER


def flat(pieces):
    data = np.frombuffer(b"".join(pieces), np.uint8)
    return data, np.cumsum([len(piece) for piece in pieces], dtype=np.int64)


def train_counted(words, vocab_size, *, special_tokens=(), min_frequency=0, max_token_bytes=None, threads=1) -> Learned:
    counted = Counter(words)
    counter = WordCounter("none", 2**30, "/tmp")
    counter.add_counts(*flat(list(counted)), np.array(list(counted.values()), np.uint64))
    corpus = FlatCorpus(vocab_size, min_frequency, max_token_bytes, special_tokens, threads)
    corpus.add_words(counter.finish(), 0)
    return corpus.train(Progress())


def train_flat(
    documents, vocab_size, *, special_tokens=(), min_frequency=0, max_token_bytes=None, threads=1
) -> Learned:
    corpus = FlatCorpus(vocab_size, min_frequency, max_token_bytes, special_tokens, threads)
    corpus.add(*flat(documents))
    return corpus.train(Progress())


def pairs(learned):
    return [tuple(pair) for pair in learned.merges.tolist()]


def byte_ids(n_special=0):
    ids = [0] * 256
    for rank, byte in enumerate(BYTE_ORDER):
        ids[byte] = n_special + rank
    return ids


def expected(words, vocab_size, *, special_tokens=(), **options):
    n_special = len(special_tokens)
    return reference.bpe.train(
        words, vocab_size - 256 - n_special, byte_ids=byte_ids(n_special), special_tokens=special_tokens, **options
    )


def test_the_textbook_word_takes_the_textbook_merges():
    # a a a b d a a a b a c: "aa" leads with 4; then "aa a" and "a b" tie at 2, and (97, 98) is the smaller pair
    assert reference.bpe.train([b"aaabdaaabac"], n_merges=3) == [(97, 97), (97, 98), (256, 257)]


def test_a_run_merges_leftmost_first():
    assert reference.bpe.merge_word([1, 1, 1, 1, 1], (1, 1), 2) == (2, 2, 1)
    assert pairs(train_flat([b"aaaaa"], 300)) == expected([b"aaaaa"], 300)


def test_every_short_word_over_three_symbols_merges_as_the_definition_says():
    for length in range(1, 8):
        for word in itertools.product(b"abc", repeat=length):
            word = bytes(word)
            want = expected([word], 264)
            assert pairs(train_flat([word], 264)) == want, word
            assert pairs(train_counted({word: 3}, 264)) == want, word


def test_all_short_words_together_merge_as_the_definition_says():
    words = [bytes(word) for length in range(1, 6) for word in itertools.product(b"abc", repeat=length)]
    assert pairs(train_flat(words, 400)) == expected(words, 400)


words_strategy = st.lists(st.text("abc", min_size=1, max_size=12).map(str.encode), max_size=12)


@settings(max_examples=300, deadline=None)
@given(words_strategy)
def test_flat_equals_the_reference(documents):
    learned = train_flat(documents, 256 + 40)
    assert pairs(learned) == expected(documents, 256 + 40)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text("abcd", min_size=1, max_size=10).map(str.encode), st.integers(1, 9), max_size=12))
def test_counted_words_equal_the_reference(words):
    assert pairs(train_counted(words, 256 + 40)) == expected(words, 256 + 40)


@settings(max_examples=150, deadline=None)
@given(words_strategy, st.integers(0, 4), st.sampled_from([None, 1, 2, 3, 5]))
def test_limits_mean_what_the_reference_says(documents, min_frequency, max_token_bytes):
    limits = {"min_frequency": min_frequency, "max_token_bytes": max_token_bytes}
    assert pairs(train_flat(documents, 290, **limits)) == expected(documents, 290, **limits)
    assert pairs(train_counted(documents, 290, **limits)) == expected(documents, 290, **limits)


@settings(max_examples=150, deadline=None)
@given(words_strategy, st.lists(st.text("ab", min_size=2, max_size=4).map(str.encode), max_size=3, unique=True))
def test_a_learned_string_that_is_a_special_token_takes_its_id(documents, special_tokens):
    learned = train_flat(documents, 290, special_tokens=special_tokens)
    assert pairs(learned) == expected(documents, 290, special_tokens=special_tokens)


@settings(max_examples=100, deadline=None)
@given(words_strategy, st.randoms())
def test_the_order_of_the_input_does_not_matter(documents, rng):
    shuffled = documents[:]
    rng.shuffle(shuffled)
    assert pairs(train_flat(documents, 290)) == pairs(train_flat(shuffled, 290))


def zipfian_text(rng, size):
    """Text with long repeats, so that many merges happen, some of them with themselves."""
    parts = [bytes(rng.choices(b"abcdefgh", weights=[9, 7, 5, 3, 2, 1, 1, 1], k=rng.randint(1, 9))) for _ in range(60)]
    weights = [1 / rank for rank in range(1, 61)]
    return b"".join(rng.choices(parts, weights, k=size))


@pytest.mark.parametrize("seed", range(6))
def test_every_count_is_the_recount(seed):
    # At every step the pair's count is what a recount of the whole corpus says; ids also follow, so later steps see it.
    rng = random.Random(seed)
    documents = [zipfian_text(rng, rng.randint(1, 60)) for _ in range(40)]
    learned = train_flat(documents, 256 + 250)
    ids = byte_ids()
    corpus = Counter(tuple(ids[byte] for byte in document) for document in documents)
    for step, (pair, count) in enumerate(zip(pairs(learned), learned.counts.tolist(), strict=True)):
        counts = reference.bpe.count_pairs(corpus)
        assert (count, pair) == min(((count, pair) for pair, count in counts.items()), key=lambda cp: (-cp[0], cp[1]))
        merged = Counter()
        for word, weight in corpus.items():
            merged[reference.bpe.merge_word(word, pair, 256 + step)] += weight
        corpus = merged


@pytest.mark.parametrize("seed", range(3))
def test_many_rounds_give_the_same_merges_as_the_reference(seed):
    rng = random.Random(100 + seed)
    words = Counter(zipfian_text(rng, rng.randint(1, 4)) for _ in range(400))
    learned, want = train_counted(words, 256 + 500), expected(words, 256 + 500)
    assert learned.stats["rounds"] > 1
    assert pairs(learned) == want
    assert pairs(train_flat(list(words.elements()), 256 + 500)) == want


def test_threads_do_not_change_the_merges(stdlib_texts):
    # Large enough that frequent pairs are merged side by side; the rare ones are not.
    documents = [text.encode() for text in stdlib_texts]
    alone = train_flat(documents, 4_000)
    assert alone.counts.max() > 100_000
    assert alone.counts.min() < 5_000
    for threads in (2, 3):
        beside = train_flat(documents, 4_000, threads=threads)
        assert np.array_equal(beside.merges, alone.merges)
        assert np.array_equal(beside.counts, alone.counts)


def test_rounds_with_hashed_pairs_give_the_same_merges_as_the_reference():
    # 2,000 special tokens push the ids beyond the dense table from the first round on.
    rng = random.Random(11)
    words = Counter(zipfian_text(rng, rng.randint(1, 4)) for _ in range(300))
    special_tokens = [f"<{number}>".encode() for number in range(2_000)]
    want = expected(words, 2_256 + 300, special_tokens=special_tokens)
    assert pairs(train_counted(words, 2_256 + 300, special_tokens=special_tokens)) == want
    documents = list(words.elements())
    assert pairs(train_flat(documents, 2_256 + 300, special_tokens=special_tokens)) == want


def random_documents(megabytes, seed):
    """Text in which nearly every pair of longer tokens is rare: the hardest case for lists of pairs."""
    rng = np.random.default_rng(seed)
    letters = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
    return [letters[rng.integers(0, 64, 10_000)].tobytes() for _ in range(100 * megabytes)]


def test_rounds_that_cannot_list_every_pair_give_the_same_merges():
    # Weighted words are listed without a limit, and 17 MB of them are enough for threads.
    documents = random_documents(17, seed=5)
    words = dict.fromkeys(documents, 2)
    listed = train_counted(words, 12_000)
    beside = train_counted(words, 12_000, threads=3)
    assert np.array_equal(beside.merges, listed.merges)
    assert np.array_equal(beside.counts, listed.counts)
    limited = train_flat(documents, 12_000, threads=2)
    assert limited.stats["peak_live_pairs"] < listed.stats["peak_live_pairs"] / 2  # else there was no limit
    assert np.array_equal(limited.merges, listed.merges)


TRAIN_IN_LITTLE = """
import sys
import numpy as np
from piecemill._core import FlatCorpus, Progress
from piecemill.machine import memory_now, memory_peak

text = np.fromfile(sys.argv[1], np.uint8)
vocab_size, threads = int(sys.argv[2]), int(sys.argv[3])
before = memory_now() - len(text)
corpus = FlatCorpus(vocab_size, 0, None, [], threads)
corpus.add(text, np.arange(10_000, len(text) + 1, 10_000))
length = len(text)
del text
open("/proc/self/clear_refs", "w").write("5")
corpus.train(Progress())
taken = memory_peak() - before
assert taken < 10 * length, f"{taken / length:.1f} bytes for each byte"
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak can only be reset on Linux")
@pytest.mark.parametrize(("vocab_size", "threads"), [(30_000, 1), (60_000, 2), (60_000, 8), (150_000, 2)])
def test_whole_documents_take_at_most_ten_bytes_for_each(tmp_path, vocab_size, threads):
    (tmp_path / "text").write_bytes(b"".join(random_documents(12, seed=6)))
    command = [sys.executable, "-c", TRAIN_IN_LITTLE, str(tmp_path / "text"), str(vocab_size), str(threads)]
    subprocess.run(command, check=True)


def test_wide_slots_give_the_same_merges_as_narrow_ones():
    rng = random.Random(7)
    documents = [zipfian_text(rng, 40) for _ in range(30)]
    narrow, wide = train_flat(documents, 1000), train_flat(documents, 70_000)
    assert pairs(wide)[: len(narrow.merges)] == pairs(narrow)


def test_documents_never_merge_across_their_ends():
    assert len(train_flat([b"a", b"b"] * 50, 300).merges) == 0


def test_running_out_of_pairs_says_so():
    learned = train_flat([b"abab"], 1000)
    assert not learned.full
    assert learned.vocab_size == 256 + len(learned.merges) == 258
    assert train_flat([b"abab"], 257).full


def test_the_queue_stays_within_twice_the_live_pairs():
    rng = random.Random(3)
    words = Counter(zipfian_text(rng, rng.randint(1, 5)) for _ in range(6_000))
    stats = train_counted(words, 20_000).stats
    assert stats["peak_queue"] > 1024  # else nothing was measured
    assert 1000 <= stats["queue_per_mille"] <= 2000


def test_counts_beyond_32_bits_do_not_wrap():
    heavy = 2**40
    learned = train_counted({b"ab": heavy, b"cd": heavy + 1, b"ef": 5}, 259)
    assert learned.counts.tolist() == [heavy + 1, heavy, 5]


def test_a_used_up_corpus_says_so():
    from piecemill.errors import TrainingError

    corpus = FlatCorpus(300, 0, None, [])
    corpus.train(Progress())
    with pytest.raises(TrainingError, match="used up"):
        corpus.train(Progress())


def test_stopping_ends_training_with_keyboard_interrupt():
    corpus, progress = FlatCorpus(300, 0, None, []), Progress()
    corpus.add(*flat([b"abcabc"]))
    progress.stop()
    with pytest.raises(KeyboardInterrupt):
        corpus.train(progress)
