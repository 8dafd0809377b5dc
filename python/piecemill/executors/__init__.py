"""Executors: where and when a function of a task runs. What it returns or writes never depends on it.

An executor has one method, `map(function, tasks)`. `local` has threads, and any `concurrent.futures.Executor` of the
user's; `ray` a cluster; `part` a share of the tasks, for Slurm arrays and Kubernetes indexed jobs.
Nothing in this room knows what a function does with a task; the function calls `cancelling.check` between two steps.

Start with `open_executor`.
"""

from collections.abc import Callable, Generator, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from piecemill.errors import PlanError

T = TypeVar("T")
R = TypeVar("R")

OnTick = Callable[[Sequence[Any]], None]
"""Called with the latest progress of each running task, on the driver's thread."""

TICK_SECONDS = 0.1


@runtime_checkable
class Executor(Protocol):
    """Runs a function over tasks."""

    name: str

    def map(
        self, function: Callable[[T], R], tasks: Sequence[T], on_tick: OnTick | None = None
    ) -> Generator[tuple[T, R], None, None]:
        """(task, result) as they finish, in any order; the first error stops the rest and is raised.

        `function` and tasks can be pickled. `on_tick` is called after each result and ten times a second. A generator
        that is closed, or interrupted by Ctrl-C, cancels what runs and waits for it: iterate inside
        `contextlib.closing`, so that an error in the loop's own body closes it too.
        """
        ...


def open_executor(
    executor: "str | Executor | futures.Executor" = "local",
    *,
    workers: int | None = None,
    ray_address: str | None = None,
    part: str | None = None,
) -> Executor:
    """The executor of this name; an `Executor` as it is; a `concurrent.futures.Executor` wrapped.

    `workers` is the number of threads of `local`; default: one per core. `ray_address` is that of a running cluster, or
    "auto". With `part`, such as "3/64", only the tasks of that part are run, on the executor.

    >>> sorted(open_executor("local").map(abs, [-1, 2, -3]))
    [(-3, 3), (-1, 1), (2, 2)]
    """
    if part is not None:
        from piecemill.executors.part import PartExecutor

        return PartExecutor(part, open_executor(executor, workers=workers, ray_address=ray_address))
    if ray_address is not None and executor != "ray":
        raise PlanError(f"ray_address={ray_address!r} and executor={executor!r}: an address needs executor='ray'.")
    if executor == "ray":
        from piecemill.executors.ray import RayExecutor

        return RayExecutor(ray_address)
    from piecemill.executors.local import FuturesExecutor, LocalExecutor

    if executor == "local":
        return LocalExecutor(workers)
    if isinstance(executor, futures.Executor):
        return FuturesExecutor(executor)
    if isinstance(executor, Executor):
        return executor
    raise PlanError(
        f"executor={executor!r}: expected one of local, ray, a concurrent.futures.Executor, or an object with a `name` "
        "and a method `map(function, tasks, on_tick)`."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """Where tasks run. No plan holds it."""

    executor: str = "local"
    "Where tasks run: local (threads on this machine) or ray (a cluster). The result does not depend on it."

    ray_address: str | None = None
    "Address of a running Ray cluster, or auto to find it; default: $RAY_ADDRESS, or a new one on this machine."


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOptions(ExecutorOptions):
    """Where tasks run, and which of them."""

    part: str | None = None
    "Do one share of the tasks, such as 3/64: the third of 64. When all parts are done, run once more with --join."

    join: bool = False
    "Finish a folder whose parts are all done: remove duplicates and write the manifest."
