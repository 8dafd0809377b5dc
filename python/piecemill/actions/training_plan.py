"""What to learn from sequences of actions: one flat record that gives flags, TOML keys and help."""

import math
from dataclasses import dataclass
from typing import Literal

from piecemill.errors import PlanError
from piecemill.machine import cores
from piecemill.plans import checked, option


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ActionsPlan:
    """How sequences of items become a vocabulary."""

    vocab_size: int = 40_000
    "Entries in the vocabulary: padding, the features of all items, and one for each merge."

    counts: Literal["published", "current"] = "published"
    "Weight of a pair that vanishes from a sequence: stays (as in published vocabularies), or goes (the paper's text)."

    arithmetic: Literal["exact", "float64"] = "exact"
    "Whole numbers and ties to the smallest pair, or float64 in the published order, to reproduce a published file."

    min_pair_weight: float = 0.0
    "Pairs of less weight are never queued, which saves memory; training ends when only such are left."

    threads: int | None = None
    "Threads that count pairs at the start; default: one per core. The result does not depend on it."

    def __post_init__(self) -> None:
        for name, choices in (("counts", ("published", "current")), ("arithmetic", ("exact", "float64"))):
            if getattr(self, name) not in choices:
                raise PlanError(f"{option(name, getattr(self, name))}: expected {' or '.join(choices)}.")
        if self.arithmetic == "float64" and self.counts == "current":
            raise PlanError(
                f"{option('arithmetic', 'float64')} reproduces published files, and those have "
                f"{option('counts', 'published')}. Use one of both without the other."
            )
        for number, lowest, highest in (("vocab_size", 2, 2**31), ("threads", 1, 1024)):
            value = getattr(self, number)
            if value is None and number == "threads":
                continue
            if type(value) is not int or not lowest <= value <= highest:
                raise PlanError(f"{option(number, value)}: expected a whole number from {lowest} to {highest:,}.")
        weight = self.min_pair_weight
        if not isinstance(weight, int | float) or not math.isfinite(weight) or weight < 0:
            raise PlanError(f"{option('min_pair_weight', weight)}: expected a number of 0 or more.")

    @property
    def workers(self) -> int:
        """`threads`, or as many as there are cores this process may use."""
        return self.threads or cores()
