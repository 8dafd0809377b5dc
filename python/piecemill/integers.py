"""Documents of integers: arrays and lists of them, and their text.

Between rooms, a document of integers is text, the digits of each number with a space after it ("3 17 5 "): whatever
holds, hashes, shows or compares documents then works for integers too, and a token shows what it stands for.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import read_integers, write_integers

LIMIT = 1 << 20
"Most distinct integers of a vocabulary."


def as_integers(given: Any) -> NDArray[np.int64] | None:
    """A list, tuple or array of integers of 64 bits as an array; None if it is something else."""
    if isinstance(given, str | bytes):
        return None
    try:
        array = np.asarray(given)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            return None
        if too_large(array).any():
            return None
        return np.ascontiguousarray(array, np.int64)
    except (ValueError, OverflowError, TypeError):
        return None


def too_large(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which integers are beyond 64 bits with a sign."""
    return (
        values > np.uint64(2**63 - 1)
        if values.dtype.kind == "u" and values.itemsize == 8
        else np.zeros(values.shape, bool)
    )


def text_of(values: NDArray[np.int64]) -> bytes:
    """The text of one document."""
    return write_integers(values, np.array([len(values)], np.int64))[0].tobytes()


def values_of(text: bytes) -> NDArray[np.int64] | None:
    """The integers of one document; None if its text is something else."""
    values, _, problems = read_integers(np.frombuffer(text, np.uint8), np.array([len(text)], np.int64))
    return None if problems else values
