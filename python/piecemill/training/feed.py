"""Documents to consumers, with readers and consumers side by side and a bound on what waits in between.

Order is not kept: what is done with the blocks must not depend on it (counting does not).
"""

import threading
from collections import deque
from collections.abc import Callable

from piecemill._core import Progress
from piecemill.sources import Documents, Source


class Feed:
    """Reads all tasks of a source in `readers` threads and hands blocks to `consume` in `consumers` threads."""

    def __init__(self, source: Source, *, readers: int, consumers: int, most_bytes: int, progress: Progress) -> None:
        self._source = source
        self._tasks = deque(source.tasks)
        self._readers = max(1, min(readers, len(self._tasks)))
        self._consumers = consumers
        self._most_bytes = most_bytes
        self._progress = progress
        self._waiting: deque[Documents] = deque()
        self._waiting_bytes = 0
        self._reading = self._readers
        self._changed = threading.Condition()
        self._failed: BaseException | None = None

    def run(self, consume: Callable[[Documents], None]) -> None:
        """Returns when every block was consumed; the first error of any thread ends all and is raised here."""
        threads = [threading.Thread(target=self._guard, args=(self._read,), daemon=True) for _ in range(self._readers)]
        threads += [
            threading.Thread(target=self._guard, args=(self._consume, consume), daemon=True)
            for _ in range(self._consumers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed is not None:
            raise self._failed
        if self._progress.stopped:
            raise KeyboardInterrupt

    def _over(self) -> bool:
        return self._failed is not None or self._progress.stopped

    def _guard(self, work: Callable[..., None], *args: object) -> None:
        try:
            work(*args)
        except BaseException as error:  # noqa: BLE001 - raised again in run()
            with self._changed:
                self._failed = self._failed or error
                self._changed.notify_all()

    def _read(self) -> None:
        try:
            while not self._over():
                try:
                    task = self._tasks.popleft()
                except IndexError:
                    return
                for block in self._source.read(task):
                    with self._changed:
                        # One block is always let in, however large: a document is never cut.
                        while self._waiting and self._waiting_bytes + block.nbytes > self._most_bytes:
                            if self._over():
                                return
                            self._changed.wait(0.1)
                        self._waiting.append(block)
                        self._waiting_bytes += block.nbytes
                        self._changed.notify()
                    if self._over():
                        return
        finally:
            with self._changed:
                self._reading -= 1
                self._changed.notify_all()

    def _consume(self, consume: Callable[[Documents], None]) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._over() or self._reading == 0:
                        return
                    self._changed.wait(0.1)
                if self._over():
                    return
                block = self._waiting.popleft()
                self._waiting_bytes -= block.nbytes
                self._changed.notify_all()
            consume(block)
