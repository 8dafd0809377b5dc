"""Tables -> documents: one column of Parquet, Arrow files, or anything with the Arrow PyCapsule interface.

The column may be string, large_string, string_view, their binary kinds, or a dictionary of those; its bytes
must be UTF-8, which is checked: Parquet and Arrow promise it for strings, writers do not always keep it.
Nulls are bad documents, empty strings are left out and counted. Rows are numbered from 0.

This is the only file of the room that imports pyarrow, and only it is imported when a table is read.
Start with `read_table`, `read_capsule`.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from piecemill._core import hash_documents, invalid_documents
from piecemill.errors import SourceError
from piecemill.sources.documents import LISTED_SKIPS, Documents, Skipped
from piecemill.sources.packing import LARGE, Packer, Reading
from piecemill.sources.remote import RemoteFile, Storage, is_url
from piecemill.sources.tasks import Task, cut

_MAX_BATCH_ROWS = 65_536
_HUGGING_FACE_ROWS = 1_000
_BUFFER_BYTES = 1024 * 1024


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
    path = task.paths[0]
    row = task.first_row
    try:
        for batch in _parquet_batches(task, packer) if task.kind == "parquet" else _ipc_batches(path, packer):
            taken, rows = _take_batch(batch, path, row, task.first_file, packer), batch.num_rows
            del batch  # it may be one large document: not also while the next is read
            yield from taken
            del taken
            row += rows
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
            yield from _take_batch(batch, name, row, 0, packer)
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


def _parquet_batches(task: Task, packer: Packer) -> Iterator[pa.RecordBatch]:
    columns = [name for name in (packer.reading.field, packer.reading.group) if name is not None]
    # With a buffer, a column is read as it is needed; without, a row group's column is held whole.
    with _open_parquet(task.paths[0], packer.reading.storage, buffer_size=_BUFFER_BYTES) as file:
        groups = range(task.start, file.metadata.num_row_groups if task.stop is None else task.stop)
        size = sum(file.metadata.row_group(n).total_byte_size for n in groups)
        # About a block a batch, going by the mean row: of all columns, so rather too few rows than too many.
        rows = packer.reading.block_bytes * task.rows // max(size, 1)
        _make_room(file, groups, task, packer.reading)
        yield from file.iter_batches(
            min(max(rows, 1), _MAX_BATCH_ROWS), row_groups=list(groups), columns=columns, use_threads=False
        )


def _make_room(file: pq.ParquetFile, groups: range, task: Task, reading: Reading) -> None:
    """Ask for room for documents that are large by the mean of a row group; which rows they are is only known when
    they are read, and a large one among many small ones is not known at all.
    """
    if reading.make_room is None:
        return
    for number in groups:
        group = file.metadata.row_group(number)
        sizes = [
            column.total_uncompressed_size
            for column in map(group.column, range(group.num_columns))
            if column.path_in_schema == reading.field
        ]
        mean = sum(sizes) // max(group.num_rows, 1)
        if mean >= LARGE:
            # As it lies there, unpacked, and as an array.
            reading.make_room(f"{task.paths[0]}, row group {number}", mean, 3 * mean)


@contextmanager
def _open_parquet(path: str, storage: Storage, **options: Any) -> Iterator[pq.ParquetFile]:
    with ExitStack() as stack:
        # pyarrow reads a local path by itself, and faster than through a Python file.
        source: Any = stack.enter_context(RemoteFile(path, storage)) if is_url(path) else path
        yield stack.enter_context(pq.ParquetFile(source, **options))


def _ipc_batches(path: str, packer: Packer) -> Iterator[pa.RecordBatch]:
    """Batches of an Arrow file, or of a stream (which Hugging Face datasets save under the same ending)."""
    storage = packer.reading.storage
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


def _take_batch(batch: pa.RecordBatch, path: str, first_row: int, file: int, packer: Packer) -> Iterator[Documents]:
    kind = _column_type(batch.schema, packer.reading.field)
    index, way = _find(batch.schema, packer.reading.field)
    array: Any = batch.column(index)
    if way:
        array = pc.struct_field(array, way)
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        array = array.cast(pa.large_binary())
    elif pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        array = array.cast(pa.large_binary() if pa.types.is_binary_view(array.type) else pa.large_string())
    rows = np.arange(first_row, first_row + len(array), dtype=np.int64)
    problems: list[tuple[int, str]] = []
    bad = 0
    keys: NDArray[np.uint64] | None = None
    if (group := packer.reading.group) is not None:
        keys, lost = _keys(batch, group)
        problems += [(row, f"no {group!r} to split by") for row in rows[lost][:LISTED_SKIPS].tolist()]
        bad, rows, array = int(lost.sum()), rows[~lost], array.filter(pa.array(~lost))
    if array.null_count:
        missing = np.asarray(array.is_null())
        problems += [(row, "null, expected text") for row in rows[missing][:LISTED_SKIPS].tolist()]
        bad, rows, array = bad + int(missing.sum()), rows[~missing], array.drop_null()
    data, ends = _buffers(array)
    if invalid := invalid_documents(data, ends):
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        for document, at in invalid[:LISTED_SKIPS]:
            found = data[starts[document] + at]
            problems.append((int(rows[document]), f"invalid UTF-8 at byte {at} of the text (found 0x{found:02x})"))
        bad += len(invalid)
        data, ends, rows = _without(data, ends, rows, [document for document, _ in invalid])
    problems.sort()
    packer.bad_many([(f"{path}[{row}]", reason) for row, reason in problems[:LISTED_SKIPS]], bad)
    full = np.diff(ends, prepend=0) > 0
    packer.left_out("empty", len(ends) - int(full.sum()))
    rows = rows[full]
    yield from packer.add(data, ends[full], file, rows, None if keys is None else keys[rows - first_row])


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


def _without(
    data: NDArray[np.uint8], ends: NDArray[np.int64], rows: NDArray[np.int64], bad: list[int]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The documents but the `bad` ones; rare, so it may copy."""
    keep = np.ones(len(ends), bool)
    keep[bad] = False
    lengths = np.diff(ends, prepend=0)
    return data[np.repeat(keep, lengths)], np.cumsum(lengths[keep]), rows[keep]
