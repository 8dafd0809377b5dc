"""Feeding: chunks prefetched by background threads, returned in order.

A job is a number; `make(number)` runs in a feeder thread, and what it returned, or raised, comes out of `next_result`
in the order of the numbers. With no threads, `make` runs in `next_result`. Nothing here knows what is made.

Gathering releases the GIL, so threads are enough: no process is started, nothing is pickled.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Feeder(Generic[Made]):
    """Runs jobs `first` up to `last` (or without end) ahead of the consumer."""

    def __init__(self, make: Callable[[int], Made], first: int, last: int | None, threads: int) -> None:
        self._clock = _Clock(make)
        self._next, self._last = first, last
        self._pending: deque[Future[Made]] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._ahead = threads + 1
        if threads:
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="piecemill-feeder")
            # Nobody in a thread refers to this object, so that it goes when the loop that took from it ends.
            self._end = weakref.finalize(self, self._pool.shutdown, wait=True, cancel_futures=True)
            self._fill()

    def _fill(self) -> None:
        while self._pool is not None and len(self._pending) < self._ahead and self._next != self._last:
            self._pending.append(self._pool.submit(self._clock, self._next))
            self._next += 1

    def next_result(self) -> tuple[Made, float]:
        """The next thing made and the seconds that were waited for it; IndexError after the last one."""
        started = time.perf_counter()
        if self._pool is None:
            if self._next == self._last:
                raise IndexError("nothing is left to take")
            made = self._clock(self._next)
            self._next += 1
        else:
            made = self._pending[0].result()
            self._pending.popleft()
            self._fill()
        return made, time.perf_counter() - started

    @property
    def cpu_seconds(self) -> float:
        """Processor time of making, in whichever thread."""
        return self._clock.seconds

    def close(self) -> None:
        """End the threads and discard their results."""
        if self._pool is not None:
            self._end()
        self._pending.clear()
        self._last = self._next


class _Clock(Generic[Made]):
    """Makes, and counts the processor time it takes."""

    def __init__(self, make: Callable[[int], Made]) -> None:
        self._make, self._lock, self.seconds = make, threading.Lock(), 0.0

    def __call__(self, number: int) -> Made:
        started = time.thread_time()
        try:
            return self._make(number)
        finally:
            spent = time.thread_time() - started
            with self._lock:
                self.seconds += spent
