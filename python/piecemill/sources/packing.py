"""Packing: documents as they are read -> blocks of the promised size.

How a block is cut depends only on the documents of its task and the block size, not on how many bytes a reader
happened to get at a time. Here also lives the policy for bad documents: stop with an error, or count and list.

Start with `Packer`; each reader has one per task.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PlanError, SourceError
from piecemill.sizes import show_bytes
from piecemill.sources.documents import LISTED_SKIPS, BlockId, Documents, Place, Skipped, Tally

BadDocument = Literal["stop", "skip"]
MakeRoom = Callable[[str, str, int], None]

BLOCK_BYTES = 8 * 1024 * 1024
BLOCK_DOCUMENTS = 128 * 1024
"""At most so many documents in a block: tiny ones would weigh more by their columns than by their text."""

MAX_FILE_BYTES = 64 * 1024 * 1024
"""A larger text file that is found in a folder is left out, if no other size is asked for: it would be one document."""

LARGE = 16 * 1024 * 1024
"""From so many bytes on a document is asked room for, as it may not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How files become documents: all that a reader needs besides its task. Small, and can be pickled."""

    field: str = "text"
    "Field of a JSON line or column of a table that holds the text; a dot goes into nested ones."
    separator: str | None = None
    "Cut text files into documents at this string; without it, a file is a document."
    max_file_bytes: int = MAX_FILE_BYTES
    "Whole-file documents found in a folder that are larger than this are left out."
    block_bytes: int = BLOCK_BYTES
    "Text in one block; a larger document gets a block of its own."
    on_bad_document: BadDocument = "stop"
    "What to do with a document that cannot be used."
    group: str | None = None
    "Field or column that says which documents belong together; a hash of it comes with each document."
    storage: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    "Options for the file systems of URLs, as fsspec takes them. Not shown: there may be a key in it."
    make_room: MakeRoom | None = dataclasses.field(default=None, repr=False, compare=False)
    "Called before a large document is read or grows on: where it is, what it is, and the bytes needed besides."
    spool: str | None = dataclasses.field(default=None, repr=False, compare=False)
    "Folder for what is put down on disk to make room; the system's for such, if there is none."

    def __post_init__(self) -> None:
        if self.block_bytes < 1:
            raise PlanError(f"block_bytes={self.block_bytes}: a block needs room for at least 1 byte")
        if self.max_file_bytes < 0:
            raise PlanError(f"max_file_bytes={self.max_file_bytes}: expected 0 bytes or more")
        if self.on_bad_document not in ("stop", "skip"):
            raise PlanError(f"on_bad_document={self.on_bad_document!r}: expected 'stop' or 'skip'")
        if self.separator == "":
            raise PlanError("separator='': expected at least one character, or None for a document per file")
        if self.group == "":
            raise PlanError("group='': expected the name of a field or column, or None")
        if not self.field:
            raise PlanError("field='': expected the name of a field or column, such as 'text'")


class Growing:
    """A document that is held until its end has come: asks for room whenever it has doubled.

    `besides` is how many times its size is needed once more to hand it over.
    """

    def __init__(self, reading: Reading, besides: int) -> None:
        self._make_room, self._besides = reading.make_room, besides
        self._next = LARGE
        self.size = 0

    def grow(self, size: int, name: str) -> None:
        """So many bytes have come, and more may."""
        self.size += size
        if self.size >= self._next:
            self._next = 2 * self.size
            self._ask(name)

    def end(self, name: str) -> None:
        """All of it is there; to be said again once it is joined, as the parts left memory that can be given back."""
        if self.size >= LARGE:
            self._ask(name)

    def begin(self) -> None:
        """Another document."""
        self.size, self._next = 0, LARGE

    def _ask(self, name: str) -> None:
        if self._make_room is not None:
            self._make_room(name, f"a document of {show_bytes(self.size)} or more", self._besides * self.size)


def bad_document(name: str, reason: str) -> SourceError:
    """The error that stops a run at a bad document."""
    return SourceError(f"{name}: {reason}. Correct or exclude it, or pass --on-bad-document skip to go on without it.")


@dataclass(frozen=True, slots=True)
class _Piece:
    data: NDArray[np.uint8]
    ends: NDArray[np.int64]
    files: NDArray[np.int32]
    places: NDArray[np.int64]
    keys: NDArray[np.uint64] | None


class Packer:
    """Collects the documents of one task and hands them on in blocks."""

    def __init__(
        self, reading: Reading, *, task: int, place: Place, paths: tuple[str, ...], first_file: int, source_bytes: int
    ) -> None:
        self.reading = reading
        self._task, self._place, self._paths, self._first_file = task, place, paths, first_file
        self._held: list[_Piece] = []
        self._held_bytes = self._held_documents = 0
        self._blocks = 0
        self._source_bytes = source_bytes
        self._progress = self._reported_bytes = 0
        self._forget()

    def _forget(self) -> None:
        self._left_out: dict[str, int] = {}
        self._skipped: list[Skipped] = []
        self._skipped_count = 0

    def left_out(self, rule: str, count: int = 1) -> None:
        """Count documents that a rule leaves out."""
        if count:
            self._left_out[rule] = self._left_out.get(rule, 0) + count

    def bad(self, name: str, reason: str) -> None:
        """A document that cannot be used: raises `SourceError`, or counts and lists it."""
        self.bad_many([(name, reason)], 1)

    def bad_many(self, listed: Sequence[tuple[str, str]], count: int) -> None:
        """`count` bad documents, of which the first ones are listed by name and reason."""
        if not count:
            return
        if self.reading.on_bad_document == "stop":
            raise bad_document(*listed[0])
        self._skipped_count += count
        self._skipped += [Skipped(*one) for one in listed[: LISTED_SKIPS - len(self._skipped)]]

    def progress(self, source_bytes: int) -> None:
        """So many bytes of the task's source are done with."""
        self._progress = min(source_bytes, self._source_bytes)

    def add(
        self,
        data: NDArray[np.uint8],
        ends: NDArray[np.int64],
        files: NDArray[np.int32] | int,
        places: NDArray[np.int64],
        keys: NDArray[np.uint64] | None = None,
    ) -> Iterator[Documents]:
        """Take documents (none of them empty); gives the blocks that are full."""
        if isinstance(files, int):
            files = np.full(len(ends), files, np.int32)
        start, count = 0, len(ends)
        while start < count:
            base = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, base + self.reading.block_bytes - self._held_bytes, side="right"))
            stop = min(stop, start + BLOCK_DOCUMENTS - self._held_documents)
            if stop <= start:
                if self._held:
                    yield self._block()
                    continue
                stop = start + 1  # larger than a block: alone
            end = int(ends[stop - 1])
            own = None if keys is None else keys[start:stop]
            piece = _Piece(data[base:end], ends[start:stop] - base, files[start:stop], places[start:stop], own)
            self._held.append(piece)
            self._held_bytes += end - base
            self._held_documents += stop - start
            start = stop

    def finish(self) -> Iterator[Documents]:
        """The last block; one without documents if all there is left is something to tell."""
        self._progress = self._source_bytes
        if self._held or self._left_out or self._skipped_count or self._progress > self._reported_bytes:
            yield self._block()

    def _block(self) -> Documents:
        held = self._held
        if len(held) == 1:
            whole = held[0]
        else:
            shifts = np.cumsum([0] + [len(piece.data) for piece in held])
            whole = _Piece(
                _joined([piece.data for piece in held], np.uint8),
                _joined([piece.ends + shift for piece, shift in zip(held, shifts, strict=False)], np.int64),
                _joined([piece.files for piece in held], np.int32),
                _joined([piece.places for piece in held], np.int64),
                None
                if self.reading.group is None
                else _joined([piece.keys for piece in held if piece.keys is not None], np.uint64),
            )
        tally = Tally(
            documents=len(whole.ends),
            text_bytes=len(whole.data),
            source_bytes=self._progress - self._reported_bytes,
            left_out=self._left_out,
            skipped_count=self._skipped_count,
            skipped=tuple(self._skipped),
        )
        block = Documents(
            BlockId(self._task, self._blocks),
            whole.data,
            whole.ends,
            whole.files,
            whole.places,
            self._place,
            self._paths,
            self._first_file,
            tally,
            whole.keys,
        )
        self._blocks += 1
        self._reported_bytes = self._progress
        self._held, self._held_bytes, self._held_documents = [], 0, 0
        self._forget()
        return block


_T = TypeVar("_T", bound=np.generic)


def _joined(parts: list[NDArray[_T]], dtype: type[_T]) -> NDArray[_T]:
    # numpy joins no list of nothing, and a block may have nothing but a tally.
    return np.concatenate(parts) if parts else np.empty(0, dtype)
