"""Looking ahead: which shards the coming samples need, so that they are downloaded before.

A few samples of the coming stretch stand for all of it: in a local order or a sequential one, a stretch is made of
whole shards, and each of them is hit. In a shuffled order every stretch needs every shard; then nothing is asked for
ahead, and a chunk downloads what it needs when it is gathered.
"""

import threading
from collections.abc import Sequence

import numpy as np

from piecemill.loading.mixing import Draws
from piecemill.loading.windows import FetchedRows, Windows

_LOOKED_AT = 512
_LOOKS_IN_A_STRETCH = 8


def fetched(parts: Sequence[Windows]) -> bool:
    """Whether some of these windows are in files that must be downloaded."""
    return any(isinstance(windows.rows, FetchedRows) for windows in parts)


class LookAhead:
    """Asks for the files of the samples after a given one; called from feeder threads."""

    def __init__(self, parts: Sequence[Windows], draws: Draws) -> None:
        self._parts, self._draws = parts, draws
        self._limit = min(windows.rows.ahead_bytes for windows in parts if isinstance(windows.rows, FetchedRows))
        # Half of the bytes that may be asked for: a stretch begins and ends within shards, which count whole.
        row_bytes = parts[0].cut.window * (2 if parts[0].rows.vocab_size <= 1 << 16 else 4)
        self._stretch = max(1, self._limit // 2 // row_bytes)
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

    def _fetch(self, samples: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        part, numbers = self._draws(samples)
        wanted: dict[tuple[int, int], None] = {}
        for which, windows in enumerate(self._parts):
            if not isinstance(windows.rows, FetchedRows):
                continue
            count = len(windows.rows.token_ends)
            for file in dict.fromkeys(windows.files(numbers[part == which]).tolist()):
                wanted[which, file] = None
                # The last window of a file that is packed goes on in the next one.
                if windows.cut.pack and file + 1 < count:
                    wanted[which, file + 1] = None
        tokens = sum(self._tokens(which, file) for which, file in wanted)
        if tokens * (2 if self._parts[0].rows.vocab_size <= 1 << 16 else 4) > self._limit:
            return
        for which, file in wanted:
            rows = self._parts[which].rows
            if isinstance(rows, FetchedRows):
                rows.prefetch([file], self._parts[which].kinds)

    def _tokens(self, which: int, file: int) -> int:
        ends = self._parts[which].rows.token_ends
        return int(ends[file]) - (int(ends[file - 1]) if file else 0)
