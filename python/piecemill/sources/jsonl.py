"""JSON lines -> documents: one field of every line.

The whole line must be valid JSON. Blank lines are passed over, `\r\n` ends a line as `\n` does, the last line
needs no end; where a key occurs twice the last one counts. A document's place is the byte at which its line
starts in the unpacked file: a range of a large file knows that without reading what comes before. Messages
give the line number, and count the lines before the range only then.

Start with `read_jsonl`.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from piecemill._core import extract_lines
from piecemill.sources.documents import Documents
from piecemill.sources.packing import Growing, Packer
from piecemill.sources.remote import open_bytes
from piecemill.sources.streams import CHUNK_BYTES, BrokenStream, ByteStream
from piecemill.sources.tasks import Task
from piecemill.sources.text import BOM


def read_jsonl(task: Task, packer: Packer) -> Iterator[Documents]:
    """The documents of a JSON lines file, or of the lines that start in a range of it."""
    lines = _Lines(task, packer)
    try:
        with open_bytes(lines.path, packer.reading.storage) as file:
            if task.start:
                # From one byte before, so that a line that starts right at the range is seen to start there.
                file.seek(task.start - 1)
            stream = ByteStream(file, task.packing)
            for whole in _whole_lines(stream, task, lines, Growing(packer.reading, besides=2)):
                taken = lines.take(whole)
                del whole  # a line may have hundreds of megabytes: not twice while its block is at work
                yield from taken
                packer.progress(stream.consumed)
    except BrokenStream as broken:
        # Whole lines before the break were handed over; the line that is broken goes with it.
        packer.bad(lines.name(0), str(broken))
    except OSError as error:
        packer.bad(lines.path, f"cannot be read: {error.strerror or error}")


class _Lines:
    """Where in the file the reader is, and what it makes of the lines there."""

    def __init__(self, task: Task, packer: Packer) -> None:
        self.path = task.paths[0]
        self.position = 0
        "Byte of the file at which the next line starts."
        self._file, self._packer = task.first_file, packer
        self._range_start, self._first = task.start, 0
        self._newlines = 0
        self._newlines_before: int | None = None

    def take(self, whole: NDArray[np.uint8]) -> Iterator[Documents]:
        reading = self._packer.reading
        (data, ends, starts, empty, (listed, count)), newlines, keys = extract_lines(
            whole, reading.field, reading.group
        )
        self._packer.bad_many([(self.name(line), reason) for line, reason in listed], count)
        self._packer.left_out("empty", empty)
        starts += self.position
        self._newlines += newlines
        self.position += len(whole)
        return self._packer.add(data, ends, self._file, starts, keys if reading.group else None)

    def name(self, line: int) -> str:
        """ "path:number" of a line, counted from the position."""
        if self._newlines_before is None:
            self._newlines_before = self._count_before()
        return f"{self.path}:{self._newlines_before + self._newlines + line + 1}"

    @property
    def place(self) -> str:
        """ "path@byte" of the next line: known without counting."""
        return f"{self.path}@{self.position}"

    def start_at(self, position: int) -> None:
        """The first line of the range starts here."""
        self.position = self._first = position

    def _count_before(self) -> int:
        if not self._range_start:
            return 0
        count, left = 0, self._first
        with open_bytes(self.path, self._packer.reading.storage) as file:
            while left and (chunk := file.read(min(left, CHUNK_BYTES))):
                count += chunk.count(b"\n")
                left -= len(chunk)
        return count


def _whole_lines(stream: ByteStream, task: Task, lines: _Lines, line: Growing) -> Iterator[NDArray[np.uint8]]:
    """The bytes of the range in parts of whole lines; sets the position at which the first one starts.

    Of a long line the text is there once more when it is taken out, and where it has escapes twice more.
    """
    held: list[bytes] = []
    at = task.start - 1 if task.start else 0  # where the next chunk starts
    inside = not task.start  # whether the first line of the range was found
    for chunk in stream:
        here, at = at, at + len(chunk)
        if not inside:
            newline = chunk.find(b"\n")
            here = here + newline + 1 if newline >= 0 else at
            if task.stop is not None and here >= task.stop:
                return
            if newline < 0:
                continue
            chunk, inside = chunk[newline + 1 :], True
            lines.start_at(here)
        elif here == 0 and chunk.startswith(BOM):
            chunk = chunk[len(BOM) :]
            here = len(BOM)
            lines.start_at(here)
        last = -1
        if task.stop is not None and at >= task.stop:
            # The line that starts last in the range ends with the first line end at or after its last byte.
            last = chunk.find(b"\n", max(0, task.stop - 1 - here))
        cut = last if last >= 0 else chunk.rfind(b"\n")
        line.grow(len(chunk), lines.place)
        if cut < 0:
            held.append(chunk)
            continue
        # A line of many chunks is joined once, when its end has come.
        rest = chunk[cut + 1 :]
        held.append(chunk[: cut + 1])
        line.end(lines.place)
        joined = [_joined(held)]
        line.end(lines.place)
        yield joined.pop()
        line.begin()
        if last >= 0:
            return
        held.append(rest)
        line.grow(len(rest), lines.place)
    if any(held):
        line.end(lines.place)
        joined = [_joined(held)]
        line.end(lines.place)
        yield joined.pop()
        line.begin()


def _joined(parts: list[bytes]) -> NDArray[np.uint8]:
    """The parts in one buffer; each is let go as it is copied, so a long line is never in memory twice."""
    if len(parts) == 1:
        return np.frombuffer(parts.pop(), np.uint8)
    whole = np.empty(sum(map(len, parts)), np.uint8)
    end = len(whole)
    while parts:
        part = parts.pop()
        whole[end - len(part) : end] = np.frombuffer(part, np.uint8)
        end -= len(part)
    return whole
