"""One share of the tasks: for schedulers that start the same command on many machines with a number each.

Part 3/64 takes the tasks whose index leaves 2 when divided by 64, so that parts of a corpus with large files first are
about equally large. Parts do not communicate; steps that need all tasks run once, afterwards (`--join`).
"""

import re
from collections.abc import Callable, Generator, Sequence

from piecemill.errors import PlanError
from piecemill.executors import Executor, OnTick, R, T
from piecemill.plans import option


class PartExecutor:
    """Runs the tasks of one part, such as "3/64", on another executor. A task has an `index`."""

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
        """(task, result) of the tasks in this part, as they finish."""
        mine = [task for task in tasks if getattr(task, "index") % self._parts == self._number - 1]  # noqa: B009
        return self._executor.map(function, mine, on_tick)
