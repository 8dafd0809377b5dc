"""Threads that work on one thing: the first error of any of them ends all, and is raised where they were started.

They wait on `Crew.changed` for each other, never longer than a moment, and ask `over` whether there is still a point.
"""

import threading
from collections.abc import Callable, Sequence

from piecemill._core import Progress


class Crew:
    """Runs some functions side by side. `at_end` is called once it is over, so that nobody waits elsewhere either."""

    def __init__(self, progress: Progress, at_end: Callable[[], None] = lambda: None) -> None:
        self.changed = threading.Condition()
        "Notified whenever somebody might have something to do."
        self._progress, self._at_end = progress, at_end
        self._failed: BaseException | None = None

    @property
    def over(self) -> bool:
        """Whether somebody failed or the run was stopped."""
        return self._failed is not None or self._progress.stopped

    def run(self, work: Sequence[Callable[[], None]], here: Callable[[], None] | None = None) -> None:
        """Returns when all have, `here` on this thread; raises the first error, or KeyboardInterrupt if stopped."""
        threads = [
            threading.Thread(
                target=self._guard, args=(each,), daemon=True, name=f"piecemill-{each.__name__.strip('_')}"
            )
            for each in work
        ]
        for thread in threads:
            thread.start()
        if here is not None:
            self._guard(here)
            self._at_end()
        for thread in threads:
            thread.join()
        if self._failed is not None:
            raise self._failed
        if self._progress.stopped:
            raise KeyboardInterrupt

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in run()
            with self.changed:
                self._failed = self._failed or error
                self.changed.notify_all()
            self._at_end()
