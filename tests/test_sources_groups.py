"""Groups are equal when their values are equal, whatever format and type they come in."""

import json
from datetime import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from piecemill.errors import SourceError
from piecemill.sources import open_source

NUMBERS = [0, 1, -1, 7, 12345678901, 2**53, 10**16, -(10**15), 0.5, 1e-7, 123456789012.5, -2.25, 1e21, 1e300]


def keys_of(source, **options) -> list[int]:
    return [int(key) for block in open_source(source, group="g", **options).blocks() for key in block.keys]


def in_json(tmp_path, values) -> list[int]:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "x", "g": value}) + "\n" for value in values))
    return keys_of(path)


def in_table(values, kind) -> list[int]:
    return keys_of(pa.table({"text": ["x"] * len(values), "g": pa.array(values, kind)}))


def test_a_double_has_the_group_of_the_same_number_in_json(tmp_path):
    assert in_table([float(value) for value in NUMBERS], pa.float64()) == in_json(tmp_path, NUMBERS)
    # a whole number written with a point or an exponent is the same number
    assert in_json(tmp_path, [float(value) for value in NUMBERS]) == in_json(tmp_path, NUMBERS)
    assert len(set(in_json(tmp_path, NUMBERS))) == len(NUMBERS)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.decimal128(38, 2), pa.string(), pa.large_string()])
def test_other_types_have_it_too(tmp_path, kind):
    whole = [0, 7, 12345678901, 2**53, 10**16]
    values = [str(value) for value in whole] if kind in (pa.string(), pa.large_string()) else whole
    values = [Decimal(value) for value in whole] if pa.types.is_decimal(kind) else values
    assert in_table(values, kind) == in_json(tmp_path, whole)


def test_decimals_singles_and_dictionaries(tmp_path):
    assert in_table([Decimal("0.50"), Decimal("123456789012.50")], pa.decimal128(38, 2)) == in_json(
        tmp_path, [0.5, 123456789012.5]
    )
    assert in_table([Decimal(10) ** 20], pa.decimal128(38, 2)) == in_json(tmp_path, [10**20])
    assert in_table(np.array([0.1, 3], np.float32), pa.float32()) == in_json(tmp_path, [0.1, 3])
    assert in_table(np.array([0.1, 3, 65504], np.float16), pa.float16()) == in_json(tmp_path, [0.1, 3, 65504])
    repeated = pa.array([1e10, 0.5, 1e10]).dictionary_encode()
    assert keys_of(pa.table({"text": ["x"] * 3, "g": repeated})) == in_json(tmp_path, [10**10, 0.5, 10**10])


def test_whole_numbers_of_a_column_of_singles_are_exact(tmp_path):
    whole = [16777218, 123456792, 2**40, 2**64, -(2**70)]
    assert in_table(np.array(whole, np.float32), pa.float32()) == in_json(tmp_path, whole)


def test_times_are_equal_in_every_unit_and_zone():
    times = [datetime(2020, 1, 2), datetime(2020, 1, 2, 10, 20, 30)]
    zones = [in_table(times, pa.timestamp("us", zone)) for zone in ("UTC", "America/New_York")]
    assert zones[0] == zones[1]
    units = [in_table(times, pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")]
    assert units == [units[0]] * 4
    assert len({*units[0], *zones[0]}) == 4
    halves = [[datetime(2020, 1, 2, 0, 0, 0, 500_000)], [datetime(2020, 1, 2, 0, 0, 0, 50_000)]]
    keys = {tuple(in_table(half, pa.timestamp(unit))) for half in halves for unit in ("ms", "us", "ns")}
    assert len(keys) == 2


def test_groups_may_be_any_bytes(tmp_path):
    values = pa.array([b"a", b"\xff", b"a"])
    kinds = (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))
    tables = [pa.table({"text": ["x"] * 3, "g": values.cast(kind)}) for kind in kinds]
    tables.append(pa.table({"text": ["x"] * 3, "g": values.view(pa.string())}))  # not all writers check
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet")
        assert keys_of(tmp_path / f"{number}.parquet") == keys_of(tables[0])
        (block,) = open_source(table, group="g").blocks()
        assert sorted(block.names.values()) == ["a", "\ufffd"]
    assert keys_of(tables[0])[:1] == in_table(["a"], pa.string())


def test_integers_beside_a_missing_value_as_pandas_writes_them_stay_in_their_groups(tmp_path):
    path = tmp_path / "b.parquet"
    ids = [12345678901 + number for number in range(50)]
    pq.write_table(pa.table({"text": ["x"] * 51, "g": pa.array([*map(float, ids), float("nan")])}), path)
    assert keys_of(path, on_bad_document="skip") == in_json(tmp_path, ids)
    with pytest.raises(SourceError, match=r"b\.parquet\[50\]: no 'g' to group by"):
        keys_of(path)


def test_a_column_that_is_not_there_is_an_error_also_of_a_lone_column(tmp_path):
    with pytest.raises(SourceError, match=r"'g' to group by: it is a lone column.* Group by another one\.$"):
        keys_of(pa.array(["one", "two"]))
    with pytest.raises(SourceError, match="no column 'g'; its columns are text"):
        keys_of(pa.table({"text": ["x"]}))
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "c.parquet")
    with pytest.raises(SourceError, match=r"c\.parquet: no column 'g'; its columns are text"):
        keys_of(tmp_path / "c.parquet")
