"""Cancelling: how a function that runs on a worker hears that its run is over, and says how far it is.

An executor runs a function with a checkpoint; the function, and whatever it calls, passes it between two steps with
`check` and in every pause with `sleep`. Where there is no executor, neither does more than its name says.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from piecemill.errors import Stopped

T = TypeVar("T")
R = TypeVar("R")

_STEP_SECONDS = 0.1

_worker = threading.local()


def check(progress: Any = None) -> None:
    """To be called inside a function between blocks: raises `Stopped` if this run was cancelled.

    `progress`, what the task has done so far, replaces what it reported before and goes to the driver's `on_tick`.
    Outside an executor, and where the executor cannot report it, this does nothing.
    """
    if (checkpoint := getattr(_worker, "checkpoint", None)) is not None:
        checkpoint(progress)


def sleep(seconds: float) -> None:
    """Wait, with a `check` some times a second."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        check()
        time.sleep(min(left, _STEP_SECONDS))


def run_with_checkpoint(checkpoint: Callable[[Any], None], function: Callable[[T], R], task: T) -> R:
    """`function(task)`, with `checkpoint` called by every `check` inside it."""
    before = getattr(_worker, "checkpoint", None)
    _worker.checkpoint = checkpoint
    try:
        return function(task)
    finally:
        _worker.checkpoint = before


@contextmanager
def threads(workers: int) -> Iterator[Callable[[Callable[[T], R], Iterable[T]], Iterator[R]]]:
    """A `map` on threads that are cancelled with the caller, and when the caller leaves by an error or Ctrl-C."""
    outer, left = getattr(_worker, "checkpoint", None), threading.Event()

    def checkpoint(_: Any) -> None:
        if left.is_set():
            raise Stopped("cancelled")
        if outer is not None:
            outer(None)

    pool = ThreadPoolExecutor(workers, "piecemill-threads")
    try:
        yield lambda function, items: pool.map(partial(run_with_checkpoint, checkpoint, function), items)
    except BaseException:
        left.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
