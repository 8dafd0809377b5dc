"""Commit: encoded blocks -> shards and journal, and back from the journal after a stop.

A block is committed by appending it to the part files of its splits and then one line to the journal. The line says
where every split stands, so whatever is on disk behind the last line that holds is undone, and the run goes on as
if it had never been. `Totals` is the sum of the lines, whether they were written now or by an earlier run.

Start with `Commits.open`.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import ShardError
from piecemill.preparing.journal import Journal, Line, read
from piecemill.preparing.pipeline import Clock, Encoded, TaskEnd
from piecemill.shards import ShardWriter
from piecemill.shards.folder import JOURNAL
from piecemill.shards.format import HEADER_BYTES, RECORD, file_name, part_name
from piecemill.sources import BlockId, Skipped, Tally

# A power loss costs the work of about so long; a sync costs about as much as the data takes to be written.
_SYNC_SECONDS = 1.0
_RECORDS = 1 << 16


@dataclass(slots=True)
class Totals:
    """What was committed."""

    tally: Tally = field(default_factory=Tally)
    splits: dict[str, list[int]] = field(default_factory=dict)
    "Documents, tokens and bytes of text of each split."
    dropped: dict[str, list[int]] = field(default_factory=dict)
    "Documents and bytes dropped, by rule."
    examples: list[str] = field(default_factory=list)
    last: BlockId | None = None
    "The block that was committed last."
    ended: int = -1
    "The task that ended last."
    contents: dict[int, str] = field(default_factory=dict)
    "Hashes of the committed blocks of the task that is not at its end."
    blocks: int = 0

    def add(self, record: dict[str, Any]) -> None:
        """Take a line of the journal into account."""
        if "end" in record:
            self.ended, self.contents = record["end"], {}
            return
        self.last = BlockId(*record["block"])
        self.blocks += 1
        self.contents[self.last.block] = record["content"]
        tally = dict(record["tally"])
        tally["skipped"] = tuple(Skipped(*one) for one in tally["skipped"])
        self.tally += Tally(**tally)
        for split, counts in record["added"].items():
            self.splits[split] = [a + b for a, b in zip(self.splits.get(split, (0, 0, 0)), counts, strict=True)]
        for rule, counts in record["dropped"].items():
            self.dropped[rule] = [a + b for a, b in zip(self.dropped.get(rule, (0, 0)), counts, strict=True)]
        self.examples += record["examples"]

    @property
    def tokens(self) -> int:
        """Tokens of all splits."""
        return sum(counts[1] for counts in self.splits.values())

    @property
    def documents(self) -> int:
        """Documents of all splits: those that were kept."""
        return sum(counts[0] for counts in self.splits.values())


class Commits:
    """The writers of all splits, and the journal."""

    def __init__(self, writers: dict[str, ShardWriter], journal: Journal, totals: Totals, clock: Clock) -> None:
        self._writers, self._journal, self.totals, self._clock = writers, journal, totals, clock
        self._synced = time.monotonic()

    @classmethod
    def open(
        cls, folder: Path, splits: tuple[str, ...], *, dtype: np.dtype[Any], shard_tokens: int, clock: Clock
    ) -> "Commits":
        """Stand where the last line of the journal that the files hold stands; at the start if there is none."""
        lines = list(read(folder / JOURNAL))
        writers: dict[str, ShardWriter] | None = None
        while writers is None:
            states = _last_states(lines, splits)
            try:
                writers = {}
                for split in splits:
                    writers[split] = ShardWriter.resume(
                        folder / split, states[split], dtype=dtype, shard_tokens=shard_tokens
                    )
            except ShardError:
                if not _drop_block(lines):
                    raise
                for writer in (writers or {}).values():
                    writer.close()
                writers = None
        totals = Totals(splits={split: [0, 0, 0] for split in splits})
        for line in lines:
            totals.add(line.record)
        return cls(writers, Journal(folder / JOURNAL, lines[-1].end if lines else 0), totals, clock)

    def commit(self, item: Encoded | TaskEnd) -> None:
        """Append one block to its splits, then say so in the journal."""
        started = time.perf_counter()
        if isinstance(item, TaskEnd):
            record: dict[str, Any] = {"end": item.task}
        else:
            record = self._append(item)
        self._journal.write(record)
        self.totals.add(record)
        started = self._clock.add("write", started)
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            self.sync()
            self._clock.add("sync", started)

    def _append(self, block: Encoded) -> dict[str, Any]:
        added = {}
        for (split, writer), part in zip(self._writers.items(), block.parts, strict=True):
            if len(part.ends):
                writer.append(part.ids, part.ends, part.records)
                added[split] = [len(part.ends), len(part.ids), int(part.records["bytes"].sum())]
        selected = block.selected
        tally = selected.tally
        return {
            "block": list(selected.id),
            "content": selected.content,
            "states": {split: writer.state() for split, writer in self._writers.items()},
            "added": added,
            "dropped": {rule: list(counts) for rule, counts in selected.dropped.items()},
            "examples": list(selected.examples),
            "tally": {
                "documents": tally.documents,
                "text_bytes": tally.text_bytes,
                "source_bytes": tally.source_bytes,
                "left_out": dict(tally.left_out),
                "skipped_count": tally.skipped_count,
                "skipped": [list(one) for one in tally.skipped],
            },
        }

    def sync(self) -> None:
        """From here on a power loss takes nothing of what was committed."""
        for writer in self._writers.values():
            writer.sync()
        self._journal.sync()
        self._synced = time.monotonic()

    def finish(self) -> None:
        """Every block is committed: finish the last shards."""
        started = time.perf_counter()
        self._journal.sync()
        for writer in self._writers.values():
            writer.finish()
        self._journal.close()
        self._clock.add("sync", started)

    def close(self) -> None:
        """Let go of the files, for a later run to take up."""
        for writer in self._writers.values():
            writer.close()
        self._journal.close()


def kept_hashes(folder: Path, splits: tuple[str, ...], commits: Commits) -> Iterator[NDArray[np.uint64]]:
    """The hashes of all documents that an earlier run kept, some at a time."""
    for split in splits:
        state = commits._writers[split].state()
        for shard in range(state["shard"] + bool(state["documents"])):
            open_part = shard == state["shard"]
            name = part_name(shard, "documents") if open_part else file_name(shard, "documents")
            with open(folder / split / name, "rb") as file:
                file.seek(HEADER_BYTES["documents"])
                while len(records := np.fromfile(file, RECORD, _RECORDS)):
                    yield np.stack([records["hash_low"], records["hash_high"]], axis=1)


def _last_states(lines: list[Line], splits: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    for line in reversed(lines):
        if "states" in line.record:
            states: dict[str, dict[str, Any]] = line.record["states"]
            return states
    return {split: {"shard": 0, "documents": 0, "tokens": 0, "text_bytes": 0, "files": {}} for split in splits}


def _drop_block(lines: list[Line]) -> bool:
    """Forget the last block, and all that came after it; whether there was one."""
    while lines:
        if "block" in lines.pop().record:
            return True
    return False
