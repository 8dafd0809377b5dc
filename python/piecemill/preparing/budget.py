"""How much may be in flight: blocks that were read and are not yet on disk, in bytes.

A block is charged when it is read, for its text and the tokens it is expected to give, and again when its tokens
are known. One block is always let in, however large: a document is never cut.
"""

import threading

from piecemill._core import Progress

# Per document: its end, file, place, hash and record, on the way in and on the way out.
_DOCUMENT = 160
# Tokens per byte before anything was seen; code and English need 0.2 to 0.35.
_FIRST_GUESS = 0.4


class Budget:
    """Bytes and blocks in flight, with a bound on both."""

    def __init__(self, most_bytes: int, most_blocks: int, token_bytes: int, progress: Progress) -> None:
        self.most_bytes = most_bytes
        self.held = 0
        "Bytes in flight now."
        self._most_blocks = most_blocks
        self._blocks = 0
        # While a block is encoded its ids are there twice: as the engine gives them, and as they are written.
        self._encoding_bytes = 4 + token_bytes
        self._token_bytes = token_bytes
        self._progress = progress
        self._per_byte = _FIRST_GUESS
        self._changed = threading.Condition()
        self._over = False

    def wait_for(self, size: int) -> bool:
        """Wait until text of so many bytes may come in as well; False if the run is over."""
        return self._wait(self.cost(size, 1), count=False)

    def take(self, size: int, documents: int) -> int | None:
        """Wait until a block may come in; what it is charged, or None if the run is over."""
        cost = self.cost(size, documents)
        return cost if self._wait(cost, count=True) else None

    def cost(self, size: int, documents: int) -> int:
        """What a block is charged before its tokens are known."""
        return int(size * (1 + self._encoding_bytes * self._per_byte)) + documents * _DOCUMENT

    def _wait(self, cost: int, *, count: bool) -> bool:
        with self._changed:
            while self._blocks and (self.held + cost > self.most_bytes or self._blocks >= self._most_blocks):
                if self._over or self._progress.stopped:
                    return False
                self._changed.wait(0.1)
            if count:
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
