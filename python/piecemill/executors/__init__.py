"""Executors: run a function over tasks. The results and the files written do not depend on the executor.

An executor has one method, `map(function, tasks)`. `local` runs tasks in threads or on the user's own
`concurrent.futures.Executor`; `ray` runs them on a cluster; `PartExecutor` runs one share, for Slurm arrays and
Kubernetes indexed jobs. Executors do not know what the function does; the function calls `cancelling.check` between
two steps, which reports progress and raises if the run was cancelled.

Start with `open_executor`.
"""

import re
from collections.abc import Callable, Generator, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from piecemill.errors import PlanError
from piecemill.plans import option

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
        """Yield (task, result) as tasks finish, in any order; the first error cancels the other tasks and is raised.

        `function` and the tasks must be picklable. `on_tick` is called after each result and ten times a second.
        Closing the generator, or Ctrl-C, cancels the running tasks and waits for them to end. Iterate inside
        `contextlib.closing`, so that an error in the body of the loop closes the generator too.
        """
        ...


def open_executor(
    executor: "str | Executor | futures.Executor" = "local",
    *,
    threads: int | None = None,
    ray_address: str | None = None,
    part: str | None = None,
) -> Executor:
    """Return the executor with this name. An `Executor` is returned unchanged, a `concurrent.futures.Executor` wrapped.

    `threads` is how many threads `local` has; default: one per core. `ray_address` is the address of a running
    cluster, or "auto". With `part`, such as "3/64", the executor runs only the tasks of that part.

    >>> sorted(open_executor("local").map(abs, [-1, 2, -3]))
    [(-3, 3), (-1, 1), (2, 2)]
    """
    if part is not None:
        return PartExecutor(part, open_executor(executor, threads=threads, ray_address=ray_address))
    name = executor if isinstance(executor, str) else None
    if ray_address is not None and name != "ray":
        raise PlanError(f"{option('ray_address', ray_address)} needs {option('executor', 'ray')}.")
    if name == "ray":
        from piecemill.executors.ray import RayExecutor

        return RayExecutor(ray_address)
    from piecemill.executors.local import FuturesExecutor, LocalExecutor

    if name == "local":
        return LocalExecutor(threads)
    if isinstance(executor, futures.Executor):
        return FuturesExecutor(executor)
    if isinstance(executor, Executor):
        return executor
    raise PlanError(
        f"{option('executor', executor)}: expected local, ray, a concurrent.futures.Executor, or an object with a "
        "`name` and a method `map(function, tasks, on_tick)`."
    )


class PartExecutor:
    """Runs one share of the tasks, such as "3/64", on another executor; tasks have an `index`.

    Part 3/64 takes the tasks whose index leaves 2 when divided by 64, so that parts of a corpus with large files first
    are about equally large. Parts do not communicate; steps that need all tasks run once, afterwards (`--join`).
    """

    def __init__(self, part: str, executor: Executor) -> None:
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", part) if isinstance(part, str) else None
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise PlanError(
                f"{option('part', part)}: expected NUMBER/PARTS, with a number from 1 to PARTS, such as 3/64. "
                "Where a scheduler counts from 0, add 1."
            )
        self._number, self._parts, self._executor = int(found[1]), int(found[2]), executor
        self.name = f"{executor.name}, part {part}"

    def map(
        self, function: Callable[[T], R], tasks: Sequence[T], on_tick: OnTick | None = None
    ) -> Generator[tuple[T, R], None, None]:
        mine = [task for task in tasks if getattr(task, "index") % self._parts == self._number - 1]  # noqa: B009
        return self._executor.map(function, mine, on_tick)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """Where tasks run. Not stored in plan.json, because the result does not depend on it."""

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
