"""Where texts come from and ids go to: host memory, pinned or not, or the device."""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from piecemill.tokenizers.engines.cuda.device import pinned
from piecemill.tokenizers.engines.cuda.pool import Pool


class HostText:
    """Text in host memory."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data = np.ascontiguousarray(data)

    def whole(self) -> NDArray[np.uint8]:
        return self._data

    def read(self, start: int, end: int) -> NDArray[np.uint8]:
        return self._data[start:end]


class DeviceText:
    """Text that is on the device already. The host reads 64 KiB or more at a time; the last part is kept."""

    def __init__(self, data: Any) -> None:
        self._data, self._read, self._at = cupy.ascontiguousarray(data), np.zeros(0, np.uint8), (0, 0)
        cupy.cuda.get_current_stream().synchronize()  # DLPack has it there on this stream; ours do not wait for it

    def whole(self) -> Any:
        return self._data

    def read(self, start: int, end: int) -> NDArray[np.uint8]:
        if not self._at[0] <= start <= end <= self._at[1]:
            last = min(len(self._data), max(end, start + (1 << 16)))
            self._at, self._read = (start, last), cupy.asnumpy(self._data[start:last])
        return self._read[start - self._at[0] : end - self._at[0]]


class HostSink:
    """Ids in pinned host memory."""

    _pool = Pool(pinned)
    _tokens_per_byte = 0.3

    def __init__(self, text_bytes: int, dtype: Any) -> None:
        self.tokens, self._dtype, self._text_bytes = 0, np.dtype(dtype), text_bytes
        expected = int(text_bytes * HostSink._tokens_per_byte * 1.1) + (1 << 16)
        self._hold(self._pool.take_buffer(expected * self._dtype.itemsize))

    def _hold(self, memory: NDArray[np.uint8]) -> None:
        self._memory, self._places = memory, memory.view(self._dtype)

    def room(self, tokens: int) -> NDArray[Any]:
        at, self.tokens = self.tokens, self.tokens + tokens
        if self.tokens > len(self._places):
            cupy.cuda.runtime.deviceSynchronize()  # downloads into the old memory
            before, filled = self._memory, self._places[:at]
            self._hold(self._pool.take_buffer(max(2 * len(self._places), self.tokens) * self._dtype.itemsize))
            self._places[:at] = filled
            self._pool.give_back(before)
        places: NDArray[Any] = self._places[at : self.tokens]
        return places

    def append_ids(self, ids: NDArray[Any]) -> None:
        self.room(len(ids))[:] = ids

    def ids(self) -> NDArray[Any]:
        """All of them."""
        HostSink._tokens_per_byte = max(HostSink._tokens_per_byte, self.tokens / max(1, self._text_bytes))
        return self._pool.lend(self._memory, self._dtype, self.tokens)


class DeviceSink:
    """Ids in one array on the device."""

    def __init__(self, text_bytes: int, dtype: Any) -> None:
        self.tokens = 0
        self._places = cupy.empty(text_bytes // 3 + (1 << 16), dtype)

    def room(self, tokens: int) -> Any:
        at, self.tokens = self.tokens, self.tokens + tokens
        if self.tokens > len(self._places):
            cupy.cuda.runtime.deviceSynchronize()  # downloads into the old memory
            larger = cupy.empty(max(2 * len(self._places), self.tokens), self._places.dtype)
            larger[:at] = self._places[:at]
            cupy.cuda.runtime.deviceSynchronize()
            self._places = larger
        return self._places[at : self.tokens]

    def append_ids(self, ids: NDArray[Any]) -> None:
        room = self.room(len(ids))
        room.set(np.ascontiguousarray(ids, self._places.dtype))

    def ids(self) -> Any:
        cupy.cuda.Stream.null.synchronize()
        return self._places[: self.tokens]
