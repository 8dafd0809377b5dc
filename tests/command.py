"""The installed command, run as a user runs it, or by a process that has imported it already (`served.py`)."""

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PIECEMILL = str(Path(sys.executable).with_name("piecemill"))

INTERRUPTED = """
import os, re, sys, time
from piecemill import progress
from piecemill.__main__ import main

line, left, number = sys.argv.pop(1), int(sys.argv.pop(1)), int(sys.argv.pop(1))
write = sys.stderr.write

def interrupt(text):
    global left
    write(text)
    if re.match(line, text):
        left -= 1
        if left == 0:
            write(f"{time.process_time():.2f} s on a core before the signal\\n")
            os.kill(os.getpid(), number)

sys.stderr.write, progress._LINE_SECONDS = interrupt, 0.0
main()
"""


def environment(**changes):
    """Wide and without colour, so that what is printed depends on nothing around the tests."""
    around = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {**around, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "xterm", **changes}


STARTED: list[subprocess.Popen] = []
"Whatever `start` has started; `conftest.py` ends what a test leaves running."


class Server:
    """`served.py` with some modules, and in `folder` the command that asks it."""

    def __init__(self, modules: tuple[str, ...], **changes: str) -> None:
        self.environment = environment(**changes)
        self.folder = Path(tempfile.mkdtemp(prefix="piecemill-served-"))
        served = Path(__file__).with_name("served.py")
        self.command = [sys.executable, "-IS", str(served), "call", str(self.folder / "socket")]
        asks = self.folder / "piecemill"
        asks.write_text(f'#!/bin/sh\nexec {shlex.join(self.command)} "$@"\n')
        asks.chmod(0o755)
        serve = [sys.executable, str(served), "serve", str(self.folder / "socket"), *modules]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(serve, env=self.environment, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout.readline() == "listening\n", "the server of the command did not start"

    def end(self) -> None:
        self.process.communicate()
        shutil.rmtree(self.folder)


IMPORTED = (
    *(["pandas"] if find_spec("pandas") else []),  # where it is, pyarrow imports it for the first array that it makes
    "piecemill.cli",
    "piecemill.actions.commands_actions",
    "piecemill.executors.local",
    "piecemill.preparing.run",
    "piecemill.progress",
    "piecemill.reporting.commands_report",
    "piecemill.reporting.reports",
    "piecemill.shards.commands_shards",
    "piecemill.sources.jsonl",
    "piecemill.sources.text",
    "piecemill.tokenizers.commands_tokenizer",
    "piecemill.tokenizers.engines.tokenizers",
    "piecemill.training.bpe",
    "piecemill.training.commands_train",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
)
WITH_TORCH = (
    *IMPORTED,
    "piecemill.pretraining.commands_pretrain",
    "piecemill.pretraining.model",
    "piecemill.pretraining.trainer",
    "transformers.models.llama.modeling_llama",
)
OF_RAY = {"PYTHONPATH", "RAY_USAGE_STATS_ENABLED", "PYTHONBREAKPOINT"}
"What is set while the fixture `ray_cluster` is in use: by it, for nodes, and by Ray."

SERVERS: list[Server] = []
"Ended by `conftest.py`."


@cache
def server(modules: tuple[str, ...] = IMPORTED) -> Server:
    """Started by the first test that asks for it. Torch takes its number of threads when it is imported."""
    SERVERS.append(Server(modules, **{"OMP_NUM_THREADS": "1"} if modules == WITH_TORCH else {}))
    return SERVERS[-1]


def piecemill(*arguments, cwd=None, given=None, text=True, **changes):
    """Runs the command to its end, in a process of its own, with `given` on standard input.

    One that `served.py` forks, unless the environment is another than its own: modules read that when imported.
    """
    env = environment(**changes)
    different = {name for name, _ in env.items() ^ server().environment.items()}
    served = different <= OF_RAY and not OF_RAY & changes.keys()
    command = [*(server().command if served else [PIECEMILL]), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=env, input=given, capture_output=True, text=text, timeout=600)


def installed(*arguments, cwd=None, given=None):
    """The installed command itself: where memory is measured, of which a fork has that of the server."""
    command = [PIECEMILL, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment(), input=given, capture_output=True, text=True, timeout=600)


def interrupted(line, *arguments, times=1, number=signal.SIGINT, cwd=None, **changes):
    """Exit code and stderr of the command, which sends itself a signal when it has written a line of progress.

    `line` is a regex for how the line begins; of `times` such lines, the last counts. Each event has a line.
    """
    running = start(sys.executable, "-c", INTERRUPTED, line, times, int(number), *arguments, cwd=cwd, **changes)
    _, stderr = running.communicate(timeout=600)
    return running.returncode, stderr


def search_path(served: Server) -> str:
    """$PATH for lines of a shell: `piecemill` asks the server, and `python` is this one."""
    return os.pathsep.join([str(served.folder), str(Path(sys.executable).parent), os.environ["PATH"]])


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


def _drop_rights() -> None:
    """In this process and what it starts, root is stopped by the rights of files as everybody else is."""
    drop, override, search = 24, 1, 2  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    if os.geteuid() == 0:
        for capability in (override, search):
            assert ctypes.CDLL(None, use_errno=True).prctl(drop, capability, 0, 0, 0) == 0, os.strerror(
                ctypes.get_errno()
            )


def without_rights(*arguments, cwd=None):
    """Runs the installed command as somebody who may read and write only what the rights of files allow."""
    command = [PIECEMILL, *map(str, arguments)]
    ran = subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=600, preexec_fn=_drop_rights
    )
    return ran.returncode, ran.stdout + ran.stderr
