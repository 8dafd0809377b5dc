"""Tables with large pages and batches: found by the headers inside the file, and read over disk to the same blocks.

And the tables of Hugging Face: a dataset, in memory or as a stream.
"""

import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import piecemill.sources.tables
from corpora import texts
from piecemill import train_bpe
from piecemill.errors import SourceError
from piecemill.sources import open_source
from piecemill.sources.headers import batch_bytes, page_sizes

TABLE = pa.table({"number": np.arange(3000), "text": [text * 3 for text in texts(3000)], "none": [None] * 3000})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "none", "use_dictionary": False},
        {"compression": "zstd", "data_page_version": "2.0", "write_page_index": True},
        {"data_page_size": 1000, "write_batch_size": 10, "write_page_checksum": True, "row_group_size": 700},
        {"compression": "gzip", "use_dictionary": False, "store_schema": False, "version": "1.0"},
    ],
)
def test_pages_fill_their_column_to_the_byte(options):
    out = io.BytesIO()
    pq.write_table(TABLE, out, **options)
    meta = pq.ParquetFile(out).metadata
    for group in map(meta.row_group, range(meta.num_row_groups)):
        for chunk in map(group.column, range(meta.num_columns)):
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            pages = list(page_sizes(out, start, chunk.total_compressed_size))
            headers = chunk.total_compressed_size - sum(page.packed for page in pages)
            assert sum(page.unpacked for page in pages) + headers == chunk.total_uncompressed_size
            assert [page.dictionary for page in pages] == [chunk.has_dictionary_page] + [False] * (len(pages) - 1)
            assert headers > 8 * len(pages)


def test_a_header_with_long_values_is_read_whole():
    out = io.BytesIO()
    # Up to 4 KiB of the smallest and of the largest value stand in the header of every page.
    table = pa.table({"text": ["a" * 3000 + str(n) for n in range(50)]})
    pq.write_table(table, out, use_dictionary=False, data_page_size=1000, write_batch_size=1)
    chunk = pq.ParquetFile(out).metadata.row_group(0).column(0)
    pages = list(page_sizes(out, chunk.data_page_offset, chunk.total_compressed_size))
    assert len(pages) == 50
    assert chunk.total_compressed_size - sum(page.packed for page in pages) > 50 * 6000


def test_what_has_no_page_headers_has_no_pages():
    rng = np.random.default_rng(0)
    for size in [0, 1, 50, 5000] * 50:
        data = rng.bytes(size)
        pages = list(page_sizes(io.BytesIO(data), 0, size))
        assert sum(page.packed for page in pages[:-1]) <= size
        list(batch_bytes(io.BytesIO(data)))


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("legacy", [False, True])
def test_batches_take_what_they_say(new, compression, legacy):
    table = TABLE.append_column("kind", TABLE["text"].dictionary_encode())
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_legacy_format=legacy)
    with new(out, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=1000)
    out.seek(8 if new is pa.ipc.new_file else 0)
    messages = list(pa.ipc.MessageReader.open_stream(out))
    assert [message.type for message in messages] == ["schema", "dictionary", *["record batch"] * 3]
    bodies = [len(message.body) if message.body else 0 for message in messages]
    found = list(batch_bytes(out))
    if compression:
        assert all(size > body for size, body in zip(found, bodies[2:], strict=True))
    else:
        assert found == [bodies[1] + bodies[2], *bodies[3:]]
    for batch, size in zip(table.to_batches(max_chunksize=1000), found, strict=True):
        assert batch.drop_columns(["kind"]).nbytes <= size < 3 * batch.nbytes


TEXTS = st.one_of(st.none(), st.binary(max_size=3), st.text(max_size=5).map(str.encode), st.just(b"large " * 40))


def write(path, table, kind, options):
    if kind == "parquet":
        pq.write_table(table, path, **options)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=options["row_group_size"])
    return path


def contents(source):
    """What the blocks hold, and what they tell in all; which of them tells it is another matter."""
    blocks = list(source.blocks())
    held = [
        (b.data.tobytes(), b.ends.tolist(), b.places.tolist(), None if b.keys is None else b.keys.tolist())
        for b in blocks
        if len(b.ends)
    ]
    return held, sum((b.tally for b in blocks), source.found)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(TEXTS, st.one_of(st.none(), st.integers(0, 3))), max_size=30),
    group=st.sampled_from([None, "group"]),
    rows_in_group=st.sampled_from([3, 1000]),
    dictionary=st.booleans(),
    block_bytes=st.sampled_from([1, 100, 1000]),
)
def test_over_disk_the_blocks_are_the_same(kind, rows, group, rows_in_group, dictionary, block_bytes, tmp_path_factory):
    rows.append((b"end", 0))  # a corpus without any document is refused
    columns = {"text": pa.array([text for text, _ in rows], pa.binary()), "group": pa.array([g for _, g in rows], "i4")}
    options = {"row_group_size": rows_in_group, "use_dictionary": dictionary}
    path = write(tmp_path_factory.mktemp("rows") / f"a.{kind}", pa.table(columns), kind, options)
    source = open_source(path, group=group, block_bytes=block_bytes, on_bad_document="skip")
    want = contents(source)
    asked = []
    reading = replace(source.reading, make_room=lambda *need: asked.append(need), spool=str(path.parent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piecemill.sources.tables, "LARGE", 240)
        patch.setattr(piecemill.sources.tables, "_JOINED_BATCHES", 3)
        assert contents(replace(source, reading=reading)) == want
    if any(text == b"large " * 40 for text, _ in rows):
        assert asked[0][1].startswith("a document of up to" if kind == "parquet" else "a record batch of")
        kept = [
            place
            for _, ends, places, _ in want[0]
            for place, size in zip(places, np.diff(ends, prepend=0), strict=True)
            if size == 240
        ]
        assert [name for name, what, _ in asked if what == "a document of 240 B"] == [f"{path}[{row}]" for row in kept]
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_rows_before_a_broken_page_are_read(tmp_path):
    size = 20 * 2**20
    table = pa.table({"text": ["first", "x" * size, "y" * size, "z" * size]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, use_dictionary=False, compression="none", write_batch_size=1)
    content = bytearray(path.read_bytes())
    third = content.index(b"y" * 100)
    content[third - 30 : third - 8] = bytes(22)  # the header of its page
    path.write_bytes(content)
    source = open_source(path, on_bad_document="skip")
    source = replace(source, reading=replace(source.reading, make_room=lambda *need: None, spool=str(tmp_path)))
    blocks = list(source.blocks())
    assert [len(one.data) for one in blocks if len(one.data)] == [5, size]
    skipped = sum((one.tally for one in blocks), source.found).skipped
    assert [one.name for one in skipped] == [f"{path}[2]"]
    assert "cannot be read from this row on" in skipped[0].reason


def test_a_full_disk_is_not_a_bad_document(tmp_path, monkeypatch):
    pq.write_table(pa.table({"text": ["x" * (20 * 2**20)]}), tmp_path / "a.parquet")
    full = io.FileIO("/dev/full", "r+")
    monkeypatch.setattr("piecemill.sources.tables.tempfile.TemporaryFile", lambda **options: full)
    source = open_source(tmp_path / "a.parquet", on_bad_document="skip")
    source = replace(source, reading=replace(source.reading, make_room=lambda *need: None))
    with pytest.raises(
        SourceError, match=r"a\.parquet: a document of up to .* to disk first: .*No space left on device"
    ):
        list(source.blocks())


# Hugging Face datasets


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """The library itself, with nothing to reach: no hub, and a cache of its own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return pytest.importorskip("datasets")


def test_a_dataset_is_read_by_its_column_whether_it_lies_in_memory_or_streams(datasets):
    rows = {"id": list(range(2500)), "text": [f"text {n}" for n in range(2500)], "body": ["x"] * 2500}
    dataset = datasets.Dataset.from_dict(rows)
    for source in (dataset, dataset.to_iterable_dataset(), dataset.to_iterable_dataset(num_shards=3)):
        opened = open_source(source)
        blocks = list(opened.blocks())
        assert [block.text(i) for block in blocks for i in range(len(block))] == rows["text"]
        assert blocks[-1].name(len(blocks[-1]) - 1) == f"<{type(source).__name__}>[2499]"
        with pytest.raises(SourceError, match=r"no column 'title'; its columns are id, text, body"):
            list(open_source(source, field="title").blocks())
        assert train_bpe(source, vocab_size=270, field="text").training["corpus"]["documents"] == 2500
    chosen = dataset.select(range(7, 9)).filter(lambda row: row["id"] == 8)  # through indices
    assert [block.text(0) for block in open_source(chosen).blocks()] == ["text 8"]


def test_a_dictionary_of_datasets_is_an_error_that_says_to_choose(datasets):
    dataset = datasets.Dataset.from_dict({"text": ["one"]})
    for parts in (datasets.DatasetDict(train=dataset), datasets.IterableDatasetDict(train=dataset)):
        with pytest.raises(SourceError, match=r"Choose one of its parts, such as source\['train'\]"):
            open_source(parts)
