"""Writing one shard: append blocks to three files, then rename them.

The files grow in the scratch folder of the place, after space reserved for the header, whose count is known at the end.
Before `finish` no file has its final name, so a killed writer leaves nothing to undo.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from piecemill._core import Xxh3, count_ids
from piecemill.cancelling import threads
from piecemill.errors import ShardError
from piecemill.files import Place, unique, write_behind
from piecemill.shards.counts import save_piece_counts
from piecemill.shards.format import ENDS, HEADER_BYTES, KINDS, RECORD, Kind, dtype_of, file_name, header, token_dtype
from piecemill.shards.manifest import FileEntry, ShardEntry

_CHUNK_TOKENS = 1 << 22

_BEHIND_BYTES = 8 << 20
"Larger blocks of ids are not held while the next is encoded."


class ShardWriter:
    """Writes the shard `stem` of a split. A context manager: a shard that is not finished is discarded.

    With `vocab`, the size of the vocabulary, tokens are counted and the counts are written with the shard. With
    `behind`, `append` returns while a thread still writes (not for large blocks, to save memory); an error of that
    thread is raised by the next call.
    """

    def __init__(
        self,
        place: Place,
        split: str,
        stem: str,
        *,
        dtype: np.dtype[Any],
        vocab: int | None = None,
        behind: bool = False,
    ) -> None:
        if dtype not in (np.dtype("<u2"), np.dtype("<u4")):
            raise ShardError(f"{place.url}/{split}/{stem}: token ids of type {dtype}; expected uint16 or uint32.")
        self._place, self._split, self._stem, self._dtype = place, split, stem, dtype
        self._documents = self._tokens = self._text_bytes = 0
        self._groups: dict[int, tuple[int, int]] = {}
        self._files: dict[Kind, _Growing] = {}
        self._counts = None if vocab is None else np.zeros(vocab, np.uint64)
        self._behind = ThreadPoolExecutor(1, "piecemill-write") if behind else None
        self._writing: Future[None] | None = None

    def append(self, ids: NDArray[Any], ends: NDArray[np.int64], records: NDArray[np.void]) -> None:
        """Add some documents: their ids, where each ends among them, and a record of each."""
        self._check(ids, ends, records)
        self._wait()
        if self._behind is not None and ids.nbytes <= _BEHIND_BYTES:
            self._writing = self._behind.submit(self._append, ids, ends, records)
        else:
            self._append(ids, ends, records)

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _append(self, ids: NDArray[Any], ends: NDArray[np.int64], records: NDArray[np.void]) -> None:
        if not len(ends):
            return
        if not self._files:
            scratch, stays = self._place.scratch(), self._place.local() is not None
            names = {kind: unique(file_name(self._stem, kind)) for kind in KINDS}
            self._files = {kind: _Growing(scratch / name, kind, stays) for kind, name in names.items()}
        if self._counts is not None:
            try:
                count_ids(np.ascontiguousarray(ids), self._counts)
            except ValueError as error:
                raise ShardError(f"{self._place.url}/{self._split}: shard {self._stem}: {error}.") from None
        self._files["tokens"].write(ids, self._dtype)
        self._files["ends"].write(ends + self._tokens, ENDS)
        self._files["documents"].write(records, RECORD)
        self._documents += len(ends)
        self._tokens += len(ids)
        self._text_bytes += int(records["bytes"].sum())
        for group in np.unique(records["group"]).tolist() if records["group"].any() else ():
            mine = records["group"] == group
            documents, tokens = self._groups.get(group, (0, 0))
            more = int(np.diff(ends, prepend=0)[mine].sum())
            self._groups[group] = documents + int(mine.sum()), tokens + more

    def finish(self) -> ShardEntry | None:
        """Publish the three files, and the counts; None, and no files, if there were no documents."""
        self._wait()
        if not self._documents:
            return None
        counts = {"tokens": self._tokens, "ends": self._documents, "documents": self._documents}
        entries: dict[Kind, FileEntry] = {}
        for kind, file in self._files.items():
            file.close(header(kind, dtype_of(kind, self._dtype), counts[kind]))
            entries[kind] = FileEntry(file_name(self._stem, kind), file.bytes, file.hash.hexdigest())
        place, split = self._place, self._split
        jobs = [
            partial(place.publish, file.path, f"{split}/{entries[kind].name}") for kind, file in self._files.items()
        ]
        if self._counts is not None:
            jobs.append(partial(save_piece_counts, place, self._stem, split, self._counts))
        with threads(len(jobs)) as pool_map:  # at once, because each waits for a disk or a store
            list(pool_map(lambda job: job(), jobs))
        groups = {str(group): self._groups[group] for group in sorted(self._groups) if group}
        return ShardEntry(self._documents, self._tokens, self._text_bytes, entries, groups)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._behind is not None:
            self._behind.shutdown()
        for file in self._files.values():
            file.discard()

    def _check(self, ids: NDArray[Any], ends: NDArray[np.int64], records: NDArray[np.void]) -> None:
        where = f"{self._place.url}/{self._split}: shard {self._stem}"
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


def rewrite_shard(
    place: Place, split: str, old: ShardEntry, stem: str, keep: NDArray[np.bool_], vocab_size: int
) -> tuple[ShardEntry | None, NDArray[np.void]]:
    """Write the documents of a shard that are to `keep` as the shard `stem`; returns its entry and the records of all.

    Reads some documents at a time. ShardError, and no new shard, if the old one is not as its entry says.
    """
    hashes, dtype = {kind: Xxh3() for kind in KINDS}, token_dtype(vocab_size)

    def read(kind: Kind, start: int, stop: int) -> NDArray[Any]:
        item = dtype_of(kind, dtype)
        first, last = (HEADER_BYTES[kind] + item.itemsize * number for number in (start, stop))
        array = np.frombuffer(place.read(f"{split}/{old.files[kind].name}", first, last), item)
        hashes[kind].update(array.view(np.uint8))
        return array

    def verify(kind: Kind) -> None:
        if hashes[kind].hexdigest() != old.files[kind].xxh3:
            raise ShardError(
                f"{place.url}/{split}/{old.files[kind].name}: was changed after it was written. Delete it and run the "
                "same `piecemill prepare` again to make its piece again."
            )

    ends, records = read("ends", 0, old.documents), read("documents", 0, old.documents)
    verify("ends")
    verify("documents")
    with ShardWriter(place, split, stem, dtype=dtype, vocab=vocab_size) as writer:
        document = token = 0
        while document < old.documents:
            stop = max(document + 1, int(np.searchsorted(ends, token + _CHUNK_TOKENS, side="right")))
            ids = read("tokens", token, int(ends[stop - 1]))
            kept, sizes = keep[document:stop], np.diff(ends[document:stop], prepend=token)
            if not kept.all():
                ids = ids[np.repeat(kept, sizes)]
            writer.append(ids, np.cumsum(sizes[kept]), records[document:stop][kept])
            document, token = stop, int(ends[stop - 1])
        verify("tokens")
        return writer.finish(), records


class _Growing:
    """A file being written: space for a header, then data, with its length and running hash.

    `stays` if it will be published on this file system; a file for an object store is read once more and deleted.
    """

    def __init__(self, path: Path, kind: Kind, stays: bool) -> None:
        self.path, self.hash, self.bytes, self._stays = path, Xxh3(), HEADER_BYTES[kind], stays
        self._file: BinaryIO = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by close() or discard()
        self._file.seek(self.bytes)

    def write(self, array: NDArray[Any], dtype: np.dtype[Any]) -> None:
        data = np.ascontiguousarray(array, dtype=dtype).view(np.uint8)
        left = data.data
        while left:
            left = left[self._file.write(left) :]  # one call writes 2 GiB at most
        if self._stays:
            write_behind(self._file, self.bytes, len(data))
        self.hash.update(data)
        self.bytes += len(data)

    def close(self, head: bytes) -> None:
        self._file.seek(0)
        self._file.write(head)
        self._file.close()

    def discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)
