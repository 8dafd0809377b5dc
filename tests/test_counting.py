"""Counting words: the same for any order, number of threads and memory, and never wrong by a byte."""

import os
import random
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpora import open_files
from piecemill._core import WordCounter, split_text_reference
from piecemill.errors import SourceError, TrainingError


def block(texts):
    encoded = [text.encode() for text in texts]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([len(text) for text in encoded], dtype=np.int64)


def words_of(counter):
    data, ends, counts = counter.finish().arrays()
    data, starts = data.tobytes(), [0, *ends.tolist()][: len(ends)]
    words = [data[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
    assert len(set(words)) == len(words)
    found = dict(zip(words, counts.tolist(), strict=True))
    assert words == sorted(words, key=lambda word: (-found[word], word))
    return found


def expected(texts, pretokenizer):
    counts = Counter()
    for text in texts:
        data, start = text.encode(), 0
        for end in split_text_reference(text, pretokenizer).tolist():
            counts[data[start:end]] += 1
            start = end
    return dict(counts)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=8), st.sampled_from(["gpt2", "cl100k", "o200k", "none", r"\d+"]))
def test_counts_equal_a_plain_count_of_the_reference_split(texts, pretokenizer):
    counter = WordCounter(pretokenizer, 2**30, ".")
    counter.add(*block(texts))
    assert words_of(counter) == expected(texts, pretokenizer)


def test_words_of_every_length_are_told_apart(tmp_path):
    # 15 bytes is where a word moves from its table entry to the arena; NUL bytes must not look like padding.
    words = (
        [b"a" * n for n in range(1, 40)] + [b"a" * n + b"\0" for n in range(1, 40)] + [b"\0" * n for n in range(1, 20)]
    )
    counter = WordCounter("none", 2**30, tmp_path)
    for word in words:
        counter.add(np.frombuffer(word, np.uint8), np.array([len(word)], np.int64))
    assert words_of(counter) == dict.fromkeys(words, 1)


def random_texts(seed, count):
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(1, 30))) for _ in range(4_000)]
    return [" ".join(rng.choices(vocabulary, k=rng.randint(1, 400))) for _ in range(count)]


@pytest.mark.parametrize("memory", [2**30, 400_000, 20_000, 1])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_order_and_memory_do_not_change_the_counts(tmp_path, memory, threads):
    texts = random_texts(5, 200)
    blocks = [block(texts[at : at + 10]) for at in range(0, len(texts), 10)]
    random.Random(threads).shuffle(blocks)
    counter = WordCounter("gpt2", memory, tmp_path)

    def run(part):
        for one in blocks[part::threads]:
            counter.add(*one)

    workers = [threading.Thread(target=run, args=(part,)) for part in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    runs, spilled = counter.spills
    assert (runs > 0) == (memory < 2**30)
    assert (spilled > 0) == (runs > 0)
    assert os.listdir(tmp_path) == []  # spilled files have no name: nothing is left behind, whatever happens
    assert words_of(counter) == expected(texts, "gpt2")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.binary(min_size=1, max_size=30), st.integers(1, 2**60), max_size=6), max_size=3))
def test_counts_from_elsewhere_add_up_in_64_bits(parts):
    counter = WordCounter("gpt2", 2**30, ".")
    total = Counter()
    for part in parts:
        ends = np.cumsum([len(word) for word in part], dtype=np.int64)
        counter.add_counts(np.frombuffer(b"".join(part), np.uint8), ends, np.array(list(part.values()), np.uint64))
        total.update(part)
    assert words_of(counter) == dict(total)


def test_a_spilled_run_has_no_name_at_any_moment(tmp_path):
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except (AttributeError, OSError):
        pytest.skip("no files without a name here")
    counter = WordCounter("gpt2", 1, tmp_path)
    counter.add(*block(["some text"]))
    assert counter.spills[0]
    runs = open_files(tmp_path)
    assert len(runs) == counter.spills[0]
    assert all(name.startswith("#") for name in runs), runs  # the number of the file: it was never in a folder


def test_a_full_disk_says_what_to_do(tmp_path):
    counter = WordCounter("gpt2", 1, tmp_path / "missing")
    with pytest.raises(TrainingError, match=r"missing: cannot spill counts to disk.*Allow more memory.*TMPDIR"):
        counter.add(*block(["some text"]))


def test_ends_that_do_not_fit_are_refused():
    counter = WordCounter("gpt2", 2**30, ".")
    for ends in ([5, 3], [-1], [99]):
        with pytest.raises(SourceError, match="ends must rise"):
            counter.add(np.frombuffer(b"hello", np.uint8), np.array(ends, np.int64))


def test_a_refused_block_loses_none_of_those_before_it():
    counter = WordCounter("gpt2", 2**30, ".")
    counter.add(*block(["one two"]))
    with pytest.raises(SourceError, match="ends must rise"):
        counter.add(np.frombuffer(b"hello", np.uint8), np.array([99], np.int64))
    assert words_of(counter) == {b"one": 1, b" two": 1}


def test_counts_that_do_not_fit_in_64_bits_are_refused():
    counter = WordCounter("gpt2", 2**30, ".")
    word = np.frombuffer(b"word", np.uint8), np.array([4], np.int64)
    counter.add_counts(*word, np.array([2**63], np.uint64))
    with pytest.raises(SourceError, match="2\\^64"):
        counter.add_counts(*word, np.array([2**63], np.uint64))
    assert words_of(counter) == {b"word": 2**63}


COUNT_WITH_FEW_FILES = """
import resource, sys
import numpy as np
from piecemill._core import WordCounter

resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
counter = WordCounter("none", 1, sys.argv[1])
for n in range(400):
    words = [b"always", str(n).encode(), str(n % 7).encode()]
    counter.add(np.frombuffer(b"".join(words), np.uint8), np.cumsum([len(word) for word in words]))
counts = counter.finish()
assert counter.spills[0] >= 400, counter.spills
data, ends, numbers = counts.arrays()
words = [data[start:end].tobytes() for start, end in zip([0, *ends[:-1].tolist()], ends.tolist())]
assert dict(zip(words, numbers.tolist()))[b"always"] == 400
assert len(words) == 401, len(words)
assert numbers.sum() == 1200
"""


def test_many_spills_need_few_files(tmp_path):
    subprocess.run([sys.executable, "-c", COUNT_WITH_FEW_FILES, str(tmp_path)], check=True)


COUNT_IN_LITTLE = """
import sys
import numpy as np
from piecemill._core import WordCounter
from piecemill.machine import memory_now, memory_peak

memory = 64 << 20
letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
rng = np.random.default_rng(1)
counter = WordCounter("gpt2", memory, sys.argv[1])
open("/proc/self/clear_refs", "w").write("5")
before = memory_now()
for _ in range(40):  # 2 MB each, nearly all of it words that were never seen before
    text = letters[rng.integers(0, 26, 2_000_000)]
    text[::10] = 32
    counter.add(text, np.array([len(text)], np.int64))
assert counter.spills[0] > 2, counter.spills
taken = memory_peak() - before - 20_000_000  # what a block takes, and the numbers it is made of
assert taken < memory, f"{taken / 2**20:.0f} MiB"
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak can only be reset on Linux")
def test_counting_stays_within_its_memory(tmp_path):
    subprocess.run([sys.executable, "-c", COUNT_IN_LITTLE, str(tmp_path)], check=True)
