"""The end of a run: entries in corpus order become manifests and statistics, and what nobody needs any more goes."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from piecemill.files import Place, unique
from piecemill.preparing.folder import Folder, source_files
from piecemill.preparing.splits import Splits
from piecemill.shards import manifest
from piecemill.shards.folder import write_stats
from piecemill.shards.manifest import ENTRIES, Entry, entry_files, newest_entries, parse_entry
from piecemill.sources import Skipped, Source, Tally

EXAMPLES = 20
"So many dropped duplicates are named; all are counted."


@dataclass(slots=True)
class Totals:
    """The sum of entries."""

    tally: Tally = field(default_factory=Tally)
    splits: dict[str, list[int]] = field(default_factory=dict)
    "Documents, tokens, bytes of text and shards of each split."
    dropped: dict[str, list[int]] = field(default_factory=dict)
    "Documents and bytes dropped, by rule."
    examples: list[tuple[int, int, str]] = field(default_factory=list)
    "File number, place and kind of place of the first dropped duplicates."
    pieces: int = 0

    def add(self, entry: Entry) -> None:
        """Take an entry into account; in corpus order."""
        self.pieces += 1
        self.tally += Tally(**{**entry.tally, "skipped": tuple(Skipped(*one) for one in entry.tally["skipped"])})
        for split, shard in entry.shards.items():
            _add(self.splits, split, [shard.documents, shard.tokens, shard.text_bytes, 1])
        for rule, counts in entry.dropped.items():
            _add(self.dropped, rule, list(counts))
        self.examples += [(*one, entry.place) for one in entry.examples[: EXAMPLES - len(self.examples)]]

    @property
    def documents(self) -> int:
        """Documents of all splits."""
        return sum(counts[0] for counts in self.splits.values())

    @property
    def tokens(self) -> int:
        """Tokens of all splits."""
        return sum(counts[1] for counts in self.splits.values())


def _add(sums: dict[str, list[int]], key: str, counts: list[int]) -> None:
    sums[key] = [a + b for a, b in zip(sums.get(key, [0] * len(counts)), counts, strict=True)]


def finish(place: Place, source: Source, splits: Splits, more: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest of each split and stats.json, which makes the folder complete; gives what is in it."""
    totals = Totals()
    paths = {split: place.scratch() / unique(f"{split}.{manifest.NAME}") for split in splits.names}
    with ExitStack() as stack:
        files = {split: stack.enter_context(open(path, "x", encoding="ascii")) for split, path in paths.items()}
        for entry in newest_entries(place):
            for split, shard in entry.shards.items():
                files[split].write(shard.line(totals.splits.get(split, [0] * 4)[3]))
            totals.add(entry)
    tally = source.found + totals.tally
    source.refuse_empty(tally)
    for split, path in paths.items():
        place.publish(path, f"{split}/{manifest.NAME}")
    stats = {**_stats(totals, tally, source, splits), **more}
    write_stats(place, stats)
    return stats


def clean_up(place: Place, folder: Folder) -> None:
    """Delete what only an unfinished folder needs: shards that were replaced, hashes of documents, scratch files."""
    names = place.sizes(ENTRIES)
    for task, piece, replaces, _ in entry_files(names):
        if replaces:
            base = manifest.entry_name(task, piece)
            for split, shard in parse_entry(place.read(base), base).shards.items():
                for file in shard.files.values():
                    place.delete(f"{split}/{file.name}")
    for name in names:
        if not name.endswith(".json"):
            place.delete(f"{ENTRIES}/{name}")
    folder.clear_scratch()


def _stats(totals: Totals, tally: Tally, source: Source, splits: Splits) -> dict[str, Any]:
    documents, tokens = totals.documents, totals.tokens
    by_split = {}
    for name, share in zip(splits.names, splits.shares, strict=True):
        counts = totals.splits.get(name, [0] * 4)
        by_split[name] = {
            "share": float(share),
            "documents": counts[0],
            "tokens": counts[1],
            "text_bytes": counts[2],
            "documents_share": counts[0] / max(documents, 1),
            "tokens_share": counts[1] / max(tokens, 1),
        }
    files = source_files(source)
    shown = {"file": "{0}", "byte": "{0}@{1}", "row": "{0}[{1}]"}
    return {
        "documents": documents,
        "tokens": tokens,
        "text_bytes": sum(counts[2] for counts in totals.splits.values()),
        "shards": sum(counts[3] for counts in totals.splits.values()),
        "splits": by_split,
        "dropped": {rule: {"documents": n, "bytes": size} for rule, (n, size) in sorted(totals.dropped.items())},
        "duplicate_examples": [shown[kind].format(files[file].path, place) for file, place, kind in totals.examples],
        "left_out": {rule: count for rule, count in sorted(tally.left_out.items()) if count},
        "skipped": tally.skipped_count,
        "skipped_documents": [list(one) for one in tally.skipped],
        "source_bytes": tally.source_bytes,
    }
