"""A Ray cluster (extra `piecemill[ray]`, Ray core only).

Each task is a Ray task of one CPU. Ray reuses its worker processes, and a worker caches the function it ran last, so
what the function loads, such as a tokenizer, is loaded once per worker. Only results are sent to the driver. Ray
retries a task whose worker or node was lost; an error that the function itself raises ends the run.
"""

import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from piecemill.cancelling import run_with_checkpoint
from piecemill.errors import ExecutorError, PlanError
from piecemill.executors import TICK_SECONDS, OnTick, R, T
from piecemill.plans import option

try:
    import ray
    from ray import exceptions
except ImportError as error:
    raise PlanError(
        f"{option('executor', 'ray')}: ray cannot be imported ({error}). Install piecemill[ray]."
    ) from error

RETRIES = 16
"""How often a task is run again after its worker or node was lost. Bounded, as the task itself may be the cause."""

REPORT_SECONDS, QUIET_SECONDS = 2.0, 8.0
"""How often a running task reports its progress, and how long no task must have finished before it does so."""

STOP_SECONDS, CANCEL_AGAIN_SECONDS = 10.0, 2.0
"""How long a cancelled run waits for its tasks to end, and how long until it cancels them again. A task inside a long
native call ends only after that call."""


class RayExecutor:
    """Runs tasks on the cluster at `address`: None for $RAY_ADDRESS, the cluster of this machine, or a new one."""

    name = "ray"

    def __init__(self, address: str | None = None, in_flight: int | None = None) -> None:
        self._address, self._in_flight = address, in_flight

    def map(
        self, function: Callable[[T], R], tasks: Sequence[T], on_tick: OnTick | None = None
    ) -> Generator[tuple[T, R], None, None]:
        connect(self._address)
        run, shared = uuid.uuid4().hex, [ray.put((function, os.getcwd()))]  # in a list, Ray passes it by reference
        remote = ray.remote(num_cpus=1, max_retries=RETRIES, retry_exceptions=False)(_run)
        reports = _Reports(run)
        pending: dict[Any, int] = {}
        waiting, most = iter(range(len(tasks))), 0
        try:
            while True:
                if len(pending) <= most // 2:  # each worker still has a queued task; the cluster may have grown
                    most = self._in_flight or max(64, 4 * int(ray.cluster_resources().get("CPU", 1)))
                    for number in islice(waiting, most - len(pending)):
                        pending[remote.remote(run, shared, tasks[number], number)] = number
                if not pending:
                    return
                ready, _ = ray.wait(list(pending), num_returns=1, timeout=TICK_SECONDS if on_tick else None)
                if ready:  # take all finished tasks at once: each `wait` scans the whole pending list
                    ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
                for reference in ready:
                    number = pending.pop(reference)
                    yield tasks[number], _result(reference, tasks[number])
                if on_tick is not None:
                    on_tick(reports.latest(pending.values(), finished=bool(ready)))
        finally:
            _cancel(list(pending))
            reports.close()


def connect(address: str | None) -> None:
    """Connect this process to a cluster, which then starts its workers: early is better, as each takes a second."""
    if ray.is_initialized():
        return
    try:
        host, _, port = (address or "").rpartition(":")
        if host and port.isdigit() and "//" not in host:  # fail early: Ray itself retries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        raise ExecutorError(
            f"Ray at {address or 'the default address'}: cannot connect: {error} "
            "Start a cluster with `ray start --head`, or give no address for one on this machine."
        ) from error


def _cancel(references: list[Any]) -> None:
    """Cancel tasks and wait until they have ended, at most `STOP_SECONDS`.

    Queued tasks are cancelled first: else they begin on the CPUs that cancelled tasks free. Each cancel is repeated, as
    Ray interrupts a worker once only, and a worker that is just starting may ignore the signal.
    """
    end, left = time.monotonic() + STOP_SECONDS, references[::-1]
    while left:
        for reference in left:
            ray.cancel(reference)
        seconds = max(0.0, min(CANCEL_AGAIN_SECONDS, end - time.monotonic()))
        _, left = ray.wait(left, num_returns=len(left), timeout=seconds)
        if time.monotonic() >= end:
            return


def _result(reference: Any, task: object) -> Any:
    try:
        return ray.get(reference)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise
    except exceptions.RayError as error:
        index = getattr(task, "index", task)
        name = f"task {index if isinstance(index, int) else task}"
        raise ExecutorError(
            f"{name}: Ray gave up on it after {RETRIES + 1} attempts: {str(error).strip() or type(error).__name__} "
            "If it is always the same task, its worker may lack memory. Run it again to go on."
        ) from error


_functions: dict[str, Callable[[Any], Any]] = {}
"""In a worker process: the function of the current run."""


def _run(run: str, shared: list[Any], task: Any, number: int) -> Any:
    if run not in _functions:
        _functions.clear()  # functions of earlier runs
        # Ray cancels by SIGINT, which is ignored where a script started the cluster in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        function, folder = ray.get(shared[0])
        with suppress(OSError):  # relative paths start at the driver's folder; a node without it needs absolute paths
            os.chdir(folder)
        _functions[run] = function
    reported = time.monotonic()

    def checkpoint(progress: Any) -> None:
        nonlocal reported
        if progress is not None and time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            with suppress(ValueError):  # no mailbox: the driver opens one only if results are rare
                ray.get_actor(run).put_progress.remote(number, progress)

    return run_with_checkpoint(checkpoint, _functions[run], task)


class _Mailbox:
    """An actor that holds the latest progress of each task until the driver fetches it."""

    def __init__(self) -> None:
        self._new: dict[int, Any] = {}

    def put_progress(self, number: int, progress: Any) -> None:
        self._new[number] = progress

    def take_progress(self) -> dict[int, Any]:
        new, self._new = self._new, {}
        return new


class _Reports:
    """The driver's side of the mailbox. The actor is a separate process, so it starts only when results are rare.

    Never blocks: progress that has not arrived is not shown.
    """

    _mailbox: Any = None

    def __init__(self, run: str) -> None:
        self._run, self._finished = run, time.monotonic()
        self._latest: dict[int, Any] = {}

    def latest(self, running: Iterable[int], *, finished: bool) -> list[Any]:
        """The latest progress of the tasks with these numbers."""
        self._finished = time.monotonic() if finished else self._finished
        if self._mailbox is None and time.monotonic() - self._finished > QUIET_SECONDS:
            self._mailbox = ray.remote(num_cpus=0, max_restarts=-1)(_Mailbox).options(name=self._run).remote()
            self._asked = self._mailbox.take_progress.remote()
        if self._mailbox is not None and ray.wait([self._asked], timeout=0)[0]:
            with suppress(exceptions.RayError):  # the node of the actor was lost: Ray starts it again elsewhere
                self._latest.update(ray.get(self._asked))
            self._asked = self._mailbox.take_progress.remote()
        self._latest = {number: self._latest[number] for number in running if number in self._latest}
        return list(self._latest.values())

    def close(self) -> None:
        """End the actor."""
        if self._mailbox is not None:
            ray.kill(self._mailbox)
