"""Exact deduplication across tasks and machines: of equal documents, the first in corpus order stays.

Tasks encode everything and save the hashes of each piece, sorted (`save_hashes`). When all are done, a first wave reads
one range of hashes of all pieces and writes down which documents are later copies (`find_copies`); a second wave
rewrites the shards of the pieces that have some (`drop_copies`). Each function depends only on what is in the folder,
so doing it twice, anywhere, writes the same bytes.

    entries/000012-0003.hashes   4096 sections, one for each first 12 bits of a hash: the distinct hashes in order, each
                                 with the first document that has it (u8 high, u8 low, u4 document); then the documents
                                 that an earlier one of the piece equals: u4; then the split of each document: u2
    entries/0000-0256.copies     of hashes with these first bits, a section for each piece: the numbers in the piece of
                                 its later copies, rising: u4

Both begin with a table of where each section starts and its xxh3, and are read with `_read`, which compares that.

Start with `drop_later_copies`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from piecemill._core import HASH_ITEM_BYTES, HASH_PREFIX_BITS, hash_documents, later_copies, sort_hashes
from piecemill.cancelling import check, threads
from piecemill.errors import ShardError
from piecemill.executors import Executor
from piecemill.files import Place, unique
from piecemill.preparing.finish import EXAMPLES
from piecemill.shards.format import RECORD
from piecemill.shards.manifest import ENTRIES, Entry, ShardEntry, parse_entry, piece_name
from piecemill.shards.writer import rewrite_shard

_PREFIXES = 1 << HASH_PREFIX_BITS
_TABLE_ITEM = 16
_COPIES, _SIDES = _PREFIXES, _PREFIXES + 1
"Sections of a `.hashes` file behind those of prefixes."
_HASH_MEMORY = 32
"Bytes that a hash of a range takes: 20 as it is read, 4 if it is a copy, and some tolerance."
_FEW_HASHES, _RANGES = 1 << 18, 64
"A range of fewer hashes is not worth a task; more ranges than this are made only if they do not fit into memory."
_AT_ONCE = 16
"Runs are read with so many requests underway: an object store answers each after tens of milliseconds."


class HashRange(NamedTuple):
    """Hashes whose first bits are from `first` to before `stop`."""

    first: int
    stop: int

    @property
    def name(self) -> str:
        """The file that says which documents with such a hash are later copies."""
        return f"{self.first:04}-{self.stop:04}.copies"


def save_hashes(place: Place, piece: str, hashes: NDArray[np.uint64], sides: NDArray[np.int32]) -> dict[str, int]:
    """Write the hashes (low, high) of a piece's documents, in their order, and the number of the split of each."""
    starts, run, copies = sort_hashes(hashes)
    ends = [*(starts[1:].astype(np.int64) * HASH_ITEM_BYTES).tolist(), len(run) + copies.nbytes]
    data = np.concatenate([run, copies.view(np.uint8), sides.astype("<u2").view(np.uint8)])
    _write(place, f"{piece}.hashes", data, np.array([*ends, len(data)], np.int64))
    return {"documents": len(hashes), "copies": len(copies)}


def drop_later_copies(
    place: Place, entries: Iterable[Entry], splits: Sequence[str], executor: Executor, memory: int, *, dtype: str
) -> int:
    """Replace the shards and the entry of every piece that holds later copies; returns how many pieces do.

    `entries` has one entry per piece, in corpus order. `memory` is what one call of a function may hold; `dtype` the
    type of token ids.
    """
    names = place.sizes(ENTRIES)
    saved = {piece_name(entry.task, entry.piece): _saved(place, entry, names) for entry in entries}
    pieces, copies = list(saved), np.array([copies for _, copies in saved.values()], np.int64)
    ranges = choose_ranges(sum(documents for documents, _ in saved.values()), memory)
    find = partial(find_copies, place=place, pieces=pieces)
    _run_all(executor.map(find, [one for one in ranges if one.name not in names]))
    for one in ranges:
        copies += np.diff(_table(place, one.name, 0, len(pieces))[:, 0]) // 4
    affected = np.flatnonzero(copies).tolist()
    drop = partial(drop_copies, place=place, pieces=pieces, ranges=ranges, splits=splits, dtype=dtype)
    _run_all(executor.map(drop, [number for number in affected if f"{pieces[number]}.unique.json" not in names]))
    return len(affected)


def _run_all(results: Iterator[tuple[Any, int]]) -> None:
    with closing(results):  # type: ignore[type-var]
        for _ in results:
            pass


def _saved(place: Place, entry: Entry, names: Mapping[str, int]) -> tuple[int, int]:
    """Documents of a piece, and copies among them; ShardError if its hashes are not there."""
    piece, counts = piece_name(entry.task, entry.piece), entry.hashes or {"documents": 0, "copies": 0}
    documents, copies, found = counts["documents"], counts["copies"], names.get(f"{piece}.hashes", 0)
    expected = _TABLE_ITEM * (_SIDES + 2) + HASH_ITEM_BYTES * (documents - copies) + 4 * copies + 2 * documents
    if found != expected:
        raise _changed(place, f"{piece}.hashes", f"{found:,} bytes; expected {expected:,}.")
    return documents, copies


def choose_ranges(hashes: int, memory: int) -> list[HashRange]:
    """Ranges of equal width, each of which fits into `memory`.

    They have about the same number of hashes, which are spread evenly: a piece has each of them once.

    >>> len(choose_ranges(100_000, 2**20)), len(choose_ranges(100_000, 2**30))
    (4, 1)
    """
    wanted = max(-(-hashes * _HASH_MEMORY // memory), min(hashes // _FEW_HASHES, _RANGES), 1)
    width = max(1, _PREFIXES >> (wanted - 1).bit_length())
    return [HashRange(first, first + width) for first in range(0, _PREFIXES, width)]


def find_copies(hashes: HashRange, place: Place, pieces: Sequence[str]) -> int:
    """The first wave: write down the documents of each piece whose hash, in this range, an earlier piece has."""
    runs = []
    with threads(_AT_ONCE) as pool_map:
        for run in pool_map(partial(_read_run, hashes=hashes, place=place), pieces):
            check()
            runs.append(run)
    documents, starts = later_copies(runs)
    _write(place, hashes.name, documents.view(np.uint8), 4 * starts[1:])
    return len(documents)


def _read_run(piece: str, hashes: HashRange, place: Place) -> NDArray[np.uint8]:
    return _read(place, f"{piece}.hashes", "u1", hashes.first, hashes.stop)


def drop_copies(
    number: int, place: Place, pieces: Sequence[str], ranges: Sequence[HashRange], splits: Sequence[str], dtype: str
) -> int:
    """The second wave: write the shards of a piece without its later copies, then the entry that replaces the old."""
    name = f"{ENTRIES}/{pieces[number]}.json"
    old = parse_entry(place.read(name), name)
    saved = f"{pieces[number]}.hashes"
    sides, keep = _read(place, saved, "<u2", _SIDES), np.ones((old.hashes or {})["documents"], bool)
    keep[_read(place, saved, "<u4", _COPIES)] = False
    for one in ranges:
        keep[_read(place, one.name, "<u4", number)] = False
    new = replace(old, unique=True)
    records, shards = np.empty(len(keep), RECORD), dict[str, ShardEntry]()
    for side, split in enumerate(splits):
        check()
        if split in old.shards:
            rows = np.flatnonzero(sides == side)
            shard, records[rows] = rewrite_shard(place, split, old.shards[split], new.stem, keep[rows], dtype)
            shards |= {} if shard is None else {split: shard}
    gone = records[~keep]
    dropped = {**old.dropped, "duplicate": (len(gone), int(gone["bytes"].sum()))}
    examples = tuple((int(one["file"]), int(one["place"])) for one in gone[:EXAMPLES])
    new = replace(new, shards=shards, dropped=dropped, examples=examples)
    place.write(new.name, new.to_json())
    return len(gone)


def _write(place: Place, name: str, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
    """Write a file in entries/: a table of (where the section starts, its xxh3), and the sections of `data`."""
    table = np.zeros((len(ends) + 1, 2), "<u8")
    table[:, 0] = _TABLE_ITEM * len(table) + np.concatenate([np.zeros(1, np.int64), ends])
    table[:-1, 1] = hash_documents(data, ends)[:, 0]
    path = place.scratch() / unique(name)
    try:
        with open(path, "xb") as file:
            file.write(table.data)
            file.write(data.data)
        place.publish(path, f"{ENTRIES}/{name}")
    finally:
        path.unlink(missing_ok=True)


def _table(place: Place, name: str, first: int, stop: int) -> NDArray[np.int64]:
    """Where sections `first` to before `stop` start and the last of them ends; and their xxh3."""
    table = np.frombuffer(place.read(f"{ENTRIES}/{name}", _TABLE_ITEM * first, _TABLE_ITEM * (stop + 1)), "<i8")
    if len(table) != 2 * (stop + 1 - first) or (np.diff(table[::2], prepend=0) < 0).any():
        raise _changed(place, name)
    return table.reshape(-1, 2)


def _read(place: Place, name: str, dtype: DTypeLike, first: int, stop: int | None = None) -> NDArray[Any]:
    """The items in sections `first` to before `stop` of a file in entries/; without `stop`, in one section."""
    table = _table(place, name, first, first + 1 if stop is None else stop)
    start, *ends = table[:, 0].tolist()
    data = np.frombuffer(place.read(f"{ENTRIES}/{name}", start, ends[-1]), np.uint8)
    if len(data) != ends[-1] - start:
        raise _changed(place, name)
    if (hash_documents(data, np.array(ends) - start)[:, 0] != table[:-1, 1].view("<u8")).any():
        raise _changed(place, name)
    return data.view(dtype)


def _changed(place: Place, name: str, how: str = "was changed after it was written.") -> ShardError:
    return ShardError(
        f"{place.url}/{ENTRIES}/{name}: {how} Delete {ENTRIES}/{name.partition('.')[0]}* and run the same "
        "`piecemill prepare` again, which makes it again."
    )
