"""Entries and manifests: which shards are complete, and their content.

An entry is a small file about one piece of a task: `entries/000012-0003.json` is piece 3 of task 12. It is written
after its shards, so an entry means that they are complete. The manifest of a split, written when all pieces are done,
has a line per shard in corpus order. Removing duplicates replaces an entry by `entries/000012-0003.unique.json`.

Start with `Entry`, `newest_entries` and `parse_manifest`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import groupby, islice
from typing import Any

from piecemill.cancelling import threads
from piecemill.errors import ShardError
from piecemill.files import Place, can_write, clear_scratch, hash_bytes, unique
from piecemill.plans import prepared_again
from piecemill.shards.counts import write_counts
from piecemill.shards.format import KINDS, Kind

NAME = "manifest.jsonl"
ENTRIES = "entries"

_ENTRY = re.compile(r"(\d{6,})-(\d{4,})(\.unique)?\.json")
_STEM = re.compile(r"\d{5,}|\d{6,}-\d{4,}(\.unique)?")  # a number in format 1
_HASH = re.compile("[0-9a-f]{16}")
_MOST = 1 << 60
"Upper limit of counts and sizes, so that sums fit in 64 bits."
_AT_ONCE = 256
"Concurrent requests for entries: an object store takes tens of milliseconds to answer each."


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a shard: its name, its size with the header, and the xxh3-64 of the data behind the header."""

    name: str
    bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard: what is in it, and its three files."""

    documents: int
    tokens: int
    text_bytes: int
    files: Mapping[Kind, FileEntry]
    groups: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    "Documents and tokens of each weight group but 0, by its number; those of group 0 are the rest."

    def count(self, kind: Kind) -> int:
        """Items in a file of the shard."""
        return self.tokens if kind == "tokens" else self.documents

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        files = {kind: asdict(file) for kind, file in self.files.items()}
        groups = {"groups": {number: list(counts) for number, counts in self.groups.items()}} if self.groups else {}
        counts = {"documents": self.documents, "tokens": self.tokens, "text_bytes": self.text_bytes}
        return {**counts, **groups, "files": files}

    def line(self, number: int) -> str:
        """The line of a manifest for the shard with this number."""
        return json.dumps({"shard": number, **self.to_dict()}) + "\n"


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished piece of a task."""

    task: int
    piece: int
    last: bool
    "Whether it is the last piece of its task."
    content: str
    "xxh3-64 of the hashes of all documents read, dropped or not; a changed source is detected by it."
    place: str
    "Unit of the documents' places: `file`, `byte` or `row`."
    tally: Mapping[str, Any]
    "The fields of `sources.Tally`: what was read, left out and skipped."
    dropped: Mapping[str, tuple[int, int]]
    "Documents and bytes dropped, by rule."
    shards: Mapping[str, ShardEntry]
    "By split, for those that have documents in this piece."
    hashes: Mapping[str, Any] | None = None
    "What `dedup.save_hashes` returned; None without deduplication."
    examples: tuple[tuple[int, int], ...] = field(default=())
    "File number and place of the first documents that were dropped as copies."
    unique: bool = False
    "Whether later copies were dropped; this entry then replaces the one written before."

    @property
    def stem(self) -> str:
        """What the names of its shards begin with: "000012-0003", or "000012-0003.unique"."""
        return piece_name(self.task, self.piece) + (".unique" if self.unique else "")

    @property
    def name(self) -> str:
        """Its file, relative to the prepared folder."""
        return f"{ENTRIES}/{self.stem}.json"

    def to_json(self) -> bytes:
        """The canonical form of an entry, with a checksum of the rest as `xxh3`."""
        record = {**asdict(self), "shards": {split: shard.to_dict() for split, shard in self.shards.items()}}
        record["xxh3"] = hash_bytes(json.dumps(record).encode())
        return (json.dumps(record) + "\n").encode()


def piece_name(task: int, piece: int) -> str:
    """The name of a piece: what its files begin with.

    >>> piece_name(12, 3)
    '000012-0003'
    """
    return f"{task:06}-{piece:04}"


def entry_name(task: int, piece: int) -> str:
    """The file of an entry that says a piece is done."""
    return f"{ENTRIES}/{piece_name(task, piece)}.json"


def parse_entry(content: bytes, name: str, folder: str) -> Entry:
    """The entry in the file `name` of `folder`; ShardError if it is not exactly as it was written."""
    try:
        record = json.loads(content)
        shards = {split: _shard_entry(shard) for split, shard in record["shards"].items()}
        dropped = {rule: (count, size) for rule, (count, size) in record["dropped"].items()}
        examples = tuple((file, place) for file, place in record["examples"])
        rest = {key: record[key] for key in ("task", "piece", "last", "content", "place", "tally", "hashes", "unique")}
        entry = Entry(**rest, dropped=dropped, shards=shards, examples=examples)
        if entry.name != name or entry.to_json() != content:
            raise ValueError("its checksum or name is another")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ShardError(
            f"{folder}/{name}: was changed or cut after it was written ({error}). {prepared_again()}"
        ) from None
    return entry


def entry_files(names: Iterable[str]) -> Iterator[tuple[int, int, bool, str]]:
    """Task, piece, whether it is a `.unique` one, and the file of each entry among the names in `entries/`; sorted."""
    found = (
        (int(match[1]), int(match[2]), bool(match[3]), name) for name in names if (match := _ENTRY.fullmatch(name))
    )
    return iter(sorted(found))


def newest_entries(place: Place) -> Iterator[Entry]:
    """The entry of each finished piece in corpus order; of two entries, the one that replaces the other."""
    for name, content in _newest(place):
        yield parse_entry(content, name, place.url)


def whole_entries(place: Place, damaged: list[str]) -> Iterator[Entry]:
    """As `newest_entries`, but without entries that are damaged, or whose shards are missing or have another size.

    The names of those are added to `damaged`; after `delete_entry`, the next run makes their pieces again.
    """
    sizes: dict[str, dict[str, int]] = {}
    for name, content in _newest(place):
        try:
            entry = parse_entry(content, name, place.url)
        except ShardError:
            damaged.append(name)
            continue
        # Listed after the entries, so that no shard of an entry is missing because it is newer than the list.
        sizes |= {split: place.sizes(split) for split in entry.shards if split not in sizes}
        files = [(split, file) for split, shard in entry.shards.items() for file in shard.files.values()]
        if all(sizes[split].get(file.name) == file.bytes for split, file in files):
            yield entry
        else:
            damaged.append(name)


def check_entries(place: Place, manifests: dict[str, list[ShardEntry]]) -> None:
    """ShardError if an entry of a complete folder is damaged, or if they list other shards than its manifests."""
    for task, piece, replaces, _ in entry_files(place.sizes(ENTRIES)):
        if replaces:
            parse_entry(place.read(entry_name(task, piece)), entry_name(task, piece), place.url)
    left = {split: iter(shards) for split, shards in manifests.items()}
    for entry in newest_entries(place):
        for split, shard in entry.shards.items():
            if next(left.get(split, iter(())), None) != shard:
                raise ShardError(f"{place.url}/{split}/{NAME}: differs from {entry.name}. {prepared_again()}")
    for split, rest in left.items():
        if (lost := next(rest, None)) is not None:
            file = lost.files["tokens"].name
            raise ShardError(f"{place.url}: no file in {ENTRIES} lists {split}/{file}. {prepared_again()}")


def _newest(place: Place) -> Iterator[tuple[str, bytes]]:
    files = entry_files(place.sizes(ENTRIES))
    names = iter([f"{ENTRIES}/{list(both)[-1][3]}" for _, both in groupby(files, key=lambda file: file[:2])])
    with threads(32) as pool_map:
        while some := list(islice(names, _AT_ONCE)):
            yield from zip(some, pool_map(place.read, some), strict=True)


def delete_entry(place: Place, name: str) -> None:
    """Delete the entry of a piece, and with it the one it replaced: the piece must be made again."""
    base = name.removesuffix(".json").removesuffix(".unique")
    place.delete(f"{base}.unique.json")
    place.delete(f"{base}.json")


def write_manifests(place: Place, splits: Sequence[str], vocab_size: int) -> Iterator[Entry]:
    """Yield all entries in corpus order; after the last one, write the manifest and the counts of each split."""
    paths = {split: place.scratch() / unique(f"{split}.{NAME}") for split in splits}
    stems: dict[str, list[str]] = {split: [] for split in splits}
    with ExitStack() as stack:
        files = {split: stack.enter_context(open(path, "x", encoding="ascii")) for split, path in paths.items()}
        for entry in newest_entries(place):
            for split, shard in entry.shards.items():
                files[split].write(shard.line(len(stems[split])))
                stems[split].append(entry.stem)
            yield entry
    for split, path in paths.items():
        write_counts(place, split, stems[split], vocab_size)
        place.publish(path, f"{split}/{NAME}")


def delete_leftovers(place: Place) -> None:
    """Delete what a complete folder does not need: replaced shards, hashes of documents, unfinished files."""
    names = place.sizes(ENTRIES) if can_write(place) else {}
    for task, piece, replaces, _ in entry_files(names):
        if replaces:
            base = entry_name(task, piece)
            for split, shard in parse_entry(place.read(base), base, place.url).shards.items():
                for file in shard.files.values():
                    place.delete(f"{split}/{file.name}")
    for name in names:
        if not name.endswith(".json"):
            place.delete(f"{ENTRIES}/{name}")
    clear_scratch(place)


def parse_line(line: bytes, number: int, where: str) -> ShardEntry:
    """The entry in a line that should describe shard `number`."""
    try:
        record = json.loads(line)
        entry = _shard_entry(record)
        if record["shard"] != number:
            raise ValueError(f"it has the number {record['shard']}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ShardError(
            f"{where}, line {number + 1}: {line[:80]!r} does not describe shard {number} ({error}). "
            f"The file was changed or cut after it was written. {prepared_again()}"
        ) from None
    return entry


def parse_manifest(content: bytes, where: str) -> list[ShardEntry]:
    """The shards in the content of a manifest, in order."""
    lines = content.split(b"\n")[:-1]  # in format 1 a crash can cut the last line, which then does not count
    entries = [parse_line(line, number, where) for number, line in enumerate(lines)]
    if max(sum(entry.tokens for entry in entries), sum(entry.documents for entry in entries)) >= _MOST:
        raise ShardError(f"{where}: more tokens or documents than a corpus can have. Restore the file from a copy.")
    return entries


def _shard_entry(record: Mapping[str, Any]) -> ShardEntry:
    files = {kind: FileEntry(**record["files"][kind]) for kind in KINDS}
    groups = {number: (documents, tokens) for number, (documents, tokens) in record.get("groups", {}).items()}
    entry = ShardEntry(record["documents"], record["tokens"], record["text_bytes"], files, groups)
    sizes = (entry.documents, entry.tokens, entry.text_bytes, *(file.bytes for file in files.values()))
    if not all(type(size) is int and 0 <= size < _MOST for size in sizes):
        raise ValueError("a count is not a number from 0 to 2**60")
    # Names of files in a cache are made of these too.
    if not all(isinstance(file.name, str) and _HASH.fullmatch(file.xxh3) for file in files.values()):
        raise ValueError("a name is no text, or a checksum not 16 hexadecimal digits")
    stems = {file.name.removesuffix(f".{kind}.npy") for kind, file in files.items()}
    if len(stems) != 1 or not _STEM.fullmatch(stems.pop()):
        raise ValueError("its files have other names")
    return entry
