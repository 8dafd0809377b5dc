"""Read-ahead: a thread reads the next blocks of a task while the current one is processed."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from queue import Empty, SimpleQueue

from piecemill.sources.documents import Documents

_WAIT_SECONDS = 0.1
_AHEAD = 2


class ReadAhead:
    """The blocks of a task, with up to two read ahead. After a block of more than `usual_bytes`, none is read until it
    is done with, to save memory.

    `on_wait` is called several times a second while waiting for a block. A context manager: leaving it ends the thread.
    """

    def __init__(self, blocks: Iterator[Documents], usual_bytes: int, on_wait: Callable[[], None]) -> None:
        self._blocks, self._usual_bytes, self._on_wait = blocks, usual_bytes, on_wait
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        "One entry for each block that may be read."
        self._done_with: SimpleQueue[bool] = SimpleQueue()
        "One entry for each large block that the caller is done with."
        self._read: SimpleQueue[Documents | BaseException | None] = SimpleQueue()
        self._next: Documents | None = None
        self._ended = self._taken_large = self._closed = False
        self.seconds = 0.0
        "Time spent reading."
        for _ in range(_AHEAD):
            self._wanted.put(True)
        # A daemon, so that a source that hangs cannot keep the process from ending.
        threading.Thread(target=self._work, daemon=True, name="piecemill-read").start()

    def more(self) -> bool:
        """Whether there is another block; waits for it. The caller is done with the one before."""
        if self._next is None and not self._ended:
            if self._taken_large:
                self._taken_large = False
                self._done_with.put(True)
            block = self._get()
            self._ended = not isinstance(block, Documents)
            if isinstance(block, BaseException):
                raise block
            self._next = block
        return self._next is not None

    def next_block(self) -> Documents:
        """The next block. No reference to it is kept here, so the caller decides when its text is freed."""
        if not self.more() or self._next is None:
            raise ValueError("no block is left")
        block, self._next = self._next, None
        self._taken_large = block.nbytes > self._usual_bytes
        self._wanted.put(True)
        return block

    def _get(self) -> Documents | BaseException | None:
        while True:
            try:
                return self._read.get(timeout=_WAIT_SECONDS)
            except Empty:
                self._on_wait()

    def _work(self) -> None:
        while self._wanted.get() and not self._closed:
            started = time.perf_counter()
            large = False
            try:
                block = next(self._blocks, None)
                large = block is not None and block.nbytes > self._usual_bytes
                self._read.put(block)
                del block
            except BaseException as error:  # noqa: BLE001 - raised where the block is waited for
                self._read.put(error)
            self.seconds += time.perf_counter() - started
            if large:
                self._done_with.get()
        if isinstance(self._blocks, Generator):
            self._blocks.close()  # also closes the files it reads

    def __enter__(self) -> "ReadAhead":
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._wanted.put(False)
        self._done_with.put(True)
