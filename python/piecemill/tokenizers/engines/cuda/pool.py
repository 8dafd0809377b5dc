"""Buffers that are lent as arrays and used again when no array over them is left.

Pinned memory is slow to allocate, half a second for a gigabyte, so one buffer is kept from call to call.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_KEPT_BYTES = 1 << 31
"A larger buffer is not kept."


class Pool:
    """Buffers from `allocate`, which takes a number of bytes."""

    def __init__(self, allocate: Callable[[int], NDArray[np.uint8]]) -> None:
        self._allocate, self._lock = allocate, threading.Lock()
        self._spare: NDArray[np.uint8] | None = None

    def take_buffer(self, size: int) -> NDArray[np.uint8]:
        """A buffer of at least `size` bytes, and of a multiple of 64."""
        with self._lock:
            if self._spare is not None and len(self._spare) >= size:
                spare, self._spare = self._spare, None
                return spare
        return self._allocate(-(-size // 64) * 64)

    def lend(self, buffer: NDArray[np.uint8], dtype: DTypeLike, count: int) -> NDArray[Any]:
        """An array over the beginning of a buffer, which comes back when nothing refers to its memory."""
        owner = _Owner(buffer, np.dtype(dtype), count)
        weakref.finalize(owner, self.give_back, buffer)
        array: NDArray[Any] = np.asarray(owner)
        return array

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Keep the largest buffer."""
        with self._lock:
            if len(buffer) <= _KEPT_BYTES and (self._spare is None or len(self._spare) < len(buffer)):
                self._spare = buffer


class _Owner:
    """What an array and all of its views refer to. Numpy looks through arrays to the memory, but not through this."""

    def __init__(self, buffer: NDArray[np.uint8], dtype: np.dtype[Any], count: int) -> None:
        self._buffer = buffer
        self.__array_interface__ = {
            "data": (buffer.ctypes.data, False),
            "shape": (count,),
            "typestr": dtype.str,
            "version": 3,
        }
