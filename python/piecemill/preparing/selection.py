"""Selection: which documents of a block are kept, in which split each belongs, and in which weight group.

Depends on the document, its file and the plan alone, so blocks can be selected anywhere and in any order. The split of
a document depends on its content and the seed (with `split_by`, on its group and the seed), so that all copies of a
text, and all documents of a group, are in one split. Copies are dropped later, by `dedup`, when all tasks are done.

Start with `select`.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from piecemill._core import hash_documents
from piecemill.errors import PlanError
from piecemill.plans import option
from piecemill.shards.format import RECORD, RESERVED, is_split_name
from piecemill.sources import Documents

if TYPE_CHECKING:
    from piecemill.preparing.task import Job

DROPPED = -1
_WORD = 2**64
_LEAST = 1e-18  # the smallest number accepted as a share


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


def select(block: Documents, job: "Job") -> Selected:
    """Hash the documents of a block, drop those that the plan drops, and assign the others to splits."""
    hashes = hash_documents(block.data, block.ends)
    sizes = np.diff(block.ends, prepend=0)
    records = np.empty(len(block), RECORD)
    records["hash_low"], records["hash_high"] = hashes[:, 0], hashes[:, 1]
    records["bytes"], records["file"], records["place"] = sizes, block.files, block.places
    records["group"] = 0 if job.groups is None else job.groups[block.files]
    keys = block.keys if job.keys is None else job.keys[block.files]
    low, high = (keys, None) if keys is not None else (hashes[:, 0], hashes[:, 1])
    sides = job.splits.assign(low, high, job.plan.seed).astype(np.int32)
    dropped: dict[str, tuple[int, int]] = {}
    least, most = job.plan.size("min_bytes"), job.plan.size("max_bytes") if job.plan.max_bytes is not None else _WORD
    for rule, which in (("too_short", sizes < least), ("too_long", sizes > most)):
        if which.any():
            dropped[rule] = (int(which.sum()), int(sizes[which].sum()))
            sides[which] = DROPPED
    return Selected(hashes, sides, records, dropped)


@dataclass(frozen=True, slots=True)
class Splits:
    """Names and shares of the splits, in the order given."""

    names: tuple[str, ...]
    shares: tuple[Fraction, ...]

    @classmethod
    def parse(cls, text: str | None) -> "Splits":
        """From "train=85,val=10,test=5"; the numbers are relative to their sum. None is one split, `all`.

        >>> Splits.parse("train=9,val=1").shares
        (Fraction(9, 10), Fraction(1, 10))
        """
        if not isinstance(text, str | None):
            raise PlanError(f"splits={text!r:.60}: expected something like 'train=85,val=10,test=5'.")
        names, numbers = [], []
        for part in (text if text is not None else "all=1").split(","):
            name, _, number = (word.strip() for word in part.partition("="))
            try:
                size = float(number.partition("/")[0])  # first: Fraction('1e999999999') has a billion digits
                share = Fraction(number) if _LEAST <= size < 1 / _LEAST else Fraction(-1)
            except (ValueError, ZeroDivisionError):
                share = Fraction(-1)
            if share <= 0:
                raise PlanError(
                    f"{option('splits', text)}: {part.strip()!r} is not a name and a number above 0. "
                    "Expected something like train=85,val=10,test=5."
                )
            if not is_split_name(name) or name in names:
                raise PlanError(
                    f"{option('splits', text)}: {name!r} cannot be the name of a split. Expected different names of "
                    f"letters, digits, '-' and '_', other than {', '.join(sorted(RESERVED))}: each becomes a folder."
                )
            names.append(name)
            numbers.append(share)
        whole = sum(numbers, Fraction(0))
        return cls(tuple(names), tuple(number / whole for number in numbers))

    def assign(self, low: NDArray[np.uint64], high: NDArray[np.uint64] | None, seed: int) -> NDArray[np.int64]:
        """The number of each document's split, from a hash of its content or group (one or two words)."""
        if len(self.names) == 1:
            return np.zeros(len(low), np.int64)
        mixed = _mixed(low ^ _mixed(np.array([seed % _WORD], np.uint64)))
        if high is not None:
            mixed = _mixed(mixed ^ high)
        borders = [int(sum(self.shares[:number]) * _WORD) for number in range(1, len(self.shares))]
        return np.searchsorted(np.array(borders, np.uint64), mixed, side="right").astype(np.int64)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each word mixed so that every bit depends on all (the finalizer of splitmix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = words ^ (words >> np.uint64(31))
    return mixed
