"""Integers in .npy files -> documents: a row of a two-dimensional array is one, and a one-dimensional array is one.

Such files are only read where integers are requested (`Reading.integers`).

Memory: rows up to a block, or one larger row.

Start with `read`.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from piecemill._core import write_integers
from piecemill.errors import SourceError
from piecemill.sources.documents import Documents, Place
from piecemill.sources.packing import Packer
from piecemill.sources.remote import open_bytes, read_up_to
from piecemill.sources.tasks import Task, one_task
from piecemill.sources.text import failure

PLACE: Place = "row"
cut = one_task


def read(task: Task, packer: Packer) -> Iterator[Documents]:
    """The documents of an .npy file."""
    path, row = task.paths[0], 0
    try:
        with open_bytes(path, packer.reading.storage, task.sizes[0]) as file:
            dtype, rows, width = _header(file)
            header = file.tell()
            few = max(1, packer.reading.block_bytes // max(width * dtype.itemsize, 1))
            while row < rows:
                count = min(few, rows - row)
                # No buffer for more than there is: a damaged header may say any shape. A size of 0 is unknown.
                if 0 < task.sizes[0] < count * width * dtype.itemsize:
                    raise ValueError("the file ends before its last row")
                _add(read_up_to(file, count * width * dtype.itemsize), dtype, width, row, count, task, packer)
                row += count
                packer.progress(header + row * width * dtype.itemsize)
                yield from packer.full()
    except OSError as error:
        packer.bad(path, failure(error, path))
    except ValueError as error:
        packer.bad(f"{path}[{row}]", str(error))


def _header(file: BinaryIO) -> tuple["np.dtype[Any]", int, int]:
    """Type, number of rows, and integers in each."""
    try:
        version = np.lib.format.read_magic(file)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = read_header[version](file)
    except (OSError, SourceError):  # the second where the file is shorter than it was
        raise
    except Exception:  # noqa: BLE001 - numpy evaluates the header as Python: whatever that can raise
        raise ValueError("not an .npy file that numpy can read without pickle") from None
    if dtype.kind not in "iu" or len(shape) not in (1, 2) or (fortran and len(shape) == 2):
        order = " in Fortran order" if fortran else ""
        raise ValueError(
            f"holds {dtype} in the shape {shape}{order}; expected integers in one row, or rows of them in C order"
        )
    rows, width = (1, *shape)[-2:]
    if min(rows, width) < 0:
        raise ValueError(f"says that it has the shape {shape}")
    return dtype, rows, width


def _add(data: bytes, dtype: "np.dtype[Any]", width: int, row: int, count: int, task: Task, packer: Packer) -> None:
    if len(data) < count * width * dtype.itemsize:
        raise ValueError("the file ends before its last row")
    values, rows = np.frombuffer(data, dtype).reshape(count, width), np.arange(row, row + count)
    if dtype.kind == "u" and dtype.itemsize == 8:
        large = (values >> np.uint64(63)).any(axis=1)
        for number in np.flatnonzero(large).tolist():
            reason = f"{values[number].max()} is too large; expected integers of 64 bits with a sign"
            packer.bad(f"{task.paths[0]}[{row + number}]", reason)
        values, rows = values[~large], rows[~large]
    ends = np.arange(1, len(rows) + 1, dtype=np.int64) * width
    text, text_ends = write_integers(np.ascontiguousarray(values, np.int64).reshape(-1), ends)
    keep = np.diff(text_ends, prepend=0) > 0
    packer.left_out("empty", len(rows) - int(keep.sum()))
    packer.add(text, text_ends[keep], task.first_file, rows[keep])
