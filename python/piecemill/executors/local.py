"""Threads on this machine: the default executor.

The function spends its time in Rust or in reading files, where Python's lock is released; each thread takes the next
task when it has finished one. The driver's thread only waits, so it hears Ctrl-C at once.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from piecemill.errors import PlanError, Stopped
from piecemill.executors import TICK_SECONDS, OnTick, run_with_checkpoint

T = TypeVar("T")
R = TypeVar("R")


class LocalExecutor:
    """Runs tasks in `workers` threads, in the order of the tasks; default: one per core."""

    name = "local"

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise PlanError(f"workers={workers}: expected at least 1.")
        self.workers = workers or len(os.sched_getaffinity(0))

    def map(
        self, function: Callable[[T], R], tasks: Sequence[T], on_tick: OnTick | None = None
    ) -> Iterator[tuple[T, R]]:
        """(task, result) as they finish; the first error cancels the other tasks and is raised when they ended."""
        cancelled = threading.Event()
        running: dict[int, Any] = {}
        done: SimpleQueue[tuple[int, R | None, BaseException | None]] = SimpleQueue()
        numbers = iter(range(len(tasks)))
        taking = threading.Lock()

        def work() -> None:
            while True:
                with taking:
                    number = next(numbers, None)
                if number is None or cancelled.is_set():
                    return done.put((-1, None, None))

                def checkpoint(progress: Any, number: int = number) -> None:
                    if cancelled.is_set():
                        raise Stopped("cancelled")
                    running[number] = progress

                try:
                    result = run_with_checkpoint(checkpoint, function, tasks[number])
                except BaseException as error:  # noqa: BLE001 - raised again in the driver's thread
                    cancelled.set()
                    done.put((number, None, error))
                else:
                    done.put((number, result, None))

        threads = min(self.workers, len(tasks))
        left = 0  # threads that have not ended; counted by their messages: an interrupted Thread.join may lie (3.11)
        try:
            for _ in range(threads):
                threading.Thread(target=work, daemon=True, name="piecemill-worker").start()
                left += 1
            while left:
                try:
                    number, result, error = done.get(timeout=TICK_SECONDS if on_tick else None)
                except Empty:
                    number, result, error = -2, None, None
                if number >= 0:
                    running.pop(number, None)
                    if error is not None:
                        raise error
                    yield tasks[number], result  # type: ignore[misc]  # R may be None itself
                left -= number == -1
                if on_tick is not None:
                    on_tick([value for value in running.copy().values() if value is not None])
        finally:
            cancelled.set()
            while left:
                left -= done.get()[0] == -1
