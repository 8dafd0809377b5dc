"""Items: one code per item and column, the same however the items are given."""

import doctest
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from piecemill.actions import features, histories, interactions, tables
from piecemill.actions import items as items_room
from piecemill.actions.items import Items
from piecemill.errors import PlanError, SourceError

ROWS = {"0007": ["red", 12, True], "0005": ["blue", 3, False], "0009": ["red", 7, True]}
CODES = [[1, 12, 1], [0, 3, 0], [1, 7, 1]]
NAMES = ["colour", "size", "new"]


def as_table():
    return pa.table([list(ROWS), *map(list, zip(*ROWS.values(), strict=True))], names=["item", *NAMES])


def write(path):
    cells = [[key, *(str(value).lower() for value in values)] for key, values in ROWS.items()]
    match path.suffix:
        case ".parquet":
            pq.write_table(as_table(), path)
        case ".csv":
            path.write_text("\n".join(map(",".join, [["item", *NAMES], *cells])))
        case ".item":
            head = ["item_id:token", "colour:token", "size:float", "new:token"]
            path.write_text("\n".join(map("\t".join, [head, *cells])))
        case ".jsonl":
            path.write_text("\n".join(json.dumps(row) for row in as_table().to_pylist()))
        case ".json":
            path.write_text(json.dumps({row.pop("item"): row for row in as_table().to_pylist()}))
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".item", ".jsonl", ".json"])
def test_every_file_gives_the_same_items(tmp_path, suffix):
    items = Items.of(write(tmp_path / f"items{suffix}"))
    assert (list(items.keys), items.codes.tolist(), items.columns) == (list(ROWS), CODES, tuple(NAMES))
    assert items.labels == (["blue", "red"], None, ["false", "true"])


def test_mappings_and_tables_give_the_same_items():
    by_name = {key: dict(zip(NAMES, values, strict=True)) for key, values in ROWS.items()}
    for source in (by_name, as_table(), as_table().to_pandas(), as_table().to_batches()[0]):
        assert Items.of(source).codes.tolist() == CODES
    assert Items.of(ROWS).columns == ("f0", "f1", "f2")
    assert Items.of(ROWS, columns=NAMES).columns == tuple(NAMES)
    assert Items.of({"a": "x", "b": "w"}).codes.tolist() == [[1], [0]]
    items = Items.of(ROWS)
    assert Items.of(items) is items


def test_numbers_of_0_and_more_stay_and_others_are_numbered_in_ascending_order():
    items = Items.of({1: [5, -2, "é"], 2: [900, 7, "z"], 3: [5, -9, "Z"]})
    assert items.codes.tolist() == [[5, 1, 2], [900, 2, 1], [5, 0, 0]]
    assert items.labels == (None, [-9, -2, 7], ["Z", "z", "é"])
    assert [items.value(column, 1) for column in range(3)] == ["1", "-2", "z"]


def test_text_in_a_csv_is_numbers_only_where_every_value_is_written_as_one(tmp_path):
    (tmp_path / "i.csv").write_text("item,a,b,c\nx,10,10,1\ny,9,09,1.5\n")
    with pytest.raises(SourceError, match=r"column 'c': found numbers such as 1\.5, .* \(bins='c=8'\), or name"):
        Items.of(tmp_path / "i.csv")
    items = Items.of(tmp_path / "i.csv", columns=["a", "b", "c"])
    assert items.codes.tolist() == [[10, 1, 0], [9, 0, 1]]
    assert items.labels == (None, ["09", "10"], ["1", "1.5"])


def test_keys_are_found_as_they_are_written():
    items = Items.of({10: [1], 7: [2]})
    assert items.index([7, 10, 7]).tolist() == [1, 0, 1]
    assert items.index(["7", "10"]).tolist() == [1, 0]
    assert items.index(np.array([10])).dtype == np.int64
    assert items.index([]).tolist() == []
    assert items.index(["07", "7"], unknown="mark").tolist() == [-1, 1]
    with pytest.raises(SourceError, match=r"keys\[1\]: no item 8 among the 2 items \(1 of 3 keys"):
        items.index([7, 8, 10])
    assert Items.of({"10": [1], "7": [2]}).index([7, 10]).tolist() == [1, 0]


def test_lists_of_one_length_are_columns_and_an_element_can_be_taken():
    table = pa.table({"item": ["x", "y"], "ids": [[3, 1], [0, 2]], "tags": [["a", "b"], ["c"]]})
    items = Items.of(table, columns=["ids", "tags[-1]", "tags[0]"])
    assert items.columns == ("ids_0", "ids_1", "tags[-1]", "tags[0]")
    assert items.codes.tolist() == [[3, 1, 0, 0], [0, 2, 1, 1]]
    with pytest.raises(SourceError, match=r"row 1: 'tags' holds 1 values, the first item 2; .* tags\[0\]"):
        Items.of(table)
    with pytest.raises(SourceError, match=r"row 1: the item 'y' has no 'tags\[1\]'"):
        Items.of(table, columns=["tags[1]"])
    assert Items.of(table, columns=["tags[1]"], missing="none").labels == (["b", "none"],)


def test_sequences_of_an_atomic_file_are_lists(tmp_path):
    text = "item_id:token\tcategories:token_seq\tprice:float\na\tbeauty lips\t2.5\nb\tbeauty\t3.0\n"
    (tmp_path / "shop.item").write_text(text)
    items = Items.of(tmp_path / "shop.item", columns=["categories[0]", "categories[1]"], missing="none")
    assert (list(items.keys), items.labels) == (["a", "b"], (["beauty"], ["lips", "none"]))
    assert items.codes.tolist() == [[0, 0], [0, 1]]


def test_saved_items_come_back_and_are_readable(tmp_path):
    items = Items.of(ROWS, columns=NAMES)
    items.save(tmp_path / "items.parquet")
    again = Items.load(tmp_path / "items.parquet")
    assert (again.codes.tolist(), again.labels, again.columns) == (CODES, items.labels, items.columns)
    assert pq.read_table(tmp_path / "items.parquet").to_pylist()[0] == {
        "item": "0007",
        "colour": "red",
        "size": 12,
        "new": "true",
    }
    first = (tmp_path / "items.parquet").read_bytes()
    items.save(tmp_path / "items.parquet")
    assert (tmp_path / "items.parquet").read_bytes() == first
    # A label that no item has keeps its number.
    Items(["a"], np.array([[1]]), ("item",), (["unused", "used"],)).save(tmp_path / "one.parquet")
    again = Items.load(tmp_path / "one.parquet")
    assert (again.codes.tolist(), again.value(0, 1), list(again.keys)) == ([[1]], "used", ["a"])


@pytest.mark.parametrize(
    ("source", "options", "error"),
    [
        ({}, {}, "the mapping is empty"),
        ({"a": [1, 2], "b": [1]}, {}, r"item 'b' has \[1\], expected 2 values"),
        ({"a": {"x": 1}, "b": {"y": 1}}, {}, "item 'b' has .*, expected the columns 'x'"),
        ({"a": [1], "b": ["x"]}, {}, r"column 'f0': values of several kinds \(int, str\)"),
        ({"a": [1.5]}, {}, "column 'f0': found double, expected text or whole numbers. Put numbers into bins"),
        ({"a": [1], 2: [1]}, {}, "not all text or all whole numbers"),
        ({"a": [1]}, {"columns": ["x", "y"]}, "2 names of columns for 1 values"),
        (pa.table({"sku": [1], "x": [1]}), {}, "which column is the key"),
        (pa.table({"item": [1]}), {}, "no column beside the key 'item'"),
        (pa.table({"item": [1], "x": [1]}), {"columns": ["y"]}, "no column 'y'; its columns are 'item', 'x'"),
        (pa.table({"item": [1, 2, 1], "x": [1, 1, 1]}), {}, "the key 1 of row 0 stands in row 2 again"),
        (pa.table({"item": [1, None], "x": [1, 1]}), {}, "row 1: no key"),
        (pa.table({"item": [1, 2], "x": ["a", None]}), {}, r"row 1: the item 2 has no 'x' \(1 such item\)"),
        (
            pa.table({"item": [1, 2], "x": [0.5, None]}),
            {"missing": "?"},
            "found double, expected text or whole numbers",
        ),
        (pa.table({"item": [0.5], "x": [1]}), {}, "keys are double"),
        (17, {}, "found int, expected a mapping"),
    ],
)
def test_what_cannot_be_items_is_refused_with_its_place(source, options, error):
    with pytest.raises(SourceError, match=error):
        Items.of(source, **options)


@pytest.mark.parametrize("room", [features, histories, interactions, items_room, tables])
def test_examples_in_the_documentation_are_true(room):
    done = doctest.testmod(room)
    assert (done.attempted > 0, done.failed) == (True, 0)


def test_a_missing_value_in_a_file_has_a_line(tmp_path):
    (tmp_path / "i.csv").write_text('item,brand\n"a\nb",x\n\nc,\n')
    with pytest.raises(SourceError, match=r"i\.csv, line 5: the item 'c' has no 'brand'"):
        Items.of(tmp_path / "i.csv")


def test_the_value_for_what_is_missing_can_differ_by_column():
    table = pa.table({"item": ["a", "b", "c"], "year": [1990, None, 5], "genre": [None, "x", "y"]})
    items = Items.of(table, missing=["unknown", "year=-1"])
    assert items.labels == ([-1, 5, 1990], ["unknown", "x", "y"])
    # A word among whole numbers: the numbers become text, in the order of numbers.
    assert Items.of(table, missing="unknown").labels == (["5", "1990", "unknown"], ["unknown", "x", "y"])
    with pytest.raises(PlanError, match="missing='yeer=1': no column 'yeer'"):
        Items.of(table, missing=["yeer=1"])


def test_a_missing_value_for_one_column_is_not_that_of_another_with_a_like_name():
    table = pa.table({"item": ["a", "b"], "tag": ["x", None], "tag_2": [None, "y"], "ids": [["p", None], ["q", "r"]]})
    with pytest.raises(SourceError, match=r"row 0: the item 'a' has no 'tag_2'"):
        Items.of(table, missing=["tag=none", "ids=-"])
    items = Items.of(table, missing=["tag=none", "tag_2=nothing", "ids=-"])
    assert items.labels == (["none", "x"], ["nothing", "y"], ["p", "q"], ["-", "r"])


def test_truth_values_may_be_missing():
    items = Items.of(pa.table({"item": [1, 2, 3], "adult": [True, None, False]}), missing="unknown")
    assert (items.labels, items.codes.tolist()) == ((["false", "true", "unknown"],), [[1], [2], [0]])
