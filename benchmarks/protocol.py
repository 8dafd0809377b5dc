"""The protocol of every benchmark: places, environments, workers, and the runs of one tool.

An `Entry` is one tool on one question. Each of its runs is a worker: a process that is measured from outside
(`measure.py`) and writes its answer as JSON (`peers/worker.py`). `ask` runs every tool once, compares the answers, and
only then repeats. The flags and the loop around it are in `session.py`.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from measure import Run, measure
from tables import OURS

HERE = Path(__file__).parent
sys.path.append(str(HERE / "peers"))  # the benchmarks read names and pinned versions of the peers from their classes
CACHE = HERE / "cache"
SCRATCH = CACHE / "runs"
SHARED = HERE.parent.parent / "shared"
PIECEMILL = str(Path(sys.executable).parent / "piecemill")
# Runs of each, by the seconds of its first: a run of minutes says enough by itself, and others are waiting.
REPEATS = ((20, 5), (60, 3), (float("inf"), 1))


def environment(folder: Path, packages: Sequence[str], build_with: Sequence[str] = ()) -> str:
    """Make `folder` a virtual environment with these packages, once for each list; returns the reason if that fails.

    With `build_with`, those are installed first and the packages are built with what is there.
    """
    marker, wanted = folder.with_name(f"{folder.name}.json"), [*build_with, *packages]
    done = json.loads(marker.read_text()) if marker.exists() else {}
    if done.get("packages") != wanted:
        print(f"tools   installing {' '.join(wanted)}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        done = {"packages": wanted, "failed": ""}
        for step in [build_with, ["--no-build-isolation", *packages]] if build_with else [packages]:
            done["failed"] = done["failed"] or failure([folder / "bin/python", *["-m", "pip", "install", "-q"], *step])
        marker.write_text(json.dumps(done, indent=1))
    return done["failed"]


def failure(command: Sequence[Path | str], **options: object) -> str:
    """Run a command; returns the last line it wrote if it fails, else nothing."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    said = f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}".strip()
    return said.rpartition("\n")[2][-300:] if done.returncode else ""


@cache
def installed_version(package: str = OURS) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:  # on a machine to which only the working tree travelled
        return "of this checkout"


def make_corpora(names: Iterable[str], *flags: str) -> None:
    """In a separate process, so that its memory is given back before anything is measured."""
    subprocess.run([sys.executable, str(HERE / "corpus.py"), *dict.fromkeys(names), *flags], check=True)


def worker(python: Path | str, script: str, tool: str, verb: str, out: Path, **options: object) -> list[str]:
    """The command of a worker of `peers/`. It may write to the folder `out`; its answer goes beside that."""
    asked = json.dumps({"out": out, **options}, default=lambda path: {"path": str(path)})
    return [str(python), str(HERE / "peers" / script), tool, verb, asked, f"{out}.json"]


def call(command: list[str]) -> dict:
    """The answer of a worker that is not timed."""
    if reason := failure(command):
        raise RuntimeError(f"{command[2]} {command[3]} failed: {reason}")
    return json.loads(Path(command[-1]).read_text())


def once_made(path: Path, what: str, make: Callable[[], object]) -> dict:
    """The JSON of a file that is made the first time it is needed."""
    if not path.exists():
        print(what, file=sys.stderr)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(make()))
    return json.loads(path.read_text())


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A folder for one run, which is not there yet."""
    out = SCRATCH / name
    shutil.rmtree(out, ignore_errors=True)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    yield out
    shutil.rmtree(out, ignore_errors=True)


@dataclass(slots=True)
class Entry:
    """One tool on one question."""

    tool: str
    how: str = ""  # its form, number of workers or strategy, where one tool is measured in several ways
    reason: str = ""  # why it has no time: it does not install, cannot do it, or gave another answer
    agreement: str = ""  # how its answer compares
    runs: list[Run] = field(default_factory=list)
    told: list[dict] = field(default_factory=list)  # the answer of each run that ended well
    result: object = None  # what it made, to be compared
    facts: dict = field(default_factory=dict)  # what else its record has
    note: str = ""  # what is shown beside its times

    @property
    def ours(self) -> bool:
        return self.tool.partition("+")[0] == OURS

    @property
    def finished(self) -> bool:
        return bool(self.runs) and not self.reason and all(run.outcome == "ok" for run in self.runs)

    def run(self, what: str, command: list[str], *, threads: int, cap: float, tree: bool = False) -> bool:
        """Measure one run and read its answer, the file that ends the command of a worker; False if it failed."""
        print(f"{what}  {self.tool} {self.how}".rstrip() + f", run {len(self.runs) + 1}", file=sys.stderr)
        log = CACHE / "logs" / f"{self.tool}.log"
        # Our own time is never capped: a miss must be seen in full.
        done = measure(command, threads=threads, log=log, time_limit=24 * 3600 if self.ours else cap, tree=tree)
        if done.message.startswith("exit status 3: "):
            self.reason = done.message.splitlines()[-1].removeprefix("exit status 3: ")
            return False
        self.runs.append(done)
        if done.outcome == "ok":
            self.told.append(json.loads(Path(command[-1]).read_text()) if command[-1].endswith(".json") else {})
        return done.outcome == "ok"


def ask(
    entries: Sequence[Entry],
    once: Callable[[Entry], object],
    compare: Callable[[], Sequence[Entry] | None] = lambda: None,
    repeats: Sequence[tuple[float, int]] = REPEATS,
) -> None:
    """Every tool once, then the comparison, then the other rounds; `compare` may say which entries are repeated.

    A round goes through all before the next begins, so that a slow minute of the machine hits everybody; another one
    starts each round, so that nobody always runs after the same neighbour.
    """
    for entry in entries:
        if not entry.reason:
            once(entry)
    entries, count = compare() or entries, 1
    while pending := [
        entry
        for entry in entries
        if entry.finished and count < next(wanted for limit, wanted in repeats if entry.runs[0].seconds < limit)
    ]:
        turn = count % len(pending)
        for entry in pending[turn:] + pending[:turn]:
            once(entry)
        count += 1
