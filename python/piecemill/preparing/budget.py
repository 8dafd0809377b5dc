"""Backpressure: limits the bytes of blocks that were read and are not yet on disk.

A block is charged when it is read, for its text and the tokens it is expected to give, and again when its tokens
are known. One block is always let in, however large: a document is never cut. `Room` decides whether a large document
fits at all, by what the process really holds, before it is read and again before it is encoded.
"""

import threading

from piecemill._core import Progress
from piecemill.errors import SourceError
from piecemill.machine import memory_now

# Per document: its end, file, place, hash and record, on the way in and on the way out.
_DOCUMENT = 160
# Tokens per byte before anything was seen; code and English need 0.2 to 0.35.
_FIRST_GUESS = 0.4
# Beside a large document: a piece of it with its ids, the start of the next block.
_SPARE = 48 * 2**20


class Budget:
    """Bytes and blocks in flight, with a bound on both."""

    def __init__(self, most_bytes: int, most_blocks: int, token_bytes: int, progress: Progress) -> None:
        self.most_bytes = most_bytes
        self.held = 0
        "Bytes in flight now, with what encoding them is expected to take."
        self._most_blocks = most_blocks
        self._blocks = 0
        # Where splits select documents, a block's ids exist twice: as the engine gives them, and as they are written.
        self._encoding_bytes = 4 + token_bytes
        self._token_bytes = token_bytes
        self._progress = progress
        self._per_byte = _FIRST_GUESS
        self._changed = threading.Condition()
        self._over = False

    def wait_alone(self) -> bool:
        """Wait until nothing is in flight; False if the run is over."""
        return self._wait(self.most_bytes)

    def take(self, size: int, documents: int, heavy: int) -> int | None:
        """Wait until a block may come in; what it is charged, or None if the run is over."""
        cost = self.cost(size, documents) + heavy
        return cost if self._wait(cost, size) else None

    def cost(self, size: int, documents: int) -> int:
        """What a block is charged before its tokens are known."""
        return int(size * (1 + self._encoding_bytes * self._per_byte)) + documents * _DOCUMENT

    def _wait(self, cost: int, size: int | None = None) -> bool:
        """Wait until there is room for `cost`, and take it for a block of `size` bytes, if one is to come in."""
        with self._changed:
            while self._blocks and (self.held + cost > self.most_bytes or self._blocks >= self._most_blocks):
                if self._over or self._progress.stopped:
                    return False
                self._changed.wait(0.1)
            if size is not None:
                self.held += cost
                self._blocks += 1
        return not (self._over or self._progress.stopped)

    def encoded(self, cost: int, size: int, documents: int, tokens: int) -> int:
        """The text of a block has gone and its tokens are there: what it is charged from now on."""
        now = tokens * self._token_bytes + documents * _DOCUMENT
        with self._changed:
            self.held += now - cost
            if size:
                # Quick to rise, slow to fall: a corpus that turns denser must not find everything let in.
                seen = tokens / size
                self._per_byte = max(seen * 1.1, self._per_byte * 0.98 + seen * 0.02)
            self._changed.notify_all()
        return now

    def give_back(self, cost: int) -> None:
        """A block is on disk."""
        with self._changed:
            self.held -= cost
            self._blocks -= 1
            self._changed.notify_all()

    def end(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._over = True
            self._changed.notify_all()


class Room:
    """Decides whether a large document fits into the memory of the run, once everything else is out of the way."""

    def __init__(self, budget: Budget, memory: int) -> None:
        self._budget, self._memory = budget, memory

    def make(self, name: str, what: str, besides: int) -> None:
        """Wait until nothing else is in flight; SourceError if the memory has no room for `besides` bytes then."""
        if not self._budget.wait_alone():
            return  # the run is over
        need = memory_now() + besides + _SPARE
        if need > self._memory:
            raise SourceError(
                f"{name}: {what}, for which the run needs about {need / 2**30:.2f} GiB, and --memory allows "
                f"{self._memory / 2**30:.2f}. Allow more, or leave the document out: --exclude its file, or take it "
                "out of it."
            )
