"""The end of a run: sum all entries, write the manifests and stats.json, which marks the folder as complete."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from piecemill.errors import ShardError
from piecemill.files import Place
from piecemill.preparing.selection import Splits
from piecemill.shards.folder import Stats, write_stats
from piecemill.shards.manifest import Entry, write_manifests
from piecemill.sources import Skipped, Source, Tally
from piecemill.sources.matching import Weight
from piecemill.sources.unchanged import numbered_files

EXAMPLES = 20
"Dropped duplicates that are listed by name; all are counted."


@dataclass(slots=True)
class Totals:
    """The sum of entries."""

    tally: Tally = field(default_factory=Tally)
    splits: dict[str, list[int]] = field(default_factory=dict)
    "Documents, tokens, bytes of text and shards of each split."
    groups: dict[str, list[int]] = field(default_factory=dict)
    "Documents and tokens of each weight group but 0."
    dropped: dict[str, list[int]] = field(default_factory=dict)
    "Documents and bytes dropped, by rule."
    examples: list[tuple[int, int, str]] = field(default_factory=list)
    "File number, place and kind of place of the first dropped duplicates."
    pieces: int = 0

    def add(self, entry: Entry) -> None:
        """Add an entry. Call it in corpus order."""
        self.pieces += 1
        self.tally += Tally(**{**entry.tally, "skipped": tuple(Skipped(*one) for one in entry.tally["skipped"])})
        for split, shard in entry.shards.items():
            _add(self.splits, split, [shard.documents, shard.tokens, shard.text_bytes, 1])
            for group, counts in shard.groups.items():
                _add(self.groups, group, list(counts))
        for rule, amounts in entry.dropped.items():
            _add(self.dropped, rule, list(amounts))
        self.examples += [(*one, entry.place) for one in entry.examples[: EXAMPLES - len(self.examples)]]

    def sum(self, which: int) -> int:
        """Over all splits: documents (0), tokens (1), bytes of text (2) or shards (3)."""
        return sum(counts[which] for counts in self.splits.values())


def _add(sums: dict[str, list[int]], key: str, counts: list[int]) -> None:
    sums[key] = [a + b for a, b in zip(sums.get(key, [0] * len(counts)), counts, strict=True)]


def finish(
    place: Place, source: Source, splits: Splits, groups: Sequence[Weight], vocab: int, verified: Stats
) -> Stats:
    """Write the manifest and counts of each split and stats.json, which marks the folder as complete; returns it."""
    totals, pieces, unfinished = Totals(), dict[int, int](), {task.index for task in source.tasks}
    for entry in write_manifests(place, splits.names, vocab):
        totals.add(entry)
        pieces[entry.task] = pieces.get(entry.task, 0) + 1
        if entry.last and pieces[entry.task] == entry.piece + 1:
            unfinished.discard(entry.task)
    if unfinished:  # a directory listing can be stale, as on NFS
        raise ShardError(
            f"{place.url}: all {len(source.tasks):,} tasks are done, but not all entries of task {min(unfinished):,} "
            "are listed. Run the same command again: it makes those that are really missing, and finishes the folder."
        )
    tally = source.found + totals.tally
    source.refuse_empty(tally)
    by_split = {}
    for name, share in zip(splits.names, splits.shares, strict=True):
        documents, tokens, text_bytes, _ = totals.splits.get(name, [0] * 4)
        by_split[name] = {
            "share": float(share),
            "documents": documents,
            "tokens": tokens,
            "text_bytes": text_bytes,
            "documents_share": documents / max(totals.sum(0), 1),
            "tokens_share": tokens / max(totals.sum(1), 1),
        }
    counted = [totals.groups.get(str(number), [0, 0]) for number in range(len(groups))]
    counted[0] = [totals.sum(which) - sum(each[which] for each in counted) for which in (0, 1)]
    files, shown = numbered_files(source), {"file": "{0}", "byte": "{0}@{1}", "row": "{0}[{1}]"}
    stats = {
        "documents": totals.sum(0),
        "tokens": totals.sum(1),
        "text_bytes": totals.sum(2),
        "shards": totals.sum(3),
        "splits": by_split,
        "groups": [{**one._asdict(), "documents": n, "tokens": t} for one, (n, t) in zip(groups, counted, strict=True)],
        "notes": list(source.notes),
        "dropped": {rule: {"documents": n, "bytes": size} for rule, (n, size) in sorted(totals.dropped.items())},
        "duplicate_examples": [shown[kind].format(files[file].path, place) for file, place, kind in totals.examples],
        "verified": verified,
        "left_out": {rule: count for rule, count in sorted(tally.left_out.items()) if count},
        "skipped": tally.skipped_count,
        "skipped_documents": [list(one) for one in tally.skipped],
        "source_bytes": tally.source_bytes,
    }
    write_stats(place, stats)
    return stats
