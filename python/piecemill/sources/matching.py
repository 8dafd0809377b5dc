"""Files by their names: weights for those that match a pattern, and keys for those that lie in one folder."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from piecemill._core import first_match, hash_documents
from piecemill.errors import PlanError
from piecemill.sources.tasks import File


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
