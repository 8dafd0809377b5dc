"""The unit of work: one task of the source becomes shards and entries.

`prepare_task` depends only on its arguments: it reads a task, cuts it into pieces of a fixed amount of text, and for
each piece writes one shard per split and then an entry. It is idempotent: a second call writes the same bytes. A piece
that already has an entry is read and compared with it, but not encoded again.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import Xxh3, gather_documents
from piecemill.cancelling import check
from piecemill.errors import SourceError
from piecemill.files import Place
from piecemill.machine import core_share, using_cores
from piecemill.plans import another_out
from piecemill.preparing.dedup import save_hashes
from piecemill.preparing.plan import PIECE_DOCUMENTS, PreparePlan
from piecemill.preparing.result import Numbers
from piecemill.preparing.selection import Selected, Splits, select
from piecemill.shards import ShardWriter, token_dtype
from piecemill.shards.folder import saved_tokenizer
from piecemill.shards.manifest import Entry, entry_name, parse_entry, piece_name
from piecemill.sources import Documents, Reading, Tally, Task, read_task
from piecemill.sources.ahead import ReadAhead
from piecemill.sources.unchanged import add_content, check_task
from piecemill.tokenizers.engines import text_buffers
from piecemill.tokenizers.special import refuse_special


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Job:
    """The same for all tasks of a run. Picklable: no locks, threads, callbacks or open files."""

    plan: PreparePlan
    out: Place
    reading: Reading
    splits: Splits
    identity: str
    "Identity hash of the tokenizer in `out`."
    engine: str
    vocab_size: int
    bos: int | None
    eos: int | None
    cores: int
    "Cores that the running tasks of one process share."
    groups: NDArray[np.int32] | None
    "The weight group of each source file; None if all are in group 0."
    keys: NDArray[np.uint64] | None
    "A hash of the directory group of each source file, for `split_by=directory`."
    changed: NDArray[np.int64]
    "When each source file was last changed, in nanoseconds; -1 where that is not known."
    memory: Any = None
    "For a source in memory, the object to read; the job then cannot leave its process."


def prepare_task(task: Task, job: Job) -> Numbers:
    """Write the shards and the entry of each piece of `task` that has none; returns counters of the work done."""
    done, piece = Numbers(), 0
    blocks = read_task(task, job.reading, job.memory, text_buffers(job.engine, job.reading.block_bytes))
    with using_cores(), ReadAhead(blocks, job.reading.block_bytes, lambda: check(done)) as ahead:
        try:
            while piece == 0 or ahead.more():
                with _open_piece(task, piece, job) as work:
                    before = done
                    while ahead.more() and not work.full:
                        work.add(ahead.next_block())
                        done = before + work.numbers
                        check(done)
                    check_task(task, job.changed, job.reading.storage)
                    work.finish(last=not ahead.more())
                    done = before + work.numbers
                piece += 1
        except SourceError:
            check_task(task, job.changed, job.reading.storage)  # "it was truncated" says more than "it cannot be read"
            raise
        return done + Numbers(read=ahead.seconds)


class _Piece:
    """A piece that has an entry: it is read and compared with the entry, but not encoded."""

    def __init__(self, task: Task, number: int, job: Job, entry: Entry | None = None) -> None:
        self.task, self.number, self.job, self.entry = task, number, job, entry
        self.numbers, self.content = Numbers(), Xxh3()
        self.text_bytes = self.documents = 0
        self.first = task.paths[0]

    @property
    def full(self) -> bool:
        """Whether the piece ends here: the same for any machine and run."""
        return self.text_bytes >= self.job.plan.size("piece_bytes") or self.documents >= PIECE_DOCUMENTS

    def add(self, block: Documents) -> Selected:
        """Count the next block of the task; returns the decision about each of its documents."""
        started = time.perf_counter()
        selected = select(block, self.job)
        if not self.documents and len(block):
            self.first = block.name(0)
        add_content(self.content, selected.hashes, block)
        self.text_bytes += block.nbytes
        self.documents += len(block)
        self.numbers += Numbers(select=time.perf_counter() - started)
        return selected

    def finish(self, *, last: bool) -> None:
        """SourceError if the source of the piece has changed since its shards were written."""
        if self.entry is None or (self.entry.content, self.entry.last) != (self.content.hexdigest(), last):
            was = self.entry.tally["documents"] if self.entry else 0
            raise SourceError(
                f"{self.first}: from here on, the source is not what it was when it was prepared ({was:,} of its "
                f"documents then, {self.documents:,} now{', with other text or groups' * (was == self.documents)}). "
                f"Restore it, {another_out()}"
            )


class _NewPiece(_Piece):
    """A piece whose shards are written: encode, append, and publish at the end."""

    def __init__(self, task: Task, number: int, job: Job, stack: ExitStack) -> None:
        super().__init__(task, number, job)
        self.tokenizer = saved_tokenizer(job.out, job.identity, job.engine)
        self.dtype, self.stem = token_dtype(job.vocab_size), piece_name(task.index, number)
        behind = core_share(job.cores) > 1  # a task that has several cores may use one of them for writing
        new = partial(ShardWriter, job.out, stem=self.stem, dtype=self.dtype, vocab=job.vocab_size, behind=behind)
        self.writers = {split: stack.enter_context(new(split)) for split in job.splits.names}
        self.tally, self.place = Tally(), "file"
        self.dropped: dict[str, tuple[int, int]] = {}
        self.hashes, self.sides = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int32)]

    def add(self, block: Documents) -> Selected:
        """Encode the documents of each split and append them to its shard."""
        selected = super().add(block)
        self.tally, self.place = self.tally + block.tally, block.place
        for rule, (count, size) in selected.dropped.items():
            before = self.dropped.get(rule, (0, 0))
            self.dropped[rule] = (before[0] + count, before[1] + size)
        if self.job.plan.dedup == "exact":
            kept = selected.sides >= 0
            self.hashes.append(selected.hashes[kept])
            self.sides.append(selected.sides[kept])
        for side, writer in enumerate(self.writers.values()):
            rows = np.flatnonzero(selected.sides == side)
            if len(rows):
                self.encode(block, rows, selected.records[rows], writer)
        self.numbers += Numbers(source_bytes=block.tally.source_bytes)
        return selected

    def encode(self, block: Documents, rows: NDArray[np.int64], records: NDArray[np.void], writer: ShardWriter) -> None:
        """Encode some documents of a block in one call, and append them to a shard."""
        started, job, text = time.perf_counter(), self.job, (block.data, block.ends)
        data, ends = text if len(rows) == len(block) else gather_documents(*text, rows)
        special, threads = job.plan.special_in_text, core_share(job.cores)
        if special == "stop":
            known = self.tokenizer.special_tokens
            refuse_special(data, ends, known, lambda number: block.name(int(rows[number])), "special_in_text")
        ids, id_ends = self.tokenizer.encode_flat(
            data, ends, bos=job.bos, eos=job.eos, dtype=self.dtype, special=special, threads=threads
        )
        encoded = time.perf_counter()
        writer.append(ids, id_ends, records)
        seconds = Numbers(encode=encoded - started, write=time.perf_counter() - encoded)
        self.numbers += seconds + Numbers(documents=len(rows), tokens=len(ids))

    def finish(self, *, last: bool) -> None:
        """Publish the shards, then write the entry, which marks them as complete."""
        started, out, hashes = time.perf_counter(), self.job.out, None
        shards = {split: shard for split, writer in self.writers.items() if (shard := writer.finish()) is not None}
        if self.job.plan.dedup == "exact":
            hashes = save_hashes(out, self.stem, np.concatenate(self.hashes), np.concatenate(self.sides))
        tally = {**asdict(self.tally), "skipped": [list(one) for one in self.tally.skipped]}
        where = (self.task.index, self.number, last, self.content.hexdigest(), self.place)
        entry = Entry(*where, tally, self.dropped, shards, hashes)
        out.write(entry.name, entry.to_json())
        self.numbers += Numbers(write=time.perf_counter() - started, pieces=1)


@contextmanager
def _open_piece(task: Task, number: int, job: Job) -> Iterator[_Piece]:
    name = entry_name(task.index, number)
    try:
        entry = parse_entry(job.out.read(name), name, job.out.url)
    except FileNotFoundError:
        with ExitStack() as stack:
            yield _NewPiece(task, number, job, stack)
    else:
        yield _Piece(task, number, job, entry)
