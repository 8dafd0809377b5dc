"""Groups: what the files of a document say about it: how often to sample it, and what it belongs with.

Both are decided per file, before anything is read. A pattern means here what it means for `include`.

Start with `weight_groups` and `directory_keys`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from piecemill._core import first_match, hash_documents
from piecemill.errors import PlanError
from piecemill.sources import File


@dataclass(frozen=True, slots=True)
class Weight:
    """A sampling weight for the files that match a pattern; None stands for all that match no other."""

    pattern: str | None
    weight: float


REST = Weight(None, 1.0)
"Group 0."


def parse_weights(texts: Sequence[str]) -> tuple[Weight, ...]:
    """The groups from texts such as "src/**=2"; group 0 is everything that matches none of them.

    >>> parse_weights(["src/**=2"])[1]
    Weight(pattern='src/**', weight=2.0)
    """
    groups = [REST]
    for text in texts:
        pattern, equals, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = -1.0
        if not equals or not pattern or not 0 <= weight < float("inf"):
            raise PlanError(f"weight={text!r}: expected a pattern and a number of 0 or more, such as 'src/**=2'.")
        groups.append(Weight(pattern, weight))
    return tuple(groups)


def weight_groups(groups: Sequence[Weight], files: Sequence[File]) -> NDArray[np.int32]:
    """The group of each file: the first pattern that matches it, or 0."""
    patterns = [group.pattern for group in groups if group.pattern is not None]
    if not patterns:
        return np.zeros(max(1, len(files)), np.int32)
    return first_match(patterns, [file.inside for file in files]) + np.int32(1)


def directory_keys(files: Sequence[File], levels: int) -> NDArray[np.uint64]:
    """A hash of each file's first `levels` folders under its source; a file that is in no folder stands for itself."""
    keys = []
    for file in files:
        folders = file.inside.split("/")[:-1]
        keys.append(("/".join(folders[:levels]) + "/" if folders else file.inside).encode("utf-8", "surrogateescape"))
    ends = np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)), dtype=np.int64)
    return np.ascontiguousarray(hash_documents(np.frombuffer(b"".join(keys), np.uint8), ends)[:, 0])
