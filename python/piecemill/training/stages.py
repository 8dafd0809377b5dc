"""Stages of a long run: how long each took, how much memory it needed, and how to stop it.

A stage runs in its own thread while the caller's thread polls counters, reports progress and receives Ctrl-C
immediately, whatever the stage is doing.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from piecemill._core import Progress
from piecemill.machine import memory_now, memory_peak

POLL_SECONDS = 0.05
# How long a stage may take to notice that it should stop. Its thread is a daemon: it never holds up the exit.
STOP_SECONDS = 0.25


class Stages:
    """The stages done so far, as they go into `training.json`."""

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []
        self._sampled = 0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure time and memory of the body."""
        started, peak_before, self._sampled = time.perf_counter(), memory_peak(), memory_now()
        yield
        peak = memory_peak()
        # The process's peak is this stage's only if this stage raised it; else the samples count.
        stage_peak = peak if peak > peak_before else max(self._sampled, memory_now())
        seconds = time.perf_counter() - started
        self.done.append({"stage": name, "seconds": round(seconds, 4), "peak_memory_bytes": stage_peak})

    def watch(self, work: Callable[[], Any], progress: Progress, on_tick: Callable[[], None] = lambda: None) -> Any:
        """Run `work` in a thread, call the callback `on_tick` about 20 times a second, and return the result of `work`.

        Ctrl-C cancels the work through `progress`, waits briefly for the thread, and is raised as KeyboardInterrupt.
        """
        result: list[Any] = []
        failed: list[BaseException] = []
        done = threading.Event()  # not `Thread.join`: interrupted, Python 3.11's takes a running thread for ended

        def run() -> None:
            try:
                result.append(work())
            except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
                failed.append(error)
            finally:
                done.set()

        threading.Thread(target=run, daemon=True, name="piecemill-stage").start()
        try:
            finished = False
            while not finished:
                finished = done.wait(POLL_SECONDS)  # checked before the tick, so that the last one reports everything
                self._sampled = max(self._sampled, memory_now())
                on_tick()
        except BaseException:
            progress.stop()
            done.wait(STOP_SECONDS)
            raise
        if failed:
            raise failed[0]
        return result[0]
