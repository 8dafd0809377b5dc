"""Windows: where the rows of an export and the windows of the loader begin and end, by arithmetic alone.

A stream of n tokens (a document, or a packed split) has n - 1 places to predict from. A window is `window` places and
the token after the last: up to `window + 1` tokens. Windows begin every `window - overlap` tokens; all but the last are
full. The tail, what no full window holds, is kept as a shorter window, padded, or dropped. A tail always has at
least one place that no window before it has; a stream of one token has no place, and no window.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Tail = Literal["keep", "pad", "drop"]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cut:
    """Window size, overlap and tail: how a row is cut into windows."""

    window: int
    overlap: int
    tail: Tail

    def count(self, lengths: Ints) -> Ints:
        """How many windows rows of these lengths have.

        >>> Cut(4, 2, "keep").count(np.array([0, 1, 2, 5, 6, 7, 8])).tolist()
        [0, 0, 1, 1, 2, 2, 3]
        >>> Cut(4, 2, "drop").count(np.array([0, 1, 2, 5, 6, 7, 8])).tolist()
        [0, 0, 0, 1, 1, 2, 2]
        """
        step, places = self.window - self.overlap, lengths - 1
        full = np.where(places >= self.window, (places - self.window) // step + 1, 0)
        if self.tail == "drop":
            return full
        covered = np.where(full > 0, (full - 1) * step + self.window, 0)
        return full + (places > covered)

    def dropped(self, lengths: Ints) -> Ints:
        """How many tokens of each row are in no window."""
        if self.tail != "drop":
            return np.where(lengths == 1, 1, 0)
        full = self.count(lengths)
        return lengths - np.where(full > 0, (full - 1) * (self.window - self.overlap) + self.window + 1, 0)

    def spans(self, lengths: Ints, counted: Ints, first: int, last: int) -> tuple[Ints, Ints, Ints]:
        """Windows `first` to `last` of all rows one after another: the row, where in it, and how many tokens.

        `counted` is the running sum of `count(lengths)`. Any range of windows can be computed by itself, so a row of
        any length is cut with bounded memory.
        """
        windows = np.arange(first, last, dtype=np.int64)
        rows = np.searchsorted(counted, windows, side="right").astype(np.int64)
        before = np.concatenate([np.zeros(1, np.int64), counted])[rows]
        starts = (windows - before) * (self.window - self.overlap)
        return rows, starts, np.minimum(self.window + 1, lengths[rows] - starts)


def gather(tokens: NDArray[np.generic], starts: Ints, lengths: Ints) -> NDArray[np.generic]:
    """`tokens[start : start + length]` of every window, one after another."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return tokens[np.arange(total) + np.repeat(starts - ends + lengths, lengths)]
