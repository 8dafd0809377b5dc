"""Exports: every token in its window, as many windows as were predicted, and other people's readers read them."""

import json
import struct
import zlib

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from piecemill.errors import PlanError, ShardError
from piecemill.loading import Windows
from piecemill.loading.parquet import open_parquet
from piecemill.shards import RECORD, export_formats
from piecemill.shards.export import ExportPlan, SplitRows, export
from piecemill.shards.reader import open_shards
from piecemill.shards.windows import WindowSpec
from prepared import SplitWriter, complete, prepare_folder
from vocabularies import NASTY, library_texts, tokenizer

TEXTS = [text for text in NASTY if text]


def plain_windows(row, window, overlap, tail):
    """The definition: begin every window - overlap tokens while there is a place that no window before has."""
    windows, start, covered = [], 0, 0
    while covered < len(row) - 1:
        piece = row[start : start + window + 1]
        if len(piece) <= window and tail == "drop":
            break
        windows.append((start, piece))
        covered = start + len(piece) - 1
        start += window - overlap
    return windows


def made_up_folder(folder, split_lengths, *, shard_tokens=30, block=3):
    """A folder of documents of the given lengths, whose ids count up through the split."""
    folder.mkdir()
    plan = {"format": 2, "vocab_size": 60_000, "splits": dict.fromkeys(split_lengths, 1), "bos": None, "eos": 7}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "files.jsonl").write_text("{}\n")
    for split, lengths in split_lengths.items():
        writer = SplitWriter(folder / split, dtype=np.dtype("u2"), shard_tokens=shard_tokens)
        at = zlib.crc32(split.encode()) % 100 * 500
        for first in range(0, len(lengths), block):
            mine = np.array(lengths[first : first + block], np.int64)
            total = int(mine.sum())
            writer.append(np.arange(at, at + total).astype("u2"), np.cumsum(mine), np.zeros(len(mine), RECORD))
            at += total
        writer.finish()
    complete(folder, {})
    return folder


cuts = st.integers(1, 12).flatmap(
    lambda window: st.tuples(st.just(window), st.integers(0, window - 1), st.sampled_from(["keep", "pad", "drop"]))
)


# Windows


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), max_size=12), cuts)
def test_streams_have_as_many_windows_as_by_the_definition(lengths, cut):
    window, overlap, tail = cut
    counts = WindowSpec(window=window, overlap=overlap).count(np.array(lengths, np.int64), short=tail != "drop")
    assert counts.tolist() == [len(plain_windows(range(length), *cut)) for length in lengths]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=14),
    cuts,
    st.booleans(),
    st.integers(1, 50),
)
def test_rows_are_the_predicted_windows_with_or_without_packing(tmp_path_factory, lengths, cut, pack, shard_tokens):
    folder = made_up_folder(tmp_path_factory.mktemp("w") / "s", {"all": lengths}, shard_tokens=shard_tokens, block=2)
    window, overlap, tail = cut
    plan = ExportPlan(window=window, overlap=overlap, tail=tail, pack=pack)
    shards = open_shards(folder)
    documents = [row.tolist() for row in shards]
    rows = [[i for row in documents for i in row]] if pack else documents
    want = [(i, start, piece) for i, row in enumerate(rows) for start, piece in plain_windows(row, *cut)]
    split = SplitRows(shards, plan, None)
    have = []
    for part in split.parts:
        before, tokens = len(have), 0
        for batch in split.rows(part.shard):
            ends = np.cumsum(np.full(len(batch.length), batch.width) if batch.width else batch.length)
            pieces = np.split(batch.ids, ends[:-1])
            have += zip(batch.document, batch.start, batch.length, map(np.ndarray.tolist, pieces), strict=True)
            tokens += int(batch.length.sum())
        assert (len(have) - before, tokens) == (part.windows, part.tokens)
    assert [piece[:n] for _, _, n, piece in have] == [piece for _, _, piece in want]
    for document, start, n, piece in have:
        assert documents[document][start] == piece[0]  # so a row can be found again
        assert piece[n:] == ([7] * (window + 1 - n) if tail == "pad" else [])
    if not pack:
        assert [(d, s) for d, s, _, _ in have] == [(i, start) for i, start, _ in want]
    seen = {(i, start + at) for i, start, piece in want for at in range(len(piece))}
    assert split.dropped == sum(map(len, rows)) - len(seen)


def labelled(view):
    """The inputs and labels of every window of the loader, as lists."""
    return [(view[n]["input_ids"].tolist(), view[n]["labels"].tolist()) for n in range(len(view))]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=2, max_size=14), st.integers(1, 12), st.booleans(), st.data())
def test_an_exported_row_is_a_window_of_the_loader(tmp_path_factory, lengths, window, pack, data):
    where = tmp_path_factory.mktemp("w")
    shards = open_shards(made_up_folder(where / "s", {"all": lengths}, block=2))
    if shards.tokens <= window or max(lengths) < 2:
        return
    overlap = data.draw(st.integers(0, window - 1))
    loaded = Windows(shards, window=window, overlap=overlap, pack=pack)
    done = export(shards.folder, out=where / "out", plan=ExportPlan(window=window, overlap=overlap, pack=pack))
    assert done.windows == len(loaded)
    rows = open_parquet(where / "out/all", vocab_size=60_000, eos=7)
    again = Windows(rows, window=window, pack=False)
    assert [ids for ids, _ in labelled(again)] == [ids for ids, _ in labelled(loaded)]
    if overlap == 0:
        assert labelled(again) == labelled(loaded)


def test_export_and_loader_have_the_same_defaults():
    shared = ("window", "overlap", "pack", "pad_id")
    assert [getattr(ExportPlan(), name) for name in shared] == [getattr(WindowSpec(), name) for name in shared]


# Files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    splits = {"train": [*TEXTS, *library_texts(4)], "val": list(library_texts(6)[4:]), "test": []}
    folder = tmp_path_factory.mktemp("export") / "shards"
    return prepare_folder(folder, splits, tokenizer("gpt2"), shard_tokens=4000)


def expected(folder, split, plan):
    rows = [row.tolist() for row in open_shards(folder, split)]
    return [
        {"input_ids": piece, "document": i, "start": start, "length": len(piece)}
        for i, row in enumerate(rows)
        for start, piece in plain_windows(row, plan.window, plan.overlap, plan.tail)
    ]


@pytest.mark.parametrize("zst", [False, True])
def test_json_lines_hold_every_window(folder, tmp_path, zst):
    plan = ExportPlan(to="jsonl", window=512, overlap=256, pack=False, zst=zst)
    done = export(folder, out=tmp_path / "out", plan=plan)
    total = 0
    for split in ("train", "val"):
        lines = []
        for path in sorted((tmp_path / "out" / split).iterdir()):
            data = path.read_bytes()
            lines += (zstandard.ZstdDecompressor().stream_reader(data).read() if zst else data).splitlines()
        want = expected(folder, split, plan)
        assert [json.loads(line) for line in lines] == want
        assert lines[0] == json.dumps(want[0], separators=(",", ":")).encode()
        total += len(lines)
    assert done.windows == total
    assert done.parts > 2
    assert not (tmp_path / "out" / "test").exists()


def test_parquet_holds_every_window_and_datasets_opens_it(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    plan = ExportPlan(window=512, overlap=100, pack=False)
    export(folder, out=tmp_path / "out", plan=plan)
    files = {split: str(tmp_path / "out" / split / "*.parquet") for split in ("train", "val")}
    tables = {split: pq.read_table(tmp_path / "out" / split).to_pylist() for split in files}
    for split, rows in tables.items():
        assert rows == expected(folder, split, plan)
    meta = pq.ParquetFile(tmp_path / "out" / "train" / "00000.parquet").metadata
    assert {meta.row_group(0).column(i).compression for i in range(meta.num_columns)} == {"ZSTD"}
    import datasets

    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
    for split, rows in tables.items():
        assert loaded[split].to_list() == rows


def test_padded_rows_are_all_of_one_length_with_a_mask(folder, tmp_path):
    plan = ExportPlan(window=300, overlap=10, tail="pad", pad_id=9, split="val", pack=False)
    export(folder, out=tmp_path / "out", plan=plan)
    table = pq.read_table(tmp_path / "out" / "val")
    want = expected(folder, "val", ExportPlan(window=300, overlap=10))
    assert [len(row) for row in table["input_ids"].to_pylist()] == [301] * len(want)
    for have, row in zip(table.to_pylist(), want, strict=True):
        missing = 301 - row["length"]
        assert have["input_ids"] == row["input_ids"] + [9] * missing
        assert have["attention_mask"] == [1] * row["length"] + [0] * missing


def test_packed_rows_cross_documents_and_shards_but_not_splits(folder, tmp_path):
    plan = ExportPlan(window=700, pack=True, tail="drop")
    done = export(folder, out=tmp_path / "out", plan=plan)
    dropped = 0
    for split in ("train", "val"):
        stream = np.concatenate(list(open_shards(folder, split)))
        rows = [row for path in sorted((tmp_path / "out" / split).iterdir()) for row in pq.read_table(path).to_pylist()]
        assert np.concatenate([row["input_ids"][:-1] for row in rows]).tolist() == stream[: len(rows) * 700].tolist()
        assert [row["input_ids"][-1] for row in rows] == stream[700 : len(rows) * 700 + 1 : 700].tolist()
        dropped += len(stream) - len(rows) * 700 - 1
    assert done.dropped == dropped > 0


def test_an_export_that_stopped_makes_only_what_is_missing(folder, tmp_path, monkeypatch):
    plan = ExportPlan(to="jsonl", window=128)
    done = []

    def stop(part, at, of):
        done.append(part.name)
        if at == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(folder, out=tmp_path / "out", plan=plan, on_part=stop)
    first = tmp_path / "out" / done[0]
    written = first.stat().st_mtime_ns
    assert done == ["train/00000.jsonl", "train/00001.jsonl"]
    third = tmp_path / "out" / "train" / ".00002.jsonl.part"
    third.write_bytes(b"half a li")  # what a kill leaves
    again = export(folder, out=tmp_path / "out", plan=plan)
    assert (again.made, first.stat().st_mtime_ns) == (again.parts - 2, written)
    export(folder, out=tmp_path / "straight", plan=plan)
    names = sorted(path.relative_to(tmp_path / "straight") for path in (tmp_path / "straight").rglob("*.*"))
    assert sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*.*")) == names
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
    assert export(folder, out=tmp_path / "out", plan=plan).made == 0


def test_another_plan_other_shards_or_another_folder_are_refused(folder, tmp_path):
    export(folder, out=tmp_path / "out", plan=ExportPlan(to="jsonl", window=128, split="val"))
    with pytest.raises(PlanError, match=r"window=128, requested window=64.*use the same window, or choose another out"):
        export(folder, out=tmp_path / "out", plan=ExportPlan(to="jsonl", window=64, split="val"))
    with pytest.raises(PlanError, match="split='val', requested split=None"):
        export(folder, out=tmp_path / "out", plan=ExportPlan(to="jsonl", window=128))
    other = made_up_folder(tmp_path / "other", {"val": [5, 6]})
    with pytest.raises(ShardError, match="from other shards"):
        export(other, out=tmp_path / "out", plan=ExportPlan(to="jsonl", window=128, split="val"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(ShardError, match="not empty"):
        export(folder, out=tmp_path / "full", plan=ExportPlan())


def test_a_count_that_differs_from_the_prediction_is_an_error_and_leaves_no_part(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(SplitRows, "rows", lambda *_: iter(()))
    with pytest.raises(ShardError, match="0 windows were written and"):
        export(folder, out=tmp_path / "out", plan=ExportPlan(to="jsonl", window=128))
    assert not list((tmp_path / "out").rglob("0*.jsonl"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"to": "paquet"}, "to='paquet': expected parquet, jsonl or megatron"),
        ({"window": 0}, "at least 1 token"),
        ({"window": 8, "overlap": 8}, "overlap=8: expected 0 to 7"),
        ({"overlap": -1}, "overlap=-1"),
        ({"zst": True}, "zst goes with"),
        ({"pad_id": 3}, "pad_id=3"),
        ({"to": "megatron", "window": 512}, "Megatron cuts documents itself. Leave out window="),
    ],
)
def test_plans_that_cannot_work_are_refused(options, says):
    with pytest.raises(PlanError, match=says):
        ExportPlan(**options)


def test_a_pad_id_beyond_the_vocabulary_is_refused(folder, tmp_path):
    with pytest.raises(PlanError, match="pad_id=99999: the vocabulary has 2,500 ids"):
        export(folder, out=tmp_path / "out", plan=ExportPlan(tail="pad", pad_id=99_999))


# Megatron


def read_megatron(index):
    """A reader from the published layout, on its own."""
    data = index.read_bytes()
    assert data[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, documents = struct.unpack_from("<QBQQ", data, 9)
    assert version == 1
    dtype = {8: np.uint16, 4: np.int32}[code]
    at = 9 + struct.calcsize("<QBQQ")
    lengths = np.frombuffer(data, "<i4", sequences, at)
    pointers = np.frombuffer(data, "<i8", sequences, at + 4 * sequences)
    indices = np.frombuffer(data, "<i8", documents, at + 12 * sequences)
    assert len(data) == at + 12 * sequences + 8 * documents
    assert indices.tolist() == list(range(sequences + 1))
    tokens = index.with_suffix(".bin").read_bytes()
    return [np.frombuffer(tokens, dtype, n, p).tolist() for n, p in zip(lengths, pointers, strict=True)]


def test_megatron_files_hold_every_document(folder, tmp_path):
    done = export(folder, out=tmp_path / "out", plan=ExportPlan(to="megatron"))
    for split in ("train", "val"):
        assert read_megatron(tmp_path / "out" / f"{split}.idx") == [row.tolist() for row in open_shards(folder, split)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "export.json",
        "train.bin",
        "train.idx",
        "val.bin",
        "val.idx",
    ]
    assert export(folder, out=tmp_path / "out", plan=ExportPlan(to="megatron")).made == 0 < done.made


def test_megatron_gets_int32_for_a_vocabulary_beyond_16_bits(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    plan = {"format": 2, "vocab_size": 100_000, "splits": {"all": 1}, "bos": None, "eos": None}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "files.jsonl").write_text("{}\n")
    writer = SplitWriter(folder / "all", dtype=np.dtype("u4"), shard_tokens=4)
    for _ in range(3):
        writer.append(np.array([99_999, 1, 70_000], "u4"), np.array([0, 2, 3]), np.zeros(3, RECORD))
    writer.finish()
    complete(folder, {})
    export(folder, out=tmp_path / "out", plan=ExportPlan(to="megatron"))
    assert read_megatron(tmp_path / "out" / "all.idx") == [[], [99_999, 1], [70_000]] * 3


def test_a_stop_between_the_megatron_files_is_made_good(folder, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(export_formats, "_write_index", stop)
        with pytest.raises(KeyboardInterrupt):
            export(folder, out=tmp_path / "out", plan=ExportPlan(to="megatron"))
    assert not list((tmp_path / "out").glob("*.idx"))
    export(folder, out=tmp_path / "out", plan=ExportPlan(to="megatron"))
    assert not list((tmp_path / "out").glob(".*"))
    assert len(read_megatron(tmp_path / "out" / "train.idx")) == len(open_shards(folder, "train"))
