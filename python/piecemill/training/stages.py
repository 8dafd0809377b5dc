"""Stages of a long run: how long each took, how much memory it needed, how to stop it, and what is left of merging.

A stage runs in its own thread while the caller's thread polls counters, reports progress and receives Ctrl-C
immediately, whatever the stage is doing.
"""

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from piecemill._core import Progress
from piecemill.machine import memory_now, memory_peak

POLL_SECONDS = 0.05
# How long a stage may take to notice that it should stop. Its thread is a daemon: it never holds up the exit.
STOP_SECONDS = 0.25

# What a merge costs beside its places, in places: queue, tallies, new lists. From recorded runs of both kinds.
_MERGE_COST = 80.0
# With fewer merges than this, two doublings say nothing.
_LEAST_MERGES = 64
# Up to this number of merges pairs are counted in a table, beyond in a hash map, and a round costs this times as much
# (DENSE_CELLS in src/bpe/round.rs: 2,048 ids, fewer for a short corpus; special tokens are few).
_DENSE_MERGES = 2048 - 256
_HASHED_COST = 2.0
# Every further round costs more than the last, though the corpus is shorter: ever more pairs are at the floor.
_LATER_COST = 1.8
# Merges right after a round cost more than those before it: with a lower floor, more lists are kept.
_FRESH_COST = 1.5
_FRESH_MERGES = 1.25
# A round's floor is so far below the one before it (LATE_SHIFT in src/bpe/round.rs).
_FLOOR_STEP = 16


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


class Moment(NamedTuple):
    """A snapshot of the counters of a running merge loop."""

    seconds: float
    merges: float
    occurrences: float
    pair_count: float
    floor: float
    rounds_begun: float
    rounds_ready: float
    round_seconds: float


def moment(seconds: float, progress: Progress) -> Moment:
    """A snapshot of `progress`, `seconds` after merging began."""
    # Rounds before merges: a round seen without its first merge is harmless, a merge without its round is not.
    rounds = (progress.floor, progress.rounds_begun, progress.rounds_ready, progress.round_seconds)
    return Moment(seconds, progress.merges, progress.occurrences, progress.pair_count, *rounds)


class Remaining:
    """Estimates the seconds left of merging, from a series of snapshots.

    A straight line through the merges done so far is wrong by a factor of ten: the first merges rewrite millions of
    places each, the last ones a handful. So the estimate is made of work. Two kinds lie ahead:

    - places to rewrite, and a fixed cost per merge. Places per merge fall like a power of the number of merges; the
      power is read off the last two doublings, and a place costs what recent ones did.
    - rounds to begin (see `src/bpe/round.rs`), each a walk over the whole corpus. They come whenever the counts fall
      below a known floor, so their number follows from the falling counts; each costs about what the last one did.

    `tests/test_remaining.py` replays recorded runs and holds the estimate to within a factor of two from 20% of the
    merges on.
    """

    def __init__(self, merges_wanted: int, *, merge_cost: float = _MERGE_COST) -> None:
        self._wanted = merges_wanted
        self._merge_cost = merge_cost
        self._trace = [Moment(0.0, 0, 0, 0, 0, 0, 0, 0.0)]
        self._now = self._trace[0]
        self._round_cost = 0.0
        self._round_merges = 0.0

    def add_snapshot(self, moment: Moment) -> None:
        """Add a snapshot; they must be in order of time."""
        before, self._now = self._now, moment
        if moment.rounds_ready > before.rounds_ready:
            rounds = moment.rounds_ready - before.rounds_ready
            self._round_cost = (moment.round_seconds - before.round_seconds) / rounds
            self._round_merges = before.merges
        if moment.merges > self._trace[-1].merges:
            self._trace.append(moment)

    def merges_per_second(self) -> float:
        """Merges per second over the last second or so."""
        last = self._trace[-1]
        at = max(0, bisect_left(self._trace, last.seconds - 1.0, key=lambda moment: moment.seconds) - 1)
        before = self._trace[at]
        return (last.merges - before.merges) / (last.seconds - before.seconds) if last.seconds > before.seconds else 0.0

    def seconds(self) -> float | None:
        """Seconds left; None while it is too early to estimate."""
        now = self._trace[-1]
        if now.merges < _LEAST_MERGES or len(self._trace) < 4:
            return None
        half, quarter = self._at(now.merges / 2), self._at(now.merges / 4)
        recent, before = now.occurrences - half.occurrences, half.occurrences - quarter.occurrences
        if recent <= 0 or before <= 0:
            return None
        times = self._wanted / now.merges
        places = recent * _growth(times, math.log2(recent / before))
        work_done = recent + self._merge_cost * (now.merges - half.merges)
        work_left = places + self._merge_cost * (self._wanted - now.merges)
        spent = (now.seconds - now.round_seconds) - (half.seconds - half.round_seconds)
        if now.merges < self._round_merges * _FRESH_MERGES:
            spent *= _FRESH_COST
        rounds = self._rounds_ahead(now, half, times)
        hashed = self._round_merges <= _DENSE_MERGES < now.merges
        round_cost = self._round_cost * (_HASHED_COST if hashed else _LATER_COST if now.merges > _DENSE_MERGES else 1.0)
        left = spent * work_left / work_done + rounds * round_cost
        waited = self._now.seconds - now.seconds
        if self._now.rounds_begun > self._now.rounds_ready:
            # A round is being made; `rounds` counts it. If it takes longer than thought, so will what is left of it.
            return left - min(rounds, 1) * round_cost + max(round_cost - waited, waited / 3)
        # Since the last merge, and not for a round that is done.
        return max(0.0, left - waited + self._now.round_seconds - now.round_seconds)

    def _rounds_ahead(self, now: Moment, half: Moment, times: float) -> int:
        """Number of floors between here and the count of the last merge, if counts keep falling at this rate."""
        if not 0 < now.pair_count <= half.pair_count:
            return 0
        last_count = max(1.0, now.pair_count * times ** -math.log2(half.pair_count / now.pair_count))
        # The floor that is in force, even if no merge was seen under it yet.
        rounds, floor = 0, self._now.floor
        while floor > last_count:
            floor //= _FLOOR_STEP
            rounds += 1
        return rounds

    def _at(self, merges: float) -> Moment:
        """The snapshot after `merges` merges, interpolated between the two nearest."""
        at = bisect_left(self._trace, merges, key=lambda moment: moment.merges)
        after = self._trace[min(at, len(self._trace) - 1)]
        before = self._trace[max(at - 1, 0)]
        if after.merges == before.merges:
            return after
        part = (merges - before.merges) / (after.merges - before.merges)
        return Moment(*(b + (a - b) * part for a, b in zip(after, before, strict=True)))


def _growth(times: float, power: float) -> float:
    """The sum of a power law over (1, times], in units of its sum over (1/2, 1].

    `power` is log2 of how much larger each doubling's sum is than the one before it.
    """
    if abs(power) < 1e-6:
        return math.log2(times)
    return float((times**power - 1) / (1 - 2**-power))
