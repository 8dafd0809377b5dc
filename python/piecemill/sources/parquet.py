"""Parquet files -> documents, row group by row group.

The footer says how large the text column of each row group is. Tasks are neighbouring row groups, and batches have
as many rows as come to `_BATCH_BYTES` at the row group's mean.

Memory: a batch and the pages it comes from. A large document is, while it is read, in its page (packed and unpacked)
and in the batch; a page of a dictionary is held twice until its row group ends. `docs/sources.md` has the figures.

Start with `read`.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from piecemill.sources.columns import (
    BROKEN,
    LARGE,
    Column,
    NoColumn,
    check_column,
    column_type,
    find_column,
    first_line,
    is_list,
    release_memory,
)
from piecemill.sources.documents import Documents, Place
from piecemill.sources.packing import Packer, Reading
from piecemill.sources.patience import about_the_file, patiently, stopped_by
from piecemill.sources.remote import RemoteFile, Storage, is_url, open_bytes, read_up_to
from piecemill.sources.tasks import Task, Unreadable

PLACE: Place = "row"

# An eighth of a block: rows per batch follow the mean of the row group, and larger rows may be adjacent.
_BATCH_BYTES = 1024 * 1024
_BATCH_ROWS = 8_192
# Pages are read through a buffer of this size; without one, the whole column of a row group would be read ahead.
_BUFFER_BYTES = 1024 * 1024
# A column with a dictionary and fewer bytes a row is read as a dictionary: it may repeat long values, which the footer
# counts once. Other columns are not: making a dictionary of long texts that are all different is ten times slower.
_DICTIONARY_ROW = 64


def cut(file: Task, reading: Reading, size: int) -> list[Task]:
    """Neighbouring row groups whose text comes to about `size` bytes."""
    try:
        with _open(file, reading.storage) as table:
            check_column(table.schema_arrow, reading.field, integers=reading.integers)
            meta = table.metadata
            chunks = text_chunks(file, meta, reading)
    except NoColumn as error:
        raise Unreadable(str(error)) from None
    except BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None and not about_the_file(error):
            raise stopped_by(file.paths[0], error) from None
        raise Unreadable(f"not a readable Parquet file: {first_line(error)}") from None
    ends = list(accumulate(chunk.size for chunk in chunks))
    tasks: list[Task] = []
    start = row = done = 0
    for stop in range(1, len(ends) + 1):
        last = stop == len(ends)
        if not last and ends[stop - 1] - (ends[start - 1] if start else 0) < size:
            continue
        rows = sum(meta.row_group(group).num_rows for group in range(start, stop))
        # The bytes of the file are shared out by the size of the text, and the shares add up to the whole.
        until = file.nbytes if last else file.nbytes * ends[stop - 1] // max(ends[-1], 1)
        tasks.append(replace(file, nbytes=until - done, start=start, stop=stop, first_row=row, rows=rows))
        start, row, done = stop, row + rows, until
    return tasks or [replace(file, stop=0)]


def read(task: Task, packer: Packer) -> Iterator[Documents]:
    """The documents of the row groups of a task."""
    path = task.paths[0]
    column = Column(packer, path, task.first_file, task.first_row)
    try:
        with ExitStack() as stack:
            # Not a loop over batches: its variable would keep a batch while the next one is read.
            for _ in chain.from_iterable(map(column.add, _batches(task, packer.reading, stack))):
                if task.rows:
                    packer.progress(task.nbytes * (column.row - task.first_row) // task.rows)
                yield from packer.full()
    except NoColumn as error:
        packer.bad(path, str(error))
    except BROKEN as error:
        column.failed(error)


def _batches(task: Task, reading: Reading, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    columns = [name for name in (reading.field, reading.group) if name is not None]
    opened = {False: stack.enter_context(_open(task, reading.storage))}
    meta = opened[False].metadata
    for name in columns:
        find_column(opened[False].schema_arrow, name)
    chunks = text_chunks(task, meta, reading)
    lists = is_list(column_type(opened[False].schema_arrow, reading.field))  # which pyarrow reads as they are only
    for group in range(meta.num_row_groups)[task.start : task.stop]:
        size, rows = chunks[group].size, meta.row_group(group).num_rows
        repeats = chunks[group].has_dictionary and size < rows * _DICTIONARY_ROW and not lists
        if repeats not in opened:
            options = {"read_dictionary": [reading.field], "metadata": meta}
            opened[repeats] = stack.enter_context(_open(task, reading.storage, **options))
        few = min(max(_BATCH_BYTES * rows // max(size, 1), 1), _BATCH_ROWS)
        yield from opened[repeats].iter_batches(few, row_groups=[group], columns=columns, use_threads=False)
        if size > LARGE:
            release_memory()


class TextColumn(NamedTuple):
    """The text column of a row group: its bytes when unpacked, and whether a page of it is a dictionary."""

    size: int
    has_dictionary: bool


def text_chunks(task: Task, meta: pq.FileMetaData, reading: Reading) -> tuple[TextColumn, ...]:
    """The text column of each row group, from the footer itself.

    Not from `meta.row_group(n).column(m)`: pyarrow 26 lets an exception of C++ out of it where the statistics of a
    column are broken, which ends the process.
    """
    paths = [meta.schema.column(number).path for number in range(meta.num_columns)]
    inside = (path for path in paths if path.startswith(f"{reading.field}."))  # of a list, its values
    number = paths.index(reading.field if reading.field in paths else next(inside))
    path = task.paths[0]
    with open_bytes(path, reading.storage) as file:
        end = file.seek(-8, 2)
        length = int.from_bytes(read_up_to(file, 4), "little")
        file.seek(end - length)
        footer = read_up_to(file, length)
    chunks = _chunks(footer, number)
    if len(chunks) != meta.num_row_groups:
        raise ValueError(f"{len(chunks)} row groups in the footer, expected {meta.num_row_groups}")
    return chunks


@lru_cache(4)  # tasks of one file come one after another
def _chunks(footer: bytes, number: int) -> tuple[TextColumn, ...]:
    chunks = []
    for group in _Compact(footer).read_struct({4}).get(4, []):
        column = group.get(1, [])[number].get(3, {})
        if (size := int(column[6])) < 0:
            raise ValueError(f"a column of {size} bytes")
        chunks.append(TextColumn(size, 11 in column))
    return tuple(chunks)


class _Compact:
    """Thrift's compact protocol, as far as a footer needs it: integers and structs are kept, the rest is skipped."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def read_struct(self, wanted: set[int] | None = None, depth: int = 0) -> dict[int, Any]:
        """The fields of a struct by number; with `wanted`, only those."""
        if depth > 32:
            raise ValueError("structs within structs without end")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            delta, kind = head >> 4, head & 15
            number = number + delta if delta else self._zigzag()
            if kind in (1, 2):  # a boolean has its value in its type
                continue
            value = self._value(kind, depth)
            if wanted is None or number in wanted:
                fields[number] = value
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._pass(8)
        if kind == 8:
            return self._pass(self._varint())
        if kind in (9, 10):
            head = self._byte()
            count, of = head >> 4, head & 15
            count = self._varint() if count == 15 else count
            if count > len(self._data):
                raise ValueError("a list longer than the footer")
            return [self._byte() if of in (1, 2) else self._value(of, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.read_struct(depth=depth + 1)
        raise ValueError(f"no type {kind} in a footer")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _pass(self, size: int) -> None:
        self._at += size
        if self._at > len(self._data):
            raise ValueError("the footer ends too early")

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value, shift = value | (byte & 127) << shift, shift + 7
            if shift > 63:
                raise ValueError("a number without end")
        return value | byte << shift

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


@contextmanager
def _open(task: Task, storage: Storage, **options: Any) -> Iterator[pq.ParquetFile]:
    path = task.paths[0]
    with ExitStack() as stack:
        # pyarrow reads a local path by itself, and faster than through a Python file.
        source: Any = stack.enter_context(RemoteFile(path, storage, task.sizes[0])) if is_url(path) else path
        options = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False, **options}
        yield stack.enter_context(patiently(lambda: pq.ParquetFile(source, **options)))
