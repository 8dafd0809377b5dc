"""Exact deduplication: the first copy stays, whatever the memory."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora import content, small_tokenizer, split_texts, texts, write_jsonl
from piecemill import prepare
from piecemill._core import SeenDocuments
from piecemill.preparing import run


def firsts(hashes: list[tuple[int, int]]) -> list[bool]:
    """The definition: a set."""
    seen: set[tuple[int, int]] = set()
    return [not (one in seen or seen.add(one)) for one in hashes]


words = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])


@given(st.lists(st.tuples(words, words), max_size=40), st.integers(1, 8), st.integers(1, 12))
def test_the_same_as_a_set_for_any_memory_and_any_calls(tmp_path_factory, hashes, most, at_once):
    seen = SeenDocuments(most, tmp_path_factory.getbasetemp())
    got: list[bool] = []
    for start in range(0, len(hashes), at_once):
        rows = np.array(hashes[start : start + at_once], np.uint64).reshape(-1, 2)
        got += seen.admit(rows).tolist()
    assert got == firsts(hashes)


def test_many_hashes_spill_to_files_that_have_no_name(tmp_path):
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 2**63, (50_000, 2), dtype=np.uint64)
    rows[rng.integers(0, 50_000, 10_000)] = rows[rng.integers(0, 50_000, 10_000)]
    small, large = SeenDocuments(1_000, tmp_path), SeenDocuments(10**9, tmp_path)
    for start in range(0, 50_000, 777):
        part = rows[start : start + 777]
        assert small.admit(part).tolist() == large.admit(part).tolist()
    assert small.counts[1] > 30_000
    assert large.counts == (small.counts[0], 0)
    assert list(tmp_path.iterdir()) == []


def test_the_first_copy_in_the_order_of_the_corpus_stays(tmp_path):
    tok = small_tokenizer()
    documents = texts(500, copies=0.4)
    write_jsonl(tmp_path / "a.jsonl", documents[:300])
    write_jsonl(tmp_path / "b.jsonl", documents[300:])
    source = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    summary = prepare(source, tok, out=tmp_path / "out", dedup="exact", workers=3, block_bytes="2KiB")
    kept = list(dict.fromkeys(documents))
    assert split_texts(tmp_path / "out", "all", tok) == kept
    copies = len(documents) - len(kept)
    assert summary.dropped["duplicate"] == {
        "documents": copies,
        "bytes": sum(len(text.encode()) for text in documents) - sum(len(text.encode()) for text in kept),
    }
    assert len(summary.duplicate_examples) == 20
    place = int(summary.duplicate_examples[0].rpartition("@")[2])
    first = next(n for n, text in enumerate(documents) if text in documents[:n])
    assert (tmp_path / "a.jsonl").read_bytes()[:place].count(b"\n") == first


def test_without_dedup_copies_stay(tmp_path):
    summary = prepare(iter(["a", "b", "a"]), small_tokenizer(), out=tmp_path / "out")
    assert summary.documents == 3
    assert summary.dropped == {}


def test_spilling_changes_nothing(tmp_path, monkeypatch: pytest.MonkeyPatch):
    tok = small_tokenizer()
    write_jsonl(tmp_path / "a.jsonl", texts(2_000, copies=0.4))
    options = {"dedup": "exact", "block_bytes": "2KiB"}
    prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "memory", **options)
    real = run.Selection
    monkeypatch.setattr(run, "Selection", lambda *args, **more: real(*args, **{**more, "most_seen": 50}))
    prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "disk", **options)
    assert content(tmp_path / "memory") == content(tmp_path / "disk")
    assert isinstance(tmp_path, Path)
