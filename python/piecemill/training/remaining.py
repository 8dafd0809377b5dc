"""How long merging will take from here.

A straight line through the merges done so far is wrong by a factor of ten: the first merges rewrite millions of
places each, the last ones a handful. So the estimate is made of work, not of merges: the work still ahead (places
to rewrite, plus a fixed cost per merge) times the seconds that recent work took. Places per merge fall like a power
of the number of merges; the power is read off the last two doublings. `tests/test_remaining.py` replays recorded
runs and holds the estimate to within a factor of two from 20% of the merges on.
"""

import math
from bisect import bisect_left

# What a merge costs beside its places, in places: queue, tallies, new lists. From recorded runs of both kinds.
_MERGE_COST = 40.0
# Below so many merges two doublings say nothing.
_LEAST_MERGES = 64


class Remaining:
    """Fed with what was seen so far, says how many seconds are left."""

    def __init__(self, merges_wanted: int) -> None:
        self._wanted = merges_wanted
        self.trace: list[tuple[float, int, int]] = [(0.0, 0, 0)]
        "Seconds since the start, merges and places rewritten by then."

    def saw(self, seconds: float, merges: int, occurrences: int) -> None:
        """Takes note of a moment; moments must come in order."""
        if merges > self.trace[-1][1]:
            self.trace.append((seconds, merges, occurrences))

    def merges_per_second(self) -> float:
        """Merges per second over the last second or so."""
        seconds, merges, _ = self.trace[-1]
        at = max(0, bisect_left(self.trace, seconds - 1.0, key=lambda moment: moment[0]) - 1)
        before, then, _ = self.trace[at]
        return (merges - then) / (seconds - before) if seconds > before else 0.0

    def seconds(self) -> float | None:
        """Seconds left; None while it is too early to tell."""
        _, merges, _ = self.trace[-1]
        if merges < _LEAST_MERGES or len(self.trace) < 4:
            return None
        now, half, quarter = self._at(merges), self._at(merges / 2), self._at(merges / 4)
        recent, before = now[2] - half[2], half[2] - quarter[2]
        if recent <= 0 or before <= 0:
            return None
        places = recent * _growth(self._wanted / merges, math.log2(recent / before))
        work_done = recent + _MERGE_COST * (merges / 2)
        work_left = places + _MERGE_COST * (self._wanted - merges)
        return max(0.0, (now[0] - half[0]) * work_left / work_done)

    def _at(self, merges: float) -> tuple[float, float, float]:
        """The moment at which so many merges were done, on a line between the two nearest seen."""
        at = bisect_left(self.trace, merges, key=lambda moment: moment[1])
        after = self.trace[min(at, len(self.trace) - 1)]
        before = self.trace[max(at - 1, 0)]
        if after[1] == before[1]:
            return after
        part = (merges - before[1]) / (after[1] - before[1])
        seconds, count, places = (b + (a - b) * part for a, b in zip(after, before, strict=True))
        return seconds, count, places


def _growth(times: float, power: float) -> float:
    """The sum of a power law over (1, times], in units of its sum over (1/2, 1].

    `power` is log2 of how much larger each doubling's sum is than the one before it.
    """
    if abs(power) < 1e-6:
        return math.log2(times)
    return float((times**power - 1) / (1 - 2**-power))
