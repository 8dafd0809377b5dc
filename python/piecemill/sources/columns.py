"""Arrow record batches -> documents: one column of text.

The column may be string, large_string, string_view, their binary kinds, or a dictionary of those; its bytes
must be UTF-8 (unless `Reading.raw`), which is checked: Parquet and Arrow require it for strings, but not all writers
comply.
Nulls are bad documents, empty strings are left out and counted. Rows are numbered from 0.

Text is not copied: blocks are views of the Arrow buffers. Only dictionaries and string views are converted to plain
strings, about a block at a time.

Start with `Column`; `parquet` and `arrow` give it batches.
"""

import errno
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from piecemill._core import hash_documents, invalid_documents, number_keys, write_integers
from piecemill.integers import too_large
from piecemill.sources.documents import LISTED_SKIPS
from piecemill.sources.packing import Packer
from piecemill.sources.patience import about_the_file, stopped_by

LARGE = 16 * 1024 * 1024
"""After a batch of this many bytes, freed memory is returned to the system."""

LONE = "<lone column>"
"""The column of a table made of an array alone: found by any name."""

_NO_BYTES = np.empty(0, np.uint8)
_MOST_NAMES = 1024


class NoColumn(Exception):
    """The table has no such text column; the message has the columns it has."""


BROKEN = (pa.ArrowException, OSError, ValueError, LookupError, OverflowError)
"What reading a broken table raises: names that are not UTF-8 are ValueErrors, for example."


class Column:
    """Adds the text column of batches to a packer, and counts the rows.

    `trusted` batches were built by a library in this process. Batches of Arrow files may have invalid offsets, so they
    are validated before any access.
    """

    def __init__(self, packer: Packer, path: str, file: int = 0, first_row: int = 0, *, trusted: bool = True) -> None:
        self._packer, self._path, self._file, self._trusted = packer, path, file, trusted
        self.row = first_row
        "The row after the last one that was added."
        self._was_large = False

    def add(self, batch: pa.RecordBatch) -> Iterator[None]:
        """Add the documents of a batch; yield after each part: about a block, or everything that needs no copy."""
        reading = self._packer.reading
        large = batch.nbytes > LARGE
        if large or self._was_large:
            release_memory()
        self._was_large = large
        if reading.group is not None and batch.schema.names == [LONE]:
            raise NoColumn(f"no column {reading.group!r} to group by: it is a lone column, pass a table")
        check_column(batch.schema, reading.field, integers=reading.integers)
        text = self._column(batch, reading.field)
        text = _digits(text) if is_list(text.type) else text
        keys, lost = (
            _keys(self._column(batch, reading.group), reading.group, self._packer.names)
            if reading.group is not None
            else (None, np.zeros(len(text), bool))
        )
        for start, array in _plain(text, reading.block_bytes):
            chosen = slice(start, start + len(array))
            self._add_rows(array, lost[chosen], None if keys is None else keys[chosen])
            self.row += len(array)
            yield

    def _column(self, batch: pa.RecordBatch, field: str) -> Any:
        index, way = find_column(batch.schema, field)
        column: Any = batch.column(index)
        if not self._trusted:
            column.validate()
        column = pc.struct_field(column, way) if way else column
        if not self._trusted and not is_list(column.type):
            _as_bytes(column).validate(full=True)
        return column

    def failed(self, error: Exception) -> None:
        """Handle a read error: report a bad document from this row on, or raise if the table is not the cause."""
        if isinstance(error, pa.ArrowMemoryError):
            error = OSError(errno.ENOMEM, first_line(error))
        if isinstance(error, OSError) and error.errno is not None and not about_the_file(error):
            raise stopped_by(self._path, error) from None
        self._packer.bad(f"{self._path}[{self.row}]", f"cannot be read from this row on: {first_line(error)}")

    def _add_rows(self, array: Any, lost: NDArray[np.bool_], keys: NDArray[np.uint64] | None) -> None:
        data, ends = _buffers(array)
        packer, group = self._packer, self._packer.reading.group
        problems = [(row, f"no {group!r} to group by") for row in np.flatnonzero(lost)[:LISTED_SKIPS].tolist()]
        if array.null_count:
            missing = np.asarray(array.is_null()) & ~lost
            lists = "null, or has a null or a number of more than 64 bits; expected integers"
            reason = lists if packer.reading.integers else "null, expected text"
            problems += [(row, reason) for row in np.flatnonzero(missing)[:LISTED_SKIPS].tolist()]
            lost = lost | missing
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        found_invalid = [] if packer.reading.raw else invalid_documents(data, ends)
        invalid = [(row, at) for row, at in found_invalid if not lost[row]]
        for row, at in invalid[:LISTED_SKIPS]:
            found = data[starts[row] + at]
            problems.append((row, f"invalid UTF-8 at byte {at} of the text (found 0x{found:02x})"))
        lost = lost.copy()
        lost[[row for row, _ in invalid]] = True
        problems.sort()
        lengths = ends - starts[: len(ends)]
        keep = ~lost & (lengths > 0)
        if lengths[lost].any():
            # Rare, so it may copy.
            data = np.concatenate([_NO_BYTES, *(data[starts[row] : ends[row]] for row in np.flatnonzero(keep))])
            ends = np.cumsum(np.where(keep, lengths, 0))
        rows = np.flatnonzero(keep)
        named = [(f"{self._path}[{self.row + row}]", reason) for row, reason in problems[:LISTED_SKIPS]]
        packer.bad_many(named, int(lost.sum()))
        packer.left_out("empty", len(array) - len(rows) - int(lost.sum()))
        packer.add(data, ends[keep], self._file, rows + self.row, None if keys is None else keys[rows])


def release_memory() -> None:
    """Return memory that Arrow has freed to the system: its allocator retains 600 MB after a string of 200 MB."""
    pa.default_memory_pool().release_unused()


def is_list(kind: Any) -> bool:
    """Whether rows of this type are lists."""
    return any(getattr(pa.types, f"is_{test}")(kind) for test in ("list", "large_list", "fixed_size_list"))


def _digits(lists: Any) -> Any:
    """Lists of integers as text: each list is a document; null where one holds something else."""
    values = lists.flatten()  # without what is behind nulls
    numbers = np.asarray(values.fill_null(0))
    lost = np.asarray(values.is_null()) | too_large(numbers)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int64)
    list_ends = np.cumsum(lengths)
    valid = np.array(lists.is_valid())
    valid[np.searchsorted(list_ends, np.flatnonzero(lost), side="right")] = False
    data, ends = write_integers(np.where(lost, 0, numbers).astype(np.int64), list_ends)
    starts = np.concatenate([np.zeros(1, np.int64), ends])
    buffers = [pa.array(valid).buffers()[1], pa.py_buffer(starts.data), pa.py_buffer(data.data)]
    return pa.Array.from_buffers(pa.large_binary(), len(lists), buffers)


def column_type(schema: pa.Schema, field: str) -> Any:
    """The type of a field's column."""
    index, way = find_column(schema, field)
    kind: Any = schema.field(index).type
    for step in way:
        if not pa.types.is_struct(kind) or kind.get_field_index(step) < 0:
            raise NoColumn(f"no column {field!r}: {schema.field(index).name!r} is {kind} without {step!r}")
        kind = kind.field(step).type
    return kind


def check_column(schema: pa.Schema, field: str, *, integers: bool = False) -> None:
    """Raises `NoColumn` if the field is not a column of text, nor of lists of `integers`."""
    kind = column_type(schema, field)
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    if integers and is_list(kind) and pa.types.is_integer(kind.value_type):
        return
    if not _is_text(values) and not pa.types.is_null(values):
        expected = "lists of integers, or their digits" if integers else "strings"
        raise NoColumn(f"the column {field!r} is {kind}, expected {expected}")


def _is_text(kind: Any) -> bool:
    tests = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    return any(getattr(pa.types, f"is_{test}")(kind) for test in tests)


def first_line(error: Exception) -> str:
    """The message of an Arrow error, without the C++ source locations that follow."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def find_column(schema: pa.Schema, field: str) -> tuple[int, list[str]]:
    """The index of a field's column; for a dotted name, of the outermost struct, and the path inside it."""
    if schema.names == [LONE]:
        return 0, []
    column, inside = field, ""
    while True:
        if (index := schema.get_field_index(column)) >= 0:
            return index, inside.split(".") if inside else []
        column, dot, rest = column.rpartition(".")
        if not dot:
            known = ", ".join(schema.names) or "none"
            raise NoColumn(f"no column {field!r}; its columns are {known}")
        inside = f"{rest}.{inside}" if inside else rest


def _as_bytes(array: Any) -> Any:
    """The array as binary: UTF-8 is checked document by document."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, _as_bytes(array.dictionary), safe=False)
    plain = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    return array.view(plain[kind]) if kind in plain else array


def _plain(array: Any, size: int) -> Iterator[tuple[int, Any]]:
    """The strings as plain arrays (one buffer and offsets), with the row at which each array starts.

    Dictionaries and string views are converted in parts of about `size` bytes: a dictionary of a few megabytes can
    expand to gigabytes.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = array.dictionary.cast(_large(kind.value_type))
        lengths = pc.fill_null(pc.take(pc.binary_length(values), array.indices), 0)
        ends = np.cumsum(np.asarray(lengths, np.int64))
        start = 0
        while start < len(array) or start == 0:
            base = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, base + size, side="right")))
            yield start, values.take(array.indices[start:stop])
            start = stop
    elif pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) or pa.types.is_null(kind):
        rows = max(1, len(array) * size // max(array.nbytes, 1))
        for start in range(0, len(array), rows):
            yield start, array[start : start + rows].cast(_large(kind))
    else:
        yield 0, array


def _large(kind: Any) -> Any:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return pa.large_string() if text else pa.large_binary()


def _keys(column: Any, group: str, names: dict[int, str]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """The hash of every row's group, written as text; and which rows have none. Equal numbers are equal groups.

    What was hashed goes to `names`, unless they are many.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind, numbers = column.type, None
    try:
        if pa.types.is_float16(kind):  # Arrow does not write them as text
            halves, each = np.unique(column.to_numpy(zero_copy_only=False).astype(np.float16), return_inverse=True)
            short = [float(one) if float(one).is_integer() else float(str(one)) for one in halves]
            column = pa.array(np.array(short, np.float64)[each])
        if pa.types.is_float32(column.type):  # 0.1 is 0.1, not the double next to the single; whole numbers are exact
            exact, short = column.cast(pa.float64()), column.cast(pa.large_string()).cast(pa.float64())
            column = pc.if_else(pc.equal(pc.floor(exact), exact), exact, short)
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            column = column.cast(pa.timestamp(kind.unit, "UTC"))
        if pa.types.is_decimal(kind):
            found = [_number(value) for value in column.to_pylist()]
            column = pa.array([one if isinstance(one, str) else None for one in found], pa.large_string())
            numbers = np.array([one if isinstance(one, float) else np.nan for one in found], np.float64)
        elif pa.types.is_float64(column.type):
            numbers = column.fill_null(float("nan")).to_numpy(zero_copy_only=False)
            column = pa.nulls(len(column), pa.large_string())
        if _is_text(column.type) or pa.types.is_fixed_size_binary(kind):
            text = _as_bytes(column).cast(pa.large_binary())
        else:
            text = column.cast(pa.large_string())
        if pa.types.is_timestamp(kind) or pa.types.is_time(kind):  # the same in seconds and in nanoseconds
            text = pc.replace_substring_regex(text, r"(\.[0-9]*?)0+(Z?)$", r"\1\2")
            text = pc.replace_substring_regex(text, r"\.(Z?)$", r"\1")
        text = text.cast(pa.large_binary())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        raise NoColumn(f"the column {group!r} is {kind}, expected text or numbers to group by") from None
    keys, missing = hash_documents(*_buffers(text.fill_null(b"")))[:, 0], np.asarray(text.is_null())
    if len(names) < _MOST_NAMES:
        different = text.drop_null().unique()[:_MOST_NAMES]
        shown = [one.decode("utf-8", "replace") for one in different.to_pylist()]
        names.update(zip(hash_documents(*_buffers(different))[:, 0].tolist(), shown, strict=True))
    if numbers is None:
        return keys, missing
    # NaN is not a group: pandas writes a missing value as NaN.
    there = ~np.isnan(numbers)
    some = np.unique(numbers[there])[:_MOST_NAMES]
    names.update((key, f"{one:.17g}") for key, one in zip(number_keys(some).tolist(), some.tolist(), strict=True))
    return np.where(there, number_keys(np.ascontiguousarray(numbers, np.float64)), keys), missing & ~there


def _number(value: Decimal | None) -> str | float | None:
    """A decimal as JSON would have it: whole and small enough for 64 bits in its digits, or the nearest double."""
    if value is None:
        return None
    whole = value == value.to_integral_value() and -(2**63) <= value < 2**64
    return str(int(value)) if whole else float(value)


def _buffers(array: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of a string array, and where each string ends; the bytes are not copied."""
    _, offsets, values = array.buffers()
    if not len(array):
        return _NO_BYTES, np.empty(0, np.int64)
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    borders = np.frombuffer(offsets, np.int64 if large else np.int32)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(values, np.uint8) if values is not None else _NO_BYTES
    return data[borders[0] : borders[-1]], borders[1:].astype(np.int64) - int(borders[0])
