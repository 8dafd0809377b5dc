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
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from piecemill.sources.columns import LARGE, Column, NoColumn, check_column, first_line, release_memory
from piecemill.sources.documents import Documents, Place
from piecemill.sources.packing import Packer, Reading
from piecemill.sources.remote import RemoteFile, Storage, is_url
from piecemill.sources.tasks import Task, Unreadable

PLACE: Place = "row"

# An eighth of a block: the mean is of the whole row group, and rows that are larger may stand together in it.
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
        with _open(file.paths[0], reading.storage) as table:
            check_column(table.schema_arrow, reading.field)
            meta = table.metadata
    except NoColumn as error:
        raise Unreadable(str(error)) from None
    except (pa.ArrowException, OSError) as error:
        raise Unreadable(f"not a readable Parquet file: {first_line(error)}") from None
    ends = list(accumulate(_chunk(meta, group, reading.field).total_uncompressed_size for group in _groups(meta)))
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
    except (pa.ArrowException, OSError) as error:
        packer.bad(f"{path}[{column.row}]", f"cannot be read from this row on: {first_line(error)}")


def _batches(task: Task, reading: Reading, stack: ExitStack) -> Iterator[pa.RecordBatch]:
    path, columns = task.paths[0], [name for name in (reading.field, reading.group) if name is not None]
    opened = {False: stack.enter_context(_open(path, reading.storage))}
    meta = opened[False].metadata
    for group in _groups(meta)[task.start : task.stop]:
        chunk, rows = _chunk(meta, group, reading.field), meta.row_group(group).num_rows
        size = chunk.total_uncompressed_size
        repeats = chunk.has_dictionary_page and size < rows * _DICTIONARY_ROW
        if repeats not in opened:
            options = {"read_dictionary": [reading.field], "metadata": meta}
            opened[repeats] = stack.enter_context(_open(path, reading.storage, **options))
        few = min(max(_BATCH_BYTES * rows // max(size, 1), 1), _BATCH_ROWS)
        yield from opened[repeats].iter_batches(few, row_groups=[group], columns=columns, use_threads=False)
        if size > LARGE:
            release_memory()


def _groups(meta: pq.FileMetaData) -> range:
    return range(meta.num_row_groups)


def _chunk(meta: pq.FileMetaData, group: int, field: str) -> pq.ColumnChunkMetaData:
    """The text column of a row group."""
    number = next(number for number in range(meta.num_columns) if meta.schema.column(number).path == field)
    return meta.row_group(group).column(number)


@contextmanager
def _open(path: str, storage: Storage, **options: Any) -> Iterator[pq.ParquetFile]:
    with ExitStack() as stack:
        # pyarrow reads a local path by itself, and faster than through a Python file.
        source: Any = stack.enter_context(RemoteFile(path, storage)) if is_url(path) else path
        yield stack.enter_context(pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False, **options))
