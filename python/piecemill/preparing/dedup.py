"""Exact deduplication across tasks and machines: of equal documents, the first in corpus order stays.

Tasks encode every document and save the sorted hashes of each piece (`save_hashes`). When all tasks are done, pass 1
reads one range of hash values from all pieces and records which documents are later copies (`find_copies`); pass 2
rewrites the shards of the pieces that contain copies (`drop_copies`). Each function depends only on the files in the
folder, so it is idempotent: a retry on any machine writes the same bytes.

Both kinds of files have sections with checksums (`shards.sections`).

    entries/000012-0003.hashes   4096 sections, one for each first 12 bits of a hash: the distinct hashes in order, each
                                 with the first document that has it (u8 high, u8 low, u4 document); then the documents
                                 that an earlier one of the piece equals: u4; then the split of each document: u2
    entries/0000-0256.copies     of hashes with these first bits, a section for each piece: the numbers in the piece of
                                 its later copies, rising: u4

Start with `drop_later_copies`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from piecemill._core import HASH_ITEM_BYTES, HASH_PREFIX_BITS, later_copies, sort_hashes
from piecemill.cancelling import check, threads
from piecemill.executors import Executor
from piecemill.files import Place
from piecemill.preparing.finish import EXAMPLES
from piecemill.shards.format import RECORD
from piecemill.shards.manifest import ENTRIES, Entry, ShardEntry, parse_entry, piece_name
from piecemill.shards.sections import changed, read_sections, section_sizes, sections_bytes, write_sections
from piecemill.shards.writer import rewrite_shard

_PREFIXES = 1 << HASH_PREFIX_BITS
_COPIES, _SIDES = _PREFIXES, _PREFIXES + 1
"Sections of a `.hashes` file behind those of prefixes."
_HASH_MEMORY = 32
"Memory per hash of a range, in bytes: 20 for the record, 4 if it is a copy, and a margin."
_FEW_HASHES, _RANGES = 1 << 18, 64
"Fewest hashes worth a task; and the most ranges, unless memory requires more."
_AT_ONCE = 16
"Concurrent read requests: an object store takes tens of milliseconds to answer each."


class HashRange(NamedTuple):
    """Hashes whose first bits are from `first` to before `stop`."""

    first: int
    stop: int

    @property
    def name(self) -> str:
        """The file that lists the later copies among documents with a hash in this range."""
        return f"{ENTRIES}/{self.first:04}-{self.stop:04}.copies"


def save_hashes(place: Place, piece: str, hashes: NDArray[np.uint64], sides: NDArray[np.int32]) -> dict[str, int]:
    """Write the hashes (low, high) of a piece's documents, in their order, and the number of the split of each."""
    starts, run, copies = sort_hashes(hashes)
    ends = [*(starts[1:].astype(np.int64) * HASH_ITEM_BYTES).tolist(), len(run) + copies.nbytes]
    data = np.concatenate([run, copies.view(np.uint8), sides.astype("<u2").view(np.uint8)])
    write_sections(place, _hashes(piece), data, np.array([*ends, len(data)], np.int64))
    return {"documents": len(hashes), "copies": len(copies)}


def _hashes(piece: str) -> str:
    return f"{ENTRIES}/{piece}.hashes"


def drop_later_copies(
    place: Place, entries: Iterable[Entry], splits: Sequence[str], executor: Executor, memory: int, *, vocab: int
) -> int:
    """Replace the shards and the entry of every piece that contains later copies; returns the number of such pieces.

    `entries` has one entry per piece, in corpus order. `memory` limits the bytes that one task holds.
    """
    names = {f"{ENTRIES}/{name}": size for name, size in place.sizes(ENTRIES).items()}
    saved = {piece_name(entry.task, entry.piece): _saved(place, entry, names) for entry in entries}
    pieces, copies = list(saved), np.array([copies for _, copies in saved.values()], np.int64)
    ranges = choose_ranges(sum(documents for documents, _ in saved.values()), memory)
    find = partial(find_copies, place=place, pieces=pieces)
    _run_all(executor.map(find, [one for one in ranges if one.name not in names]))
    for one in ranges:
        copies += section_sizes(place, one.name, len(pieces)) // 4
    affected = np.flatnonzero(copies).tolist()
    drop = partial(drop_copies, place=place, pieces=pieces, ranges=ranges, splits=splits, vocab=vocab)
    _run_all(
        executor.map(drop, [number for number in affected if f"{ENTRIES}/{pieces[number]}.unique.json" not in names])
    )
    return len(affected)


def _run_all(results: Iterator[tuple[Any, int]]) -> None:
    with closing(results):  # type: ignore[type-var]
        for _ in results:
            pass


def _saved(place: Place, entry: Entry, names: Mapping[str, int]) -> tuple[int, int]:
    """Number of documents of a piece, and of copies inside it; ShardError if its hashes are missing."""
    piece, counts = piece_name(entry.task, entry.piece), entry.hashes or {"documents": 0, "copies": 0}
    documents, copies, found = counts["documents"], counts["copies"], names.get(_hashes(piece), 0)
    expected = sections_bytes(_SIDES + 1, HASH_ITEM_BYTES * (documents - copies) + 4 * copies + 2 * documents)
    if found != expected:
        raise changed(place, _hashes(piece), f"{found:,} bytes; expected {expected:,}.")
    return documents, copies


def choose_ranges(hashes: int, memory: int) -> list[HashRange]:
    """Ranges of equal width, each of which fits into `memory`.

    Hash values are uniformly distributed, so the ranges contain about the same number of hashes.

    >>> len(choose_ranges(100_000, 2**20)), len(choose_ranges(100_000, 2**30))
    (4, 1)
    """
    wanted = max(-(-hashes * _HASH_MEMORY // memory), min(hashes // _FEW_HASHES, _RANGES), 1)
    width = max(1, _PREFIXES >> (wanted - 1).bit_length())
    return [HashRange(first, first + width) for first in range(0, _PREFIXES, width)]


def find_copies(hashes: HashRange, place: Place, pieces: Sequence[str]) -> int:
    """Pass 1: record the documents of each piece whose hash, in this range, occurs in an earlier piece."""
    runs = []
    with threads(_AT_ONCE) as pool_map:
        for run in pool_map(lambda piece: read_sections(place, _hashes(piece), *hashes), pieces):
            check()
            runs.append(run)
    documents, starts = later_copies(runs)
    write_sections(place, hashes.name, documents.view(np.uint8), 4 * starts[1:])
    return len(documents)


def drop_copies(
    number: int, place: Place, pieces: Sequence[str], ranges: Sequence[HashRange], splits: Sequence[str], vocab: int
) -> int:
    """Pass 2: write the shards of a piece without its later copies, then the entry that replaces the old one."""
    name = f"{ENTRIES}/{pieces[number]}.json"
    old = parse_entry(place.read(name), name, place.url)
    sides = read_sections(place, _hashes(pieces[number]), _SIDES, _SIDES + 1).view("<u2")
    keep = np.ones(len(sides), bool)
    keep[read_sections(place, _hashes(pieces[number]), _COPIES, _COPIES + 1).view("<u4")] = False
    for one in ranges:
        keep[read_sections(place, one.name, number, number + 1).view("<u4")] = False
    new = replace(old, unique=True)
    records, shards = np.empty(len(keep), RECORD), dict[str, ShardEntry]()
    for side, split in enumerate(splits):
        check()
        if split in old.shards:
            rows = np.flatnonzero(sides == side)
            shard, records[rows] = rewrite_shard(place, split, old.shards[split], new.stem, keep[rows], vocab)
            shards |= {} if shard is None else {split: shard}
    gone = records[~keep]
    dropped = {**old.dropped, "duplicate": (len(gone), int(gone["bytes"].sum()))}
    examples = tuple((int(one["file"]), int(one["place"])) for one in gone[:EXAMPLES])
    new = replace(new, shards=shards, dropped=dropped, examples=examples)
    place.write(new.name, new.to_json())
    return len(gone)
