"""Progress on stderr: a bar on a terminal, plain flushed lines elsewhere, nothing when asked to be quiet."""

import sys
import time
from types import TracebackType
from typing import Any, Protocol

# Lines in a log file are for reading later: few, but never so few that a run looks dead.
_LINE_SECONDS = 3.0


class Moment(Protocol):
    """What is shown: a stage, its columns, and how far it is."""

    @property
    def stage(self) -> str: ...
    @property
    def fraction(self) -> float | None: ...
    def columns(self) -> tuple[str, ...]: ...


class Display:
    """Shows moments of a run as they come. Use it as a context manager; call it with each moment."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live: Any = None
        self._last: Moment | None = None
        self._next_line = time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> "Display":
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("{task.description:<6}"), BarColumn(24), TextColumn("{task.fields[text]}"))
            self._live = Progress(*columns, console=Console(stderr=True), transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if kind is None and self._last is not None:
            self._line(self._last)

    def __call__(self, moment: Moment) -> None:
        if self._last is not None and self._last.stage != moment.stage:
            self._line(self._last)
            if self._live is not None:
                for task in self._live.task_ids:
                    self._live.remove_task(task)
        self._last = moment
        if self._live is not None:
            if not self._live.task_ids:
                self._live.add_task(moment.stage, total=1.0, text="")
            text = "   ".join(column for column in moment.columns() if column)
            self._live.update(
                self._live.task_ids[0], description=moment.stage, completed=moment.fraction or 0.0, text=text
            )
        elif time.monotonic() >= self._next_line:
            self._line(moment)

    def _line(self, moment: Moment) -> None:
        """One finished line, above the bar if there is one."""
        self._next_line = time.monotonic() + _LINE_SECONDS
        if self._quiet:
            return
        line = f"{moment.stage:<6}" + "".join(f"  {column:>18}" for column in moment.columns())
        if self._live is not None:
            self._live.console.print(line, highlight=False, markup=False)
        else:
            sys.stderr.write(line.rstrip() + "\n")
            sys.stderr.flush()
