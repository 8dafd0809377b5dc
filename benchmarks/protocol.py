"""The protocol of every benchmark: environments, workers, rounds and records.

A benchmark asks several tools the same question. An `Entry` is one tool on one question. Each of its runs is a worker:
a process that is measured from outside (`measure.py`) and writes its answer as JSON (`peers/worker.py`). `ask` runs
every tool once, compares the answers, and only then repeats. The flags and the loop around it are in `session.py`.
"""

import datetime
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from measure import Run, machine, measure
from tables import OURS

HERE = Path(__file__).parent
sys.path.append(str(HERE / "peers"))  # the benchmarks read names and pinned versions of the peers from their classes
CACHE = HERE / "cache"
SCRATCH = CACHE / "runs"
RESULTS = HERE / "results.jsonl"
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
            command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *step]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode and not done["failed"]:
                done["failed"] = (ended.stderr.strip() or ended.stdout.strip()).splitlines()[-1][:300]
        marker.write_text(json.dumps(done, indent=1))
    return done["failed"]


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
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[2]} {command[3]} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return json.loads(Path(command[-1]).read_text())


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


def header(benchmark: str, *, complete: bool = True, commit: str | None = None, **where: object) -> dict:
    """What every record begins with."""
    if commit is None:
        describe = ["git", "describe", "--always", "--dirty"]
        commit = subprocess.run(describe, cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {"benchmark": benchmark, "session": now, "complete": complete, "commit": commit}
    return {**about, "machine": machine() | where}


def append(path: Path, line: dict) -> None:
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line, ensure_ascii=False) + "\n")


def read(path: Path) -> list[dict]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line]
