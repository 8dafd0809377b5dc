"""Tables: the same blocks as a plain reference makes of the rows, without copies, up to where a file is broken.

And the tables of Hugging Face: a dataset, in memory or as a stream.
"""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from piecemill import _core, train_bpe
from piecemill.errors import SourceError
from piecemill.sources import open_source

LONG = b"long " * 40
TEXTS = st.one_of(st.none(), st.binary(max_size=3), st.text(max_size=5).map(str.encode), st.just(LONG))
KINDS = {
    "binary": pa.binary(),
    "large": pa.large_binary(),
    "view": pa.binary_view(),
    "dictionary": pa.dictionary(pa.int16(), pa.binary()),
}


def write(path, table, rows_in_group, dictionary):
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows_in_group, use_dictionary=dictionary)
    elif path.suffix == ".feather":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows_in_group)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows_in_group)
    return path


def is_text(text):
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def reference(rows, grouped, block_bytes):
    """The blocks (texts, rows, groups) of the rows, packed one by one; and how many were skipped and empty."""
    blocks, skipped, empty = [], 0, 0
    for row, (text, group) in enumerate(rows):
        if text is None or (grouped and group is None) or not is_text(text):
            skipped += 1
        elif not text:
            empty += 1
        else:
            if not blocks or sum(map(len, blocks[-1][0])) + len(text) > block_bytes:
                blocks.append(([], [], []))
            for column, value in zip(blocks[-1], (text, row, group), strict=True):
                column.append(value)
    return blocks, skipped, empty


def group_key(group):
    text = str(group).encode()
    return int(_core.hash_documents(np.frombuffer(text, np.uint8), np.array([len(text)]))[0, 0])


@pytest.mark.parametrize("ending", ["parquet", "arrow", "feather"])
@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(TEXTS, st.one_of(st.none(), st.integers(0, 3))), max_size=30),
    kind=st.sampled_from(sorted(KINDS)),
    grouped=st.booleans(),
    rows_in_group=st.sampled_from([3, 1000]),
    dictionary=st.booleans(),
    block_bytes=st.sampled_from([1, 100, 1000]),
)
def test_blocks_are_those_of_the_plain_reference(
    ending, rows, kind, grouped, rows_in_group, dictionary, block_bytes, tmp_path_factory
):
    rows.append((b"end", 0))  # a corpus without any document is refused
    plain = pa.array([text for text, _ in rows], pa.binary())
    text = plain.dictionary_encode().cast(KINDS[kind]) if kind == "dictionary" else plain.cast(KINDS[kind])
    table = pa.table({"group": pa.array([group for _, group in rows], "i4"), "text": text})
    path = write(tmp_path_factory.mktemp("rows") / f"a.{ending}", table, rows_in_group, dictionary)
    options = {"group": "group" if grouped else None, "block_bytes": block_bytes, "on_bad_document": "skip"}
    want, skipped, empty = reference(rows, grouped, block_bytes)
    for source in (open_source(path, **options), open_source(table, **options)):
        blocks = list(source.blocks())
        tally = sum((block.tally for block in blocks), source.found)
        assert (tally.skipped_count, tally.left_out.get("empty", 0)) == (skipped, empty)
        found = [block for block in blocks if len(block)]
        assert [[block.encoded(i) for i in range(len(block))] for block in found] == [texts for texts, _, _ in want]
        assert [block.places.tolist() for block in found] == [places for _, places, _ in want]
        if grouped:
            assert [b.keys.tolist() for b in found] == [[group_key(group) for group in groups] for _, _, groups in want]


def test_a_large_document_is_a_view_of_the_table():
    table = pa.table({"text": pa.array(["small", "x" * 5000, "small"], pa.large_string())})
    held = np.frombuffer(table["text"].chunk(0).buffers()[2], np.uint8)
    before, large, after = open_source(table, block_bytes=1000).blocks()
    assert [block.text(0) for block in (before, large, after)] == ["small", "x" * 5000, "small"]
    assert np.shares_memory(large.data, held)
    assert not np.shares_memory(after.data, held)  # or a small block would keep the large document in memory


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
    blocks = list(source.blocks())
    assert [len(one.data) for one in blocks if len(one.data)] == [5, size]
    skipped = sum((one.tally for one in blocks), source.found).skipped
    assert [one.name for one in skipped] == [f"{path}[2]"]
    assert "cannot be read from this row on" in skipped[0].reason


def test_a_parquet_file_is_cut_at_about_64_mib_of_its_text_column(tmp_path):
    rows = [f"{n:06}" * 500_000 for n in range(60)]  # 3 MB each, packed to nothing
    table = pa.table({"text": rows, "other": pa.array(range(60))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=5, use_dictionary=False, compression="zstd")
    source = open_source(tmp_path / "a.parquet")
    assert [(task.start, task.stop, task.first_row, task.rows) for task in source.tasks] == [
        (0, 5, 0, 25),
        (5, 10, 25, 25),
        (10, 12, 50, 10),
    ]
    assert sum(task.nbytes for task in source.tasks) == source.total_bytes == (tmp_path / "a.parquet").stat().st_size
    assert [int(row) for task in source.tasks for block in source.read(task) for row in block.places] == list(range(60))


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
