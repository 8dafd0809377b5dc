"""Progress on stderr: a bar on a terminal, plain flushed lines elsewhere, nothing with `--quiet`."""

import sys
import time
from types import TracebackType
from typing import Any, Protocol

# Lines in a log file are for reading later: few, but never so few that a run looks dead.
_LINE_SECONDS = 3.0


class ProgressEvent(Protocol):
    """The current stage, the fraction done, and the columns to show; the last column is the time left."""

    @property
    def stage(self) -> str: ...
    @property
    def fraction(self) -> float | None: ...
    def columns(self) -> tuple[str, ...]: ...


class Display:
    """Shows the progress events of a run. Use it as a context manager; call it with each event."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live: Any = None
        self._last: ProgressEvent | None = None
        self._next_line = time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> "Display":
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if kind is None and self._last is not None:
            self._line(self._last, done=True)

    def __call__(self, event: ProgressEvent) -> None:
        if event.stage == "start":  # said once, and at once
            return self._line(event, done=True)
        if self._last is not None and self._last.stage != event.stage:
            self._line(self._last, done=True)
        self._last = event
        if self._live is not None:
            self._live.update(_bar(event))
        elif time.monotonic() >= self._next_line:
            self._line(event)

    def _line(self, event: ProgressEvent, *, done: bool = False) -> None:
        """One line that stays, above the bar if there is one. What is done has no time left."""
        self._next_line = time.monotonic() + _LINE_SECONDS
        if self._quiet:
            return
        *columns, left = event.columns()
        if self._live is not None:
            line = f"{event.stage:<6} {'   '.join(columns)}"
            self._live.console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            line = f"{event.stage:<6}" + "".join(f"  {column:>18}" for column in (*columns, "" if done else left))
            sys.stderr.write(line.rstrip() + "\n")
            sys.stderr.flush()


def _bar(event: ProgressEvent) -> Any:
    """Two lines, as all of it does not fit into the 80 columns of a terminal: bar and time left, and the rest."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    *columns, left = event.columns()
    total = None if event.fraction is None else 1.0
    top = Table.grid(padding=(0, 1))
    top.add_row(Text(f"{event.stage:<6}"), ProgressBar(total, event.fraction or 0.0, width=40), Text(left))
    return Group(top, Text(f"       {'   '.join(columns)}", no_wrap=True, overflow="ellipsis"))
