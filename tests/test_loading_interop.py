"""The same loader over exported Parquet, and windows as a `datasets.Dataset`."""

import pickle
import runpy
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadable import some_documents, write_rows
from piecemill.errors import LoadError
from piecemill.loading import Windows, batches
from piecemill.loading.parquet import open_parquet
from piecemill.shards.export import ExportPlan, export

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "shards", some_documents(60, vocab_size=900), eos=999, shard_tokens=200)


@pytest.mark.parametrize("tail", ["keep", "pad"])
def test_exported_documents_load_like_the_shards_they_are_from(tmp_path, tail):
    documents = [document for document in some_documents(60, vocab_size=900) if len(document) != 1]  # has no window
    rows = write_rows(tmp_path / "shards", documents, eos=999, shard_tokens=200)
    export(rows.folder, out=tmp_path / "out", plan=ExportPlan(window=64, tail=tail, pack=False))
    exported = open_parquet(tmp_path / "out" / "all", vocab_size=rows.vocab_size, eos=rows.eos)
    kept = [document.tolist() for document in rows if len(document)]
    assert [exported[n].tolist() for n in range(len(exported))] == kept
    assert exported.tokens == rows.tokens
    assert exported[-1].tolist() == kept[-1]
    for options in ({"pack": True}, {"pack": False, "boundaries": True}):
        two = [list(batches(each, window=16, seed=3, epochs=1, **options)) for each in (rows, exported)]
        for ours, theirs in zip(*two, strict=True):
            assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
            assert ours["labels"].tolist() == theirs["labels"].tolist()


def test_exported_windows_are_rows_to_train_on_one_by_one(rows, tmp_path):
    export(rows.folder, out=tmp_path / "out", plan=ExportPlan(window=16, pack=True))
    exported = open_parquet(tmp_path / "out" / "all", vocab_size=rows.vocab_size, open_files=1)
    view = Windows(exported, window=16, pack=False)
    stream = np.concatenate(list(rows))
    assert view[2]["input_ids"].tolist() == stream[32:48].tolist()
    assert view[2]["labels"].tolist() == stream[33:49].tolist()
    again = pickle.loads(pickle.dumps(exported))
    assert again.identity == exported.identity
    assert again[3].tolist() == exported[3].tolist()


def test_parquet_that_cannot_be_loaded_says_why(tmp_path):
    pq.write_table(pa.table({"ids": [[1, 2], [3]]}), tmp_path / "a.parquet")
    with pytest.raises(LoadError, match=r"a\.parquet: no column 'input_ids'; it has ids"):
        open_parquet(tmp_path, vocab_size=10)
    assert open_parquet(tmp_path, vocab_size=10, column="ids")[0].tolist() == [1, 2]
    with pytest.raises(LoadError, match="ids from 1 to 3; expected 0 to 2"):
        open_parquet(tmp_path / "a.parquet", vocab_size=3, column="ids")[0]
    with pytest.raises(LoadError, match=r"no \.parquet file"):
        open_parquet([], vocab_size=3)
    with pytest.raises(LoadError, match="is missing"):
        open_parquet(tmp_path / "b.parquet", vocab_size=3)
    (tmp_path / "c.parquet").write_bytes(b"no")
    with pytest.raises(LoadError, match="not Parquet"):
        open_parquet(tmp_path / "c.parquet", vocab_size=3)


def test_a_dataset_view_has_the_windows(rows):
    from piecemill.loading.datasets import as_dataset

    view = Windows(rows, window=16, overlap=4, boundaries=True, labels="unshifted")
    dataset = as_dataset(view)
    assert len(dataset) == len(view)
    for number in (0, 7, len(view) - 1):
        row, want = dataset[number], view[number]
        assert row.keys() == want.keys()
        assert all(np.array_equal(row[name], want[name]) for name in want)
    picked = dataset.select([5, 2])[:]
    assert picked["labels"].tolist() == [view[5]["labels"].tolist(), view[2]["labels"].tolist()]
    shuffled = dataset.shuffle(seed=1)[:]["input_ids"]
    assert sorted(shuffled.tolist()) == sorted(view[n]["input_ids"].tolist() for n in range(len(view)))


def test_the_numpy_example_runs(rows, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["load_numpy.py", str(rows.folder), "--window", "16", "--steps", "20"])
    runpy.run_path(str(EXAMPLES / "load_numpy.py"), run_name="__main__")
    assert "went on with the same batch" in capsys.readouterr().out
