"""Looking ahead: which shards the coming samples need, so that they are downloaded before.

A local order is in a few shards at a time, and a sequential one in one: from a place in them, as many windows ahead as
these shards have lead into the shards after them. Some of the samples on the way stand for all. A shuffled order needs
every shard at any time; there nothing is asked for ahead, and a chunk downloads what it needs when it is gathered.
"""

import threading

import numpy as np

from piecemill.loading.mixing import Draws, Parts
from piecemill.loading.order import Ints, Local, OrderPlan
from piecemill.loading.windows import FetchedRows, Windows

_LOOKED_AT = 512
_LOOKS_IN_A_STRETCH = 8


def look_ahead(parts: Parts, draws: Draws, order: OrderPlan) -> "LookAhead | None":
    """None where nothing has to be downloaded, or nothing can be known ahead."""
    shards = {"local": Local().shards, "sequential": 2}.get(order, 0) if isinstance(order, str) else 0
    shards = order.shards if isinstance(order, Local) else shards
    if not shards or not any(isinstance(windows.rows, FetchedRows) for windows in parts.windows):
        return None
    return LookAhead(parts, draws, shards)


class LookAhead:
    """Asks for the files of the samples after a given one; called from feeder threads."""

    def __init__(self, parts: Parts, draws: Draws, shards: int) -> None:
        self._parts, self._draws = parts.windows, draws
        self._stretch, self._limit = 1, 1 << 62
        for windows, share in zip(parts.windows, parts.shares, strict=True):
            if isinstance(windows.rows, FetchedRows):
                drawn = len(windows) * min(1.0, shards / max(1, len(windows.rows.token_ends)))
                self._stretch = max(self._stretch, round(drawn * sum(parts.shares) / share))
                self._limit = min(self._limit, windows.rows.ahead_bytes)
        self._done, self._lock = -1, threading.Lock()

    def __call__(self, sample: int, last: int | None) -> None:
        """Look ahead from `sample`, if that was not done near it; samples end at `last`."""
        step = max(1, self._stretch // _LOOKS_IN_A_STRETCH)
        with self._lock:
            if sample // step == self._done:
                return
            self._done = sample // step
        end = sample + self._stretch if last is None else min(last, sample + self._stretch)
        count = min(_LOOKED_AT, end - sample)
        if count > 0:
            self._fetch(sample + np.arange(count) * (end - sample) // count)

    def _fetch(self, samples: Ints) -> None:
        """Ask for the files of these samples, in their order, as far as the cache has space for all of them."""
        part, numbers = self._draws(samples)
        files = np.zeros_like(numbers)
        for which, windows in enumerate(self._parts):
            files[part == which] = windows.files(numbers[part == which])
        left = self._limit
        for which, file in dict.fromkeys(zip(part.tolist(), files.tolist(), strict=True)):
            windows = self._parts[which]
            count = len(windows.rows.token_ends)
            if not isinstance(windows.rows, FetchedRows):
                continue
            # The last window of a shard goes on in the next one, where windows are packed.
            both = [file, file + 1] if windows.cut.pack and file + 1 < count else [file]
            left -= sum(_token_bytes(windows, number) for number in both)
            if left < 0:
                return
            windows.rows.prefetch(both, windows.kinds)


def _token_bytes(windows: Windows, file: int) -> int:
    ends = windows.rows.token_ends
    count = int(ends[file]) - (int(ends[file - 1]) if file else 0)
    return count * (2 if windows.rows.vocab_size <= 1 << 16 else 4)
