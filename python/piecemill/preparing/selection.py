"""Selection: which documents of a block are kept, in which split each belongs, and in which weight group.

Depends on the document, its file and the plan alone, so blocks can be selected anywhere and in any order. The split of
a document depends on its content and the seed (with `split_by`, on its group and the seed), so that all copies of a
text, and all documents of a group, are in one split. Copies are dropped later, by `dedup`, when all tasks are done.

Start with `select`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from piecemill._core import first_match, hash_documents
from piecemill.errors import PlanError
from piecemill.shards.format import RECORD
from piecemill.sources import Documents, File

if TYPE_CHECKING:
    from piecemill.preparing.job import Job

DROPPED = -1
_RESERVED = frozenset({"tokenizer", "entries"})
_WORD = 2**64


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
    least, most = job.plan.size("min_bytes"), job.plan.size("max_bytes") if job.plan.max_bytes else _WORD
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
                share = Fraction(number)
            except (ValueError, ZeroDivisionError):
                share = Fraction(-1)
            if share <= 0:
                raise PlanError(
                    f"splits={text!r}: {part.strip()!r} is not a name and a number above 0. "
                    "Expected something like train=85,val=10,test=5."
                )
            plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum() and name[0] not in "-_"
            if not plain or name in _RESERVED or name in names:
                raise PlanError(
                    f"splits={text!r}: {name!r} cannot be the name of a split. Expected different names of letters, "
                    f"digits, '-' and '_', other than {', '.join(sorted(_RESERVED))}: each becomes a folder."
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


class Weight(NamedTuple):
    """A sampling weight for the files that match a pattern; group 0, without one, is all that match no other."""

    pattern: str | None
    weight: float


def parse_weights(texts: Sequence[str]) -> tuple[Weight, ...]:
    """The groups from texts such as "src/**=2".

    >>> parse_weights(["src/**=2"])[1]
    Weight(pattern='src/**', weight=2.0)
    """
    groups = [Weight(None, 1.0)]
    for text in texts:
        pattern, _, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = -1.0
        if not pattern or not 0 <= weight < float("inf"):
            raise PlanError(f"weight={text!r}: expected a pattern and a number of 0 or more, such as 'src/**=2'.")
        groups.append(Weight(pattern, weight))
    return tuple(groups)


def weight_groups(groups: Sequence[Weight], files: Sequence[File]) -> NDArray[np.int32] | None:
    """The group of each file: the first pattern that matches it, or 0; None if there are no patterns."""
    patterns = [group.pattern for group in groups if group.pattern is not None]
    return first_match(patterns, [file.inside for file in files]) + np.int32(1) if patterns else None


def directory_keys(files: Sequence[File], levels: int) -> NDArray[np.uint64]:
    """A hash of each file's first `levels` folders under its source; a file that is in no folder stands for itself."""
    keys = []
    for file in files:
        folders = file.inside.split("/")[:-1]
        keys.append(("/".join(folders[:levels]) + "/" if folders else file.inside).encode("utf-8", "surrogateescape"))
    ends = np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)), dtype=np.int64)
    return np.ascontiguousarray(hash_documents(np.frombuffer(b"".join(keys), np.uint8), ends)[:, 0])
