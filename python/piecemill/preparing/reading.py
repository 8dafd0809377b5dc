"""Reading for a run: tasks in order, from the block after the last committed one.

Tasks that are at their end are not opened. Of the task in which a run stopped, the blocks that were committed are
read again, compared with what the journal says of them, and left.

Start with `Reader.items`.
"""

import time
from collections.abc import Iterator

from piecemill.errors import SourceError
from piecemill.preparing.commit import Totals
from piecemill.preparing.folder import Unchanged
from piecemill.preparing.pipeline import Clock, TaskEnd
from piecemill.preparing.selection import Selected, Selection
from piecemill.sources import Documents, Source, Task


class Reader:
    """Gives selected blocks and the ends of tasks, in the order of the corpus."""

    def __init__(
        self, source: Source, selection: Selection, totals: Totals, clock: Clock, unchanged: Unchanged
    ) -> None:
        self._source, self._selection = source, selection
        self._clock, self._unchanged = clock, unchanged
        # Copies: the committer goes on adding to the totals while this reads.
        self._ended, self._last, self._contents = totals.ended, totals.last, dict(totals.contents)

    def items(self) -> Iterator[Selected | TaskEnd]:
        """The rest of the source."""
        for task in self._source.tasks[self._ended + 1 :]:
            # No variable here: it would hold on to a block's text while the next one is read.
            yield from self._blocks(task)
            yield TaskEnd(task.index)

    def _blocks(self, task: Task) -> Iterator[Selected]:
        blocks = self._source.read(task)
        while (block := self._next(blocks, task)) is not None:
            if self._last is not None and block.id <= self._last:
                self._compare(block)
                continue
            started = time.perf_counter()
            selected = self._selection.select(block)
            del block
            self._clock.add("hash", started)
            yield selected
            del selected

    def _next(self, blocks: Iterator[Documents], task: Task) -> Documents | None:
        started = time.perf_counter()
        try:
            block = next(blocks, None)
        finally:
            # Also after an error: a file that was cut short reads as broken, and that it was cut is the better news.
            self._unchanged.check(task)
        self._clock.add("read", started)
        return block

    def _compare(self, block: Documents) -> None:
        if self._contents.get(block.id.block) != self._selection.content(block):
            name = block.name(0) if len(block) else block.paths[0]
            raise SourceError(
                f"{name}: block {block.id.block} of the file is not what it was when it was prepared. Resuming needs "
                "the same sources: restore them, or choose another --out."
            )
