"""Reading, encoding and writing side by side, in the order of the corpus.

```
one reader: read, hash, select ─▶ N encoders: whole blocks ─▶ back in order ─▶ one committer: shards, journal
```

Blocks are numbered as they are read, and committed by number, so nothing depends on which encoder was faster. The
budget bounds what is between reader and committer, and no more than a block per encoder is ever encoded but not yet
committed: that is what a crash costs. The first error of any thread ends all of them; what is encoded by then and next
in order is still committed.

Start with `Pipeline.run`, which is also the committer.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import Progress
from piecemill.crew import Crew
from piecemill.preparing.budget import Budget
from piecemill.preparing.selection import Selected


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The task has no more blocks."""

    task: int


@dataclass(frozen=True, slots=True)
class Part:
    """What a block adds to one split."""

    ids: NDArray[Any]
    ends: NDArray[np.int64]
    records: NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A block with its tokens; `selected` has let go of its text."""

    selected: Selected
    parts: tuple[Part, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all splits."""
        return sum(len(part.ids) for part in self.parts)


class Clock:
    """Seconds of work by stage, over all threads. Waiting for others is not work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, stage: str, started: float) -> float:
        """Time since `started` was spent in `stage`; gives the time now."""
        now = time.perf_counter()
        with self._lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - started
        return now


class Pipeline:
    """One run through a source."""

    def __init__(
        self,
        produce: Callable[[], Iterator[Selected | TaskEnd]],
        encode: Callable[[Selected], Encoded],
        commit: Callable[[Encoded | TaskEnd], None],
        *,
        workers: int,
        budget: Budget,
        progress: Progress,
        clock: Clock,
    ) -> None:
        self._produce, self._encode, self._commit = produce, encode, commit
        self._workers, self._budget, self._clock = workers, budget, clock
        self._crew = Crew(progress, at_end=budget.end)
        self._changed = self._crew.changed
        self._waiting: deque[tuple[int, Selected, int]] = deque()
        self._done: dict[int, tuple[Encoded | TaskEnd, int]] = {}
        self._read: int | None = None
        self._begun = self._committed = 0

    def run(self) -> None:
        """Returns when every block is committed; raises the first error, or KeyboardInterrupt after a stop."""
        self._crew.run([self._reader, *[self._encoder] * self._workers], here=self._committer)

    def _reader(self) -> None:
        number = 0
        for item in self._produce():
            if isinstance(item, TaskEnd):
                with self._changed:
                    self._done[number] = (item, 0)
                    self._changed.notify_all()
            else:
                cost = self._budget.take(len(item.data), len(item.ends), item.heavy)
                if cost is None or self._crew.over:
                    return
                with self._changed:
                    self._waiting.append((number, item, cost))
                    self._changed.notify_all()
                del item  # its text belongs to the encoder now
            number += 1
        with self._changed:
            self._read = number
            self._changed.notify_all()

    def _encoder(self) -> None:
        while True:
            with self._changed:
                while not self._waiting or self._begun - self._committed >= self._workers:
                    if self._crew.over or (self._read is not None and not self._waiting):
                        return
                    self._changed.wait(0.1)
                if self._crew.over:
                    return
                number, selected, cost = self._waiting.popleft()
                self._begun += 1
            started = time.perf_counter()
            size, documents = len(selected.data), len(selected.ends)
            encoded = self._encode(selected)
            del selected
            self._clock.add("encode", started)
            cost = self._budget.encoded(cost, size, documents, encoded.tokens)
            with self._changed:
                self._done[number] = (encoded, cost)
                self._changed.notify_all()
            del encoded

    def _committer(self) -> None:
        number = 0
        while True:
            with self._changed:
                while number not in self._done:
                    if self._crew.over or number == self._read:
                        return
                    self._changed.wait(0.1)
                item, cost = self._done.pop(number)
            self._commit(item)
            if not isinstance(item, TaskEnd):
                self._budget.give_back(cost)
                with self._changed:
                    self._committed += 1
                    self._changed.notify_all()
            del item
            number += 1
