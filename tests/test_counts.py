"""Exact counts of tokens: taken by `prepare`, one array per split, the same wherever and however it ran."""

import json
from pathlib import Path

import numpy as np
import pytest

import piecemill as pm
from corpora import content, small_tokenizer, write_jsonl
from piecemill._core import count_ids
from piecemill.errors import ShardError
from piecemill.files import LocalPlace
from piecemill.shards import RECORD, ShardWriter
from piecemill.shards.counts import NAME, parse_counts, piece_counts_name, write_counts
from piecemill.shards.folder import write_stats
from piecemill.shards.sections import write_sections

FORMAT_1 = Path(__file__).with_name("format1")
TEXTS = [f"document {n % 37} of the corpus, " + "words and words " * (n % 11) for n in range(200)]


@pytest.fixture
def corpus(tmp_path):
    for number in range(3):
        write_jsonl(tmp_path / "in" / f"{number}.jsonl", TEXTS[number * 60 : number * 60 + 80])
    return tmp_path / "in"


def recount(shards):
    counts = np.zeros(shards.vocab_size, np.uint64)
    for row in shards:
        counts += np.bincount(row, minlength=len(counts)).astype(np.uint64)
    return counts


@pytest.mark.parametrize("dedup", ["none", "exact"])
def test_counts_are_those_of_the_tokens_in_the_shards(corpus, tmp_path, dedup):
    options = {"splits": "train=80,val=20", "dedup": dedup, "block_bytes": "1KiB", "piece_bytes": "2KiB"}
    pm.prepare(corpus, small_tokenizer(), out=tmp_path / "out", **options)
    for split in ("train", "val"):
        shards = pm.open_shards(tmp_path / "out", split)
        stored = shards.token_counts()
        assert stored is not None
        assert stored.dtype == np.uint64
        assert np.array_equal(stored, recount(shards))
        assert np.array_equal(np.load(tmp_path / "out" / split / NAME), stored)  # a real .npy
    assert not [name for name in content(tmp_path / "out") if name.endswith(".counts")]
    assert pm.check(tmp_path / "out").sound


def test_a_split_without_documents_has_counts_of_zero(tmp_path):
    pm.prepare(["one"], small_tokenizer(), out=tmp_path / "out", splits="train=999999,val=1")
    counts = pm.open_shards(tmp_path / "out", "val").token_counts()
    assert counts is not None
    assert not counts.any()


def test_check_compares_counts_with_a_recount(corpus, tmp_path):
    out = tmp_path / "out"
    pm.prepare(corpus, small_tokenizer(), out=out)
    counts = np.load(out / "all" / NAME)
    token = int(np.flatnonzero(counts)[0])
    counts[token] += 1
    np.save(out / "all" / NAME, counts)
    (problem,) = pm.check(out).problems
    assert (problem.file, "was changed" in problem.what) == (f"all/{NAME}", True)
    stats = json.loads((out / "stats.json").read_text())
    write_stats(LocalPlace(out), {key: value for key, value in stats.items() if key not in ("checksums", "xxh3")})
    (problem,) = pm.check(out).problems  # with a checksum that is right, the recount notices it
    n = int(counts[token])
    assert problem.what == f"says that token {token:,} occurs {n:,} times; it occurs {n - 1:,} times."


def test_folders_of_earlier_versions_say_that_they_have_no_counts(corpus, tmp_path):
    assert pm.open_shards(FORMAT_1, "train").token_counts() is None
    assert "train   no token counts" in str(pm.describe(FORMAT_1))
    pm.prepare(corpus, small_tokenizer(), out=tmp_path / "out")
    (tmp_path / "out" / "all" / NAME).unlink()
    write_stats(LocalPlace(tmp_path / "out"), {})
    assert pm.describe(tmp_path / "out").facts["splits"]["all"]["token_counts"] is None


def test_counts_that_were_changed_or_lost_are_not_used(corpus, tmp_path):
    pm.prepare(corpus, small_tokenizer(), out=tmp_path / "out")
    path = tmp_path / "out" / "all" / NAME
    np.save(path, np.zeros_like(np.load(path)))
    shards = pm.open_shards(tmp_path / "out")
    with pytest.raises(ShardError, match=r"counts\.npy: was changed or cut"):
        shards.token_counts()
    path.unlink()
    with pytest.raises(ShardError, match=r"counts\.npy is missing"):
        shards.token_counts()


def test_show_says_how_many_tokens_are_used(corpus, tmp_path):
    tok = small_tokenizer()
    pm.prepare(corpus, tok, out=tmp_path / "out")
    counts = pm.open_shards(tmp_path / "out").token_counts()
    used = pm.describe(tmp_path / "out").facts["splits"]["all"]["token_counts"]
    assert used == {
        "used": int((counts > 0).sum()),
        "never": int((counts == 0).sum()),
        "under_100": int(((counts > 0) & (counts < 100)).sum()),
    }
    assert used["used"] + used["never"] == tok.vocab_size


def test_a_complete_folder_that_lost_its_stats_counts_again(corpus, tmp_path):
    options = {"out": tmp_path / "out", "splits": "train=80,val=20", "piece_bytes": "2KiB", "block_bytes": "1KiB"}
    pm.prepare(corpus, small_tokenizer(), **options)
    before = content(tmp_path / "out")
    (tmp_path / "out" / "stats.json").unlink()
    (tmp_path / "out" / "train" / NAME).unlink()
    pm.prepare(corpus, small_tokenizer(), **options)
    assert content(tmp_path / "out") == before


def test_an_id_outside_the_vocabulary_is_not_counted():
    counts = np.zeros(3, np.uint64)
    count_ids(np.array([0, 2, 2], np.uint16), counts)
    count_ids(np.array([1, 2], np.uint32), counts)
    assert counts.tolist() == [1, 1, 3]
    with pytest.raises(ValueError, match="id 3 of a vocabulary of 3 tokens"):
        count_ids(np.array([3], np.uint32), counts)


@pytest.mark.parametrize("vocab", [1, 300, 65_536, 100_000])
def test_many_ids_are_counted_as_few_are(vocab):
    # From as many ids as the vocabulary has tokens on, they are counted in a table of its own.
    ids = (
        np.random.default_rng(0).integers(0, vocab, 3 * vocab + 1).astype(np.uint16 if vocab <= 1 << 16 else np.uint32)
    )
    counts = np.ones(vocab, np.uint64)
    count_ids(ids, counts)
    assert np.array_equal(counts, 1 + np.bincount(ids, minlength=vocab).astype(np.uint64))
    for outside in (vocab, (1 << 31) + vocab):  # the second one is beyond the table, too
        with pytest.raises(ValueError, match=f"id {outside} of a vocabulary of {vocab} tokens"):
            count_ids(np.append(ids, outside).astype(np.uint32), counts)


def test_a_piece_whose_counts_were_changed_is_counted_again(tmp_path):
    place = LocalPlace(tmp_path)
    with ShardWriter(place, "all", "000000-0000", dtype=np.dtype("<u2"), vocab=3) as writer:
        writer.append(np.array([0, 2, 2], "<u2"), np.array([3]), np.zeros(1, RECORD))
        writer.finish()

    def read(vocab=3):
        return parse_counts(place.read(f"all/{NAME}"), NAME, vocab)

    write_counts(place, "all", ["000000-0000", "000000-0000"], 3)
    assert read().tolist() == [2, 0, 4]
    path = tmp_path / piece_counts_name("000000-0000", "all")
    path.write_bytes(path.read_bytes()[:-1] + b"\x09")
    write_counts(place, "all", ["000000-0000"], 3)
    assert read().tolist() == [1, 0, 2]
    items = np.array([(0, 7)], [("id", "<u4"), ("count", "<u8")]).view(np.uint8)  # as an earlier version wrote them
    write_sections(place, piece_counts_name("000000-0000", "all"), items, np.array([len(items)], np.int64))
    write_counts(place, "all", ["000000-0000"], 3)
    assert read().tolist() == [1, 0, 2]
    path.unlink()
    write_counts(place, "all", ["000000-0000"], 3)
    assert read().tolist() == [1, 0, 2]
    with pytest.raises(ShardError, match=r"expected 4 of uint64"):
        read(4)
