"""Kills runs of `prepare` at chosen moments, lets them go on, and compares the folders. Run as a script by
`test_prepare_faults.py` and `make soak`.

The script has a single thread and forks a child per run, so a run costs no start of an interpreter. A child counts
everything that leaves a mark on disk (writes, renames, links, syncs, deletes, new folders) and kills itself with
SIGKILL right before, or in the middle of, the one it was given. It replaces functions of `os` and `open`, and knows
nothing of how the product is made.

    python tests/killer.py SPEC.json      prints one JSON line: how many marks there are, how many kills, what differed
"""

import builtins
import contextlib
import importlib
import io
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

MARKS = 0


def die() -> None:
    """As from outside: nothing is flushed, nothing cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


class Written:
    """A file opened to write, of which each write is a mark."""

    def __init__(self, file: Any, mark: Any) -> None:
        self._file, self._mark = file, mark

    def write(self, data: Any) -> int:
        part = data[: len(data) // 2] if isinstance(data, str) else memoryview(data).cast("B")[: len(data) // 2]

        def half() -> None:
            self._file.write(part)
            self._file.flush()

        self._mark(half)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "Written":
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()


def arm(at: int | None) -> None:
    """Count marks from here on; die at mark number `at`, after half of what was to be written."""
    lock = threading.Lock()

    def mark(half: Any = None) -> None:
        global MARKS
        with lock:
            MARKS += 1
            if at == MARKS:
                if half is not None:
                    half()
                die()

    for name in ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "truncate", "unlink"):
        real = getattr(os, name)

        def counted(*args: Any, real: Any = real, **more: Any) -> Any:
            mark()
            return real(*args, **more)

        setattr(os, name, counted)
    real_open = io.open

    def opened(file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        made = real_open(file, mode, *args, **more)
        return Written(made, mark) if set(mode) & set("wxa+") else made

    io.open = builtins.open = opened  # `Path.write_bytes` calls the first


def import_ahead(written: Path) -> None:
    """What a child has imported, from the file into which it wrote the names; later children have it from the start."""
    for name in written.read_text().split():
        with contextlib.suppress(ImportError):  # some have names under which nothing is found
            importlib.import_module(name)


def child(spec: dict[str, Any], out: Path, tokenizer: Any, at: int | None, delay: float | None, workers: int) -> int:
    """One run in a process of its own; how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            from piecemill.preparing import prepare

            counts, imported = out.with_suffix(".marks"), out.with_suffix(".imported")
            arm(at)
            prepare([Path(name) for name in spec["sources"]], tokenizer, out=out, threads=workers, **spec["options"])
            counts.write_text(str(MARKS))
            imported.write_text("\n".join(sys.modules))
            code = 0
        except BaseException as error:  # noqa: BLE001
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os._exit(code)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def content(folder: Path) -> dict[str, bytes]:
    """Everything the promise covers: all files but the times of this machine."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("timing.json", ".sources.npy")
    }


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    from piecemill.tokenizers import load_tokenizer

    work = Path(spec["work"])
    tokenizer = load_tokenizer(spec["tokenizer"])
    tokenizer.encode("")
    assert child(spec, work / "first", tokenizer, None, None, 1) == 0
    import_ahead(work / "first.imported")
    whole = work / "whole"
    started = time.monotonic()
    assert child(spec, whole, tokenizer, None, None, 1) == 0
    seconds = time.monotonic() - started
    want = content(whole)
    marks = int(whole.with_suffix(".marks").read_text())
    rng = random.Random(spec["seed"])
    places: list[tuple[int | None, float | None]] = []
    points = min(marks, spec["points"])
    places += [(1 + n * marks // points, None) for n in range(points)]
    places += [(None, rng.random() * seconds) for _ in range(spec["random"])]
    if spec.get("shuffle"):
        places = [(rng.randint(1, marks), None) for _ in range(points)] + places[points:]
    killed, wrong = 0, []
    for number, (at, delay) in enumerate(places):
        out = work / f"run{number}"
        # Killed once or twice, with other numbers of workers, then left to finish.
        for attempt in range(1 + number % 2):
            code = child(spec, out, tokenizer, at if attempt == 0 else rng.randint(1, marks), delay, 1 + number % 3)
            killed += code == -signal.SIGKILL
            if code not in (0, -signal.SIGKILL):
                wrong.append([at, delay, f"ended with {code}"])
                sys.stderr.write(f"{wrong[-1]}\n")
        code = child(spec, out, tokenizer, None, None, 1 + (number + 1) % 3)
        if code != 0:
            wrong.append([at, delay, f"could not be resumed: {code}"])
            continue
        got = content(out)
        if got != want:
            names = sorted(name for name in {*got, *want} if got.get(name) != want.get(name))
            wrong.append([at, delay, f"differs in {names}"])
            sys.stderr.write(f"{wrong[-1]}\n")
        else:
            for path in sorted(out.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
    json.dump({"marks": marks, "runs": len(places), "killed": killed, "wrong": wrong}, sys.stdout)


if __name__ == "__main__":
    main()
