"""Groups of documents whose words are counted apart: to balance merges over them, or to weigh their words.

A counter takes a tag for each document (`_core.WordCounter.add`). A tag stands for a group and a weight; tags are given
out while documents are read. At the end the counts are separated by group and multiplied by the weights.

Start with `Grouping`.
"""

import math
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import Learned, WordCounts, hash_documents, number_keys
from piecemill.errors import PlanError
from piecemill.plans import option
from piecemill.sources import Documents, Source
from piecemill.sources.matching import Weight, directory_groups, parse_grouping, weight_groups
from piecemill.training.alphabet import Narrowed

MOST_GROUPS = 1000
_MOST_TAGS = 2**16
_MOST_PARTS = 2**32
"The largest whole number that a weight may become."


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """How the group and the weight of a document are determined; the same for all tasks, and picklable."""

    by: str | None
    "`TrainPlan.balance`."
    directories: tuple[str, ...] | None
    "The group of each source file, where groups are directories."
    weights: NDArray[np.int32] | None
    "The number of the weight of each source file."
    values: Mapping[str, int] | None = None
    "The number of the weight of each value of the field, where weights are by a field."

    @classmethod
    def of(
        cls, source: Source, by: str | None, weights: Sequence[Weight], weight_by: str | None = None
    ) -> "Grouping | None":
        """None if neither groups nor weights are requested."""
        levels, field = parse_grouping(by, "balance")
        weight_levels, weight_field = parse_grouping(weight_by, "weight_by")
        if levels is None and field is None and len(weights) < 2:
            return None
        if not source.files and (levels is not None or (len(weights) > 1 and weight_field is None)):
            raise PlanError("weight and balance directory go by the paths of files, and this source has none.")
        for name, wanted in (("balance", field), ("weight_by", weight_field)):
            if wanted is not None and source.reading.group != wanted:
                raise PlanError(f"{option(name, wanted)}: this source was opened without group={wanted!r}.")
        directories = None if levels is None else tuple(directory_groups(source.files, levels))
        if weight_by is None:
            return cls(by, directories, weight_groups(weights, source.files))
        # Of a value that is given twice, the first weight counts.
        values = {str(weight.pattern): number for number, weight in reversed([*enumerate(weights)][1:])}
        if weight_levels is None:
            return cls(by, directories, None, values)
        folders = directory_groups(source.files, weight_levels)
        _check_values(values, set(folders), f"no file is in this group of {option('weight_by', weight_by)}")
        return cls(by, directories, np.array([values.get(name, 0) for name in folders], np.int32))


class Tags:
    """The groups and weights that documents had so far, each pair with a tag. Many threads may ask at once."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._directories = sorted(set(grouping.directories or ()))
        number = {name: at for at, name in enumerate(self._directories)}
        self._files = np.array([number[name] for name in grouping.directories or ()], np.int64)
        self._values = {key: at for value, at in (grouping.values or {}).items() for key in _keys_of(value)}
        self._lock = threading.Lock()
        self.documents: dict[tuple[str, int], int] = {}
        "Documents of each group and weight, in the order of the tags."

    def of(self, block: Documents) -> NDArray[np.uint16]:
        """The tag of each document."""
        names, groups = self._groups(block)
        weights = self._weights(block)
        stride = int(np.max(weights, initial=0)) + 1
        found, which, counts = np.unique(groups * stride + weights, return_inverse=True, return_counts=True)
        pairs = [(names[int(one) // stride], int(one) % stride) for one in found]
        return self.add_documents(dict(zip(pairs, counts.tolist(), strict=True)))[which]

    def add_documents(self, documents: Mapping[tuple[str, int], int]) -> NDArray[np.uint16]:
        """Add documents of groups and weights; returns the tag of each."""
        with self._lock:
            for pair, count in documents.items():
                self.documents[pair] = self.documents.get(pair, 0) + count
            if len(self.names) > MOST_GROUPS or len(self.documents) > _MOST_TAGS:
                raise PlanError(
                    f"{option('balance', self._grouping.by)}: more than {MOST_GROUPS:,} groups, such as "
                    f"{', '.join(map(repr, self.names[:3]))}. Expected a field or folders with few different values, "
                    "such as languages."
                )
            tags = {pair: tag for tag, pair in enumerate(self.documents)}
            return np.array([tags[pair] for pair in documents], np.uint16)

    def _weights(self, block: Documents) -> NDArray[np.int64] | int:
        """The number of the weight of each document."""
        if self._grouping.weights is not None:
            return self._grouping.weights[block.files].astype(np.int64)
        if not self._values or block.keys is None:
            return 0
        keys, which = np.unique(block.keys, return_inverse=True)
        return np.array([self._values.get(key, 0) for key in keys.tolist()], np.int64)[which]

    def _groups(self, block: Documents) -> tuple[Sequence[str], NDArray[np.int64]]:
        """Names of groups, and which of them each document is of."""
        if self._grouping.directories is not None:
            return self._directories, self._files[block.files]
        if self._grouping.by is None or block.keys is None or not len(block):
            return [""], np.zeros(len(block), np.int64)
        keys, which = np.unique(block.keys, return_inverse=True)
        return [block.names.get(int(key), f"#{int(key):016x}") for key in keys], which.astype(np.int64)

    @property
    def names(self) -> list[str]:
        """The groups, sorted: their order does not depend on who read what first."""
        return sorted({name for name, _ in self.documents})

    def documents_of(self, name: str) -> int:
        """How many documents a group has."""
        return sum(count for (group, _), count in self.documents.items() if group == name)

    def by_group(self, counts: WordCounts, parts: Sequence[int]) -> list[WordCounts]:
        """The words of each group, in the order of `names`; `parts` has the multiplier of each weight."""
        found = {weight for _, weight in self.documents}
        values = self._grouping.values or {}
        seen = {value for value, weight in values.items() if weight in found}
        _check_values(values, seen, f"no document has this value of {option('weight_by')}")
        number = {name: at for at, name in enumerate(self.names)}
        groups = counts.by_group([(number[name], parts[weight]) for name, weight in self.documents], len(number))
        if not any(map(len, groups)):
            raise PlanError(f"{option('weight')}: every document has weight 0, so there is no word to train on.")
        return groups


def _keys_of(value: str) -> list[int]:
    """The hashes of a field with this value: as text, and as a number if it is one."""
    data = np.frombuffer(value.encode("utf-8", "surrogateescape"), np.uint8)
    keys = [int(hash_documents(data, np.array([len(data)], np.int64))[0, 0])]
    with suppress(ValueError):
        keys += number_keys(np.array([float(value)])).tolist()
    return keys


def _check_values(asked: Iterable[str], found: Collection[str], problem: str) -> None:
    if missing := next((value for value in asked if value not in found), None):
        raise PlanError(f"{option('weight', missing)}: {problem}. Expected a value that occurs, such as 'de=2'.")


def in_parts(weights: Sequence[Weight]) -> tuple[list[int], int]:
    """Whole numbers in the ratio of the weights, exactly; and the one that stands for a weight of 1.

    >>> in_parts([Weight(None, 1), Weight("src/**", 2.5), Weight("docs/**", 0.2)])
    ([10, 25, 2], 10)
    """
    exact = [Fraction(str(weight.weight)) for weight in weights]
    one = math.lcm(*(weight.denominator for weight in exact))
    parts = [int(weight * one) for weight in exact]
    if max(*parts, one) > _MOST_PARTS:
        finest = max(exact, key=lambda weight: (weight.denominator, weight))
        raise PlanError(f"weight {float(finest)}: too large or too fine to count with. Give rounder numbers.")
    return parts, one


def check_parallel(training: Tags, measured: Tags, where: str) -> None:
    """PlanError unless the development set `where` has each group of the training text, with as many documents."""
    place = option("balance_on", where)
    for these, those, what in ((training, measured, "has no documents of"), (measured, training, "has")):
        if missing := sorted(set(these.names) - set(those.names)):
            raise PlanError(
                f"{place}: {what} the group {missing[0]!r}; its groups are {_shown(measured.names)}, those of the "
                f"training text {_shown(training.names)}. Expected the same groups in both."
            )
    sizes = {name: measured.documents_of(name) for name in measured.names}
    least, most = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    if sizes[least] != sizes[most]:
        raise PlanError(
            f"{place}: {sizes[least]:,} documents of {least!r} but {sizes[most]:,} of {most!r}. Expected the same "
            f"texts in every group: their tokens are compared. Without {option('balance_on')}, bytes per token are."
        )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")


def group_records(tags: Tags, learned: Learned | Narrowed, one: int) -> list[Mapping[str, Any]]:
    """What training.json says of each group, worst compressed first; `one` is what a weight of 1 was counted as."""
    names = tags.names
    measured = learned.groups[len(names) :]
    records = []
    for at, name in enumerate(names):
        size, tokens = learned.groups[at]
        record = {"group": name, "documents": tags.documents_of(name), "bytes": size // one, "tokens": tokens // one}
        record["bytes_per_token"] = round(size / tokens, 4) if tokens else 0.0
        if measured:
            record["tokens_measured"] = measured[at][1]
        records.append(record)
    return sorted(records, key=lambda record: (-record.get("tokens_measured", 0), record["bytes_per_token"]))
