"""Verifies a prepared folder: every byte is compared with a checksum, and every problem is reported with its place.

Manifests have the checksums of shard data; headers are compared with their expected bytes; stats.json has the
checksums of manifests and most other files; entries and stats.json have their own. Then the values: ends rise, ids are
below the vocabulary size, counts agree, and a sample of documents is decoded and compared with the hash of its text. If
a shard's checksum is wrong, all its documents are decoded to find the damaged one. A tokenizer that normalizes texts
does not decode to the same bytes: then the decoded text is encoded again and the ids are compared, and if those differ
too, the document counts as not compared.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import Xxh3, count_ids, hash_documents
from piecemill.errors import PiecemillError, ShardError
from piecemill.files import SCRATCH, LocalPlace, hash_file, lock_owner, parse_json, regular
from piecemill.objects import ObjectPlace, is_object_url
from piecemill.shards import counts, manifest
from piecemill.shards import folder as prepared
from piecemill.shards.format import HEADER_BYTES, KINDS, Kind, dtype_of, header, token_dtype
from piecemill.shards.manifest import ShardEntry
from piecemill.shards.reader import Shard
from piecemill.sizes import plural

if TYPE_CHECKING:
    from piecemill.tokenizers import Tokenizer

SAMPLE = 1000
_LISTED = 100
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong, and where: a file, and a place in it where one is known."""

    file: str
    what: str
    more: int = 0
    "Further documents with the same cause."

    def __str__(self) -> str:
        more = f" The same is wrong with {plural(self.more, 'other document')} of the sample." if self.more else ""
        return f"{self.file}: {self.what}{more}"


@dataclass(slots=True)
class Findings:
    """What `check` looked at, and what it found wrong."""

    folder: str
    kind: str = "prepared shards"
    problems: list[Problem] = field(default_factory=list)
    more: int = 0
    files: int = 0
    bytes: int = 0
    documents: int = 0
    tokens: int = 0
    decoded: int = 0
    "Documents that decode to the text that they were made from."
    encoded_again: int = 0
    "Documents that decode to another text, which encodes to the same ids: the tokenizer normalizes texts."
    not_compared: int = 0
    "Documents of such a tokenizer whose decoded text encodes to other ids: they cannot be verified."
    _causes: dict[str, int] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def add(self, file: str, what: str, cause: str | None = None) -> None:
        """One more problem, or one more document of a problem with the same cause; more than 100 are only counted."""
        if cause is not None and cause in self._causes:
            at = self._causes[cause]
            self.problems[at] = replace(self.problems[at], more=self.problems[at].more + 1)
            return
        if len(self.problems) < _LISTED and cause is not None:
            self._causes[cause] = len(self.problems)
        if len(self.problems) < _LISTED:
            self.problems.append(Problem(file, what))
        else:
            self.more += 1

    def to_dict(self) -> dict[str, Any]:
        """What `piecemill check --json` prints."""
        problems = [{"file": one.file, "what": one.what, "more_documents": one.more} for one in self.problems]
        names = ("files", "bytes", "documents", "tokens", "decoded", "encoded_again", "not_compared")
        counts = {key: getattr(self, key) for key in names}
        head = {"folder": self.folder, "kind": self.kind, "sound": self.sound}
        return {**head, **counts, "problems": problems, "more_problems": self.more}

    def __str__(self) -> str:
        if not self.sound:
            more = [f"... and {self.more:,} more"] if self.more else []
            return "\n".join([f"{self.folder}/{one}" if one.file else one.what for one in self.problems] + more)
        if not self.files:
            return f"{self.folder} is sound: {self.kind}"
        again = f", {self.encoded_again:,} decoded and encoded to the same ids" if self.encoded_again else ""
        note = (
            f"\nnote: {plural(self.not_compared, 'document')} could not be compared: this tokenizer does not "
            "decode to the text that it encoded. The checksums of all files are right."
            if self.not_compared
            else ""
        )
        return (
            f"{self.folder} is sound: {plural(self.files, 'file')}, {plural(self.documents, 'document')}, "
            f"{self.tokens:,} tokens; {plural(self.decoded, 'document')} decoded and compared{again}{note}"
        )


def check_shards(folder: str | Path, *, sample: int = SAMPLE) -> Findings:
    """Compare everything in a complete prepared folder with what it should be; decode `sample` documents per split.

    Of a folder in an object store, shards are downloaded one at a time, to a folder under TMPDIR.
    """
    if isinstance(folder, str) and is_object_url(folder):
        from piecemill.shards.remote import fetch_small_files

        place = ObjectPlace(folder)
        with tempfile.TemporaryDirectory(prefix="piecemill-") as copy:
            present = fetch_small_files(place, Path(copy))
            return _check(Path(copy), present, Findings(place.url), sample, place)
    return _check(Path(folder), prepared.listed(Path(folder)), Findings(str(Path(folder))), sample, None)


def _check(path: Path, present: set[str], found: Findings, sample: int, place: ObjectPlace | None) -> Findings:
    checksums = _check_stats(path, found)
    if checksums is None:
        return found
    for name, want in sorted(checksums.items()):
        if not isinstance(want, str) or not _inside(name):
            found.add(prepared.STATS, f"was changed: {name!r} is no file of this folder with a checksum.")
            continue
        _check_sealed(path, name, want, found)
    expected = {*prepared.UNCHECKED, *checksums}
    try:
        plan = prepared.read_plan(path)
        sources = prepared.source_files(path)
    except (ShardError, OSError) as error:
        if found.sound:  # else reported above: both files have checksums
            found.add(prepared.PLAN, str(error))
        return found
    manifests: dict[str, list[ShardEntry]] = {}
    for split in plan["splits"]:
        shards = _Split(path, split, plan, sources, found, place).check(expected, sample)
        if shards is None:  # nobody should delete what an unreadable manifest may list
            expected.update(name for name in present if name.startswith(f"{split}/"))
        else:
            manifests[split] = shards
    if plan["format"] > 1:
        _check_entries(path, sorted(present), manifests, expected, found)
    for name in sorted(present - expected):
        found.add(
            name, f"should not be here. Delete it if it is yours; if it is in {SCRATCH} or old, run prepare again."
        )
    return found


def _check_entries(
    path: Path, present: list[str], manifests: dict[str, list[ShardEntry]], expected: set[str], found: Findings
) -> None:
    """Entries have their own checksums; the newest ones must list the shards of the manifests."""
    names = [name.removeprefix(f"{manifest.ENTRIES}/") for name in present if name.startswith(f"{manifest.ENTRIES}/")]
    newest: dict[tuple[int, int], manifest.Entry] = {}
    damaged = False
    for task, piece, _, file in manifest.entry_files(names):
        name = f"{manifest.ENTRIES}/{file}"
        expected.add(name)
        try:
            content = regular(path / name).read_bytes()
        except OSError as error:
            found.add(name, f"cannot be read: {error.strerror or error}.")
            damaged = True
            continue
        found.files += 1
        found.bytes += len(content)
        try:
            newest[task, piece] = manifest.parse_entry(content, name, str(path))
        except ShardError as error:
            found.add(name, str(error).removeprefix(f"{path}/{name}: "))
            damaged = True
    there = {entry.stem for entry in newest.values()}
    for entry in newest.values():
        for split, shard in entry.shards.items():
            expected.update(f"{split}/{file.name}" for file in shard.files.values())
    listed = {shard.files["tokens"].name.partition(".tokens.")[0] for shards in manifests.values() for shard in shards}
    for stem in sorted(listed - there if not damaged else ()):
        found.add(f"{manifest.ENTRIES}/{stem}.json", "is missing, but a manifest lists its shards.")
    for split, shards in manifests.items():
        own = [entry.shards[split] for entry in newest.values() if split in entry.shards]
        if not damaged and listed <= there and shards != own:
            found.add(f"{split}/{manifest.NAME}", f"lists other shards than the files in {manifest.ENTRIES}.")


def _check_stats(path: Path, found: Findings) -> dict[str, str] | None:
    """The checksums in stats.json; None if it is missing or damaged."""
    try:
        content = regular(path / prepared.STATS).read_bytes()
        stats = parse_json(content, str(path / prepared.STATS), "")
        checksums = stats["checksums"]
        rendered = prepared.render_stats(stats)
    except FileNotFoundError:
        alive = lock_owner(path)
        todo = f"Process {alive} is at work on it" if alive else "Run the same `piecemill prepare` again"
        found.add(prepared.STATS, f"is missing, so the folder is not complete. {todo}.")
        return None
    except (ShardError, KeyError, ValueError, OSError, RecursionError) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else error
        found.add(prepared.STATS, f"was changed: {what}")
        return None
    if content != rendered:
        found.add(prepared.STATS, f"was changed: byte {_first_difference(content, rendered):,} is not as written.")
    if not isinstance(checksums, dict):
        found.add(prepared.STATS, "was changed: checksums is not an object.")
        return None
    return checksums


def _inside(name: str) -> bool:
    return "\0" not in name and not name.startswith("/") and ".." not in name.split("/")


def _check_sealed(path: Path, name: str, want: str, found: Findings) -> None:
    try:
        size, have = (path / name).stat().st_size, hash_file(path / name)
    except OSError as error:
        found.add(name, f"is listed in {prepared.STATS} and cannot be read: {error.strerror}.")
        return
    found.files += 1
    found.bytes += size
    if have != want:
        found.add(name, f"was changed: xxh3 {have}, {prepared.STATS} says {want}.")


class _Split:
    """The shards of one split, compared one after another."""

    def __init__(
        self,
        folder: Path,
        split: str,
        plan: dict[str, Any],
        sources: int,
        found: Findings,
        place: ObjectPlace | None = None,
    ) -> None:
        self.folder, self.split, self.plan, self.sources, self.found = folder, split, plan, sources, found
        self.place = place
        self.dtype = token_dtype(plan["vocab_size"])
        self.counted = np.zeros(plan["vocab_size"], np.uint64)

    def check(self, expected: set[str], sample: int) -> list[ShardEntry] | None:
        """Check the split; gives the shards that its manifest lists, whose names are added to `expected`.

        None if there is a manifest and it cannot be read.
        """
        name = f"{self.split}/{manifest.NAME}"
        try:
            content = prepared.read_if_there(LocalPlace(self.folder), name)
            entries = manifest.parse_manifest(content or b"", f"{self.folder}/{name}")
        except ShardError as error:
            self.found.add(name, str(error).removeprefix(f"{self.folder}/{name}").lstrip(",: "))
            return None
        if content is None and name in expected:
            return None  # reported: stats.json lists it
        total = sum(entry.documents for entry in entries)
        chosen = np.unique(np.linspace(0, total - 1, min(sample, total)).astype(np.int64)) if total else np.zeros(0)
        first = 0
        for entry in entries:
            expected.update(f"{self.split}/{file.name}" for file in entry.files.values())
            mine = chosen[(chosen >= first) & (chosen < first + entry.documents)] - first
            with self._downloaded(entry):
                self._check_shard(entry, mine.astype(np.int64))
            first += entry.documents
        self._check_counts()
        return entries

    def _check_counts(self) -> None:
        """Compare the stored counts of tokens with a recount; nothing to compare if the folder has none."""
        problems, name = len(self.found.problems), f"{self.split}/{counts.NAME}"
        try:
            stored = counts.parse_counts(regular(self.folder / name).read_bytes(), name, self.plan["vocab_size"])
        except FileNotFoundError:
            return
        except (OSError, ShardError) as error:
            self.found.add(name, str(error))
            return
        wrong = np.flatnonzero(stored != self.counted).tolist()
        if wrong and not problems:  # a damaged shard is reported by itself
            said, found = int(stored[wrong[0]]), int(self.counted[wrong[0]])
            self.found.add(name, f"says that token {wrong[0]:,} occurs {said:,} times; it occurs {found:,} times.")

    @contextmanager
    def _downloaded(self, entry: ShardEntry) -> Iterator[None]:
        """Download the files of a shard, and delete them after the comparison."""
        names = [f"{self.split}/{file.name}" for file in entry.files.values()] if self.place is not None else []
        for name in names:
            with suppress(FileNotFoundError):  # reported when the file is checked
                self.place.fetch(name, self.folder / name)  # type: ignore[union-attr] # there are names
        try:
            yield
        finally:
            for name in names:
                (self.folder / name).unlink(missing_ok=True)

    def _check_shard(self, entry: ShardEntry, sample: NDArray[np.int64]) -> None:
        self.found.documents += entry.documents
        self.found.tokens += entry.tokens
        # A list, so that every file is checked even if another one is damaged.
        whole = [self._check_file(entry, kind) for kind in KINDS]
        if None in whole:
            return  # a file has the wrong size: documents cannot be compared
        shard = Shard(*(self._data(entry, kind) for kind in KINDS))
        name = f"{self.split}/{entry.files['ends'].name}"
        falls = np.flatnonzero(np.diff(shard.ends, prepend=0) < 0)
        if len(falls):
            at = int(falls[0])
            self.found.add(name, f"end {at:,} is {shard.ends[at]:,}, less than the one before; expected rising ends.")
        elif entry.documents and int(shard.ends[-1]) != entry.tokens:
            self.found.add(name, f"the last end is {shard.ends[-1]:,}; the shard has {entry.tokens:,} tokens.")
        else:
            self._check_records(entry, shard.documents)
            damaged = not all(whole)
            self._decode(entry, shard, np.arange(entry.documents) if damaged else sample, damaged=damaged)

    def _check_file(self, entry: ShardEntry, kind: Kind) -> bool | None:
        """Whether the data has the checksum in the manifest; None if its size differs."""
        file = entry.files[kind]
        name = f"{self.split}/{file.name}"
        dtype = dtype_of(kind, self.dtype)
        count = entry.count(kind)
        try:
            size = (self.folder / name).stat().st_size
            with open(regular(self.folder / name), "rb") as opened:
                have = opened.read(HEADER_BYTES[kind])
        except OSError as error:
            self.found.add(name, f"is listed in the manifest and cannot be read: {error.strerror}.")
            return None
        self.found.files += 1
        self.found.bytes += size
        if size != file.bytes or size != HEADER_BYTES[kind] + count * dtype.itemsize:
            self.found.add(
                name, f"has {size:,} bytes; the manifest says {file.bytes:,} bytes with {count:,} items of {dtype}."
            )
            return None
        want = header(kind, dtype, count)
        if have != want:
            self.found.add(name, f"byte {_first_difference(have, want)} of the header is not as written.")
        hash, largest = Xxh3(), (-1, -1)
        for start, chunk in self._chunks(entry, kind):
            hash.update(chunk.view(np.uint8))
            if kind == "tokens":
                with suppress(ValueError):  # an id outside the vocabulary is reported below
                    count_ids(chunk, self.counted)
                if int(chunk.max()) > largest[0]:
                    largest = int(chunk.max()), start + int(chunk.argmax())
        if hash.hexdigest() != file.xxh3:
            self.found.add(name, f"was changed: xxh3 {hash.hexdigest()}, the manifest says {file.xxh3}.")
        if largest[0] >= self.plan["vocab_size"]:
            self.found.add(
                name, f"token {largest[1]:,} is {largest[0]:,}; the vocabulary has {self.plan['vocab_size']:,} tokens."
            )
        return hash.hexdigest() == file.xxh3

    def _chunks(self, entry: ShardEntry, kind: Kind) -> Iterator[tuple[int, NDArray[Any]]]:
        data = self._data(entry, kind)
        for start in range(0, len(data), _CHUNK // data.itemsize):
            # A copy, so that the bytes hashed are the bytes checked.
            yield start, np.array(data[start : start + _CHUNK // data.itemsize])

    def _data(self, entry: ShardEntry, kind: Kind) -> NDArray[Any]:
        """The items after the header; the header itself is not parsed."""
        dtype = dtype_of(kind, self.dtype)
        path = self.folder / self.split / entry.files[kind].name
        return np.memmap(path, dtype, "r", HEADER_BYTES[kind], (entry.count(kind),)).view(np.ndarray)

    def _check_records(self, entry: ShardEntry, documents: NDArray[np.void]) -> None:
        name = f"{self.split}/{entry.files['documents'].name}"
        text_bytes = int(documents["bytes"].sum())
        if text_bytes != entry.text_bytes:
            self.found.add(name, f"documents add up to {text_bytes:,} bytes; the manifest says {entry.text_bytes:,}.")
        outside = np.flatnonzero((documents["file"] < 0) | (documents["file"] >= self.sources))
        if len(outside):
            at = int(outside[0])
            self.found.add(
                name,
                f"document {at:,} is from file {documents['file'][at]}; {prepared.FILES} lists {self.sources:,} files.",
            )

    def _decode(self, entry: ShardEntry, shard: Shard, sample: NDArray[np.int64], *, damaged: bool) -> None:
        """Decode some documents and compare each with its record."""
        name = f"{self.split}/{entry.files['tokens'].name}"
        where = name if damaged else ""  # damage concerns one shard; other causes concern all shards
        for at in sample.tolist():
            start, end = int(shard.ends[at - 1]) if at else 0, int(shard.ends[at])
            place = f"document {at:,} (tokens {start:,} to {end:,})"
            try:
                ids = self._inner(shard.tokens[start:end])
                same = self._same_text(ids, shard.documents[at])
            except PiecemillError as error:
                cause = re.sub(r"[\d,]+", "", str(error))  # documents differ in their ids, not in what is wrong
                self.found.add(name, f"{place} cannot be decoded: {error}", f"decode {where} {cause}")
                continue
            if same:
                self.found.decoded += 1
            elif self.tokenizer.exact or self.plan.get("kind") == "actions":  # decoding an item gives its key
                what = f"{place} does not decode to the text that its record was made from."
                self.found.add(name, what, f"text {where}")
            elif self._same_ids(ids):
                self.found.encoded_again += 1
            else:
                self.found.not_compared += 1

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        from piecemill.tokenizers import load_tokenizer

        return load_tokenizer(self.folder / prepared.TOKENIZER)

    def _inner(self, ids: NDArray[Any]) -> NDArray[Any]:
        """The ids of a document without the bos and eos that the plan put around it."""
        bos, eos = self.plan["bos"], self.plan["eos"]
        if len(ids) < (bos is not None) + (eos is not None):
            raise ShardError(f"{len(ids)} tokens; expected bos and eos at least.")
        if bos is not None:
            if ids[0] != bos:
                raise ShardError(f"it begins with {ids[0]}, not with bos, {bos}.")
            ids = ids[1:]
        if eos is not None:
            if ids[-1] != eos:
                raise ShardError(f"it ends with {ids[-1]}, not with eos, {eos}.")
            ids = ids[:-1]
        return ids

    def _same_text(self, ids: NDArray[Any], record: np.void) -> bool:
        """Whether ids decode to the text that the record was made from."""
        if self.tokenizer.exact:
            text = self.tokenizer.decode_bytes(ids)
        else:
            text = self.tokenizer.decode(ids).encode("utf-8", "surrogatepass")
        data = np.frombuffer(text, np.uint8)
        low, high = hash_documents(data, np.array([len(data)]))[0].tolist()
        return (low, high, len(data)) == (int(record["hash_low"]), int(record["hash_high"]), int(record["bytes"]))

    def _same_ids(self, ids: NDArray[Any]) -> bool:
        """Whether what ids decode to encodes to the same ids."""
        special = self.plan.get("options", {}).get("special_in_text", "plain")
        again = self.tokenizer.encode(self.tokenizer.decode(ids), special="parse" if special == "parse" else "plain")
        return bool(np.array_equal(again, ids))


def _first_difference(one: bytes, other: bytes) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
