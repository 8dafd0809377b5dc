"""Writing the shards of one split: append blocks, finish shards, and go on after a crash.

Every block goes to the ends of three part files. A state says how long they are and what they hash to; somebody
else keeps states (the journal of `prepare`). A crash can come between any two steps, so `resume` never asks how
far a run got. It rests on three facts:

1. Data is only ever appended, so the files of a later state begin with those of an earlier one. Finishing
   changes nothing behind the header: it fills the header in, renames, and adds a manifest line.
2. Each file of the shard of a state is under exactly one of two names, and no step deletes what a kept state needs.
3. `resume` looks before it touches: a state that the files do not hold is refused with nothing changed, so an earlier
   one can be tried. Then it undoes everything after the state, the manifest first, so that no line ever speaks of
   a file that is not whole; a crash on the way leaves a folder for which all of this still holds.

A shard that was finished after the state is taken apart and finished again, with the same bytes.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from piecemill._core import Xxh3
from piecemill.errors import ShardError
from piecemill.shards import manifest
from piecemill.shards.format import ENDS, HEADER_BYTES, KINDS, RECORD, Kind, dtype_of, file_name, header, part_name
from piecemill.shards.manifest import FileEntry, ShardEntry, append_line, first_lines, keep_lines, sync_folder

SHARD_DOCUMENTS = 1_000_000
_CHUNK = 1 << 22
_OURS = re.compile(r"\.?(\d{5,})\.(?:tokens|ends|documents)\.npy(?:\.part)?")


class ShardWriter:
    """Writes one split folder. The files depend on the blocks alone, not on when `rotate_if_full` is called."""

    def __init__(
        self, folder: Path, *, dtype: np.dtype[Any], shard_tokens: int, shard_documents: int = SHARD_DOCUMENTS
    ) -> None:
        """Begin an empty split; the folder may exist, but not with shards in it."""
        folder.mkdir(parents=True, exist_ok=True)
        found = sorted(name for name in os.listdir(folder) if _OURS.fullmatch(name) or name == manifest.NAME)
        if found:
            raise ShardError(f"{folder} already holds {found[0]}. Resume from a state, or choose another folder.")
        self._begin(folder, 0, dtype, shard_tokens, shard_documents)

    def _begin(self, folder: Path, shard: int, dtype: np.dtype[Any], shard_tokens: int, shard_documents: int) -> None:
        if dtype not in (np.dtype("<u2"), np.dtype("<u4")):
            raise ShardError(f"{folder}: token ids of type {dtype}; expected uint16 or uint32.")
        if shard_tokens < 1 or shard_documents < 1:
            raise ShardError(
                f"{folder}: shard_tokens={shard_tokens}, shard_documents={shard_documents}: expected 1 or more of both."
            )
        self._folder = folder
        self._dtype = dtype
        self._shard_tokens = shard_tokens
        self._shard_documents = shard_documents
        self._empty(shard)

    def _empty(self, shard: int) -> None:
        self._shard = shard
        self._documents = self._tokens = self._text_bytes = 0
        self._parts: dict[Kind, _Part] = {}

    def append(self, ids: NDArray[Any], ends: NDArray[np.int64], records: NDArray[np.void]) -> None:
        """Add one block: its ids, where each document ends among them, and a record of each document.

        A full shard is finished first. If writing fails (no space left), the block counts as not appended.
        """
        self._check_block(ids, ends, records)
        self.rotate_if_full()
        if not len(ends):
            return
        if not self._parts:
            self._parts = {kind: _Part.create(self._folder / part_name(self._shard, kind), kind) for kind in KINDS}
        data = {
            "tokens": _bytes_of(ids, self._dtype),
            "ends": _bytes_of(ends + self._tokens, ENDS),
            "documents": _bytes_of(records, RECORD),
        }
        for kind, part in self._parts.items():
            part.write(data[kind])
        # Only when all three are written: until then, the block would be written again at the same place.
        for kind, part in self._parts.items():
            part.count(data[kind])
        self._documents += len(ends)
        self._tokens += len(ids)
        self._text_bytes += int(records["bytes"].sum())

    def _check_block(self, ids: NDArray[Any], ends: NDArray[np.int64], records: NDArray[np.void]) -> None:
        where = f"{self._folder}: shard {self._shard}"
        if ids.dtype != self._dtype or ends.dtype != ENDS or records.dtype != RECORD:
            raise ShardError(
                f"{where}: a block of types {ids.dtype}, {ends.dtype}, {records.dtype}; "
                f"expected {self._dtype}, {ENDS}, {RECORD}."
            )
        if len(records) != len(ends):
            raise ShardError(f"{where}: {len(ends)} ends and {len(records)} records; expected one each per document.")
        last = int(ends[-1]) if len(ends) else 0
        if last != len(ids) or (len(ends) and int(ends[0]) < 0) or bool((np.diff(ends) < 0).any()):
            raise ShardError(f"{where}: ends must rise to the number of ids, {len(ids)}; the last is {last}.")

    def state(self) -> dict[str, Any]:
        """Where the writer is: all that `resume` needs, ready for JSON."""
        blank = Xxh3().hexdigest()
        files = {
            kind: {"bytes": self._parts[kind].bytes, "xxh3": self._parts[kind].hash.hexdigest()}
            if self._parts
            else {"bytes": HEADER_BYTES[kind], "xxh3": blank}
            for kind in KINDS
        }
        counts = {"shard": self._shard, "documents": self._documents, "tokens": self._tokens}
        return {**counts, "text_bytes": self._text_bytes, "files": files}

    @classmethod
    def resume(
        cls,
        folder: Path,
        state: Mapping[str, Any],
        *,
        dtype: np.dtype[Any],
        shard_tokens: int,
        shard_documents: int = SHARD_DOCUMENTS,
    ) -> "ShardWriter":
        """A writer that stands exactly at `state`; everything written after it is undone.

        If the files do not hold the state, a ShardError, and nothing is changed: try an earlier one.
        """
        folder.mkdir(parents=True, exist_ok=True)
        writer = cls.__new__(cls)
        shard, documents = int(state["shard"]), int(state["documents"])
        writer._begin(folder, shard, dtype, shard_tokens, shard_documents)
        for entry in first_lines(folder, shard):
            _check_sizes(folder, entry)
        hashes = {kind: _hash_of(folder, shard, kind, state["files"][kind]) for kind in KINDS} if documents else {}
        _undo_after(folder, shard, keep=documents > 0)
        if documents:
            writer._documents, writer._tokens, writer._text_bytes = documents, state["tokens"], state["text_bytes"]
            writer._parts = {
                kind: _Part.reopen(folder / part_name(shard, kind), hashes[kind], state["files"][kind]["bytes"])
                for kind in KINDS
            }
        return writer

    def rotate_if_full(self) -> bool:
        """Finish the shard if it has reached its size in tokens or documents; whether it had."""
        full = self._tokens >= self._shard_tokens or self._documents >= self._shard_documents
        if full:
            self.finish()
        return full

    def finish(self) -> None:
        """Finish the shard as it is; nothing for an empty one. What is appended next goes to a new shard."""
        if not self._documents:
            return
        counts = {"tokens": self._tokens, "ends": self._documents, "documents": self._documents}
        for kind, part in self._parts.items():
            part.close(header(kind, dtype_of(kind, self._dtype), counts[kind]))
        for kind, part in self._parts.items():
            os.rename(part.path, self._folder / file_name(self._shard, kind))
        sync_folder(self._folder)
        files = {
            kind: FileEntry(file_name(self._shard, kind), part.bytes, part.hash.hexdigest())
            for kind, part in self._parts.items()
        }
        append_line(self._folder, ShardEntry(self._shard, self._documents, self._tokens, self._text_bytes, files))
        self._empty(self._shard + 1)

    def sync(self) -> None:
        """Make sure that a power loss does not take what was appended so far."""
        for part in self._parts.values():
            part.sync()
        if self._parts:
            sync_folder(self._folder)

    def close(self) -> None:
        """Let go of the part files without finishing them; `resume` takes them up again."""
        for part in self._parts.values():
            part.file.close()


class _Part:
    """A file being written: a header's room, then data, with its length and running hash."""

    def __init__(self, path: Path, file: BinaryIO, hash: Xxh3, size: int) -> None:
        self.path, self.file, self.hash, self.bytes = path, file, hash, size

    @classmethod
    def create(cls, path: Path, kind: Kind) -> "_Part":
        file = open(path, "w+b", buffering=0)  # noqa: SIM115 - closed by close()
        part = cls(path, file, Xxh3(), 0)
        part.write(np.zeros(HEADER_BYTES[kind], np.uint8))
        part.bytes = HEADER_BYTES[kind]
        return part

    @classmethod
    def reopen(cls, path: Path, hash: Xxh3, size: int) -> "_Part":
        file = open(path, "r+b", buffering=0)  # noqa: SIM115 - closed by close()
        file.truncate(size)
        return cls(path, file, hash, size)

    def write(self, data: NDArray[np.uint8]) -> None:
        """Write behind what counts. A failed write leaves bytes there that the next one, or `close`, removes."""
        self._write_at(self.bytes, data.data)

    def _write_at(self, place: int, data: memoryview) -> None:
        self.file.seek(place)
        while data:
            data = data[self.file.write(data) :]  # one call writes 2 GiB at most

    def count(self, data: NDArray[np.uint8]) -> None:
        self.hash.update(data)
        self.bytes += len(data)

    def sync(self) -> None:
        os.fsync(self.file.fileno())

    def close(self, head: bytes) -> None:
        self.file.truncate(self.bytes)
        self._write_at(0, memoryview(head))
        self.sync()
        self.file.close()


def _bytes_of(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array, dtype=dtype).view(np.uint8)


def _check_sizes(folder: Path, entry: ShardEntry) -> None:
    for file in entry.files.values():
        path = folder / file.name
        found = path.stat().st_size if path.exists() else None
        if found != file.bytes:
            raise ShardError(
                f"{path} {'is missing' if found is None else f'has {found:,} bytes'}; the manifest says {file.bytes:,} "
                "bytes. It was changed after it was finished: restore it, or prepare into an empty folder."
            )


def _hash_of(folder: Path, shard: int, kind: Kind, want: Mapping[str, Any]) -> Xxh3:
    """The running hash of a file up to the state's length, under whichever of its two names it has."""
    path = folder / part_name(shard, kind)
    if not path.exists():
        path = folder / file_name(shard, kind)
    if not path.exists():
        raise ShardError(f"{folder}: there is no {part_name(shard, kind)}, which the state speaks of.")
    hash, left = Xxh3(), want["bytes"] - HEADER_BYTES[kind]
    with open(path, "rb", buffering=0) as file:
        file.seek(HEADER_BYTES[kind])
        while left > 0:
            chunk = np.frombuffer(file.read(min(left, _CHUNK)), np.uint8)
            if not len(chunk):
                break
            hash.update(chunk)
            left -= len(chunk)
    if left or hash.hexdigest() != want["xxh3"]:
        raise ShardError(
            f"{path}: its first {want['bytes']:,} bytes {'are not all there' if left else 'hash to something else'}, "
            "so it does not hold this state."
        )
    return hash


def _undo_after(folder: Path, shard: int, *, keep: bool) -> None:
    """Undo everything after a state in `shard`: its files become part files (or go, if it was empty); later ones go."""
    keep_lines(folder, shard)
    if keep:
        for kind in KINDS:
            if not (folder / part_name(shard, kind)).exists():
                os.rename(folder / file_name(shard, kind), folder / part_name(shard, kind))
    kept = {part_name(shard, kind) for kind in KINDS} if keep else set()
    for name in os.listdir(folder):
        match = _OURS.fullmatch(name)
        if match and int(match[1]) >= shard and name not in kept:
            os.unlink(folder / name)
    sync_folder(folder)
