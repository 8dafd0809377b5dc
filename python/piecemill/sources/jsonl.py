"""JSON lines -> documents: one field of every line.

The whole line must be valid JSON. Blank lines are passed over, `\r\n` ends a line as `\n` does, the last line
needs no end; where a key occurs twice the last one counts. A document's place is the byte at which its line
starts in the unpacked file: a range of a large file knows that without reading what comes before. Messages
give the line number; the lines before the range are counted only for a message.

Memory: a chunk, the current line and the text extracted from it; a text with escapes is in memory twice.

Start with `read`.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from piecemill._core import extract_lines
from piecemill.sources.documents import Documents, Place
from piecemill.sources.packing import Packer
from piecemill.sources.remote import open_bytes
from piecemill.sources.streams import BOM, CHUNK_BYTES, BrokenStream
from piecemill.sources.tasks import Task, chunks, ranges
from piecemill.sources.text import failure

PLACE: Place = "byte"
cut = ranges  # each with the lines that start in it


def read(task: Task, packer: Packer) -> Iterator[Documents]:
    """The documents of a JSON lines file, or of the lines that start in a range of it."""
    lines = _Lines(task, packer)
    try:
        for chunk in chunks(task, packer):
            more = lines.feed(chunk)
            yield from packer.full()
            if not more:
                return
        lines.end()
    except BrokenStream as broken:
        # Complete lines before the break were added; the broken line is lost.
        packer.bad(lines.name(0), str(broken))
    except OSError as error:
        packer.bad(task.paths[0], failure(error, task.paths[0]))


class _Lines:
    """Takes the documents out of the lines of a range, chunk by chunk."""

    def __init__(self, task: Task, packer: Packer) -> None:
        self._task, self._packer = task, packer
        self._next_chunk = task.start - 1 if task.start else 0
        "Byte of the file at which the next chunk starts."
        self._inside = not task.start
        "Whether the first line of the range was found."
        self._held = bytearray()  # it grows in place: a long line is in memory once
        self._position = self._first = 0
        "Offsets in the file of the buffer and of the first line of the range."
        self._newlines = 0
        self._newlines_before: int | None = None

    def feed(self, chunk: bytes) -> bool:
        """Add the lines that end in this chunk; False where the range ends in it."""
        stop, start = self._task.stop, self._next_chunk
        self._next_chunk += len(chunk)
        skip = 0
        if not self._inside:
            skip = chunk.find(b"\n") + 1
            self._inside = skip > 0
            if stop is not None and (start + skip if skip else self._next_chunk) >= stop:
                return False
            if not skip:
                return True
        elif start == 0 and chunk.startswith(BOM):
            skip = len(BOM)
        if skip:
            self._position = self._first = start + skip
        last = -1
        if stop is not None and self._next_chunk >= stop:
            # The line that starts last in the range ends with the first line end at or after its last byte.
            last = chunk.find(b"\n", max(skip, stop - 1 - start))
        end = max((last if last >= 0 else chunk.rfind(b"\n", skip)) + 1, skip)
        view = memoryview(chunk)
        if self._held and end > skip:  # a line that began in a chunk before ends here
            first = chunk.find(b"\n", skip) + 1
            self._held += view[skip:first]
            skip = first
            self.end()
        if end > skip:
            self._take(np.frombuffer(view[skip:end], np.uint8))
        self._held += view[end:]
        return last < 0

    def end(self) -> None:
        """Add the line in the buffer, and clear it: at the end, no line end follows the last one."""
        if self._held:
            line, self._held = self._held, bytearray()
            self._take(np.frombuffer(line, np.uint8))

    def _take(self, whole: NDArray[np.uint8]) -> None:
        """Add the documents of these lines."""
        packer = self._packer
        reading = packer.reading
        text = packer.text(len(whole))
        (ends, starts, empty, (listed, count)), newlines, keys, names = extract_lines(
            whole, text, reading.field, reading.group, reading.integers
        )
        packer.bad_many([(self.name(line), reason) for line, reason in listed], count)
        packer.left_out("empty", empty)
        starts += self._position
        self._newlines += newlines
        self._position += len(whole)
        packer.names.update(names)
        packer.add(text, ends, self._task.first_file, starts, keys if reading.group else None)

    def name(self, line: int) -> str:
        """ "path:number" of a line, counted from the start of the buffer."""
        if self._newlines_before is None:
            self._newlines_before = self._count_before()
        return f"{self._task.paths[0]}:{self._newlines_before + self._newlines + line + 1}"

    def _count_before(self) -> int:
        if not self._task.start:
            return 0
        count, left = 0, self._first
        with open_bytes(self._task.paths[0], self._packer.reading.storage) as file:
            while left and (chunk := file.read(min(left, CHUNK_BYTES))):
                count += chunk.count(b"\n")
                left -= len(chunk)
        return count
