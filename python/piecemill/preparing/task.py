"""The unit of work: one task of the source becomes shards and entries.

`prepare_task` is a function of what it is given: it reads a task, cuts it into pieces of a fixed amount of text, and
for each piece writes one shard per split and then an entry. Doing it twice writes the same bytes. Pieces that have an
entry already are read past, not encoded.
"""

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import Xxh3, gather_documents
from piecemill.errors import SourceError
from piecemill.executors import check
from piecemill.preparing.job import Job
from piecemill.preparing.progress import Numbers
from piecemill.preparing.selection import Selected, select
from piecemill.shards import ShardWriter
from piecemill.shards.manifest import Entry, entry_name, parse_entry, piece_name
from piecemill.sources import Documents, Tally, Task, read_task

PIECE_DOCUMENTS = 1 << 20
"A piece ends after so many documents too: tiny ones weigh more by their records than by their text."

_WAIT_SECONDS = 0.1


def prepare_task(task: Task, job: Job) -> Numbers:
    """Write the shards and the entry of each piece of `task` that has none; what was done, in numbers."""
    done, piece = Numbers(), 0
    with _running(), ReadAhead(read_task(task, job.reading, job.memory), job.reading.block_bytes) as blocks:
        try:
            while piece == 0 or blocks.more():
                with _open_piece(task, piece, job) as work:
                    while blocks.more() and not work.full:
                        work.add(blocks.take())
                        check(done + work.numbers + Numbers(read=blocks.seconds))
                    job.check_unchanged(task)
                    work.finish(last=not blocks.more())
                done += work.numbers
                piece += 1
        except SourceError:
            job.check_unchanged(task)  # "it was truncated" says more than "it cannot be read"
            raise
        return done + Numbers(read=blocks.seconds)


class ReadAhead:
    """The blocks of a task. A thread reads the next one while this one is worked on, unless this one is large."""

    def __init__(self, blocks: Iterator[Documents], usual_bytes: int) -> None:
        self._blocks, self._usual_bytes = blocks, usual_bytes
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._read: SimpleQueue[Documents | BaseException | None] = SimpleQueue()
        self._next: Documents | None = None
        self._ended = False
        self.seconds = 0.0
        "Spent reading."
        # A daemon, so that a source that never answers cannot keep the process from ending.
        threading.Thread(target=self._work, daemon=True, name="piecemill-read").start()
        self._want()

    def more(self) -> bool:
        """Whether there is another block; waits for it."""
        if self._next is None and not self._ended:
            if not self._waiting:
                self._want()
            block = self._get()
            self._waiting = False
            if isinstance(block, BaseException):
                self._ended = True
                raise block
            self._next, self._ended = block, block is None
        return self._next is not None

    def take(self) -> Documents:
        """The next block. Nothing here refers to it afterwards: its text is freed when the caller is done with it."""
        if not self.more() or self._next is None:
            raise ValueError("no block is left")
        block, self._next = self._next, None
        if block.nbytes <= self._usual_bytes:
            self._want()
        return block

    def _want(self) -> None:
        self._waiting = True
        self._wanted.put(True)

    def _get(self) -> Documents | BaseException | None:
        while True:
            try:
                return self._read.get(timeout=_WAIT_SECONDS)
            except Empty:
                check()

    def _work(self) -> None:
        while self._wanted.get():
            started = time.perf_counter()
            try:
                self._read.put(next(self._blocks, None))
            except BaseException as error:  # noqa: BLE001 - raised in the task's thread
                self._read.put(error)
            self.seconds += time.perf_counter() - started
        if isinstance(self._blocks, Generator):
            self._blocks.close()  # and with it the files it reads

    def __enter__(self) -> "ReadAhead":
        return self

    def __exit__(self, *_: object) -> None:
        self._wanted.put(False)


class _Piece:
    """One piece: what every piece counts. As it is, a piece that has an entry: read past, and compared with it."""

    def __init__(self, task: Task, number: int, job: Job, entry: Entry | None) -> None:
        self.task, self.number, self.job, self.entry = task, number, job, entry
        self.numbers = Numbers()
        self.content = Xxh3()
        self.text_bytes = self.documents = 0
        self.first = f"{task.paths[0]}"

    @property
    def full(self) -> bool:
        """Whether the piece ends here: the same for any machine and run."""
        return self.text_bytes >= self.job.piece_bytes or self.documents >= PIECE_DOCUMENTS

    def add(self, block: Documents) -> None:
        """Take the next block of the task."""
        started = time.perf_counter()
        selected = select(block, self.job)
        if not self.documents and len(block):
            self.first = block.name(0)
        self.content.update(selected.hashes.view(np.uint8).reshape(-1))
        self.text_bytes += block.nbytes
        self.documents += len(block)
        self.numbers += Numbers(select=time.perf_counter() - started)
        self.keep(block, selected)

    def keep(self, block: Documents, selected: Selected) -> None:
        """Nothing of it is needed: the shards are there."""

    def finish(self, *, last: bool) -> None:
        """SourceError if the piece is not what it was when its shards were written."""
        if self.entry is None or (self.entry.content, self.entry.last) != (self.content.hexdigest(), last):
            raise SourceError(
                f"{self.first}: from here on, the source is not what it was when it was prepared. Resuming needs "
                "the same sources: restore them, or choose another --out."
            )


class _NewPiece(_Piece):
    """A piece whose shards are written: encode, append, and publish at the end."""

    def __init__(self, task: Task, number: int, job: Job, stack: ExitStack) -> None:
        super().__init__(task, number, job, None)
        self.tokenizer = job.tokenizer()
        self.dtype = np.dtype(job.dtype)
        stem = piece_name(task.index, number)
        self.writers = [
            stack.enter_context(ShardWriter(job.out, split, stem, dtype=self.dtype)) for split in job.splits.names
        ]
        self.tally, self.place = Tally(), "file"
        self.dropped: dict[str, tuple[int, int]] = {}
        self.hashes: list[NDArray[np.uint64]] = []
        self.sides: list[NDArray[np.int32]] = []

    def keep(self, block: Documents, selected: Selected) -> None:
        """Encode the documents of each split and append them to its shard."""
        self.tally, self.place = self.tally + block.tally, block.place
        for rule, (count, size) in selected.dropped.items():
            before = self.dropped.get(rule, (0, 0))
            self.dropped[rule] = (before[0] + count, before[1] + size)
        if self.job.dedup:
            kept = selected.sides >= 0
            self.hashes.append(selected.hashes[kept])
            self.sides.append(selected.sides[kept])
        for side, writer in enumerate(self.writers):
            rows = np.flatnonzero(selected.sides == side)
            if len(rows):
                self.encode(block, rows, selected.records[rows], writer)
        self.numbers += Numbers(source_bytes=block.tally.source_bytes)

    def encode(self, block: Documents, rows: NDArray[np.int64], records: Any, writer: ShardWriter) -> None:
        """Encode some documents of a block in one call, and append them to a shard."""
        started = time.perf_counter()
        data, ends = block.data, block.ends
        if len(rows) < len(block):
            data, ends = gather_documents(data, ends, rows)
        job, threads = self.job, max(1, self.job.cores // _tasks_running)
        ids, id_ends = self.tokenizer.encode_flat(
            data, ends, bos=job.bos, eos=job.eos, dtype=self.dtype, special=job.special, threads=threads
        )
        encoded = time.perf_counter()
        writer.append(ids, id_ends, records)
        seconds = {"encode": encoded - started, "write": time.perf_counter() - encoded}
        self.numbers += Numbers(documents=len(rows), tokens=len(ids), **seconds)

    def finish(self, *, last: bool) -> None:
        """Publish the shards, then write the entry that says they are whole."""
        started = time.perf_counter()
        job, stem = self.job, piece_name(self.task.index, self.number)
        finished = {name: writer.finish() for name, writer in zip(job.splits.names, self.writers, strict=True)}
        hashes = None
        if job.dedup:
            from piecemill.preparing.dedup import save_hashes

            empty = np.empty((0, 2), np.uint64), np.empty(0, np.int32)
            hashes = save_hashes(
                job.out, stem, np.concatenate([empty[0], *self.hashes]), np.concatenate([empty[1], *self.sides])
            )
        entry = Entry(
            self.task.index,
            self.number,
            last,
            self.content.hexdigest(),
            self.place,
            {**asdict(self.tally), "skipped": [list(one) for one in self.tally.skipped]},
            self.dropped,
            {name: shard for name, shard in finished.items() if shard is not None},
            hashes,
        )
        job.out.write(entry.name, entry.to_json())
        self.numbers += Numbers(write=time.perf_counter() - started, pieces=1)


@contextmanager
def _open_piece(task: Task, number: int, job: Job) -> Iterator[_Piece]:
    name = entry_name(task.index, number)
    try:
        entry = parse_entry(job.out.read(name), name)
    except FileNotFoundError:
        with ExitStack() as stack:
            yield _NewPiece(task, number, job, stack)
    else:
        yield _Piece(task, number, job, entry)


_tasks_running = 0
"In this process: they share its cores, so that the last task of a run has all of them."
_counting = threading.Lock()


@contextmanager
def _running() -> Iterator[None]:
    global _tasks_running
    with _counting:
        _tasks_running += 1
    try:
        yield
    finally:
        with _counting:
            _tasks_running -= 1
