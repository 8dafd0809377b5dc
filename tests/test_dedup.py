"""Exact deduplication: the first copy in corpus order stays, whatever the pieces, ranges, memory and interruptions."""

import json
import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpora import content, small_tokenizer, split_texts, texts, write_jsonl
from piecemill import prepare
from piecemill._core import HASH_ITEM_BYTES, hash_documents, later_copies, sort_hashes
from piecemill.errors import ShardError
from piecemill.executors import open_executor
from piecemill.files import LocalPlace, Place
from piecemill.preparing import dedup
from piecemill.shards import ShardWriter
from piecemill.shards.format import RECORD
from piecemill.shards.manifest import Entry, newest_entries, piece_name
from stores import Server

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Document:
    """A document of a corpus: its split need not depend on its text, as with `split_by`."""

    text: bytes
    split: int
    file: int
    place: int


Piece = tuple[int, int, list[Document]]
"Task, piece, documents."


def corpus(seed: int, pieces: int = 6, most: int = 40, kinds: int = 60) -> list[Piece]:
    """Pieces of several tasks with copies inside them, between them, between tasks and between splits."""
    rng = random.Random(seed)
    made: list[Piece] = []
    task = number = 0
    for at in range(pieces):
        documents = [
            Document(b"text %d" % rng.randrange(kinds) * rng.choice([1, 3]), rng.randrange(3), at, place)
            for place in range(rng.randrange(most))
        ]
        made.append((task, number, documents))
        task, number = (task + 1, 0) if rng.random() < 0.5 else (task, number + 1)
    return made


def without_copies(pieces: list[Piece]) -> tuple[dict[str, list[tuple]], list[tuple[int, int]], int]:
    """The definition, a dictionary: documents of each split, file and place of all later copies, their bytes."""
    first: dict[bytes, Document] = {}
    kept: dict[str, list[tuple]] = {split: [] for split in SPLITS}
    copies, size = [], 0
    for _, _, documents in pieces:
        for document in documents:
            if first.setdefault(document.text, document) is document:
                kept[SPLITS[document.split]].append((list(document.text), document.file, document.place))
            else:
                copies.append((document.file, document.place))
                size += len(document.text)
    return kept, copies, size


def write_pieces(place: Place, pieces: list[Piece]) -> None:
    """What tasks leave: shards with a token for each byte, hashes, entries."""
    for task, number, documents in pieces:
        stem, shards = piece_name(task, number), {}
        data, ends = flat([document.text for document in documents])
        hashes, sides = hash_documents(data, ends), np.array([document.split for document in documents], np.int32)
        for side, split in enumerate(SPLITS):
            with ShardWriter(place, split, stem, dtype=np.dtype("<u2")) as writer:
                for document, (low, high) in zip(documents, hashes.tolist(), strict=True):
                    if document.split == side:
                        record = (low, high, len(document.text), document.file, document.place, 0)
                        ids = np.frombuffer(document.text, np.uint8).astype("<u2")
                        writer.append(ids, np.array([len(ids)]), np.array([record], RECORD))
                if (shard := writer.finish()) is not None:
                    shards[split] = shard
        saved = dedup.save_hashes(place, stem, hashes, sides)
        entry = Entry(task, number, True, "", "byte", {"documents": len(documents)}, {}, shards, saved)
        place.write(entry.name, entry.to_json())


def flat(documents: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(b"".join(documents), np.uint8), np.cumsum([len(text) for text in documents], dtype=np.int64)


def drop(place: Place, executor: Any = None, memory: int = 2**30) -> int:
    executor = executor or open_executor("local", threads=2)
    return dedup.drop_later_copies(place, newest_entries(place), SPLITS, executor, memory, vocab=1 << 16)


def kept_documents(place: Place) -> dict[str, list[tuple]]:
    """The documents of each split by the newest entries: ids, file, place."""
    found: dict[str, list[tuple]] = {split: [] for split in SPLITS}
    for entry in newest_entries(place):
        for split, shard in entry.shards.items():
            arrays = {
                kind: np.load(_file(place.read(f"{split}/{file.name}"))) for kind, file in shard.files.items()
            }  # fmt: skip
            ids = np.split(arrays["tokens"], arrays["ends"][:-1])
            assert (shard.documents, shard.tokens) == (len(ids), len(arrays["tokens"]))
            records = arrays["documents"]
            assert shard.text_bytes == records["bytes"].sum()
            found[split] += [
                (one.tolist(), int(record["file"]), int(record["place"]))
                for one, record in zip(ids, records, strict=True)
            ]
    return found


def _file(data: bytes) -> Any:
    import io

    return io.BytesIO(data)


def check_equals_definition(place: Place, pieces: list[Piece]) -> None:
    kept, copies, size = without_copies(pieces)
    assert kept_documents(place) == kept
    entries = list(newest_entries(place))
    assert [one for entry in entries for one in entry.examples][:20] == copies[:20]
    dropped = [entry.dropped["duplicate"] for entry in entries if entry.unique]
    assert (sum(count for count, _ in dropped), sum(bytes for _, bytes in dropped)) == (len(copies), size)
    affected = {file for file, _ in copies}
    assert [entry.unique for entry in entries] == [number in affected for number in range(len(entries))]


words = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])


@given(st.lists(st.lists(st.tuples(words, words), max_size=12), max_size=5))
def test_runs_and_their_merge_give_the_later_copies(pieces):
    seen: set[tuple[int, int]] = set()
    want = [[n for n, one in enumerate(piece) if one in seen or seen.add(one)] for piece in pieces]
    runs = [sort_hashes(np.array(piece, np.uint64).reshape(-1, 2)) for piece in pieces]
    documents, starts = later_copies([run for _, run, _ in runs])
    for number, (index, run, inside) in enumerate(runs):
        between = documents[starts[number] : starts[number + 1]]
        assert sorted([*inside.tolist(), *between.tolist()]) == want[number]
        assert index[-1] * HASH_ITEM_BYTES == len(run)


def test_a_run_is_sorted_and_its_index_says_where_each_prefix_starts():
    hashes = np.random.default_rng(1).integers(0, 2**64 - 1, (5_000, 2), np.uint64)
    hashes[4_000:] = hashes[:1_000]
    starts, run, inside = sort_hashes(hashes)
    items = run.view([("high", "<u8"), ("low", "<u8"), ("document", "<u4")])
    order = sorted((int(high), int(low), number) for number, (low, high) in enumerate(hashes[:4_000]))
    assert [(int(one["high"]), int(one["low"]), int(one["document"])) for one in items] == order
    assert inside.tolist() == list(range(4_000, 5_000))
    prefixes = items["high"] >> np.uint64(52)
    assert starts.tolist() == np.searchsorted(prefixes, np.arange(4097)).tolist()


def test_hashes_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"5 rows of 3; expected rows of 2"):
        sort_hashes(np.zeros((5, 3), np.uint64))


def test_a_run_that_is_cut_is_an_error():
    with pytest.raises(OSError, match="fill whole buffer"):
        later_copies([np.zeros(HASH_ITEM_BYTES + 3, np.uint8)])


@pytest.mark.parametrize(
    ("seed", "memory"), [*((seed, memory) for seed in range(8) for memory in (2**30, 1_500)), (9, 100)]
)
def test_the_same_as_a_dictionary_for_any_corpus_and_memory(tmp_path, seed, memory):
    place, pieces = LocalPlace(tmp_path), corpus(seed)
    write_pieces(place, pieces)
    drop(place, memory=memory)
    ranges = [name for name in place.sizes("entries") if name.endswith(".copies")]
    assert (len(ranges) == 1) == (memory == 2**30)
    assert memory > 100 or len(ranges) >= 32
    check_equals_definition(place, pieces)


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_tiny_corpora_of_few_texts(tmp_path_factory, rng):
    place = LocalPlace(tmp_path_factory.mktemp("corpus"))
    pieces = corpus(rng.randrange(2**32), pieces=rng.randrange(1, 5), most=5, kinds=3)
    write_pieces(place, pieces)
    drop(place, memory=100)
    check_equals_definition(place, pieces)


def test_without_copies_nothing_is_written_but_that_there_are_none(tmp_path):
    place = LocalPlace(tmp_path)
    write_pieces(place, [(0, 0, [Document(b"one", 0, 0, 0)]), (0, 1, []), (1, 0, [Document(b"two", 1, 2, 0)])])
    before = content(tmp_path)
    assert drop(place) == 0
    assert {name: data for name, data in content(tmp_path).items() if not name.endswith(".copies")} == before


@pytest.mark.parametrize("hashes", [0, 1, 1_000, 10**6, 10**9, 10**12])
@pytest.mark.parametrize("memory", [1, 10**6, 2**30])
def test_ranges_cover_all_hashes_once_and_fit_as_far_as_they_can(hashes, memory):
    ranges = dedup.choose_ranges(hashes, memory)
    assert [one.first for one in ranges] == [0, *(one.stop for one in ranges[:-1])]
    assert ranges[-1].stop == 4096
    assert hashes * 32 / len(ranges) <= memory or len(ranges) == 4096


def test_a_chunk_of_a_shard_is_read_at_a_time(tmp_path, monkeypatch):
    whole, chunks, pieces = LocalPlace(tmp_path / "whole"), LocalPlace(tmp_path / "chunks"), corpus(3)
    for place in (whole, chunks):
        write_pieces(place, pieces)
    drop(whole)
    monkeypatch.setattr("piecemill.shards.writer._CHUNK_TOKENS", 16)
    drop(chunks)
    assert content(tmp_path / "whole") == content(tmp_path / "chunks")


class Killed(BaseException):
    """Stands for a process that is gone."""


@dataclass(frozen=True)
class Dying:
    """A folder whose process is killed at the nth thing it writes: before, or right after."""

    inner: LocalPlace
    left: list[int]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _step(self) -> None:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise Killed

    def write(self, name: str, content: bytes) -> None:
        self._step()
        self.inner.write(name, content)
        self._step()

    def publish(self, path: Path, name: str) -> None:
        self._step()
        self.inner.publish(path, name)
        self._step()


def test_killed_at_any_point_and_run_again_it_writes_the_same_bytes(tmp_path):
    pieces = corpus(5, pieces=5, most=12, kinds=25)
    write_pieces(LocalPlace(tmp_path / "want"), pieces)
    drop(LocalPlace(tmp_path / "want"), memory=700)
    want = without_scratch(tmp_path / "want")
    for steps in range(10_000):
        place = LocalPlace(tmp_path / str(steps))
        write_pieces(place, pieces)
        try:
            drop(Dying(place, [steps]), open_executor("local", threads=1), memory=700)
        except Killed:
            drop(place, memory=700)
            assert without_scratch(place.path) == want
        else:
            break
    assert steps > 20


def without_scratch(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in content(folder).items() if not name.startswith(".scratch/")}


def test_doing_it_twice_changes_nothing(tmp_path):
    place = LocalPlace(tmp_path)
    write_pieces(place, corpus(4))
    replaced = drop(place)
    before = content(tmp_path)
    assert drop(place) == replaced > 0
    for name in before:
        if name.endswith((".unique.json", ".copies")):
            (tmp_path / name).unlink()
    assert drop(place) == replaced
    assert content(tmp_path) == before


class PicklingExecutor:
    """Each call as another process would get it."""

    name = "pickling"

    def map(self, function, tasks, on_tick=None):
        for task in reversed(tasks):
            called, given = pickle.loads(pickle.dumps((function, task)))
            yield task, called(given)


def test_waves_can_be_pickled_and_run_in_any_order(tmp_path):
    place, pieces = LocalPlace(tmp_path), corpus(7)
    write_pieces(place, pieces)
    drop(place, PicklingExecutor(), memory=500)
    check_equals_definition(place, pieces)


def test_in_an_object_store(tmp_path):
    server = Server()
    try:
        place, local, pieces = server.place(), LocalPlace(tmp_path), corpus(8)
        for one in (place, local):
            write_pieces(one, pieces)
            drop(one, memory=3_000)
        check_equals_definition(place, pieces)
        for folder in ("entries", *SPLITS):
            assert place.sizes(folder) == local.sizes(folder)
            assert all(place.read(f"{folder}/{name}") == local.read(f"{folder}/{name}") for name in place.sizes(folder))
    finally:
        server.stop()


def test_hashes_that_are_missing_or_cut_say_what_to_do(tmp_path):
    place = LocalPlace(tmp_path)
    write_pieces(place, [(0, 0, [Document(b"one", 0, 0, 0)])])
    path = tmp_path / "entries/000000-0000.hashes"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        ShardError, match=r"0000\.hashes: 65,605 bytes; expected 65,606. Delete entries/000000-0000\* and run"
    ):
        drop(place)
    path.unlink()
    with pytest.raises(ShardError, match=r"0000\.hashes: 0 bytes; expected 65,606"):
        drop(place)


def test_every_changed_byte_of_hashes_and_copies_is_noticed(tmp_path):
    place = LocalPlace(tmp_path)
    documents = [Document(b"%d" % (n % 40), 0, 0, n) for n in range(60)]
    write_pieces(place, [(0, 0, documents), (1, 0, documents[::-1])])
    hashes = tmp_path / "entries/000001-0000.hashes"
    copies = tmp_path / "entries/0000-4096.copies"
    whole = dedup.HashRange(0, 4096)
    find = partial(dedup.find_copies, whole, place, ["000000-0000", "000001-0000"])
    dropping = partial(dedup.drop_copies, 1, place, ["000000-0000", "000001-0000"], [whole], SPLITS, 1 << 16)
    find()
    rng, size = np.random.default_rng(1), hashes.stat().st_size
    table, behind = 16 * 4099, size - 4 * 20 - 2 * 60  # 20 documents equal an earlier one of the piece
    for path, call, read in (
        (hashes, find, range(16)),
        (hashes, find, range(table, behind)),
        (hashes, dropping, range(behind, size)),
        (copies, dropping, [*range(16, 40), *range(48, copies.stat().st_size)]),
    ):
        data = path.read_bytes()
        for at in rng.choice(read, min(len(read), 25), replace=False):
            changed = bytearray(data)
            changed[at] ^= 1 << int(rng.integers(8))
            path.write_bytes(changed)
            with pytest.raises(ShardError, match=rf"{path.name}: was changed after it was written\. Delete entries/"):
                call()
        path.write_bytes(data)
    dropping()


@pytest.mark.parametrize("kind", ["tokens", "ends", "documents"])
def test_a_shard_that_was_changed_is_not_copied(tmp_path, kind):
    place = LocalPlace(tmp_path)
    write_pieces(place, [(0, 0, [Document(b"one", 0, 0, 0), Document(b"one", 0, 0, 1)])])
    path = tmp_path / f"train/000000-0000.{kind}.npy"
    data = bytearray(path.read_bytes())
    data[-8 if kind == "ends" else -1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardError, match=rf"000000-0000\.{kind}\.npy: was changed after it was written. Delete it"):
        drop(place)
    assert not list(tmp_path.rglob("*.unique.*"))


# By `prepare`


def test_the_first_copy_in_the_order_of_the_corpus_stays(tmp_path):
    tok = small_tokenizer()
    documents = texts(500, copies=0.4)
    write_jsonl(tmp_path / "a.jsonl", documents[:300])
    write_jsonl(tmp_path / "b.jsonl", documents[300:])
    source = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    options = {"dedup": "exact", "threads": 3, "block_bytes": "2KiB", "piece_bytes": "8KiB"}
    summary = prepare(source, tok, out=tmp_path / "out", **options)
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
    listed = {path.name for split in ("all",) for path in (tmp_path / "out" / split).glob("*.tokens.npy")}
    lines = [json.loads(line) for line in (tmp_path / "out/all/manifest.jsonl").read_text().splitlines()]
    assert listed == {line["files"]["tokens"]["name"] for line in lines}  # replaced shards are gone


def test_copies_in_different_splits_are_copies(tmp_path):
    tok = small_tokenizer()
    documents = texts(300, copies=0.5)
    users = [f"user {number % 17}" for number in range(300)]
    write_jsonl(tmp_path / "a.jsonl", documents, user=users)
    options = {"splits": "train=1,val=1", "split_by": "user", "piece_bytes": "8KiB", "block_bytes": "2KiB"}
    prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "all", **options)
    sides = {text: split for split in ("train", "val") for text in split_texts(tmp_path / "all", split, tok)}
    assert len(set(sides.values())) == 2
    prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "unique", dedup="exact", **options)
    found = [text for split in ("train", "val") for text in split_texts(tmp_path / "unique", split, tok)]
    assert sorted(found) == sorted(set(documents))
    first_user = dict(zip(reversed(documents), reversed(users), strict=True))
    in_train = {user for user in users if _side(tmp_path / "all", tok, documents, users, user) == "train"}
    train = set(split_texts(tmp_path / "unique", "train", tok))
    assert train == {text for text, user in first_user.items() if user in in_train}


def _side(folder: Path, tok: Any, documents: list[str], users: list[str], user: str) -> str:
    """The split of a user: the one that has all its texts."""
    own = {text for text, other in zip(documents, users, strict=True) if other == user}
    (side,) = [split for split in ("train", "val") if own <= set(split_texts(folder, split, tok))][:1]
    return side


def test_without_dedup_copies_stay(tmp_path):
    summary = prepare(iter(["a", "b", "a"]), small_tokenizer(), out=tmp_path / "out")
    assert summary.documents == 3
    assert summary.dropped == {}
