"""Documents of integers -> merges over them.

The base vocabulary is the distinct integers of the corpus, which are only known when all of it was read; so the corpus
is held as arrays until then, 8 bytes for an integer, besides what merging takes.
"""

import threading

import numpy as np
from numpy.typing import NDArray

from piecemill import _core
from piecemill.errors import PlanError
from piecemill.integers import LIMIT
from piecemill.plans import option
from piecemill.sizes import plural
from piecemill.training.plan import TrainPlan


class IntegerCorpus:
    """The documents that were read."""

    def __init__(self) -> None:
        self._blocks: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._lock = threading.Lock()

    def add(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        """Take in documents as text; from any thread, in any order."""
        values, value_ends, _ = _core.read_integers(data, ends)  # the source has checked them
        with self._lock:
            self._blocks.append((values, value_ends))

    def ready(self, plan: TrainPlan) -> tuple[NDArray[np.int64], _core.FlatCorpus]:
        """The distinct integers in ascending order, and the corpus laid out for merging. The documents are used up."""
        values = np.unique(np.concatenate([np.unique(block) for block, _ in self._blocks]))
        special = len(plan.special_tokens)
        if len(values) > LIMIT:
            raise PlanError(
                f"{option('integers')}: the corpus has {len(values):,} different integers; expected at most {LIMIT:,}. "
                "Map rare ones to one value first."
            )
        if plan.vocab_size < special + len(values):
            raise PlanError(
                f"{option('vocab_size', plan.vocab_size)}: the {len(values):,} different integers of the corpus and "
                f"{plural(special, 'special token')} alone need {special + len(values):,}. Ask for more."
            )
        tokens = [b""] * special + [b"%d " % value for value in values.tolist()]
        limits = (plan.vocab_size, plan.min_frequency, plan.max_token_bytes, ())
        flat = _core.FlatCorpus(*limits, threads=plan.workers, start=(tokens, [], []))
        while self._blocks:
            block, ends = self._blocks.pop()
            flat.add_ids((np.searchsorted(values, block) + special).astype(np.uint32), ends)
        return values, flat
