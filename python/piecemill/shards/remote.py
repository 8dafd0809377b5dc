"""Shards in an object store: downloaded into a cache folder when first needed, then memory-mapped as local ones are.

The cache is a folder on a local disk that several processes can share. One process downloads a file, verifies its size
and xxh3 against the manifest, and renames it to its final name. Eviction deletes the least recently used file. A
process that has the file mapped can still read it: Linux keeps the data of a deleted file while a map of it exists.

Start with `RemoteShards` and `Cache`.
"""

import fcntl
import os
import re
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import map_file
from piecemill.cancelling import threads
from piecemill.errors import PlanError, ShardError
from piecemill.files import hash_bytes, hash_file, read_json, sync_file
from piecemill.objects import ObjectPlace
from piecemill.plans import prepared_again
from piecemill.shards import folder as prepared
from piecemill.shards.counts import NAME as COUNTS
from piecemill.shards.format import HEADER_BYTES, Kind, is_split_name
from piecemill.shards.manifest import ENTRIES, FileEntry, ShardEntry
from piecemill.shards.reader import Shards

# Only files with such names are counted and evicted: the folder may have others.
_OWN = re.compile(r"[0-9a-f]{16}\..+\.[0-9a-f]{16}\..+\.npy(\.part)?")
_LOCKS = ".piecemill-locks"
# Files share this many locks, so that lock files need no cleanup. Two files with one lock are downloaded in turn.
_LOCK_COUNT = 1024
_WAIT_SECONDS = 0.05
_DOWNLOADS_AT_ONCE = 8


def fetch_small_files(place: ObjectPlace, folder: Path) -> set[str]:
    """Download all of a prepared folder but the arrays of shards; gives the names of all files there."""
    names = {*place.sizes(), *(f"{ENTRIES}/{name}" for name in place.sizes(ENTRIES))}
    names |= {f"{prepared.TOKENIZER}/{name}" for name in prepared.tokenizer_files(place)}
    if prepared.PLAN in names:
        splits = read_json(place, prepared.PLAN, "Prepare the folder again.").get("splits")
        # Who reads the plan reports what is wrong with it; a name such as "../x" must lead nowhere before that.
        for split in filter(is_split_name, splits if isinstance(splits, dict) else ()):
            names |= {f"{split}/{name}" for name in place.sizes(split)}
    small = sorted(name for name in names if not name.endswith(".npy") or name.endswith(f"/{COUNTS}"))
    for name in small:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with threads(_DOWNLOADS_AT_ONCE) as pool_map:
        for _ in pool_map(lambda name: place.fetch(name, folder / name), small):
            pass
    return names


class RemoteShards(Shards):
    """The shards of one split in an object store, behind a cache. Can be pickled to processes of the same machine."""

    place: ObjectPlace

    def __init__(
        self, place: ObjectPlace, cache: "Cache", split: str, plan: dict[str, Any], entries: list[ShardEntry]
    ) -> None:
        super().__init__(cache.folder, split, plan, entries)
        self.place, self.cache = place, cache
        self._pool: ThreadPoolExecutor | None = None
        self._asked: set[CachedObject] = set()

    @property
    def ahead_bytes(self) -> int:
        """Limit of bytes in use plus bytes prefetched by a loader, so that shards in use are not evicted."""
        return self.cache.limit * 3 // 4

    def array(self, number: int, kind: Kind) -> NDArray[Any]:
        """One array of one shard, downloaded and mapped on first use; thread-safe."""
        entry = self.entries[number]
        with self._lock:
            array = self._open.get((number, kind))
            if array is not None:
                self._open.move_to_end((number, kind))
        if array is not None:
            self.cache.touch(self._object(entry.files[kind], kind))
            return array
        array = self._map(entry, kind)
        with self._lock:
            self._open[number, kind] = array
            # A map of a deleted file keeps its space on the disk.
            for key in [key for key in self._open if not self.path(self.entries[key[0]], key[1]).exists()]:
                if key != (number, kind):
                    del self._open[key]
        return array

    def prefetch(self, numbers: Iterable[int], kinds: Sequence[Kind] = ("tokens",)) -> None:
        """Download files that are not in the cache, in the background and in this order.

        Errors are not reported here; they are raised when the file is needed.
        """
        wanted = [(self.entries[number], kind) for number in numbers for kind in kinds]
        missing = [(entry, kind) for entry, kind in wanted if not self.path(entry, kind).exists()]
        with self._lock:
            for one in [self._object(entry.files[kind], kind) for entry, kind in missing]:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(_DOWNLOADS_AT_ONCE, thread_name_prefix="piecemill-download")
                    weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
                if one not in self._asked:  # else threads would wait for each other's download of one file
                    self._asked.add(one)
                    self._pool.submit(_download, self.cache, one, self._asked)

    def close(self) -> None:
        """Stop prefetching, and wait for running downloads. Reading still works afterwards."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        self._asked.clear()

    def path(self, entry: ShardEntry, kind: Kind) -> Path:
        """Where a file of a shard is in the cache, or would be."""
        return self.cache.path(self._object(entry.files[kind], kind))

    def _object(self, file: FileEntry, kind: Kind) -> "CachedObject":
        return CachedObject(self.place, self.split, file, HEADER_BYTES[kind])

    def _mapped(self, entry: ShardEntry, kind: Kind) -> NDArray[np.uint8]:
        return self.cache.map(self._object(entry.files[kind], kind))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in ("_pool", "_asked")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_pool": None, "_asked": set()})


def _download(cache: "Cache", one: "CachedObject", asked: "set[CachedObject]") -> None:
    try:
        # When the program ends, queued downloads do not start.
        if threading.main_thread().is_alive():
            cache.map(one)
    finally:
        asked.discard(one)


@dataclass(frozen=True, slots=True)
class CachedObject:
    """A file of a shard in an object store, and what the manifest says of it."""

    place: ObjectPlace
    split: str
    file: FileEntry
    skip: int
    "Bytes before the part that the checksum covers."

    @property
    def name(self) -> str:
        """Its name in a cache. A folder that was prepared again has other checksums, so its files have other names."""
        return f"{hash_bytes(self.place.url.encode())}.{self.split}.{self.file.xxh3}.{self.file.name}"


class Cache:
    """Files on a local disk, at most `limit` bytes together, with LRU eviction."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        try:
            (folder / _LOCKS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlanError(f"cache={str(folder)!r}: {error.strerror}. Name a folder that can be written to.") from None

    def path(self, one: CachedObject) -> Path:
        """Where an object is in the cache, or would be."""
        return self.folder / one.name

    def touch(self, one: CachedObject) -> None:
        """Mark a file as recently used; does nothing if it was evicted."""
        now = time.time_ns()
        with suppress(FileNotFoundError):
            os.utime(self.path(one), ns=(now, now))

    def map(self, one: CachedObject) -> NDArray[np.uint8]:
        """The bytes of an object, downloaded if they are not here; FileNotFoundError if there is no such object."""
        path = self.path(one)
        with self._locked(one.name):
            self.touch(one)
            with suppress(FileNotFoundError):
                if len(mapped := map_file(path)) == one.file.bytes:
                    return mapped
                path.unlink()  # cut by another program or a crash: the object may be whole
            part = self._reserve(one)
            try:
                one.place.fetch(f"{one.split}/{one.file.name}", part)
                self._verify(one, part)
                sync_file(part)
                # Mapped before the rename: from then on, another process may evict it at any time.
                mapped = map_file(part)
                with self._locked("all"):  # so that a process that counts the files sees one of the two names
                    os.replace(part, path)
                return mapped
            except FileNotFoundError:
                raise
            except OSError as error:
                raise self._full(one, error) from None
            finally:
                part.unlink(missing_ok=True)  # there only after an error

    def _verify(self, one: CachedObject, part: Path) -> None:
        size, where = part.stat().st_size, f"{one.place.url}/{one.split}/{one.file.name}"
        way_out = f"The object was changed or damaged. {prepared_again()}"
        if size != one.file.bytes:
            raise ShardError(f"{where} has {size:,} bytes; the manifest says {one.file.bytes:,}. {way_out}")
        if (found := hash_file(part, one.skip)) != one.file.xxh3:
            raise ShardError(f"{where} has the xxh3 {found}; the manifest says {one.file.xxh3}. {way_out}")

    def _reserve(self, one: CachedObject) -> Path:
        """An empty file of the object's size, after the least recently used ones were deleted to make space for it."""
        size = one.file.bytes
        if size > self.limit:
            raise ShardError(
                f"{one.place.url}/{one.split}/{one.file.name} has {size:,} bytes, and cache_bytes={self.limit:,}. "
                "Pass a larger cache_bytes."
            )
        part = self.folder / f"{one.name}.part"
        while True:
            with self._locked("all"):
                part.unlink(missing_ok=True)  # left by a killed process: this one holds the file's lock
                if self._make_space(size):
                    try:
                        with open(part, "wb") as file:
                            if hasattr(os, "posix_fallocate"):
                                os.posix_fallocate(file.fileno(), 0, max(1, size))
                            else:  # macOS: a full disk is an error during the download
                                file.truncate(max(1, size))
                    except OSError as error:
                        part.unlink(missing_ok=True)
                        raise self._full(one, error) from None
                    return part
            time.sleep(_WAIT_SECONDS)  # other downloads fill the cache; each can be deleted once it is complete

    def _make_space(self, size: int) -> bool:
        """Delete files until `size` bytes fit, oldest use first; False if downloads of others take the space."""
        found: list[tuple[int, int, str]] = []
        total = size
        with os.scandir(self.folder) as listed:
            for entry in listed:
                if not _OWN.fullmatch(entry.name):
                    continue
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue
                total += status.st_size
                found.append((status.st_mtime_ns, status.st_size, entry.name))
        for _, nbytes, name in sorted(found):
            if total <= self.limit:
                break
            if name.endswith(".part"):
                with self._locked(name.removesuffix(".part"), wait=False) as mine:
                    if not mine:
                        continue
                    (self.folder / name).unlink(missing_ok=True)
            else:
                (self.folder / name).unlink(missing_ok=True)
            total -= nbytes
        return total <= self.limit

    @contextmanager
    def _locked(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold a lock against other threads and processes; without `wait`, False if another one has it."""
        number = "all" if name == "all" else f"{int(hash_bytes(name.encode()), 16) % _LOCK_COUNT:04}"
        descriptor = os.open(self.folder / _LOCKS / number, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(descriptor)

    def _full(self, one: CachedObject, error: OSError) -> ShardError:
        return ShardError(
            f"{self.folder}: {error.strerror} while {one.place.url}/{one.split}/{one.file.name} was downloaded. Free "
            "some space, pass a smaller cache_bytes, or choose another cache folder."
        )
