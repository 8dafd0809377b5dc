"""Selection: which documents of a block are kept, and in which split each belongs.

Depends on the document, its file and the job alone, so blocks can be selected anywhere and in any order. Copies of
earlier documents are found later, by `dedup`, when all tasks are done.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from piecemill._core import hash_documents
from piecemill.preparing.job import Job
from piecemill.shards.format import RECORD
from piecemill.sources import Documents

DROPPED = -1


@dataclass(frozen=True, slots=True)
class Selected:
    """The decision about each document of a block."""

    hashes: NDArray[np.uint64]
    "xxh3-128 of each document: two words a row."
    sides: NDArray[np.int32]
    "The number of its split, or `DROPPED`."
    records: NDArray[np.void]
    dropped: dict[str, tuple[int, int]]
    "Documents and bytes dropped, by rule."


def select(block: Documents, job: Job) -> Selected:
    """Hash the documents of a block, drop those that the plan drops, and assign the others to splits."""
    hashes = hash_documents(block.data, block.ends)
    sizes = np.diff(block.ends, prepend=0)
    records = np.empty(len(block), RECORD)
    records["hash_low"], records["hash_high"] = hashes[:, 0], hashes[:, 1]
    records["bytes"], records["file"], records["place"] = sizes, block.files, block.places
    records["group"] = 0 if job.groups is None else job.groups[block.files]
    sides = _sides(block, hashes, job)
    dropped: dict[str, tuple[int, int]] = {}
    too_long = np.zeros(len(block), bool) if job.max_bytes is None else sizes > job.max_bytes
    for rule, which in (("too_short", sizes < job.min_bytes), ("too_long", too_long)):
        if which.any():
            dropped[rule] = (int(which.sum()), int(sizes[which].sum()))
            sides[which] = DROPPED
    return Selected(hashes, sides, records, dropped)


def _sides(block: Documents, hashes: NDArray[np.uint64], job: Job) -> NDArray[np.int32]:
    keys = block.keys if job.keys is None else job.keys[block.files]
    low, high = (keys, None) if keys is not None else (hashes[:, 0], hashes[:, 1])
    return job.splits.assign(low, high, job.seed).astype(np.int32)
