"""Items: every item as one value per column, ready for a vocabulary.

Column c is category c. A column of whole numbers of 0 and more keeps them as they are; every other column is
numbered by its distinct values in ascending order, and `labels` has the values. Keys are compared as they are
written: the item 5 of one file is the item "5" of another, and not the item "05".

Start with `Items.of`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from piecemill.actions.tables import (
    TEXT_FORMATS,
    Origin,
    as_numbers,
    as_table,
    cut_list,
    find_column,
    fraction_in,
    is_row,
    pick,
    plain,
    read_table,
)
from piecemill.errors import PlanError, SourceError
from piecemill.files import file_for_user, hash_bytes
from piecemill.plans import did_you_mean, option, option_of
from piecemill.sizes import plural

KEY_NAMES = ("item", "item_id", "itemid", "key", "parent_asin", "asin", "product_id", "movieid", "id")
"What the column of keys is called where nobody says."
_META = b"piecemill.items"
Missing = str | int | Sequence[str] | None
"What stands for a value that is not there: one for all columns, or also `column=value`."


@dataclass(frozen=True, eq=False)
class Items:
    """The item table: `codes[row, column]` is the value of the item `keys[row]` in `columns[column]`."""

    keys: Sequence[str] | Sequence[int]
    codes: NDArray[np.int64]
    columns: tuple[str, ...]
    labels: tuple[list[Any] | None, ...]
    "Of each column: what its codes stand for; None where the code is the value."
    made: Mapping[str, Any] = field(default_factory=dict)
    "How the features came about, as saved with them."
    coding: Mapping[str, Any] | None = None
    "Which value has which code, for other items to be coded alike; see `piecemill.actions.coding`."
    known: Any = field(init=False, repr=False)
    "The keys as an Arrow array."

    def __post_init__(self) -> None:
        rows, width = self.codes.shape if self.codes.ndim == 2 else (-1, -1)
        if rows != len(self.keys) or width != len(self.columns) or width != len(self.labels):
            raise SourceError(
                f"items: {len(self.keys):,} keys, {len(self.columns)} columns, {len(self.labels)} labels, but codes "
                f"of shape {self.codes.shape}; expected one row per key and one column per name."
            )
        if not rows or not width:
            raise SourceError(f"items: found {max(rows, 0)} items with {max(width, 0)} columns, expected 1 or more.")
        if self.codes.dtype != np.int64 or int(self.codes.min()) < 0:
            raise SourceError(f"items: codes are {self.codes.dtype} from {self.codes.min()}; expected int64 from 0.")
        known = as_keys(self.keys, "items", None)
        if repeat := first_repeat(known):
            again, first = repeat
            raise SourceError(
                f"items: the key {self.keys[again]!r} of row {first} stands in row {again} again; expected each once."
            )
        object.__setattr__(self, "known", known)

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    @did_you_mean
    def of(
        cls,
        source: Any,
        *,
        key: str | None = None,
        columns: Sequence[str] | None = None,
        missing: Missing = None,
    ) -> "Items":
        """Items from a mapping, a table or a file.

        A mapping is item -> its values, a list of one per column, or a mapping by name; a table (Arrow, pandas,
        polars) or file (Parquet, Arrow, CSV, JSON lines, a JSON mapping, RecBole `.item`) has the column `key` and
        the `columns` to take: all others, where nobody says. A list of fixed length stands for as many columns, and
        `name[0]` for its first element. A value that is not there is an error, or the value `missing`: one for all
        columns, or a list of such as `["unknown", "year=-1"]`. Numbers with a missing value that is text become text.

        >>> items = Items.of({"a": ["red", 3], "b": ["blue", 0]}, columns=["colour", "size"])
        >>> items.codes.tolist(), items.labels
        ([[1, 3], [0, 0]], (['blue', 'red'], None))
        """
        if isinstance(source, Items):
            return source
        for name, given in (("columns", columns), ("missing", missing)):
            whole = isinstance(given, str | int) and name == "missing"
            if given is not None and not whole and (isinstance(given, str) or not isinstance(given, Sequence)):
                raise PlanError(f"{name}: found {type(given).__name__}, expected a list.")
        origin = Origin.of(source, None, "items")
        if origin.path is not None:
            source = read_table(origin.path)
            if is_saved(source) and columns is None:
                return _restored(source, origin.name)
        if isinstance(source, Mapping):
            return items_of(from_mapping(source, columns, origin.name), origin, "", None, missing)
        table = as_table(source, origin.name)
        return items_of(
            table, origin, find_column(table.column_names, KEY_NAMES, key, origin.name, "key"), columns, missing
        )

    @did_you_mean
    def index(self, keys: Any, *, unknown: Literal["stop", "mark"] = "stop") -> NDArray[np.int64]:
        """The row of each of `keys`; one that is not among the items is an error, or -1 with `unknown="mark"`."""
        asked = as_keys(keys, "keys", None)
        known = self.known
        if pa.types.is_integer(known.type) != pa.types.is_integer(asked.type):
            known, asked = known.cast(pa.large_string()), asked.cast(pa.large_string())
        rows = np.asarray(pc.index_in(asked, value_set=known).fill_null(-1)).astype(np.int64)
        if unknown == "stop" and len(rows) and int(rows.min()) < 0:
            lost = asked.filter(pa.array(rows < 0))
            raise SourceError(
                f"keys[{int(np.argmin(rows >= 0))}]: no item {lost[0].as_py()!r} among the {len(self):,} items "
                f"({len(lost):,} of {len(rows):,} keys are unknown). Add the items, or drop these actions on purpose."
            )
        return rows

    def value(self, column: int, code: int) -> str:
        """What a code stands for, readably.

        >>> Items.of({"a": ["red"], "b": ["blue"]}).value(0, 1)
        'red'
        """
        try:
            labels = self.labels[column]
            return str(code) if labels is None else str(labels[code])
        except (TypeError, IndexError):
            raise SourceError(
                f"column {column!r}, code {code!r}: expected one of the {len(self.columns)} columns, from 0, and one "
                "of its codes."
            ) from None

    def table(self) -> pa.Table:
        """The items as people read them: the key, then one column of values per feature."""
        arrays: list[Any] = [self.known]
        for column, labels in enumerate(self.labels):
            codes = pa.array(self.codes[:, column])
            arrays.append(codes if labels is None else pa.array(labels).take(codes))
        return pa.table(arrays, names=[_free_name(self.columns), *self.columns])

    @did_you_mean
    def save(self, path: str | Path) -> None:
        """Writes a Parquet file that any tool can read; `load` gives back the same codes."""
        meta = json.dumps({"labels": self.labels, "made": dict(self.made), "coding": self.coding}).encode()
        table = self.table().replace_schema_metadata({_META: meta + f"\n{hash_bytes(meta)}".encode()})
        with file_for_user(path) as file:
            pq.write_table(table, file, write_page_checksum=True)

    @classmethod
    @did_you_mean
    def load(cls, path: str | Path) -> "Items":
        """The items of a file that `save` wrote, or of any file that `Items.of` can read."""
        return cls.of(path)


def items_of(table: pa.Table, origin: Origin, key: str, columns: Sequence[str] | None, missing: Missing) -> Items:
    """Items from the `columns` of a table with one row per item."""
    wanted = list(columns) if columns is not None else [column for column in table.column_names if column != key]
    if not wanted:
        raise SourceError(f"{origin.name}: no column beside the key {key!r}; expected a feature of the items.")
    keys = as_keys(table.column(key), origin.name, key)
    found = [(name, column, values) for name in wanted for column, values in _columns(table, name, origin)]
    sources = {column: str(pick(table.column_names, name)[0]) for name, column, _ in found}
    empty = by_column(missing, sources, table.column_names, "missing")
    codes, labels, coding = [], [], []
    for name, column, values in found:
        untyped = origin.kind in TEXT_FORMATS
        taken = as_numbers(values) if untyped or pa.types.is_floating(values.type) else values
        # Every other kind of file would report that these are not whole numbers; a column requested by name is text.
        if untyped and columns is None and (part := fraction_in(taken)) is not None:
            raise SourceError(
                f"{origin.name}, column {column!r}: found numbers such as {part}, expected text or whole numbers. Put "
                f"them into bins ({option_of('actions features', 'bins', f'{column}=8')}), or name the columns to take."
            )
        numbers, meaning = _coded(taken, column, keys, origin, empty[column])
        codes.append(numbers)
        labels.append(meaning)
        spread = column != name  # a list of fixed length, all of it
        made_from = f"{name}[{column.removeprefix(f'{name}_')}]" if spread else name
        coding.append(values_coding(column, meaning, numbers, made_from=made_from, missing=empty[column]))
        coding[-1]["width"] = sum(one == name for one, *_ in found) if spread else None
    names = tuple(column for _, column, _ in found)
    made = {"source": origin.name, "missing": missing} if missing is not None else {"source": origin.name}
    return Items(keys.to_pylist(), np.stack(codes, axis=1), names, tuple(labels), made, {"columns": coding})


def row_per_item(
    table: pa.Table, key: str, wanted: Sequence[str], origin: Origin, *, npy: bool
) -> tuple[pa.Table, Any, Origin, int]:
    """The first row of every item, once it is sure that the other rows say the same in the columns `wanted`.

    With the keys of these rows, their origin, and how many rows were left out. `npy`: rows of an array belong to the
    rows, so an item may not have two.
    """
    keys = as_keys(table.column(key), origin.name, key)
    coded = keys.dictionary_encode()
    number = np.asarray(coded.indices).astype(np.int64)
    count = len(coded.dictionary)
    if count == len(keys):
        return table, keys, origin, 0
    if npy:
        again = int(np.argmax(number != np.arange(len(number))))
        raise SourceError(f"{origin.at(again)}: the item {keys[again].as_py()!r} again; a .npy needs one row per item.")
    first = np.empty(count, np.int64)
    first[number[::-1]] = np.arange(len(keys))[::-1]
    before = pa.array(first[number])
    names = [pick(table.column_names, one)[0] or one for one in wanted] or table.column_names
    for name in dict.fromkeys(names):
        if name not in table.column_names or name == key:
            continue
        values = plain(table.column(name))
        if pa.types.is_nested(values.type):
            raise SourceError(
                f"{origin.name}: {name!r} holds lists and items stand in several rows; give one row per item."
            )
        same = pc.equal(values, values.take(before))
        both = pc.and_(pc.is_null(values), pc.is_null(values.take(before)))
        differs = ~np.asarray(pc.or_(same.fill_null(False), both))
        if differs.any():
            row = int(np.argmax(differs))
            raise SourceError(
                f"{origin.at(row)}: the item {keys[row].as_py()!r} has {name}={values[row].as_py()!r}, but it had "
                f"{values[int(first[number[row]])].as_py()!r} before. Take columns that say one thing of an item."
            )
    items = Origin(origin.name, None, origin.kind)  # its rows are items now, and no longer lines
    return table.take(first), coded.dictionary, items, len(keys) - count


def values_coding(
    name: str,
    labels: list[Any] | None,
    codes: NDArray[np.int64],
    *,
    made_from: str | None = None,
    missing: str | int | None = None,
) -> dict[str, Any]:
    """The coding of a column of values, as `piecemill.actions.coding` applies it."""
    return {
        "kind": "values",
        "name": name,
        "from": name if made_from is None else made_from,
        "labels": labels,
        "values": np.unique(codes).tolist() if labels is None else None,
        "missing": None if missing is None else str(missing),
    }


def by_column(
    given: str | int | Sequence[Any] | None, columns: Mapping[str, str], known: Sequence[str], what: str
) -> dict[str, Any]:
    """What `given` says of each of `columns`: a value for all, or `name=value` for one; None where nothing is said.

    `columns` are features and the columns they are made from: either name means them.

    >>> by_column(["unknown", "year=-1"], {"genre": "genre", "year": "year"}, [], "missing")
    {'genre': 'unknown', 'year': '-1'}
    """
    said: dict[str, Any] = dict.fromkeys(columns)
    listed = [] if given is None else [given] if isinstance(given, str | int) else list(given)
    alone = [one for one in listed if not isinstance(one, str) or "=" not in one]
    if len(alone) > 1:
        raise PlanError(
            f"{option(what)}: {alone[0]!r} and {alone[1]!r} for all columns; give one, and others as column=value."
        )
    said.update(dict.fromkeys(columns, alone[0]) if alone else {})
    for one in listed:
        name, equals, value = str(one).rpartition("=")
        if not equals:
            continue
        own = [column for column, made_from in columns.items() if name in (column, made_from)]
        if not own and name not in known:
            raise PlanError(
                f"{option(what, one)}: no column {name!r}; the columns are {', '.join(map(repr, columns))}."
            )
        said.update(dict.fromkeys(own, value))
    return said


def is_saved(table: Any) -> bool:
    """Whether a table was written by `Items.save`, so that its values have codes already."""
    return isinstance(table, pa.Table) and _META in (table.schema.metadata or {})


def keys_alone(source: Any) -> Items:
    """The items of a source without features, to ask which there are: one column with one value for all."""
    origin = Origin.of(source, None, "items")
    found = read_table(origin.path) if origin.path is not None else source
    if isinstance(found, Mapping):
        keys = as_keys(list(found), origin.name, None)
    elif isinstance(found, pa.Array):
        keys = found
    else:
        table = as_table(found, origin.name)
        key = find_column(table.column_names, KEY_NAMES, None, origin.name, "key")
        keys = as_keys(table.column(key), origin.name, key)
    return Items(keys.to_pylist(), np.zeros((len(keys), 1), np.int64), ("",), (None,))


def encode(values: Any, where: str) -> tuple[NDArray[np.int64], list[Any] | None]:
    """The codes of a column without nulls and what they stand for: None if they are the values."""
    kind = values.type
    if pa.types.is_integer(kind):
        if pa.types.is_uint64(kind) and len(values) and pc.max(values).as_py() > np.iinfo(np.int64).max:
            raise SourceError(f"{where}: {pc.max(values)} does not fit 63 bits; give it as text.")
        numbers = np.asarray(values).astype(np.int64)
        if not len(numbers) or numbers.min() >= 0:
            return numbers, None
        distinct, codes = np.unique(numbers, return_inverse=True)
        return codes.astype(np.int64), distinct.tolist()
    if pa.types.is_boolean(kind):
        values = values.cast(pa.large_string())
    elif not pa.types.is_large_string(kind):
        hint = " Put numbers into bins first." if pa.types.is_floating(kind) else ""
        raise SourceError(f"{where}: found {kind}, expected text or whole numbers.{hint}")
    coded = values.dictionary_encode()
    order = np.asarray(pc.sort_indices(coded.dictionary)).astype(np.int64)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[np.asarray(coded.indices)], coded.dictionary.take(pa.array(order)).to_pylist()


def as_keys(keys: Any, name: str, column: str | None) -> Any:
    """Keys as an Arrow array of int64 or of text; anything else is an error."""
    where = name if column is None else f"{name}, column {column!r}"
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        array = plain(keys)
    else:
        try:
            array = plain(pa.array(keys))
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError, UnicodeError) as error:
            raise SourceError(f"{where}: keys are not all text or all whole numbers ({error}).") from None
    if pa.types.is_floating(array.type):
        array = as_numbers(array)
    if array.null_count:
        row = int(np.argmax(np.asarray(array.is_null())))
        raise SourceError(f"{where}, row {row:,}: no key, expected text or a whole number.")
    if pa.types.is_integer(array.type):
        try:
            return array.cast(pa.int64())
        except pa.ArrowInvalid:
            raise SourceError(f"{where}: a key does not fit 63 bits; give keys as text.") from None
    if pa.types.is_large_string(array.type):
        return array
    if pa.types.is_null(array.type):
        return array.cast(pa.int64())
    raise SourceError(f"{where}: keys are {array.type}, expected text or whole numbers.")


def first_repeat(keys: Any) -> tuple[int, int] | None:
    """The first row whose key came before, and the row where it did; None if every key is there once."""
    coded = keys.dictionary_encode()
    if len(coded.dictionary) == len(keys):
        return None
    numbers = np.asarray(coded.indices)
    # Numbers are given by first occurrence, so the first that is not the next new one came before.
    again = int(np.argmax(numbers != np.arange(len(numbers))))
    return again, int(np.argmax(numbers == numbers[again]))


def _columns(table: pa.Table, wanted: str, origin: Origin) -> list[tuple[str, Any]]:
    """The column(s) that `wanted` names: one, an element of a list, or all elements of lists of one length."""
    column, element = pick(table.column_names, wanted)
    if column is None:
        known = ", ".join(map(repr, table.column_names))
        raise SourceError(f"{origin.name}: no column {wanted!r}; its columns are {known}.")
    values = plain(table.column(column))
    if element is None and not pa.types.is_large_list(values.type):
        return [(wanted, values)]
    return cut_list(values, column, element, origin)


def _coded(
    values: Any, column: str, keys: Any, origin: Origin, missing: str | int | None
) -> tuple[NDArray[np.int64], list[Any] | None]:
    """The codes of a column and what they stand for, `missing` in place of nulls."""
    where = f"{origin.name}, column {column!r}"
    if pa.types.is_null(values.type) or pa.types.is_boolean(values.type):
        values = values.cast(pa.large_string())
    if not values.null_count or not (pa.types.is_integer(values.type) or pa.types.is_large_string(values.type)):
        return encode(values, where)
    if missing is None:
        row = int(np.argmax(np.asarray(values.is_null())))
        raise SourceError(
            f"{origin.at(row)}: the item {keys[row].as_py()!r} has no {column!r} "
            f"({plural(values.null_count, 'such item')}). Every item needs a value in every "
            f"column: fill it in, or {option_of('actions features', 'missing', ...)} gives them one."
        )
    try:
        return encode(values.fill_null(pa.scalar(missing).cast(values.type)), where)
    except pa.ArrowInvalid:
        pass
    # Whole numbers, and a word where there is none: numbers as text then, in the order of numbers.
    distinct = np.unique(np.asarray(values.drop_null()))
    any_value = next(iter(distinct.tolist()), 0)  # all may be missing, as the video_release_date of MovieLens
    numbers = np.searchsorted(distinct, np.asarray(values.fill_null(any_value))).astype(np.int64)
    numbers[np.asarray(values.is_null())] = len(distinct)
    return numbers, [*map(str, distinct.tolist()), str(missing)]


def from_mapping(source: Mapping[Any, Any], columns: Sequence[str] | None, name: str) -> pa.Table:
    """A mapping item -> values as a table; the column of keys has the empty name."""
    if not source:
        raise SourceError(f"{name}: the mapping is empty, expected item -> values.")
    rows: list[Any] = list(source.values())
    first = rows[0]
    if isinstance(first, Mapping):
        taken = list(columns) if columns is not None else list(first)
        for key, row in source.items():
            if not isinstance(row, Mapping) or any(column not in row for column in taken):
                raise SourceError(
                    f"{name}: item {key!r} has {row!r}, expected the columns {', '.join(map(repr, taken))}."
                )
        values: list[Any] = [[row[column] for row in rows] for column in taken]
    else:
        if isinstance(first, str | int):
            rows = [[row] for row in rows]
        width = len(rows[0]) if is_row(rows[0]) else 1
        taken = list(columns) if columns is not None else [f"f{number}" for number in range(width)]
        for key, row in zip(source, rows, strict=True):
            if not is_row(row) or len(row) != width:
                raise SourceError(f"{name}: item {key!r} has {row!r}, expected {width} values as the first item has.")
        if len(taken) != width:
            raise SourceError(f"{name}: {len(taken)} names of columns for {width} values per item.")
        values = list(zip(*rows, strict=True))
    arrays = [as_keys(list(source), name, None)]
    for column, cells in zip(taken, values, strict=True):
        try:
            arrays.append(plain(pa.array(cells)))
        except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeError) as error:
            kinds = ", ".join(sorted({type(cell).__name__ for cell in cells}))
            raise SourceError(
                f"{name}, column {column!r}: values of several kinds ({kinds}); expected all text or all whole "
                f"numbers ({error})."
            ) from None
    return pa.table(arrays, names=["", *taken])


def _restored(table: pa.Table, name: str) -> Items:
    # Parquet has no checksum of its metadata. Earlier versions did not add one.
    content, line_end, seal = (table.schema.metadata or {})[_META].rpartition(b"\n")
    if line_end and hash_bytes(content).encode() != seal:
        raise SourceError(f"{name}: was changed after it was saved. Restore it from a copy, or make the items again.")
    try:
        meta = json.loads(content or seal)
    except ValueError as error:
        raise SourceError(f"{name}: its record of codes cannot be read ({error}). Make the items again.") from None
    codes: list[NDArray[np.int64]] = []
    for column, labels in zip(table.column_names[1:], meta["labels"], strict=True):
        values = plain(table.column(column))
        if labels is not None:
            values = pc.index_in(values, value_set=pa.array(labels, values.type))
        if values.null_count:
            raise SourceError(f"{name}, column {column!r}: a value without a code; the file was changed after saving.")
        codes.append(np.asarray(values).astype(np.int64))
    keys = as_keys(table.column(0), name, table.column_names[0])
    return Items(
        keys.to_pylist(),
        np.stack(codes, axis=1),
        tuple(table.column_names[1:]),
        tuple(meta["labels"]),
        meta["made"],
        meta.get("coding"),
    )


def _free_name(columns: tuple[str, ...]) -> str:
    name = "item"
    while name in columns:
        name += "_key"
    return name
