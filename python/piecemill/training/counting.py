"""Counting words: in threads of this process, or on an executor: each task where it runs, added up here.

The counts of a task travel as the bytes of a counts file (`counts.py`). Addition does not depend on the order, so the
vocabulary is that of one machine.
"""

import io
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from piecemill import _core
from piecemill.cancelling import check
from piecemill.errors import PlanError, PretokenizerError
from piecemill.executors import Executor
from piecemill.plans import option
from piecemill.sources import Documents, Reading, Source, Tally, Task, read_task
from piecemill.sources.tasks import kind_of
from piecemill.training.counts import NOTHING, Corpus, add_counts, write_counts
from piecemill.training.groups import Grouping, Tags


@dataclass(frozen=True, slots=True)
class CountJob:
    """Arguments of `count_task` that are the same for all tasks; picklable."""

    reading: Reading
    pretokenizer: str
    memory: int
    "Bytes for counting, in each worker; beyond them counts go to the disk of the worker."
    grouping: Grouping | None = None
    "How documents are grouped, where words are counted by group."


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """The words of one task."""

    corpus: Corpus
    tally: Tally
    counts: bytes
    "A counts file."
    groups: Mapping[tuple[str, int], int] | None
    "Documents of each group and weight, in the order of the tags that the words have."


def count_block(block: Documents, add: Callable[..., None], pretokenizer: str, tags: Tags | None = None) -> Corpus:
    """Add the documents of a block to a counter; an error of the pretokenizer names the document."""
    try:
        add(block.data, block.ends, *([] if tags is None else [tags.of(block)]))
    except PretokenizerError as error:
        raise PretokenizerError(f"{_failing(block, pretokenizer)}: {error}") from None
    hashes = _core.hash_documents(block.data, block.ends).sum(axis=0, dtype=np.uint64)
    return Corpus(len(block), block.nbytes, (int(hashes[0]), int(hashes[1])))


def count_task(task: Task, job: CountJob) -> TaskCounts:
    """The words of one task; runs on any machine."""
    counter = _core.WordCounter(job.pretokenizer, job.memory, tempfile.gettempdir())
    corpus, tally = NOTHING, Tally()
    tags = None if job.grouping is None else Tags(job.grouping)
    for block in read_task(task, job.reading):
        corpus += count_block(block, counter.add, job.pretokenizer, tags)
        tally += block.tally
        check(tally.source_bytes)
    file = io.BytesIO()
    write_counts(counter.finish(), file, job.pretokenizer, corpus, tally)
    return TaskCounts(corpus, tally, file.getvalue(), None if tags is None else tags.documents)


def count_on(
    executor: Executor,
    source: Source,
    counter: _core.WordCounter,
    job: CountJob,
    on_read: Callable[[Corpus, int], None],
    tags: Tags | None = None,
) -> tuple[Corpus, Tally]:
    """Count all tasks of `source` on `executor` into `counter`; returns what was counted, and what was not read.

    `on_read` is called with what has been counted so far and the bytes of the source that were read.
    """
    if source.memory is not None:
        raise PlanError(
            f"{option('executor', executor.name)}: {source.tasks[0].paths[0]} is in the memory of this process, where "
            f"other machines cannot read it. Pass files, or {option('executor', 'local')}."
        )
    corpus, read = NOTHING, 0
    tallies: dict[int, Tally] = {}
    tick = lambda running: on_read(corpus, read + sum(running))  # noqa: E731
    with closing(executor.map(partial(count_task, job=job), source.tasks, tick)) as results:
        for task, counted in results:
            here = None if tags is None else tags.add_documents(counted.groups or {})
            name = f"counts of task {task.index}"
            add_counts(io.BytesIO(counted.counts), name, counter, pretokenizer=job.pretokenizer, tags=here)
            corpus += counted.corpus
            read += counted.tally.source_bytes
            tallies[task.index] = counted.tally
    tally = source.found
    for index in sorted(tallies):  # in the order of the corpus: only the first skipped documents are listed
        tally += tallies[index]
    return corpus, tally


def _failing(block: Documents, pretokenizer: str) -> str:
    """The name of the first document on which `pretokenizer` fails."""
    for i in range(len(block)):
        try:
            _core.split_text(block.text(i), pretokenizer)
        except PretokenizerError:
            return block.name(i)
    return block.name(0)


def add_words(counter: _core.WordCounter, second: _core.WordCounter | None, data: Any, ends: Any, *tags: Any) -> None:
    """Count the words of documents, and those of the second pretokenizer if there is one: one reading for both."""
    counter.add(data, ends, *tags)
    if second is not None:
        second.add(data, ends)


def never_cut(source: Source, tally: Tally) -> bool:
    """Whether there are only text files, and each was one piece: read, empty, binary or bad."""
    if not source.files or any(kind_of(file.path)[0] != "text" for file in source.files):
        return False
    left_out = tally.left_out.get("empty", 0) + tally.left_out.get("binary", 0)
    return tally.documents + left_out + tally.skipped_count - source.found.skipped_count == len(source.files)


class Feed:
    """Reads all tasks of a source in `readers` threads and hands blocks to `consume` in `consumers` threads.

    Between them is a bounded queue of blocks (backpressure). The order of blocks is not kept: consumers must not depend
    on it (counting does not). The first error of any thread cancels all, and is raised where they were started.
    """

    def __init__(
        self, source: Source, *, readers: int, consumers: int, most_bytes: int, progress: _core.Progress
    ) -> None:
        self._source, self._progress = source, progress
        self._tasks = deque(source.tasks)
        self._readers = max(1, min(readers, len(self._tasks)))
        self._consumers = consumers
        self._most_bytes = most_bytes
        self._waiting: deque[Documents] = deque()
        self._waiting_bytes = 0
        self._reading = self._readers
        self._changed = threading.Condition()
        "Notified whenever a thread may have something to do; threads wait for it briefly, and poll `_cancelled`."
        self._failed: BaseException | None = None

    def run(self, consume: Callable[[Documents], None]) -> None:
        """Return when every block was consumed; the first error in any thread cancels all and is raised here."""

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again below
                with self._changed:
                    self._failed = self._failed or error
                    self._changed.notify_all()

        work = [self._read] * self._readers + [lambda: self._consume_all(consume)] * self._consumers
        threads = [threading.Thread(target=guarded, args=(each,), daemon=True, name="piecemill-feed") for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed is not None:
            raise self._failed
        if self._progress.stopped:
            raise KeyboardInterrupt

    @property
    def _cancelled(self) -> bool:
        """Whether a thread failed or the run was stopped."""
        return self._failed is not None or self._progress.stopped

    def _read(self) -> None:
        try:
            while not self._cancelled:
                try:
                    task = self._tasks.popleft()
                except IndexError:
                    return
                for block in self._source.read(task):
                    with self._changed:
                        # One block is always let in, however large: a document is never cut.
                        while self._waiting and self._waiting_bytes + block.nbytes > self._most_bytes:
                            if self._cancelled:
                                return
                            self._changed.wait(0.1)
                        self._waiting.append(block)
                        self._waiting_bytes += block.nbytes
                        self._changed.notify()
                    if self._cancelled:
                        return
        finally:
            with self._changed:
                self._reading -= 1
                self._changed.notify_all()

    def _consume_all(self, consume: Callable[[Documents], None]) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._cancelled or self._reading == 0:
                        return
                    self._changed.wait(0.1)
                if self._cancelled:
                    return
                block = self._waiting.popleft()
                self._waiting_bytes -= block.nbytes
                self._changed.notify_all()
            consume(block)
