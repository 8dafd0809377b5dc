"""The job: all that a task needs to be prepared, on this machine or another."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.files import Place
from piecemill.preparing.plan import PreparePlan
from piecemill.preparing.selection import Splits
from piecemill.sources import Reading


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Job:
    """What is the same for all tasks of a run. Can be pickled: no locks, threads, callbacks or open files."""

    plan: PreparePlan
    out: Place
    reading: Reading
    splits: Splits
    identity: str
    "Of the tokenizer in `out`."
    engine: str
    dtype: str
    bos: int | None
    eos: int | None
    cores: int
    "Cores for the tasks of one process; those that run at the same time share them."
    groups: NDArray[np.int32] | None
    "The weight group of each source file; None if all are in group 0."
    keys: NDArray[np.uint64] | None
    "A hash of what each source file belongs with, for `split_by=directory`."
    changed: NDArray[np.int64]
    "When each source file was last changed, in nanoseconds; -1 where that is not known."
    memory: Any = None
    "The object to read, of a source in memory: then the job stays in its process."
