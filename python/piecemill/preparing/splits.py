"""Splits: which side each document lands on.

A document's side depends on its content and the seed (or, with `split_by`, on its group and the seed), so that all
copies of a text, and all documents of a group, land on one side, whatever else is in the corpus.

Start with `Splits.parse`.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PlanError

EVERYTHING = "all"
"The one split of a corpus that is not split."
_RESERVED = frozenset({"tokenizer"})
_WORD = 2**64


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
        if text is None:
            return cls((EVERYTHING,), (Fraction(1),))
        names, numbers = [], []
        for part in text.split(","):
            name, equals, number = part.strip().partition("=")
            name = name.strip()
            try:
                share = Fraction(number.strip())
            except (ValueError, ZeroDivisionError):
                share = Fraction(-1)
            if not equals or share <= 0:
                raise PlanError(
                    f"splits={text!r}: {part.strip()!r} is not a name and a number above 0. "
                    "Expected something like train=85,val=10,test=5."
                )
            if not _is_folder_name(name) or name in names:
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
        return np.searchsorted(self._borders(), mixed, side="right").astype(np.int64)

    def _borders(self) -> NDArray[np.uint64]:
        done, borders = Fraction(0), []
        for share in self.shares[:-1]:
            done += share
            borders.append(int(done * _WORD))
        return np.array(borders, np.uint64)


def _is_folder_name(name: str) -> bool:
    plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return plain and name not in _RESERVED and name[0] not in "-_"


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each word mixed so that every bit depends on all (the finalizer of splitmix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = words ^ (words >> np.uint64(31))
    return mixed
