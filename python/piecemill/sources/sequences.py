"""FASTA and FASTQ -> documents: the letters of each record.

Header, line ends and qualities are removed; case is kept unless `Reading.upper` asks for capitals. Records without
letters are left out and counted. A FASTQ record has four lines. The ending of the name says which of the two a file is.
A document's place is the byte at which its record starts in the unpacked file.

Memory: a chunk and the current record, which is copied once.

Start with `read`.
"""

from collections.abc import Iterator

from piecemill._core import first_sequence, take_sequences
from piecemill.sources.documents import Documents, Place
from piecemill.sources.packing import Packer
from piecemill.sources.remote import file_name
from piecemill.sources.streams import BrokenStream
from piecemill.sources.tasks import Task, chunks, ranges
from piecemill.sources.text import failure

PLACE: Place = "byte"
cut = ranges  # each with the records that start in it

_FASTQ = (".fq", ".fastq")


def read(task: Task, packer: Packer) -> Iterator[Documents]:
    """The documents of a file, or of the records that start in a range of it."""
    records = _Records(task, packer)
    try:
        for chunk in chunks(task, packer):
            more = records.feed(chunk)
            yield from packer.full()
            if not more:
                return
    except (OSError, BrokenStream) as error:
        # Complete records before the break were added; the broken one is lost.
        return packer.bad(f"{task.paths[0]}@{records.position}", failure(error, task.paths[0]))
    records.add_complete(last=True)


class _Records:
    """Takes the letters out of the records of a range, chunk by chunk."""

    def __init__(self, task: Task, packer: Packer) -> None:
        self._task, self._packer = task, packer
        name = file_name(task.paths[0]).lower()
        self._fastq = (name.rpartition(".")[0] if task.packing else name).endswith(_FASTQ)
        self._held = bytearray()  # it grows in place: a long record is in memory once
        self._inside = not task.start
        "Whether the first record of the range was found."
        self.position = max(task.start - 1, 0)
        "Offset of the buffer in the unpacked file."

    def feed(self, chunk: bytes) -> bool:
        """Add the records that end in this chunk; False where the range ends in it."""
        edge = max(0, len(self._held) - 1)
        self._held += chunk
        if not self._inside:
            first = first_sequence(bytes(self._held), self._fastq)
            if first is None:
                keep = len(self._held) if self._fastq else 1
                self.position += len(self._held) - keep
                del self._held[: len(self._held) - keep]
                return self._task.stop is None or self.position < self._task.stop
            self._inside, edge = True, 0
            self.position += first
            del self._held[:first]
        # A chromosome is many chunks: only where a record ends is the buffer looked through.
        return not (self._fastq or self._held.find(b"\n>", edge) >= 0) or self.add_complete(last=False)

    def add_complete(self, *, last: bool) -> bool:
        """Add the complete records in the buffer, with `last` all; False where the range ends in it."""
        if not self._inside:
            return False
        buffer, self._held = bytes(self._held), bytearray()
        (data, ends, starts, empty, (listed, count)), done, ended = take_sequences(
            buffer,
            fastq=self._fastq,
            base=self.position,
            stop=self._task.stop,
            last=last,
            upper=self._packer.reading.upper,
        )
        path = self._task.paths[0]
        self._packer.bad_many([(f"{path}@{self.position + at}", reason) for at, reason in listed], count)
        self._packer.left_out("empty", empty)
        self._packer.add(data, ends, self._task.first_file, starts)
        if not ended:
            self._held += memoryview(buffer)[done:]
        self.position += done
        return not ended
