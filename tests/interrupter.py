"""Interrupts the command at every mark that it leaves on disk, one run for each. Run as a script by `test_stopping.py`.

A run sends itself SIGINT right before, or in the middle of, the write, rename, sync, delete or new folder that is its
turn, so the moment depends on no clock. The script has a single thread and forks a child per run.

    python tests/interrupter.py SPEC.json     prints one JSON line: [exit code, stderr, what is there] for each run
"""

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import killer


def child(arguments: list[str], at: int | None, says: Path) -> tuple[int, int]:
    """One run of the command in a process of its own: how it ended, and how many marks it left."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
        with open(says, "wb") as file:
            os.dup2(file.fileno(), 2)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        marks = os.open(says.with_suffix(".marks"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        imported = os.open(says.with_suffix(".imported"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        leave = os._exit

        def counted_exit(code: int) -> None:
            os.pwrite(marks, str(killer.MARKS).encode(), 0)
            os.pwrite(imported, "\n".join(sys.modules).encode(), 0)
            leave(code)

        os._exit = counted_exit  # type: ignore[assignment]
        killer.die = lambda: os.kill(os.getpid(), signal.SIGINT)
        from piecemill.__main__ import main

        sys.argv = ["piecemill", *arguments]
        killer.arm(at)
        main()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), int(says.with_suffix(".marks").read_text() or 0)


def main() -> None:
    spec: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    tempfile.gettempdir()  # tries the folder with a file, once

    out, says = Path(spec["out"]), Path(spec["says"])
    assert child(spec["before"] or spec["arguments"], None, says)[0] == 0, says.read_text()
    killer.import_ahead(says.with_suffix(".imported"))
    runs, at, marks = [], 0, 1
    while at <= marks:
        at += 1
        shutil.rmtree(out)
        out.mkdir()
        if spec["before"]:
            assert child(spec["before"], None, says)[0] == 0, says.read_text()
        code, marks = child(spec["arguments"], at, says)
        there = sorted(path.relative_to(out).as_posix() for path in out.rglob("*"))
        runs.append([code, says.read_text(), there])
    json.dump(runs, sys.stdout)


if __name__ == "__main__":
    main()
