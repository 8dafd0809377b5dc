"""Arrow -> documents: files and streams (`.arrow`, `.feather`), and anything in memory with the PyCapsule interface.

Memory: one record batch (of a file, only the needed columns; of a stream, all columns). A compressed batch is in
memory twice while it is decompressed.

Start with `read` and `read_capsule`.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from piecemill.errors import SourceError
from piecemill.plans import option
from piecemill.sources.columns import BROKEN, LONE, Column, NoColumn, find_column, first_line
from piecemill.sources.documents import Documents, Place
from piecemill.sources.packing import Packer, Reading
from piecemill.sources.patience import patiently
from piecemill.sources.remote import RemoteFile, is_url
from piecemill.sources.tasks import Task, one_task

PLACE: Place = "row"
cut = one_task

_HUGGING_FACE_ROWS = 1_000


def read(task: Task, packer: Packer) -> Iterator[Documents]:
    """The documents of an Arrow file or stream."""
    path, column = task.paths[0], Column(packer, task.paths[0], task.first_file, trusted=False)
    try:
        # Not a loop over batches: its variable would keep a batch while the next one is read.
        for _ in chain.from_iterable(map(column.add, _batches(path, task.sizes[0], packer.reading))):
            yield from packer.full()
    except NoColumn as error:
        packer.bad(path, str(error))
    except BROKEN as error:
        column.failed(error)


def _batches(path: str, size: int, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Batches of an Arrow file, or of a stream (which Hugging Face datasets save under the same ending)."""
    # Not a memory map: its pages would count as memory of this process until the whole file was read.
    remote = partial(RemoteFile, path, reading.storage, size)
    with pa.PythonFile(remote()) if is_url(path) else patiently(lambda: pa.OSFile(path, "rb")) as file:
        try:
            schema = pa.ipc.open_file(file).schema
        except pa.ArrowInvalid:
            file.seek(0)
            yield from pa.ipc.open_stream(file)
            return
        fields = [find_column(schema, name)[0] for name in (reading.field, reading.group) if name is not None]
        reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=sorted(set(fields))))
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def read_capsule(source: Any, name: str, packer: Packer) -> Iterator[Documents]:
    """The documents of an object with `__arrow_c_stream__` or `__arrow_c_array__`, or a Hugging Face dataset."""
    column, done = Column(packer, name), 0
    try:
        for batch in _hugging_face(source) if hasattr(source, "with_format") else _capsule_batches(source):
            for _ in column.add(batch):
                yield from packer.full()
            done += batch.nbytes
            packer.progress(done)
    except NoColumn as error:
        of_text = repr(packer.reading.group) not in str(error)
        way_out = f"Name the column that holds the text with {option('field')}" if of_text else "Group by another one"
        raise SourceError(f"{name}: {error}. {way_out}.") from None
    except pa.ArrowException as error:
        raise SourceError(f"{name}[{column.row}]: cannot be read from this row on: {first_line(error)}.") from None


def _hugging_face(dataset: Any) -> Iterator[pa.RecordBatch]:
    """Batches of a `datasets.Dataset` or `IterableDataset`, which iterate in Arrow but have no capsule (5.2)."""
    for table in dataset.with_format("arrow").iter(batch_size=_HUGGING_FACE_ROWS):
        yield from table.to_batches()


def _capsule_batches(source: Any) -> Iterable[pa.RecordBatch]:
    """The batches of any object with the Arrow interface; a single array becomes a table with one unnamed column."""
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
    return pa.record_batch([array], names=[LONE])
