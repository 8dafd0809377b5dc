"""Threads on this machine, the default; and any `concurrent.futures.Executor`: processes, Dask, loky, mpi4py.

The function spends its time in Rust or in reading files, where the GIL is released, so threads use all cores.
The driver's thread only submits tasks and waits, so it handles Ctrl-C at once.
"""

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent import futures
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

from piecemill.cancelling import run_with_checkpoint
from piecemill.errors import ExecutorError, PlanError, Stopped
from piecemill.executors import TICK_SECONDS, OnTick, R, T
from piecemill.machine import cores

IN_FLIGHT = 256
"""Limit of tasks submitted but not finished: memory does not grow with the task count."""


class LocalExecutor:
    """Runs tasks in `threads` threads; default: one per core."""

    name = "local"

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise PlanError(f"threads={threads}: expected at least 1.")
        self.threads = threads or cores()

    def map(
        self, function: Callable[[T], R], tasks: Sequence[T], on_tick: OnTick | None = None
    ) -> Generator[tuple[T, R], None, None]:
        with futures.ThreadPoolExecutor(self.threads, "piecemill") as pool:
            yield from FuturesExecutor(pool).map(function, tasks, on_tick)


class FuturesExecutor:
    """Submits tasks to the caller's `executor`, and never shuts it down."""

    name = "futures"

    def __init__(self, executor: futures.Executor, in_flight: int = IN_FLIGHT) -> None:
        self._executor, self._in_flight = executor, in_flight

    def map(
        self, function: Callable[[T], R], tasks: Sequence[T], on_tick: OnTick | None = None
    ) -> Generator[tuple[T, R], None, None]:
        run, state = next(_numbers), _MapState()
        _runs[run] = state
        done: SimpleQueue[futures.Future[R]] = SimpleQueue()
        pending: dict[futures.Future[R], int] = {}
        waiting = iter(range(len(tasks)))
        try:
            while True:
                while len(pending) < self._in_flight and (number := next(waiting, None)) is not None:
                    future = self._executor.submit(_call, run, number, function, tasks[number])
                    pending[future] = number
                    future.add_done_callback(done.put)
                if not pending:
                    return
                try:
                    future = done.get(timeout=TICK_SECONDS if on_tick else None)
                except Empty:
                    pass
                else:
                    number = pending.pop(future)
                    state.progress.pop(number, None)
                    yield tasks[number], _result(future, state)
                if on_tick is not None:
                    on_tick(list(state.progress.copy().values()))
        except futures.BrokenExecutor as error:
            raise ExecutorError(f"a worker process was lost: {error} Run it again to go on.") from error
        finally:
            state.cancelled.set()
            for future in pending:
                future.cancel()
            # Running tasks: threads stop at their next `check`, other workers finish their task. An interrupt may have
            # come between `done.get` and `pending.pop`, so `done` does not say whether any is left.
            while not all(future.done() for future in pending):
                with suppress(Empty):
                    done.get(timeout=TICK_SECONDS)
            del _runs[run]


class _MapState:
    """State shared by the driver and the threads of one `map` call."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.failed: BaseException | None = None
        "The error of the first task that had one."
        self.progress: dict[int, Any] = {}


_runs: dict[int, _MapState] = {}
"""Runs of this process by number. In another process the lookup finds nothing, and the task runs without a driver."""
_numbers = count()


def _call(run: int, number: int, function: Callable[[T], R], task: T) -> R:
    state = _runs.get(run) or _MapState()

    def checkpoint(progress: Any) -> None:
        if state.cancelled.is_set():
            raise Stopped("cancelled")
        if progress is not None:
            state.progress[number] = progress

    try:
        checkpoint(None)  # a thread may start its next task before the driver has cancelled the run
        return run_with_checkpoint(checkpoint, function, task)
    except BaseException as error:
        state.failed = state.failed or error
        state.cancelled.set()
        raise


def _result(future: futures.Future[R], state: _MapState) -> R:
    try:
        return future.result()
    except Stopped as stopped:  # a task that was cancelled can end before the one that failed
        raise (state.failed or stopped) from None
