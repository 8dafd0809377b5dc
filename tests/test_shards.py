"""Shards: what is written is read back, in this format and the one before it."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import piecemill as pm
from piecemill._core import Xxh3
from piecemill.errors import ShardError
from piecemill.files import LocalPlace, hash_file
from piecemill.loading import Windows, batches
from piecemill.reporting.describing import describe
from piecemill.shards import RECORD, ShardWriter, token_dtype
from piecemill.shards.check import check_shards
from piecemill.shards.export import ExportPlan, export
from piecemill.shards.folder import listed
from piecemill.shards.format import HEADER_BYTES, KINDS, file_name, header
from piecemill.shards.manifest import (
    Entry,
    FileEntry,
    ShardEntry,
    delete_entry,
    newest_entries,
    parse_entry,
    piece_name,
    whole_entries,
)
from piecemill.shards.reader import open_shards
from prepared import TALLY, block, prepare_folder
from vocabularies import NASTY, library_texts, tokenizer

U2 = np.dtype("uint16")
TEXTS = [text for text in (*NASTY, "one", "two", "three", "four", "five", "six") if text]


def made_up_block(number, documents=3):
    """A small block whose every byte depends on its number."""
    rng = np.random.default_rng(number)
    lengths = rng.integers(0, 9, documents)
    records = np.zeros(documents, RECORD)
    records["hash_low"] = rng.integers(0, 1 << 60, documents)
    records["bytes"] = lengths * 3
    return rng.integers(0, 999, lengths.sum()).astype(U2), np.cumsum(lengths), records


# The format


def test_the_hash_is_xxh3_64_in_pieces_or_at_once():
    # The published xxh3-64 of nothing, with seed 0.
    assert Xxh3().hexdigest() == "2d06800538d394c2"
    data = np.arange(100_000, dtype=np.uint32).view(np.uint8)
    whole, pieces = Xxh3(), Xxh3()
    whole.update(data)
    for piece in np.array_split(data, 77):
        pieces.update(piece)
    assert whole.hexdigest() == pieces.hexdigest() != Xxh3().hexdigest()


@pytest.mark.parametrize(("kind", "dtype"), [("tokens", U2), ("tokens", "u4"), ("ends", "i8"), ("documents", RECORD)])
@pytest.mark.parametrize("count", [0, 1, 10**12])
def test_headers_have_one_length_and_numpy_reads_them(tmp_path, kind, dtype, count):
    head = header(kind, np.dtype(dtype), count)
    assert len(head) == HEADER_BYTES[kind]
    (tmp_path / "a.npy").write_bytes(head)
    with open(tmp_path / "a.npy", "rb") as file:
        assert np.lib.format.read_magic(file) == (1, 0)
        assert np.lib.format.read_array_header_1_0(file) == ((count,), False, np.dtype(dtype))
        assert file.tell() == len(head)


def test_ids_are_narrow_where_the_vocabulary_fits():
    assert [token_dtype(n).name for n in (300, 65_536, 65_537)] == ["uint16", "uint16", "uint32"]


# Writing


def stem_files(folder, stem):
    return [np.load(folder / file_name(stem, kind)) for kind in KINDS]


def writer(folder, stem="000000-0000", split="all"):
    return ShardWriter(LocalPlace(folder), split, stem, dtype=U2)


def test_numpy_reads_what_was_appended(tmp_path):
    blocks = [made_up_block(i) for i in range(4)]
    with writer(tmp_path) as shard:
        for each in blocks:
            shard.append(*each)
        assert listed(tmp_path / "all") == set()  # nothing has its name yet
        entry = shard.finish()
    tokens, ends, documents = stem_files(tmp_path / "all", "000000-0000")
    assert tokens.tolist() == np.concatenate([ids for ids, _, _ in blocks]).tolist()
    assert np.diff(ends, prepend=0).tolist() == [n for _, e, _ in blocks for n in np.diff(e, prepend=0)]
    assert documents.tobytes() == b"".join(records.tobytes() for _, _, records in blocks)
    assert listed(tmp_path) == {f"all/{file_name('000000-0000', kind)}" for kind in KINDS}
    assert (entry.documents, entry.tokens, entry.text_bytes) == (12, len(tokens), documents["bytes"].sum())
    for kind, file in entry.files.items():
        path = tmp_path / "all" / file.name
        assert (file.bytes, file.xxh3) == (path.stat().st_size, hash_file(path, HEADER_BYTES[kind]))


def test_blocks_without_documents_and_documents_without_tokens(tmp_path):
    nothing = (np.zeros(0, U2), np.zeros(0, np.int64), np.zeros(0, RECORD))
    with writer(tmp_path) as shard:
        shard.append(*nothing)
        assert shard.finish() is None
    assert listed(tmp_path) == set()
    with writer(tmp_path) as shard:
        shard.append(np.zeros(0, U2), np.zeros(2, np.int64), np.zeros(2, RECORD))
        shard.append(*nothing)
        shard.finish()
    assert stem_files(tmp_path / "all", "000000-0000")[1].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("ids", "ends", "records", "says"),
    [
        (np.zeros(3, "u4"), [3], 1, "uint32"),
        (np.zeros(3, U2), [2], 1, "the last is 2"),
        (np.zeros(3, U2), [4, 3], 2, "must rise"),
        (np.zeros(3, U2), [-1, 3], 2, "must rise"),
        (np.zeros(3, U2), [1, 3], 1, "2 ends and 1 records"),
        (np.zeros(3, U2), [], 0, "the last is 0"),
    ],
)
def test_a_block_that_does_not_fit_together_is_refused(tmp_path, ids, ends, records, says):
    with writer(tmp_path) as shard, pytest.raises(ShardError, match=says):
        shard.append(ids, np.array(ends, np.int64), np.zeros(records, RECORD))
    with pytest.raises(ShardError, match="int64; expected uint16 or uint32"):
        ShardWriter(LocalPlace(tmp_path), "all", "000000-0000", dtype=np.dtype("int64"))


def test_writing_behind_the_caller_writes_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("piecemill.shards.writer._BEHIND_BYTES", 40)  # of uint16: some blocks are written at once
    for folder, behind in ((tmp_path / "plain", False), (tmp_path / "behind", True)):
        with ShardWriter(LocalPlace(folder), "all", "000000-0000", dtype=U2, behind=behind) as shard:
            for number in range(30):
                shard.append(*made_up_block(number))
            shard.finish()
    for name in listed(tmp_path / "plain"):
        assert (tmp_path / "behind" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


@pytest.mark.parametrize("call", ["append", "finish"])
def test_an_error_behind_the_caller_is_raised_by_the_next_call(tmp_path, monkeypatch, call):
    def full(self, array, dtype):
        raise OSError(28, "No space left on device")

    def run():
        with ShardWriter(LocalPlace(tmp_path), "all", "000000-0000", dtype=U2, behind=True) as shard:
            shard.append(*made_up_block(0))
            getattr(shard, call)(*(made_up_block(1) if call == "append" else ()))

    monkeypatch.setattr("piecemill.shards.writer._Growing.write", full)
    with pytest.raises(OSError, match="No space left"):
        run()
    assert listed(tmp_path) == set()


def test_a_shard_that_is_not_finished_leaves_nothing(tmp_path):
    def stopped():
        with writer(tmp_path) as shard:
            shard.append(*made_up_block(0))
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        stopped()
    assert listed(tmp_path) == set()


def test_the_same_shard_written_by_two_at_once_is_whole(tmp_path):
    with writer(tmp_path) as one, writer(tmp_path) as other:
        for shard in (one, other):
            shard.append(*made_up_block(0))
        first = one.finish()
        before = {path.name: path.read_bytes() for path in (tmp_path / "all").iterdir()}
        assert other.finish() == first
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "all").iterdir()}


# Entries


def an_entry(task=12, piece=3, **more):
    files = {kind: FileEntry(file_name(piece_name(task, piece), kind), 200, "0" * 16) for kind in KINDS}
    return Entry(
        task, piece, True, "0" * 16, "byte", TALLY, {"too_short": (2, 7)}, {"all": ShardEntry(1, 2, 3, files)}, **more
    )


def test_an_entry_comes_back_as_it_was_written_and_any_change_is_noticed():
    entry = an_entry(hashes={"bytes": 32}, examples=((0, 17),))
    content = entry.to_json()
    assert parse_entry(content, "entries/000012-0003.json", "out") == entry
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 1
        with pytest.raises(ShardError, match="was changed or cut"):
            parse_entry(bytes(changed), entry.name, "out")
    with pytest.raises(ShardError, match="was changed or cut"):
        parse_entry(content, "entries/000012-0004.json", "out")


def test_the_newest_entries_come_in_corpus_order(tmp_path):
    place = LocalPlace(tmp_path)
    for entry in (
        an_entry(1_000_000, 0),
        an_entry(2, 10_000),
        an_entry(2, 9),
        an_entry(2, 9, unique=True),
        an_entry(0, 0),
    ):
        place.write(entry.name, entry.to_json())
    place.write("entries/000002-0009.hashes", b"not an entry")
    found = [(entry.task, entry.piece, entry.unique) for entry in newest_entries(place)]
    assert found == [(0, 0, False), (2, 9, True), (2, 10_000, False), (1_000_000, 0, False)]
    place.write("entries/000002-0009.unique.json", b"{}")
    with pytest.raises(ShardError, match=r"000002-0009\.unique\.json: was changed or cut"):
        list(newest_entries(place))
    damaged = []
    assert list(whole_entries(place, damaged)) == []  # there are no shards
    for name in damaged:
        delete_entry(place, name)
    assert listed(tmp_path) == {"entries/000002-0009.hashes"}


# Reading


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tok = tokenizer("gpt2")
    splits = {"train": TEXTS, "val": list(library_texts(3)), "test": []}
    return prepare_folder(tmp_path_factory.mktemp("prepared") / "shards", splits, tok)


def test_documents_come_back_as_they_were_encoded(folder):
    tok = tokenizer("gpt2")
    train = pm.open_shards(folder, "train")
    want = [[*tok.encode(text).tolist(), 0] for text in TEXTS]
    assert len(train.entries) > 2
    assert [row.tolist() for row in train] == want
    assert [train.document(i).tolist() for i in range(len(train))] == want
    assert (len(train), train.tokens) == (len(TEXTS), sum(map(len, want)))
    assert train.text_bytes == sum(len(text.encode()) for text in TEXTS)
    assert (train.splits, train.vocab_size, train.dtype) == (("train", "val", "test"), tok.vocab_size, U2)
    assert train.tokenizer().decode(train.document(1)[:-1]) == TEXTS[1]
    assert len(open_shards(folder, "test")) == open_shards(folder, "test").tokens == 0
    assert list(open_shards(folder, "test")) == []
    assert [row.tolist() for row in pickle.loads(pickle.dumps(train))] == want


def test_documents_are_read_only_views_of_the_file(folder):
    document = open_shards(folder, "val").document(0)
    assert not document.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        document[0] = 1


@pytest.mark.parametrize("index", [-1, len(TEXTS), 10**12])
def test_a_document_that_is_not_there_is_an_index_error(folder, index):
    with pytest.raises(IndexError, match=f"document {index} "):
        open_shards(folder, "train").document(index)


def test_many_shards_are_read_through_few_maps(folder, monkeypatch):
    monkeypatch.setattr("piecemill.shards.reader._OPEN_MAPS", 2)
    train = open_shards(folder, "train")
    first = train.document(0)
    kept = first.tolist()
    rows = [train.document(i).tolist() for i in range(len(train))]
    assert len(train._open) == 2
    assert rows[0] == kept == first.tolist()  # the view outlives its place in the cache


def test_opening_says_what_is_wrong_with_the_folder(folder, tmp_path):
    with pytest.raises(ShardError, match="this folder has train, val, test"):
        open_shards(folder)
    with pytest.raises(ShardError, match="split='valid': this folder has train, val, test"):
        open_shards(folder, "valid")
    with pytest.raises(ShardError, match=r"plan\.json is missing"):
        open_shards(tmp_path)
    copy = prepare_folder(tmp_path / "copy", {"all": TEXTS}, tokenizer("gpt2"))
    assert len(open_shards(copy)) == len(TEXTS)
    (copy / "stats.json").unlink()
    with pytest.raises(ShardError, match="not complete"):
        open_shards(copy)
    assert len(open_shards(copy, unfinished=True)) == len(TEXTS)
    plan = json.loads((copy / "plan.json").read_text())
    (copy / "plan.json").write_text(json.dumps({**plan, "format": 3}))
    with pytest.raises(ShardError, match="format 3; this version of Piecemill reads formats 1 and 2"):
        open_shards(copy, unfinished=True)


def test_a_shard_that_changed_is_refused_when_it_is_first_used(tmp_path):
    copy = prepare_folder(tmp_path / "copy", {"all": TEXTS}, tokenizer("gpt2"))
    path = copy / "all" / file_name("000000-0001", "tokens")
    data = path.read_bytes()
    path.write_bytes(data + b"\0")
    shards = open_shards(copy)
    shards.document(0)
    last = len(shards) - 1
    with pytest.raises(ShardError, match=r"000000-0001\.tokens\.npy has .* the manifest says .*piecemill check"):
        shards.document(int(shards.document_ends[0]))
    path.write_bytes(data.replace(b"<u2", b"<i2"))
    with pytest.raises(ShardError, match="int16; expected"):
        shards.document(int(shards.document_ends[0]))
    path.write_bytes(b"x" + data[1:])
    with pytest.raises(ShardError, match="header is damaged"):
        shards.document(int(shards.document_ends[0]))
    path.unlink()
    with pytest.raises(ShardError, match="is missing, but the manifest lists it"):
        shards.document(int(shards.document_ends[0]))
    assert shards.document(last) is not None


def test_reading_imports_numpy_and_nothing_heavier(folder):
    code = (
        "import sys, piecemill as pm\n"
        f"shards = pm.open_shards({str(folder)!r}, 'train'); shards.document(0)\n"
        "print([name for name in ('pyarrow', 'tokenizers', 'cyclopts', 'rich', 'torch', 'zstandard')"
        " if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_blocks_of_a_prepared_folder_hold_bos_and_eos():
    tok = tokenizer("gpt2")
    ids, ends, records = block(["a", "bc"], tok, bos=0, eos=0)
    assert ids.tolist() == [0, *tok.encode("a"), 0, 0, *tok.encode("bc"), 0]
    assert ends[-1] == len(ids)
    assert records["bytes"].tolist() == [1, 2]


# Format 1: a folder that an earlier version wrote


FORMAT_1 = Path(__file__).with_name("format1")
DOCUMENTS = [f"document {n} abc " + "abc öäü " * (n % 7) for n in range(40)]


def test_a_folder_of_format_1_opens_shows_checks_exports_and_loads(tmp_path):
    train, val = (open_shards(FORMAT_1, split) for split in ("train", "val"))
    tok = train.tokenizer()
    texts = [tok.decode(row[:-1]) for rows in (train, val) for row in rows]
    assert sorted(texts) == sorted(DOCUMENTS)
    assert len(train.entries) == 2
    found = describe(FORMAT_1).facts
    assert (found["documents"], found["complete"]) == (40, True)
    checked = check_shards(FORMAT_1)
    assert checked.problems == []
    assert checked.decoded == 40
    windows = sum(len(Windows(rows, window=16)) for rows in (train, val))
    assert export(FORMAT_1, out=tmp_path / "rows", plan=ExportPlan(to="jsonl", window=16)).windows == windows
    batch = next(iter(batches(train, window=8, batch_size=4, seed=1)))
    assert batch["input_ids"].shape == (4, 8)


def test_a_folder_of_format_1_is_not_written_to():
    before = {path: path.stat().st_mtime_ns for path in FORMAT_1.rglob("*")}
    tok = open_shards(FORMAT_1, "train").tokenizer()
    options = {"splits": "train=80,val=20", "block_bytes": "1KiB"}
    with pytest.raises(ShardError, match="in format 1, of another version of Piecemill"):
        pm.prepare(DOCUMENTS, tok, out=FORMAT_1, **options)
    assert before == {path: path.stat().st_mtime_ns for path in FORMAT_1.rglob("*")}
