"""Text files with a separator -> documents: one per piece between separators.

The rules of `text` for UTF-8, byte order marks and binary files apply. Empty pieces are left out and counted.

Memory: a chunk and the current piece, which is copied once when it is cut off.

Start with `read`.
"""

from collections.abc import Iterator

from piecemill._core import cut_text
from piecemill.sources.documents import Documents, Place
from piecemill.sources.packing import Packer
from piecemill.sources.streams import BOM, BrokenStream
from piecemill.sources.tasks import Task, chunks, one_task
from piecemill.sources.text import failure, is_binary, refuse_binary

PLACE: Place = "byte"
cut = one_task  # where a piece starts is only known from the start


def read(task: Task, packer: Packer) -> Iterator[Documents]:
    """The documents of one file."""
    pieces = _Pieces(task, packer)
    try:
        for number, chunk in enumerate(chunks(task, packer)):
            if number == 0 and not packer.reading.raw and is_binary(chunk):
                return refuse_binary(task.paths[0], task, packer)
            pieces.feed(chunk)
            yield from packer.full()
    except (OSError, BrokenStream) as error:
        # Complete pieces before the break were added; the broken piece is lost.
        return packer.bad(f"{task.paths[0]}@{pieces.position}", failure(error, task.paths[0]))
    pieces.add_complete(last=True)


class _Pieces:
    """Cuts a file into pieces, chunk by chunk."""

    def __init__(self, task: Task, packer: Packer) -> None:
        self._task, self._packer = task, packer
        self._separator = (packer.reading.separator or "").encode()
        self._held = bytearray()
        self._read = 0
        self.position = 0
        "Offset of the buffer in the unpacked file."

    def feed(self, chunk: bytes) -> None:
        """Add the pieces that end in this chunk."""
        start, self._read = self._read, self._read + len(chunk)
        if start == 0 and chunk.startswith(BOM) and not self._packer.reading.raw:
            chunk, self.position = chunk[len(BOM) :], len(BOM)
        # A separator may begin at the end of the buffer.
        edge = max(0, len(self._held) - len(self._separator) + 1)
        self._held += chunk
        if self._held.find(self._separator, edge) >= 0:
            self.add_complete(last=False)

    def add_complete(self, *, last: bool) -> None:
        """Add the complete pieces in the buffer; with `last`, the whole buffer."""
        text, self._held = bytes(self._held), bytearray()
        found = cut_text(text, self._separator, self.position, last, self._packer.reading.raw)
        (data, ends, starts, empty, (listed, count)), done = found
        self._packer.bad_many([(self._task.paths[0], reason) for _, reason in listed], count)
        self._packer.left_out("empty", empty)
        self._packer.add(data, ends, self._task.first_file, starts)
        self._held += memoryview(text)[done:]
        self.position += done
