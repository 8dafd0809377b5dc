"""`as_dataset`: windows in the formats and selections of Hugging Face `datasets`."""

import pickle

import numpy as np
import pytest

import piecemill
from piecemill.errors import PlanError
from piecemill.loading import Windows

torch = pytest.importorskip("torch")
pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    tok = piecemill.train_bpe(["some text"], vocab_size=258)
    out = tmp_path_factory.mktemp("rows") / "shards"
    piecemill.prepare([f"text number {n}" for n in range(50)], tok, out=out)
    return Windows(piecemill.open_shards(out, "all"), window=8)


@pytest.mark.parametrize(
    "chosen",
    [
        lambda dataset: dataset,
        lambda dataset: dataset.select(range(3, 9)),
        lambda dataset: dataset.select([5, 1, 7]),
        lambda dataset: dataset.shuffle(seed=1),
        lambda dataset: dataset.train_test_split(0.5, seed=1)["test"],
        lambda dataset: dataset.shard(3, 1),
    ],
)
def test_a_format_is_one_of_the_windows_whatever_rows_were_chosen(windows, chosen):
    from piecemill.loading.datasets import as_dataset

    dataset = chosen(as_dataset(windows))
    plain = dataset[:3]
    tensors = dataset.with_format("torch")
    for name in ("input_ids", "labels"):
        assert isinstance(tensors[0][name], torch.Tensor)
        assert tensors[:3][name].tolist() == np.asarray(plain[name]).tolist()
    assert set(dataset.with_format("numpy", columns=["input_ids"])[0]) == {"input_ids"}
    # A format may come first, too, and be taken back.
    assert isinstance(chosen(as_dataset(windows).with_format("torch"))[0]["labels"], torch.Tensor)
    again = tensors.with_format(None)[:3]
    assert all(np.array_equal(again[name], plain[name]) for name in plain)
    loader = torch.utils.data.DataLoader(tensors, batch_size=2)
    assert next(iter(loader))["input_ids"].shape == (2, 8)


def test_windows_are_mapped_and_filtered(windows):
    from piecemill.loading.datasets import as_dataset

    dataset = as_dataset(windows)
    firsts = [int(row["input_ids"][0]) for row in dataset]
    mapped = dataset.map(lambda row: {"first": int(row["input_ids"][0])})
    assert mapped[3]["first"] == firsts[3]
    assert np.array_equal(mapped[3]["labels"], dataset[3]["labels"])
    assert mapped.with_format("torch")[:5]["first"].tolist() == firsts[:5]
    as_a_trainer_does = mapped.remove_columns(mapped.column_names)
    assert as_a_trainer_does[3].keys() == dataset[3].keys()
    kept = dataset.filter(lambda row: row["input_ids"][0] == firsts[0])
    assert [int(row["input_ids"][0]) for row in kept] == [firsts[0]] * firsts.count(firsts[0])


def test_a_format_or_a_column_that_windows_do_not_have_is_an_error(windows):
    from piecemill.loading.datasets import as_dataset

    with pytest.raises(PlanError, match="format 'pandas': windows can be had as 'numpy', 'torch'"):
        as_dataset(windows).with_format("pandas")
    with pytest.raises(PlanError, match="column 'ids': windows have input_ids, labels"):
        _ = as_dataset(windows).with_format("torch", columns="ids")[0]


def test_what_map_returns_without_windows_is_an_ordinary_dataset(windows):
    from piecemill.loading.datasets import as_dataset

    dataset = as_dataset(windows)
    lengths = dataset.map(lambda row: {"first": int(row["input_ids"][0])}, remove_columns=dataset.column_names)
    assert lengths[:4] == {"first": [int(row["input_ids"][0]) for row in dataset.select(range(4))]}
    rows = dataset.map(dict, remove_columns="window")
    assert rows.to_pandas()["labels"][3].tolist() == dataset[3]["labels"].tolist()


@pytest.mark.parametrize("name", ["to_parquet", "to_json", "to_csv", "save_to_disk", "to_pandas", "to_dict", "to_list"])
def test_numbers_of_windows_are_never_written_for_rows(windows, name, tmp_path):
    from piecemill.loading.datasets import as_dataset

    with pytest.raises(PlanError, match=f"{name}: this dataset holds the numbers of windows alone. Write rows with"):
        getattr(as_dataset(windows), name)(str(tmp_path / "rows"))
    assert not list(tmp_path.iterdir())


def test_a_transform_of_the_user_gets_windows(windows):
    from piecemill.loading.datasets import as_dataset

    dataset = as_dataset(windows)
    cut = dataset.with_transform(lambda rows: {"two": [ids[:2].tolist() for ids in rows["input_ids"]]})
    want = [ids[:2].tolist() for ids in dataset[3:5]["input_ids"]]
    assert cut[3:5]["two"] == cut.select(range(3, 5))[:]["two"] == want
    assert cut.with_format(None)[3].keys() == dataset[3].keys()


def test_windows_are_pickled_for_workers_that_are_spawned(windows):
    from piecemill.loading.datasets import as_dataset

    dataset = as_dataset(windows)
    assert pickle.loads(pickle.dumps(dataset))[5]["input_ids"].tolist() == dataset[5]["input_ids"].tolist()


@pytest.mark.parametrize("boundaries", [False, True])
def test_no_windows_are_no_rows(windows, boundaries):
    from piecemill.loading.datasets import as_dataset

    dataset = as_dataset(Windows(windows.rows, window=8, boundaries=boundaries))
    assert {name: column.shape for name, column in dataset[3:3].items()} == dict.fromkeys(dataset[0], (0, 8))
