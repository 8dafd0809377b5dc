"""Packing: documents -> blocks of at most `block_bytes`.

Block boundaries depend only on the documents of the task and the block size, not on the sizes of the reader's chunks.
This module also implements the policy for bad documents: stop with an error, or count and list.

A reader pushes documents into its `Packer` and then yields `packer.full()`. It adds
documents in a function that returns first, so that no variable of a suspended generator keeps a large document alive.

Start with `Packer`; each task has one.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from piecemill._core import TextBuffer, documents_outside, gather_documents, read_integers, write_integers
from piecemill.errors import PlanError, SourceError
from piecemill.plans import option
from piecemill.sources.documents import LISTED_SKIPS, BlockId, Documents, Place, Skipped, Tally, place_name
from piecemill.sources.streams import CHUNK_BYTES

BadDocument = Literal["stop", "skip"]
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
FileNumbers = NDArray[np.int32]
Keys = NDArray[np.uint64]

BLOCK_BYTES = 8 * 1024 * 1024
BLOCK_DOCUMENTS = 128 * 1024
"""Most documents in a block: the columns of tiny documents would take more memory than their text."""

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Default limit for a text file found in a folder, which would be one document: larger ones are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How files become documents: all that a reader needs besides its task. Plain values only: it can be pickled."""

    field: str = "text"
    "Field of a JSON line or column of a table that holds the text; a dot goes into nested ones."
    separator: str | None = None
    "Cut text files into documents at this string; without it, a file is a document."
    max_file_bytes: int = MAX_FILE_BYTES
    "Whole-file documents found in a folder that are larger than this are left out."
    block_bytes: int = BLOCK_BYTES
    "Text in one block; a larger document gets a separate block."
    on_bad_document: BadDocument = "stop"
    "What to do with a document that cannot be used."
    group: str | None = None
    "Field or column that says which documents belong together; a hash of it comes with each document."
    raw: bool = False
    "Documents are any bytes, not UTF-8: binary files are read too, and byte order marks stay."
    upper: bool = False
    "Letters of FASTA and FASTQ records in upper case."
    alphabet: bytes | None = None
    "The bytes that documents may have; None for any."
    integers: bool = False
    "Documents are integers: arrays and lists, or their digits."
    known: Ints | None = None
    "The integers that documents may have, in ascending order; None for any."
    storage: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    "Options for the file systems of URLs, as fsspec takes them. Not printed, because they may contain credentials."

    def __post_init__(self) -> None:
        if not isinstance(self.block_bytes, int) or self.block_bytes < 1:
            raise PlanError(f"{option('block_bytes', self.block_bytes)}: a block needs room for at least 1 byte")
        if not isinstance(self.max_file_bytes, int) or self.max_file_bytes < 0:
            raise PlanError(f"{option('max_file_bytes', self.max_file_bytes)}: expected 0 bytes or more")
        if self.on_bad_document not in ("stop", "skip"):
            raise PlanError(f"{option('on_bad_document', self.on_bad_document)}: expected 'stop' or 'skip'")
        if self.separator == "":
            raise PlanError(
                f"{option('separator', '')}: expected at least one character. Leave it out for a document per file."
            )
        if self.group == "":
            raise PlanError(f"{option('group', '')}: expected the name of a field or column, or None")
        if not self.field:
            raise PlanError(f"{option('field', '')}: expected the name of a field or column, such as 'text'")


def bad_document(name: str, reason: str) -> SourceError:
    """The error that stops a run at a bad document."""
    reason = reason.replace("(option field ", f"(option {option('field')} ")  # Rust does not know how it is written
    reason = reason.replace("text (or option bytes)", f"UTF-8 text (or {option('bytes', True)})")
    if "near its start" in reason or any(f"byte 0 (found {mark})" in reason for mark in ("0xff", "0xfe")):
        reason += "; a text in UTF-16 must be converted to UTF-8"
    return SourceError(
        f"{name}: {reason}. Correct or exclude it, or pass {option('on_bad_document', 'skip')} to go on without it."
    )


@dataclass(frozen=True, slots=True)
class _HeldDocuments:
    data: Bytes | None
    "None for documents whose text is in the packer's buffer."
    ends: Ints
    files: FileNumbers
    places: Ints
    keys: Keys | None


class Packer:
    """Collects the documents of one task and cuts them into blocks.

    `buffer` returns memory of at least `block_bytes` that the text of each usual block is copied to, such as pinned
    memory; a block of one larger document keeps its own.
    """

    def __init__(
        self,
        reading: Reading,
        *,
        task: int,
        place: Place,
        paths: tuple[str, ...],
        first_file: int,
        source_bytes: int,
        buffer: Callable[[], Bytes] | None = None,
    ) -> None:
        self.reading, self._buffer = reading, buffer
        self.names: dict[int, str] = {}
        "Groups by their hashes, as far as they have names."
        self._task, self._place, self._paths, self._first_file = task, place, paths, first_file
        self._full: deque[Documents] = deque()
        self._held: list[_HeldDocuments] = []
        self._held_bytes = self._held_documents = 0
        self._text = TextBuffer(reading.block_bytes + CHUNK_BYTES)
        self._text_bytes = 0
        "How much of the buffer is text of the held documents. They come before those that are held apart."
        self._blocks = 0
        self._source_bytes = source_bytes
        self._progress = self._reported_bytes = self._files_before = 0
        self._reset_counts()

    def _reset_counts(self) -> None:
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
        """Report how many bytes of the task's source, from the start of this file, have been read."""
        self._progress = min(self._files_before + source_bytes, self._source_bytes)

    def next_file(self, source_bytes: int) -> None:
        """Report that a file of the task, of `source_bytes` bytes, was read to its end."""
        self._files_before += source_bytes
        self.progress(0)

    def text(self, size: int) -> TextBuffer:
        """A buffer for the text of the next documents, which are then passed to `add`; `size` is the most it may have.

        It is that of the current block where possible, so that the text is not copied again.
        """
        apart = self._held_bytes > self._text_bytes or size > self.reading.block_bytes
        changed = self.reading.integers or self.reading.alphabet is not None or self._buffer is not None
        return TextBuffer(size) if apart or changed else self._text

    def add(
        self, text: Bytes | TextBuffer, ends: Ints, files: FileNumbers | int, places: Ints, keys: Keys | None = None
    ) -> None:
        """Add documents, none of them empty. The text is not copied where its documents fill a block by themselves."""
        if isinstance(files, int):
            files = np.full(len(ends), files, np.int32)
        if text is self._text:
            self._cut(None, ends, files, places, keys)
            return
        data = text.take(len(text)) if isinstance(text, TextBuffer) else text
        if self.reading.integers:
            data, ends, rows = self._integers(data, ends, files, places)
            files, places, keys = files[rows], places[rows], None if keys is None else keys[rows]
        if (allowed := self.reading.alphabet) is not None and (outside := documents_outside(data, ends, allowed)):
            rows = self._refuse(outside, data, ends, files, places)
            files, places, keys = files[rows], places[rows], None if keys is None else keys[rows]
            data, ends = gather_documents(data, ends, rows)
        self._cut(data, ends, files, places, keys)
        if self._held and len(data) > self.reading.block_bytes and (last := self._held[-1]).data is not None:
            # Documents that wait for the block to fill must not keep a large buffer alive.
            self._held[-1] = dataclasses.replace(last, data=last.data.copy())

    def _cut(self, data: Bytes | None, ends: Ints, files: FileNumbers, places: Ints, keys: Keys | None) -> None:
        """Hold the documents, and make a block each time one is full."""
        most, start = self.reading.block_bytes, 0
        while start < len(ends):
            base = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, base + most - self._held_bytes, side="right"))
            stop = min(stop, start + BLOCK_DOCUMENTS - self._held_documents)
            if stop <= start:
                if self._held:
                    self._full.append(self._block())
                    continue
                stop = start + 1  # larger than a block: alone
            end = int(ends[stop - 1])
            own, own_keys = None if data is None else data[base:end], None if keys is None else keys[start:stop]
            self._held.append(
                _HeldDocuments(own, ends[start:stop] - base, files[start:stop], places[start:stop], own_keys)
            )
            self._held_bytes += end - base
            self._text_bytes += 0 if data is not None else end - base
            self._held_documents += stop - start
            start = stop
            if self._held_bytes >= most:
                self._full.append(self._block())

    def _integers(self, data: Bytes, ends: Ints, files: FileNumbers, places: Ints) -> tuple[Bytes, Ints, Ints]:
        """Documents of integers, all written in the same way; those of something else are bad ones."""
        values, value_ends, problems = read_integers(data, ends)
        lost = {}
        for row, at in problems:
            start = (int(ends[row - 1]) if row else 0) + at
            found = data[start : min(start + 20, int(ends[row]))].tobytes().decode("utf-8", "replace").split()[0]
            lost[row] = (
                f"{found!r} at byte {at:,}, expected integers of 64 bits with white space or commas between them"
            )
        if (known := self.reading.known) is not None:
            strange = np.flatnonzero(~np.isin(values, known))
            for row, at in zip(
                np.searchsorted(value_ends, strange, side="right").tolist(), strange.tolist(), strict=True
            ):
                lost.setdefault(row, f"{values[at]} is not one of the {len(known):,} integers of the vocabulary")
        counts = np.diff(value_ends, prepend=0)
        rows = np.delete(np.arange(len(ends)), list(lost))
        self.left_out("empty", int((counts[rows] == 0).sum()))
        self.bad_many([(self._name(row, files, places), lost[row]) for row in sorted(lost)[:LISTED_SKIPS]], len(lost))
        rows = rows[counts[rows] > 0]
        text, text_ends = write_integers(values, value_ends)
        return *gather_documents(text, text_ends, rows), rows

    def _name(self, row: int, files: FileNumbers, places: Ints) -> str:
        return place_name(self._paths[int(files[row]) - self._first_file], self._place, int(places[row]))

    def _refuse(
        self, outside: list[tuple[int, int]], data: Bytes, ends: Ints, files: FileNumbers, places: Ints
    ) -> Ints:
        """Documents with bytes outside the alphabet are bad ones; the numbers of the others."""
        listed = []
        for row, at in outside[:LISTED_SKIPS]:
            place = (int(ends[row - 1]) if row else 0) + at
            found = data[place : min(place + 4, int(ends[row]))].tobytes()
            shown = (found[:1] if found[0] < 128 else found).decode("utf-8", "ignore")[:1]
            what = f"{shown!r} (byte 0x{found[0]:02x})" if shown else f"byte 0x{found[0]:02x}"
            named = self._name(row, files, places)
            listed.append((named, f"{what} at byte {at:,} of the document is not in the alphabet {self._alphabet}"))
        self.bad_many(listed, len(outside))
        return np.delete(np.arange(len(ends)), [row for row, _ in outside])

    @property
    def _alphabet(self) -> str:
        allowed = self.reading.alphabet or b""
        return allowed.decode("utf-8") if allowed.isascii() and len(allowed) <= 64 else f"of {len(allowed)} bytes"

    def full(self) -> Iterator[Documents]:
        """Yield the complete blocks; no reference to a yielded block is kept."""
        while self._full:
            yield self._full.popleft()

    def finish(self) -> Iterator[Documents]:
        """The last block; one without documents if only its tally has something to report."""
        yield from self.full()
        self._progress = self._source_bytes
        if self._held or self._left_out or self._skipped_count or self._progress > self._reported_bytes:
            yield self._block()

    def _block(self) -> Documents:
        held, room = self._held, None
        if self._buffer is not None and 0 < self._held_bytes <= self.reading.block_bytes:
            room = self._buffer()[: self._held_bytes]
        texts = [self._text.take(self._text_bytes)] if self._text_bytes else []
        texts += [one.data for one in held if one.data is not None]
        data = texts[0] if len(texts) == 1 and room is None else _joined(texts, np.uint8, room)
        shifts = np.cumsum([0] + [int(one.ends[-1]) for one in held])
        ends = _joined([one.ends + shift for one, shift in zip(held, shifts, strict=False)], np.int64)
        files, places = _joined([one.files for one in held], np.int32), _joined([one.places for one in held], np.int64)
        keys = None
        if self.reading.group is not None:
            keys = _joined([one.keys for one in held if one.keys is not None], np.uint64)
        tally = Tally(
            documents=len(ends),
            text_bytes=len(data),
            source_bytes=self._progress - self._reported_bytes,
            left_out=self._left_out,
            skipped_count=self._skipped_count,
            skipped=tuple(self._skipped),
        )
        block = Documents(
            BlockId(self._task, self._blocks),
            data,
            ends,
            files,
            places,
            self._place,
            self._paths,
            self._first_file,
            tally,
            keys,
            self.names,
        )
        self._blocks += 1
        self._reported_bytes = self._progress
        self._held, self._held_bytes, self._held_documents, self._text_bytes = [], 0, 0, 0
        self._reset_counts()
        return block


_T = TypeVar("_T", bound=np.generic)


def _joined(parts: list[NDArray[_T]], dtype: type[_T], out: NDArray[_T] | None = None) -> NDArray[_T]:
    # np.concatenate rejects an empty list, and a block may have only a tally.
    return np.concatenate(parts, out=out) if parts else np.empty(0, dtype)
