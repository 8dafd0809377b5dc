"""Tables -> documents: one column of Parquet, Arrow files, or anything with the Arrow PyCapsule interface.

The column may be string, large_string, string_view, their binary kinds, or a dictionary of those; its bytes
must be UTF-8, which is checked: Parquet and Arrow promise it for strings, writers do not always keep it.
Nulls are bad documents, empty strings are left out and counted. Rows are numbered from 0.

pyarrow holds a page or record batch as a whole, at times three times over. Where that is much, and memory is limited,
the rows are put down on disk first, with nothing else in flight, and then read as if they had been in a text file.

This is the only file of the room that imports pyarrow, and only it is imported when a table is read.
Start with `read_table`, `read_capsule`.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from piecemill._core import hash_documents, invalid_documents
from piecemill.errors import SourceError
from piecemill.sizes import show_bytes
from piecemill.sources.documents import LISTED_SKIPS, Documents, Skipped
from piecemill.sources.headers import batch_bytes, page_sizes
from piecemill.sources.packing import LARGE, MakeRoom, Packer, Reading
from piecemill.sources.remote import RemoteFile, Storage, is_url, open_bytes
from piecemill.sources.tasks import Task, cut

_MAX_BATCH_ROWS = 65_536
_HUGGING_FACE_ROWS = 1_000
_BUFFER_BYTES = 1024 * 1024
# In a batch that is put down: few, as one may be large, and more than one, as each batch costs some time.
_SPOOLED_ROWS = 64
# What is known of so many such batches is kept as of one: of a row alone it would be a kilobyte.
_JOINED_BATCHES = 1024
# Looking at the headers of a remote file is a request for each page, so only where there may be much in it.
_REMOTE_CHUNK = 256 * 1024 * 1024
_NO_BYTES = np.empty(0, np.uint8)


class _NoColumn(Exception):
    """The table has no such text column; says what it has."""


def row_groups(whole: Task, reading: Reading, range_bytes: int) -> tuple[list[Task], Skipped | None]:
    """Cuts a Parquet file into tasks of neighbouring row groups; or says why it cannot be read."""
    path = whole.paths[0]
    try:
        with _open_parquet(path, reading.storage) as file:
            _column_type(file.schema_arrow, reading.field)
            meta = file.metadata
            groups = [
                (meta.row_group(n).num_rows, meta.row_group(n).total_byte_size) for n in range(meta.num_row_groups)
            ]
    except _NoColumn as error:
        return [], Skipped(path, str(error))
    except (pa.ArrowException, OSError) as error:
        return [], Skipped(path, f"not a readable Parquet file: {_first_line(error)}")
    if not groups:
        return [cut(whole, 0, nbytes=whole.nbytes, start=0, stop=0)], None
    tasks: list[Task] = []
    total, first_group, first_row, done = sum(size for _, size in groups), 0, 0, 0
    for number, (_, size) in enumerate(groups):
        done += size
        rows = sum(rows for rows, _ in groups[first_group : number + 1])
        packed = sum(size for _, size in groups[first_group : number + 1])
        if packed < range_bytes and number + 1 < len(groups):
            continue
        # The file's bytes are shared out by unpacked size, and the shares come to the whole.
        nbytes = whole.nbytes * done // max(total, 1) - sum(task.nbytes for task in tasks)
        if number + 1 == len(groups):
            nbytes = whole.nbytes - sum(task.nbytes for task in tasks)
        part = cut(whole, len(tasks), nbytes=nbytes, start=first_group, stop=number + 1, first_row=first_row, rows=rows)
        tasks.append(part)
        first_group, first_row = number + 1, first_row + rows
    return tasks, None


def read_table(task: Task, packer: Packer) -> Iterator[Documents]:
    """The documents of a Parquet file's row groups, or of an Arrow file or stream."""
    path, reading = task.paths[0], packer.reading
    row = task.first_row
    try:
        for rows in _parquet_rows(task, reading) if task.kind == "parquet" else _ipc_rows(path, reading):
            row += rows.count
            taken = _hand_over(rows, path, task.first_file, packer)
            del rows  # it may be one large document: not also while the next is read
            yield from taken
            del taken
            if task.rows:
                packer.progress(task.nbytes * (row - task.first_row) // task.rows)
    except _NoColumn as error:
        packer.bad(path, str(error))
    except (pa.ArrowException, OSError) as error:
        packer.bad(f"{path}[{row}]", f"cannot be read from this row on: {_first_line(error)}")


def read_capsule(source: Any, name: str, packer: Packer) -> Iterator[Documents]:
    """The documents of an object with `__arrow_c_stream__` or `__arrow_c_array__`, or a Hugging Face dataset."""
    row = done = 0
    try:
        for batch in _hugging_face(source) if hasattr(source, "with_format") else _capsule_batches(source):
            yield from _hand_over(_take_batch(batch, row, packer.reading), name, 0, packer)
            row, done = row + batch.num_rows, done + batch.nbytes
            packer.progress(done)
    except _NoColumn as error:
        raise SourceError(f"{name}: {error}. Name the column that holds the text with --field.") from None
    except pa.ArrowException as error:
        raise SourceError(f"{name}[{row}]: cannot be read from this row on: {_first_line(error)}.") from None


def _hugging_face(dataset: Any) -> Iterator[pa.RecordBatch]:
    """Batches of a `datasets.Dataset` or `IterableDataset`, which iterate in Arrow but have no capsule (5.2)."""
    for table in dataset.with_format("arrow").iter(batch_size=_HUGGING_FACE_ROWS):
        yield from table.to_batches()


def _capsule_batches(source: Any) -> Iterable[pa.RecordBatch]:
    """The batches of anything that speaks Arrow; a lone array or column becomes a table with one nameless column."""
    if hasattr(source, "__arrow_c_stream__"):
        try:
            return pa.RecordBatchReader.from_stream(source)
        except (pa.ArrowInvalid, TypeError):
            # Not a stream of structs: a column, such as a Series or a ChunkedArray.
            return [_lone(chunk) for chunk in pa.chunked_array(source).chunks]
    with suppress(pa.ArrowInvalid, TypeError, ValueError):
        return [pa.record_batch(source)]
    return [_lone(pa.array(source))]


def _lone(array: Any) -> pa.RecordBatch:
    return pa.record_batch([array], names=[""])


def _parquet_rows(task: Task, reading: Reading) -> Iterator["_Rows"]:
    path, columns = task.paths[0], [name for name in (reading.field, reading.group) if name is not None]
    with _open_parquet(path, reading.storage) as file:
        meta = file.metadata
    groups = range(task.start, meta.num_row_groups if task.stop is None else task.stop)
    size = sum(meta.row_group(number).total_byte_size for number in groups)
    # About a block a batch, going by the mean row: of all columns, so rather too few rows than too many.
    most = min(max(reading.block_bytes * task.rows // max(size, 1), 1), _MAX_BATCH_ROWS)
    heavy = {} if reading.make_room is None else _heavy_groups(meta, groups, path, reading)
    row = task.first_row

    def batches(numbers: list[int], most: int, **options: Any) -> Iterator[pa.RecordBatch]:
        # With a buffer, a column is read as it is needed; without, a row group's column is held whole.
        with _open_parquet(path, reading.storage, buffer_size=_BUFFER_BYTES, metadata=meta, **options) as file:
            yield from file.iter_batches(most, row_groups=numbers, columns=columns, use_threads=False)

    for is_heavy, run in groupby(groups, heavy.__contains__):
        for numbers in [[number] for number in run] if is_heavy else [list(run)]:
            if is_heavy and reading.make_room is not None:
                group = heavy[numbers[0]]
                what = f"a document of up to {show_bytes(group.largest)}"
                need = f"{path}, row group {numbers[0]}", what, group.besides
                few = batches(numbers, min(most, group.rows), pre_buffer=False)  # which would keep what is packed
                every = _spooled(few, path, row, reading, reading.make_room, need)
            else:
                every = _each(batches(numbers, most), row, reading)
            for rows in every:
                row += rows.count
                yield rows
                del rows


@dataclass(frozen=True, slots=True)
class _Heavy:
    """A row group with a page that may hold a large document: how large, what reading it takes, rows at a time."""

    largest: int
    besides: int
    rows: int


def _heavy_groups(meta: pq.FileMetaData, groups: range, path: str, reading: Reading) -> dict[int, _Heavy]:
    heavy: dict[int, _Heavy] = {}
    least = _REMOTE_CHUNK if is_url(path) else LARGE
    with ExitStack() as stack:
        file: BinaryIO | None = None
        for number in groups:
            for chunk in map(meta.row_group(number).column, range(meta.num_columns)):
                if chunk.path_in_schema != reading.field or chunk.total_uncompressed_size < least:
                    continue
                file = file or stack.enter_context(open_bytes(path, reading.storage))
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                pages = list(page_sizes(file, start, chunk.total_compressed_size))
                kept = max((page.unpacked for page in pages if page.dictionary), default=0)
                read = max((page.unpacked for page in pages if not page.dictionary), default=0)
                if (largest := max(kept, read)) >= LARGE:
                    # A dictionary is there unpacked and taken apart. Then come the page, and what it was packed or
                    # an array; that is there twice if it grows after a value of the dictionary: so this one is alone.
                    besides = 2 * kept + read + largest
                    heavy[number] = _Heavy(largest, besides, 1 if kept >= LARGE else _SPOOLED_ROWS)
    return heavy


@contextmanager
def _open_parquet(path: str, storage: Storage, **options: Any) -> Iterator[pq.ParquetFile]:
    with ExitStack() as stack:
        # pyarrow reads a local path by itself, and faster than through a Python file.
        source: Any = stack.enter_context(RemoteFile(path, storage)) if is_url(path) else path
        yield stack.enter_context(pq.ParquetFile(source, **options))


def _ipc_rows(path: str, reading: Reading) -> Iterator["_Rows"]:
    batches = _ipc_batches(path, reading.storage)
    if reading.make_room is None:
        yield from _each(batches, 0, reading)
        return
    with open_bytes(path, reading.storage) as file:
        sizes = list(batch_bytes(file))
    row, number, more = 0, 0, True
    while more:
        more = False
        one, size = islice(batches, 1), sizes[number] if number < len(sizes) else 0
        if size < LARGE:
            every = _each(one, row, reading)
        else:
            need = f"{path}, record batch {number}", f"a record batch of {show_bytes(size)}", size
            every = _spooled(one, path, row, reading, reading.make_room, need)
        for rows in every:
            row, more = row + rows.count, True
            yield rows
            del rows
        number += 1


def _ipc_batches(path: str, storage: Storage) -> Iterator[pa.RecordBatch]:
    """Batches of an Arrow file, or of a stream (which Hugging Face datasets save under the same ending)."""
    # Not a memory map: what was read of it would count as this process's memory until all of it was read.
    with pa.PythonFile(RemoteFile(path, storage)) if is_url(path) else pa.OSFile(path, "rb") as file:
        try:
            reader = pa.ipc.open_file(file)
        except pa.ArrowInvalid:
            file.seek(0)
            yield from pa.ipc.open_stream(file)
            return
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def _each(batches: Iterable[pa.RecordBatch], row: int, reading: Reading) -> Iterator["_Rows"]:
    for batch in batches:
        yield _take_batch(batch, row, reading)
        row += batch.num_rows
        del batch


def _spooled(
    batches: Iterable[pa.RecordBatch],
    path: str,
    row: int,
    reading: Reading,
    make_room: MakeRoom,
    need: tuple[str, str, int],
) -> Iterator["_Rows"]:
    """The rows of batches that take much to read: all of them go to disk, and are read again a block at a time.

    `need` is what to ask room for before they are read.
    """
    make_room(*need)
    kept: list[_Rows] = []
    last: list[_Rows] = []
    failed: Exception | None = None
    with tempfile.TemporaryFile(dir=reading.spool, prefix=".rows-") as spool:
        try:
            for rows in _each(batches, row, reading):
                with _putting_down(path, need[1]):
                    spool.write(rows.data.data)
                last.append(replace(rows, data=_NO_BYTES))
                del rows
                if len(last) == _JOINED_BATCHES:
                    kept.append(_join(last))
                    last.clear()
        except (pa.ArrowException, OSError) as error:
            failed = error  # to be told once the rows before it were given out
        with _putting_down(path, need[1]):
            spool.seek(0)  # and what is still to be written is
        make_room(*need[:2], 0)  # what reading took is free now, and is to be handed back
        for rows in [*kept, *last]:
            for part in rows.parts(min(reading.block_bytes, LARGE - 1)):
                size = int(part.ends[-1]) if len(part.ends) else 0
                if size >= LARGE:
                    make_room(f"{path}[{part.places[0]}]", f"a document of {show_bytes(size)}", size)
                yield replace(part, data=np.fromfile(spool, np.uint8, size))
    if failed is not None:
        raise failed


@contextmanager
def _putting_down(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(f"{path}: {what} is unpacked to disk first: {error}. Make space and run again.") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _find(schema: pa.Schema, field: str) -> tuple[int, list[str]]:
    """The column of a field's name, or the outermost struct of a dotted one and the way inside."""
    if schema.names == [""]:
        return 0, []
    column, inside = field, ""
    while True:
        if (index := schema.get_field_index(column)) >= 0:
            return index, inside.split(".") if inside else []
        column, dot, rest = column.rpartition(".")
        if not dot:
            known = ", ".join(schema.names) or "none"
            raise _NoColumn(f"no column {field!r}; its columns are {known}")
        inside = f"{rest}.{inside}" if inside else rest


def _column_type(schema: pa.Schema, field: str) -> Any:
    index, way = _find(schema, field)
    kind: Any = schema.field(index).type
    for step in way:
        if not pa.types.is_struct(kind) or kind.get_field_index(step) < 0:
            raise _NoColumn(f"no column {field!r}: {schema.field(index).name!r} is {kind} without {step!r}")
        kind = kind.field(step).type
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (_is_text(values) or pa.types.is_null(values)):
        raise _NoColumn(f"the column {field!r} is {kind}, expected strings")
    return kind


def _is_text(kind: Any) -> bool:
    tests = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    return any(getattr(pa.types, f"is_{test}")(kind) for test in tests)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The documents of neighbouring rows, and what is wrong with the other rows."""

    count: int
    data: NDArray[np.uint8]
    ends: NDArray[np.int64]
    places: NDArray[np.int64]
    keys: NDArray[np.uint64] | None
    bad: int
    problems: list[tuple[int, str]]
    empty: int

    def parts(self, size: int) -> Iterator["_Rows"]:
        """The same, without its bytes, in parts of up to `size` or one document; the first tells what is wrong."""
        start, rest = 0, self
        while start < len(self.ends) or start == 0:
            base = int(self.ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(self.ends, base + size, side="right")))
            chosen = slice(start, stop)
            keys = None if self.keys is None else self.keys[chosen]
            yield replace(rest, ends=self.ends[chosen] - base, places=self.places[chosen], keys=keys)
            start, rest = stop, replace(self, count=0, bad=0, problems=[], empty=0)


def _join(every: list[_Rows]) -> _Rows:
    """The same as one, without the bytes."""
    sizes = np.concatenate([np.diff(rows.ends, prepend=0) for rows in every])
    keys = [rows.keys for rows in every if rows.keys is not None]
    return _Rows(
        count=sum(rows.count for rows in every),
        data=_NO_BYTES,
        ends=np.cumsum(sizes),
        places=np.concatenate([rows.places for rows in every]),
        keys=np.concatenate(keys) if keys else None,
        bad=sum(rows.bad for rows in every),
        problems=[problem for rows in every for problem in rows.problems][:LISTED_SKIPS],
        empty=sum(rows.empty for rows in every),
    )


def _hand_over(rows: _Rows, path: str, file: int, packer: Packer) -> Iterator[Documents]:
    packer.bad_many([(f"{path}[{row}]", reason) for row, reason in rows.problems], rows.bad)
    packer.left_out("empty", rows.empty)
    yield from packer.add(rows.data, rows.ends, file, rows.places, rows.keys)


def _take_batch(batch: pa.RecordBatch, first_row: int, reading: Reading) -> _Rows:
    kind = _column_type(batch.schema, reading.field)
    index, way = _find(batch.schema, reading.field)
    array: Any = batch.column(index)
    if way:
        array = pc.struct_field(array, way)
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        array = array.cast(pa.large_binary())
    elif pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        array = array.cast(pa.large_binary() if pa.types.is_binary_view(array.type) else pa.large_string())
    data, ends = _buffers(array)
    lost = np.zeros(len(array), bool)
    problems: list[tuple[int, str]] = []
    keys: NDArray[np.uint64] | None = None
    if reading.group is not None:
        keys, lost = _keys(batch, reading.group)
        problems += [(row, f"no {reading.group!r} to split by") for row in np.flatnonzero(lost)[:LISTED_SKIPS].tolist()]
    if array.null_count:
        missing = np.asarray(array.is_null()) & ~lost
        problems += [(row, "null, expected text") for row in np.flatnonzero(missing)[:LISTED_SKIPS].tolist()]
        lost = lost | missing
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    invalid = [(row, at) for row, at in invalid_documents(data, ends) if not lost[row]]
    for row, at in invalid[:LISTED_SKIPS]:
        found = data[starts[row] + at]
        problems.append((row, f"invalid UTF-8 at byte {at} of the text (found 0x{found:02x})"))
    lost[[row for row, _ in invalid]] = True
    problems.sort()
    lengths = ends - starts[: len(ends)]
    keep = ~lost & (lengths > 0)
    if lengths[lost].any():
        # Rare, so it may copy.
        data = np.concatenate([_NO_BYTES, *(data[starts[row] : ends[row]] for row in np.flatnonzero(keep))])
        ends = np.cumsum(np.where(keep, lengths, 0))
    rows = np.arange(len(array), dtype=np.int64)[keep]
    return _Rows(
        count=len(array),
        data=data,
        ends=ends[keep],
        places=rows + first_row,
        keys=None if keys is None else keys[rows],
        bad=int(lost.sum()),
        problems=[(first_row + row, reason) for row, reason in problems[:LISTED_SKIPS]],
        empty=len(array) - len(rows) - int(lost.sum()),
    )


def _keys(batch: pa.RecordBatch, group: str) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """The hash of every row's group, written as text; and which rows have none."""
    index, way = _find(batch.schema, group)
    column: Any = batch.column(index)
    if way:
        column = pc.struct_field(column, way)
    try:
        text = column.cast(pa.large_string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        raise _NoColumn(f"the column {group!r} is {column.type}, expected text or numbers to split by") from None
    lost = np.asarray(text.is_null())
    return hash_documents(*_buffers(text.fill_null("")))[:, 0], lost


def _buffers(array: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of a string array without nulls, and where each string ends; the bytes are not copied."""
    _, offsets, values = array.buffers()
    if not len(array):
        return np.empty(0, np.uint8), np.empty(0, np.int64)
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    borders = np.frombuffer(offsets, np.int64 if large else np.int32)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(values, np.uint8) if values is not None else np.empty(0, np.uint8)
    return data[borders[0] : borders[-1]], borders[1:].astype(np.int64) - int(borders[0])
