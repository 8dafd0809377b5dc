"""Reads the losses and norms that steps left on the device, some steps later.

On a GPU, the values of a group of steps are copied to pinned memory asynchronously, and read when the next group is
complete: by then the copy is finished. The time that the GPU waited for a batch is measured between two CUDA events
around its arrival. On a CPU the same is done with a clock.

Start with `Readings`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Losses, gradient norms and times of a group of steps, read back from the device."""

    first: int
    losses: list[float]
    norms: list[float]
    seconds: float
    "From the end of the group before to the end of this one, on the device."
    waited: float
    "Of these, how long the device waited for batches."
    process_cpu: float
    "Processor seconds of the whole process meanwhile."
    main_cpu: float
    "Of these, the training loop's own thread."


@dataclass(slots=True)
class _Group:
    first: int
    start: Any
    end: Any = None
    count: int = 0
    waits: list[tuple[Any, Any]] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    copied: Any = None
    "The values, on their way to the host."
    cpu_start: tuple[float, float] = (0.0, 0.0)
    cpu: tuple[float, float] = (0.0, 0.0)


class Readings:
    """Collects the losses and norms of steps, and returns them in groups of `every`, at least one group late."""

    def __init__(self, device: torch.device, every: int) -> None:
        self.every = every
        self._gpu = device.type == "cuda"
        self._open: _Group | None = None
        self._closed: list[_Group] = []
        self._pinned = [torch.empty((every, 2), pin_memory=True) for _ in range(2)] if self._gpu else []
        self._turn = 0

    def start(self, step: int) -> None:
        """Begin a group with step `step`: at the start, and after each pause that is not part of the training."""
        self._open = _Group(step, self._mark(), cpu_start=_cpu())

    def waiting(self, next_batch: Callable[[], Any]) -> Any:
        """The next batch, with a mark before it and one after it has arrived."""
        before = self._mark()
        batch = next_batch()
        self._group().waits.append((before, self._mark()))
        return batch

    def add_step(self, loss: torch.Tensor, norm: torch.Tensor) -> bool:
        """Add the values of one step; true when the group is complete."""
        group = self._group()
        group.values.append(torch.stack([loss, norm]))
        group.count += 1
        return group.count >= self.every

    def close(self) -> list[StepGroup]:
        """End the open group and begin the next; returns earlier groups that have arrived, without waiting."""
        group = self._group()
        if not group.count:
            return []
        values = torch.stack(group.values)
        group.values.clear()
        earlier = self._take(self._closed)  # its pinned memory is the other one; this one's was read a group ago
        group.copied = values
        if self._gpu:
            self._closed = [group]
            group.copied = self._pinned[self._turn][: group.count]
            self._turn = 1 - self._turn
            group.copied.copy_(values, non_blocking=True)
        group.end = self._mark()
        now = _cpu()
        group.cpu = (now[0] - group.cpu_start[0], now[1] - group.cpu_start[1])
        self._open = _Group(group.first + group.count, group.end, cpu_start=now)
        return earlier if self._gpu else self._take([group])

    def drain(self) -> list[StepGroup]:
        """End the open group and return everything, waiting for the device if necessary; continue with `start`."""
        found = self.close()
        found += self._take(self._closed)
        self._closed, self._open = [], None
        return found

    def _group(self) -> _Group:
        if self._open is None:
            raise RuntimeError("Readings.start comes first")
        return self._open

    def _mark(self) -> Any:
        if not self._gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1000 if self._gpu else float(end - start)

    def _take(self, groups: list[_Group]) -> list[StepGroup]:
        found = []
        for group in groups:
            if self._gpu and not group.end.query():
                group.end.synchronize()  # recorded behind the copy, a whole group ago: hardly ever left to wait for
            losses, norms = group.copied.double().T.tolist()
            found.append(
                StepGroup(
                    first=group.first,
                    losses=losses,
                    norms=norms,
                    seconds=self._between(group.start, group.end),
                    waited=sum(self._between(*wait) for wait in group.waits),
                    process_cpu=group.cpu[0],
                    main_cpu=group.cpu[1],
                )
            )
        return found


def _cpu() -> tuple[float, float]:
    return time.process_time(), time.thread_time()
