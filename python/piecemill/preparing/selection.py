"""Selection: which documents of a block go on, and to which split.

One thread sees the blocks in the order of the corpus: which of two copies came first must not depend on who was
faster. It hashes, drops what the plan drops, and assigns splits and groups.

Start with `Selection`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import SeenDocuments, gather_documents, hash_documents
from piecemill.errors import PlanError
from piecemill.preparing.groups import Weight, directory_keys, weight_groups
from piecemill.preparing.plan import PreparePlan
from piecemill.preparing.splits import Splits
from piecemill.files import hash_bytes
from piecemill.shards.format import RECORD
from piecemill.sources import BlockId, Documents, Source, Tally

EXAMPLES = 20
"So many dropped duplicates are named; all are counted."
_RULES = ("too_short", "too_long", "duplicate")


@dataclass(frozen=True, slots=True)
class Selected:
    """The documents of one block that go on, with all that is known of them but their tokens."""

    id: BlockId
    data: NDArray[np.uint8]
    ends: NDArray[np.int64]
    records: NDArray[np.void]
    sides: tuple[NDArray[np.int64], ...]
    "For each split, the numbers of its documents."
    tally: Tally
    content: str
    "A hash of all documents of the block, dropped or not: tells whether the block is still the same."
    dropped: dict[str, tuple[int, int]] = field(default_factory=dict)
    "Documents and bytes dropped, by rule."
    examples: tuple[str, ...] = ()
    "Names of dropped duplicates."
    name: str = ""
    "Where the largest document came from."
    heavy: int = 0
    "Memory that encoding an unusually large document takes."


class Selection:
    """Decides about blocks, which must come in the order of the corpus."""

    def __init__(
        self,
        plan: PreparePlan,
        splits: Splits,
        groups: Sequence[Weight],
        source: Source,
        *,
        most_seen: int,
        spill: Path,
    ) -> None:
        self._plan, self._splits = plan, splits
        self._least = plan.size("min_bytes")
        self._most = plan.size("max_bytes") if plan.max_bytes is not None else None
        if not source.files and (len(groups) > 1 or plan.directory_levels):
            raise PlanError("weight and split_by directory go by the paths of files, and this source has none.")
        self._groups = weight_groups(groups, source.files)
        self._keys = directory_keys(source.files, plan.directory_levels) if plan.directory_levels else None
        self._seen = SeenDocuments(most_seen, spill) if plan.dedup == "exact" else None
        self._named = 0

    def saw(self, hashes: NDArray[np.uint64]) -> None:
        """Documents that an earlier run kept."""
        if self._seen is not None:
            self._seen.admit(hashes)

    def named(self, count: int) -> None:
        """So many duplicates were named by an earlier run."""
        self._named = count

    def content(self, block: Documents) -> str:
        """The hash of a block's documents."""
        return _content(hash_documents(block.data, block.ends))

    def select(self, block: Documents) -> Selected:
        """Decide about one block."""
        hashes = hash_documents(block.data, block.ends)
        sizes = np.diff(block.ends, prepend=0)
        keep = np.ones(len(block), bool)
        dropped: dict[str, tuple[int, int]] = {}
        examples: list[str] = []

        def drop(rule: str, which: NDArray[np.bool_]) -> None:
            which &= keep
            if which.any():
                dropped[rule] = (int(which.sum()), int(sizes[which].sum()))
                keep[which] = False

        if self._least > 1:
            drop("too_short", sizes < self._least)
        if self._most is not None:
            drop("too_long", sizes > self._most)
        if self._seen is not None and keep.any():
            left = np.flatnonzero(keep)
            copies = np.zeros(len(block), bool)
            copies[left] = ~self._seen.admit(hashes if len(left) == len(hashes) else hashes[left])
            examples = [block.name(int(n)) for n in np.flatnonzero(copies)[: EXAMPLES - self._named]]
            self._named += len(examples)
            drop("duplicate", copies)
        chosen = np.flatnonzero(keep)
        data, ends = block.data, block.ends
        if len(chosen) < len(block):
            data, ends = gather_documents(data, ends, chosen)
        files = block.files[chosen]
        records = np.empty(len(chosen), RECORD)
        records["hash_low"], records["hash_high"] = hashes[chosen, 0], hashes[chosen, 1]
        records["bytes"], records["file"], records["place"] = sizes[chosen], files, block.places[chosen]
        records["group"] = self._groups[files]
        return Selected(
            block.id,
            data,
            ends,
            records,
            self._sides(records, files, None if block.keys is None else block.keys[chosen]),
            block.tally,
            _content(hashes),
            dropped,
            tuple(examples),
            block.name(int(chosen[sizes[chosen].argmax()])) if len(chosen) else "",
        )

    def _sides(
        self, records: NDArray[np.void], files: NDArray[np.int32], keys: NDArray[np.uint64] | None
    ) -> tuple[NDArray[np.int64], ...]:
        if self._keys is not None:
            keys = self._keys[files]
        low, high = (keys, None) if keys is not None else (records["hash_low"], records["hash_high"])
        side = self._splits.assign(low, high, self._plan.seed)
        return tuple(np.flatnonzero(side == number) for number in range(len(self._splits.names)))


def _content(hashes: NDArray[np.uint64]) -> str:
    return hash_bytes(hashes.tobytes())


def total_dropped(parts: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    """Documents and bytes dropped by each rule, over all blocks."""
    total = {rule: [0, 0] for rule in _RULES}
    for part in parts:
        for rule, (count, size) in part.items():
            total[rule][0] += count
            total[rule][1] += size
    return {rule: counts for rule, counts in total.items() if counts[0]}
