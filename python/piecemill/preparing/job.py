"""The job: the arguments of `prepare_task` that are the same for all tasks of a run."""

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
    """The same for all tasks of a run. Picklable: no locks, threads, callbacks or open files."""

    plan: PreparePlan
    out: Place
    reading: Reading
    splits: Splits
    identity: str
    "Identity hash of the tokenizer in `out`."
    engine: str
    vocab_size: int
    bos: int | None
    eos: int | None
    cores: int
    "Cores that the running tasks of one process share."
    groups: NDArray[np.int32] | None
    "The weight group of each source file; None if all are in group 0."
    keys: NDArray[np.uint64] | None
    "A hash of the directory group of each source file, for `split_by=directory`."
    changed: NDArray[np.int64]
    "When each source file was last changed, in nanoseconds; -1 where that is not known."
    memory: Any = None
    "For a source in memory, the object to read; the job then cannot leave its process."
