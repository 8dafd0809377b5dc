"""The installed command, run as a user runs it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

PIECEMILL = str(Path(sys.executable).with_name("piecemill"))


def environment(**changes):
    """Wide and without colour, so that what is printed depends on nothing around the tests."""
    return {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "xterm", **changes}


STARTED: list[subprocess.Popen] = []
"Whatever `start` has started; `conftest.py` ends what a test leaves running."


def piecemill(*arguments, cwd=None, **changes):
    """Runs the command to its end."""
    command = [PIECEMILL, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment(**changes), capture_output=True, text=True, timeout=600)


def start(*arguments, cwd=None, **changes):
    """Starts the command, with Ctrl-C as a terminal has it even where the tests themselves run in the background."""
    command = list(map(str, arguments))
    running = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    STARTED.append(running)
    return running
