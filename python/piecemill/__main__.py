"""The command `piecemill`: runs the command line, and ends at once when stopped, at any moment.

Ctrl-C and SIGTERM (`kill`, a scheduler) both unwind, so that nothing half-written is left, and exit with 130 and 143.
"""

import gc
import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """The entry point."""
    try:
        try:
            sys.unraisablehook = _unraisable
            gc.set_threshold(100_000)  # not every 700 objects: imports and large vocabularies make many, and keep them
            signal.signal(signal.SIGTERM, _stop)
            from piecemill.cli import run  # here, so that Ctrl-C is heard while all the rest is still being imported

            run()
        except SystemExit as end:
            _leave(end)
        finally:
            # From here on only the interpreter is left to end: what was done is done, and stopped is stopped.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
    except KeyboardInterrupt as stop:
        # Its arguments: the signal, if it was not Ctrl-C, and what the work itself has to say.
        number = next((arg for arg in stop.args if isinstance(arg, int)), signal.SIGINT)
        says = next((arg for arg in stop.args if isinstance(arg, str)), "stopped; nothing is left half-written")
        sys.stderr.write(f"piecemill: {says}\n")
        sys.stderr.flush()
        os._exit(128 + number)  # threads still inside a long native call must not hold up the exit


def _leave(end: SystemExit) -> None:
    """Exit without taking the interpreter apart: that takes 45 ms once numpy, pyarrow and tokenizers are loaded."""
    if isinstance(end.code, int | None):
        with suppress(OSError):  # nobody is listening any more: the interpreter's own exit reports it
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code or 0)
    raise end


def _stop(number: int, _: object) -> None:
    raise KeyboardInterrupt(number)


def _unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """An interrupt that came where Python can raise none (as in a weak reference's callback, which imports have) would
    be lost: it comes again, in a hundredth of a second.
    """
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    arguments = unraisable.exc_value.args if unraisable.exc_value else ()

    def again(*_: object) -> None:
        raise KeyboardInterrupt(*arguments)

    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


if __name__ == "__main__":
    main()
