"""A group of threads: the first error of any of them cancels all, and is raised where they were started.

Threads wait on `Crew.changed` for each other, briefly, and poll `cancelled`.
"""

import threading
from collections.abc import Callable, Sequence

from piecemill._core import Progress


class Crew:
    """Runs some functions in parallel. The callback `at_end` is called at the end, to wake whatever waits elsewhere."""

    def __init__(self, progress: Progress, at_end: Callable[[], None] = lambda: None) -> None:
        self.changed = threading.Condition()
        "Notified whenever a thread may have something to do."
        self._progress, self._at_end = progress, at_end
        self._failed: BaseException | None = None

    @property
    def cancelled(self) -> bool:
        """Whether a thread failed or the run was stopped."""
        return self._failed is not None or self._progress.stopped

    def run(self, work: Sequence[Callable[[], None]], here: Callable[[], None] | None = None) -> None:
        """Run all, `here` on this thread; raise the first error, or KeyboardInterrupt if stopped."""
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
