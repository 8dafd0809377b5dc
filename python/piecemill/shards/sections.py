"""Files of sections: byte ranges that can be read one by one, each with a checksum.

A file begins with a table of (offset, xxh3-64), two u8 for each section, and one more row for the end of the last
section. So consecutive sections take two reads, one of the table and one of the data, from a file or an object.
"""

import numpy as np
from numpy.typing import NDArray

from piecemill._core import hash_documents
from piecemill.errors import ShardError
from piecemill.files import Place, unique

_ROW = 16


def sections_bytes(sections: int, data: int) -> int:
    """The size of a file with `sections` sections and `data` bytes in them."""
    return _ROW * (sections + 1) + data


def write_sections(place: Place, name: str, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
    """Write the file `name`; section i of `data` ends at `ends[i]`."""
    table = np.zeros((len(ends) + 1, 2), "<u8")
    table[:, 0] = _ROW * len(table) + np.concatenate([np.zeros(1, np.int64), ends])
    table[:-1, 1] = hash_documents(data, ends)[:, 0]
    path = place.scratch() / unique(name.rpartition("/")[2])
    try:
        with open(path, "xb") as file:
            file.write(table.data)
            file.write(data.data)
        place.publish(path, name)
    finally:
        path.unlink(missing_ok=True)


def read_sections(place: Place, name: str, first: int, stop: int) -> NDArray[np.uint8]:
    """The bytes of sections `first` to before `stop`; ShardError if one is not as it was written."""
    table = _table(place, name, first, stop)
    start, *ends = table[:, 0].tolist()
    data = np.frombuffer(place.read(name, start, ends[-1]), np.uint8)
    if len(data) == ends[-1] - start:
        found = hash_documents(data, np.array(ends, np.int64) - start)[:, 0]
        if (found == table[:-1, 1].view("<u8")).all():
            return data
    raise changed(place, name)


def section_sizes(place: Place, name: str, sections: int) -> NDArray[np.int64]:
    """The size in bytes of each section of a file with `sections` sections."""
    return np.diff(_table(place, name, 0, sections)[:, 0])


def changed(place: Place, name: str, how: str = "was changed after it was written.") -> ShardError:
    """The error for a file that is not as it was written; it can be made again."""
    return ShardError(
        f"{place.url}/{name}: {how} Delete {name.partition('.')[0]}* and run the same `piecemill prepare` again, "
        "which makes it again."
    )


def _table(place: Place, name: str, first: int, stop: int) -> NDArray[np.int64]:
    table = np.frombuffer(place.read(name, _ROW * first, _ROW * (stop + 1)), "<i8")
    if len(table) != 2 * (stop + 1 - first) or (np.diff(table[::2], prepend=0) < 0).any():
        raise changed(place, name)
    return table.reshape(-1, 2)
