"""Reader threads and consumer threads with a bounded queue of blocks between them (backpressure).

The order of blocks is not kept: consumers must not depend on it (counting does not). The first error of any thread
cancels all, and is raised where they were started.
"""

import threading
from collections import deque
from collections.abc import Callable

from piecemill._core import Progress
from piecemill.sources import Documents, Source


class Feed:
    """Reads all tasks of a source in `readers` threads and hands blocks to `consume` in `consumers` threads."""

    def __init__(self, source: Source, *, readers: int, consumers: int, most_bytes: int, progress: Progress) -> None:
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
