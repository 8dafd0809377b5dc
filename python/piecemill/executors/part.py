"""One share of the tasks: for schedulers that start the same command on many machines with a number each.

Part 3/64 takes the tasks whose index leaves 2 when divided by 64, so that parts of a corpus with large files first are
about equally large. Parts know nothing of each other; whatever must see all tasks is done afterwards, once (`--join`).
"""

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from piecemill.errors import PlanError
from piecemill.executors import Executor, OnTick

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Part:
    """Number `number` of `of` parts, from 1.

    >>> Part.parse("3/64").has(66)
    True
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Part":
        """Part "3/64"."""
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text) if isinstance(text, str) else None
        part = cls(int(found[1]), int(found[2])) if found else None
        if part is None or not 1 <= part.number <= part.of:
            raise PlanError(
                f"part={text!r}: expected NUMBER/PARTS with a number from 1 to the number of parts, such as '3/64'. "
                "Where a scheduler counts from 0, add 1."
            )
        return part

    def has(self, index: int) -> bool:
        """Whether the task with this index is in this part."""
        return index % self.of == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


class PartExecutor:
    """Runs the tasks of one part on another executor."""

    def __init__(self, part: Part, executor: Executor) -> None:
        self.part, self._executor = part, executor
        self.name = f"{executor.name}, part {part}"

    def map(
        self, function: Callable[[T], R], tasks: Sequence[T], on_tick: OnTick | None = None
    ) -> Generator[tuple[T, R], None, None]:
        """(task, result) of the tasks in this part, as they finish."""
        every: Sequence[Any] = tasks
        return self._executor.map(function, [task for task in every if self.part.has(task.index)], on_tick)
