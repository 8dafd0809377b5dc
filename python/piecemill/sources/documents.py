"""Documents: what every source gives, and the tally of what it did not give.

A block of documents is one buffer and where each document ends, with columns that say where each came from.
Nothing here knows how the bytes were read.

Start with `Documents`; `Tally` adds up over blocks, tasks and workers.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from piecemill.plans import option

LISTED_SKIPS = 1_000
"""How many skipped documents a tally names; it counts all of them."""

Place = Literal["file", "byte", "row"]
"""What `Documents.places` holds: nothing (the document is the file), a byte offset, or a row number from 0."""


class BlockId(NamedTuple):
    """Which block: the same for the same files and block size, for every reader."""

    task: int
    block: int


class Skipped(NamedTuple):
    """A document that was skipped because `on_bad_document="skip"`."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tally:
    """What was read, left out and skipped.

    Tallies add up in any grouping, and in the order of the tasks the sum is the same for any number of workers.
    The tally of a single block holds what happened since the block before it; only whole tasks compare.
    """

    documents: int = 0
    text_bytes: int = 0
    source_bytes: int = 0
    "Bytes of the source done with, as they lie on disk: over all tasks they come to `Source.total_bytes`."
    left_out: Mapping[str, int] = field(default_factory=dict)
    "How many files or documents each rule left out: hidden, ignored, binary, oversized, empty, ..."
    skipped_count: int = 0
    skipped: tuple[Skipped, ...] = ()
    "The first `LISTED_SKIPS` skipped documents."

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.documents + other.documents,
            self.text_bytes + other.text_bytes,
            self.source_bytes + other.source_bytes,
            dict(Counter(self.left_out) + Counter(other.left_out)),
            self.skipped_count + other.skipped_count,
            (self.skipped + other.skipped)[:LISTED_SKIPS],
        )

    def describe(self) -> str:
        """What was not read, in words: "3 hidden, 1 binary, 2 skipped"; empty if all was."""
        words = {"own": "written by Piecemill", "folder_links": "linked as a folder"}
        parts = [
            f"{count:,} {words.get(rule, rule.replace('_', ' '))}"
            for rule, count in sorted(self.left_out.items())
            if count
        ]
        if self.skipped_count:
            first = f" (first: {self.skipped[0].name}: {self.skipped[0].reason})" if self.skipped else ""
            parts.append(f"{self.skipped_count:,} skipped{first}")
        return ", ".join(parts)


def show_left_out(left_out: Mapping[str, int]) -> str:
    """What was left out of a source that was read, in words, with the way to read files that were too large."""
    shown = Tally(left_out=left_out).describe()
    return f"{shown} (a larger {option('max_file_bytes')} reads the oversized)" if left_out.get("oversized") else shown


def place_name(path: str, kind: Place, place: int) -> str:
    """Where a document is: "path", "path@byte" or "path[row]"."""
    return path if kind == "file" else f"{path}@{place}" if kind == "byte" else f"{path}[{place}]"


@dataclass(frozen=True, slots=True)
class Documents:
    """One block of documents: `data[ends[i - 1]:ends[i]]` is document i, in UTF-8 (unless raw) and not empty.

    `data` may be a view of memory that belongs to someone else; do not write to it. A block has no documents
    only where its tally has something to say.
    """

    id: BlockId
    data: NDArray[np.uint8]
    ends: NDArray[np.int64]
    files: NDArray[np.int32]
    "The number of each document's file in the source."
    places: NDArray[np.int64]
    "Where each document starts in its file, in units of `place`; byte offsets are of the unpacked text."
    place: Place
    paths: tuple[str, ...]
    "Paths of the task's files; file number n is `paths[n - first_file]`."
    first_file: int
    tally: Tally
    keys: NDArray[np.uint64] | None = None
    "The hash of each document's group, where `Reading.group` names a field for it."
    names: Mapping[int, str] = field(default_factory=dict)
    "What was hashed, for the first thousand groups of a task."

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def nbytes(self) -> int:
        """Bytes of text."""
        return len(self.data)

    def encoded(self, index: int) -> bytes:
        """Document `index` as UTF-8."""
        index = range(len(self))[index]
        start = self.ends[index - 1] if index else 0
        return self.data[start : self.ends[index]].tobytes()

    def text(self, index: int) -> str:
        """Document `index` as a string; bytes that are not UTF-8, of raw documents, become U+FFFD."""
        return self.encoded(index).decode("utf-8", "replace")

    def name(self, index: int) -> str:
        """Where document `index` came from: "path", "path@byte" or "path[row]"."""
        return place_name(self.paths[int(self.files[index]) - self.first_file], self.place, int(self.places[index]))
