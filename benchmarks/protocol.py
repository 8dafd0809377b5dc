"""The protocol of every benchmark: environments, workers, rounds, comparison, records, and common flags.

A benchmark gives several tools the same question. An `Entry` is one tool on one question. Each of its runs is a worker:
a process that is measured from outside (`measure.py`) and writes its answer as JSON (`peers/worker.py`). `ask` has
every tool run once, compares the answers, and only then repeats. A `Session` appends every run to the results and
rewrites the tables of `docs/benchmarks.md` when it is complete.

Start with `parser`, `Session` and `ask`.
"""

import argparse
import datetime
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import tables
from measure import Run, machine, measure
from tables import OURS, PAGE

HERE = Path(__file__).parent
CACHE = HERE / "cache"
RESULTS = HERE / "results.jsonl"
PIECEMILL = str(Path(sys.executable).parent / "piecemill")
# Runs of each, by the seconds of its first: a run of minutes says enough by itself, and others are waiting.
REPEATS = ((20, 5), (60, 3), (float("inf"), 1))


# Environments and workers


def environment(folder: Path, packages: list[str], build_with: Sequence[str] = ()) -> str:
    """Make `folder` a virtual environment with these packages, once for each list; returns the reason if that fails.

    With `build_with`, those are installed first and the packages are built with what is there.
    """
    marker = folder.parent / f"{folder.name}.json"
    done = json.loads(marker.read_text()) if marker.exists() else {}
    wanted = [*build_with, *packages]
    if done.get("packages") != wanted:
        print(f"tools   installing {' '.join(wanted)}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        reason = _pip(folder, build_with) if build_with else ""
        reason = reason or _pip(folder, [*(["--no-build-isolation"] if build_with else []), *packages])
        done = {"packages": wanted, "failed": reason}
        marker.write_text(json.dumps(done, indent=1))
    return done["failed"]


def _pip(folder: Path, arguments: Sequence[str]) -> str:
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or done.stdout.strip()).splitlines()[-1][:300] if done.returncode else ""


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


def worker(python: Path | str, script: str, tool: str, verb: str, answer: Path, **options: object) -> list[str]:
    """The command of a worker of `peers/`."""
    asked = json.dumps(options, default=str)
    return [str(python), str(HERE / "peers" / script), tool, verb, asked, str(answer)]


def call(command: list[str]) -> dict:
    """The answer of a worker that is not timed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[2]} {command[3]} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return json.loads(Path(command[-1]).read_text())


# Entries and rounds


@dataclass(slots=True)
class Entry:
    """One tool on one question."""

    tool: str
    how: str = ""
    "Its form, number of workers or strategy, where one tool is measured in several ways."
    reason: str = ""
    "Why it has no time: it does not install, cannot do it, or gave another answer."
    agreement: str = ""
    "How its answer compares."
    runs: list[Run] = field(default_factory=list)
    told: list[dict] = field(default_factory=list)
    "The answer of each run that ended well."
    facts: dict = field(default_factory=dict)
    "What else its record has."
    note: str = ""
    "What is shown beside its times."

    @property
    def ours(self) -> bool:
        return self.tool.partition("+")[0] == OURS

    @property
    def finished(self) -> bool:
        return bool(self.runs) and not self.reason and all(run.outcome == "ok" for run in self.runs)

    def run(
        self, what: str, command: list[str], *, threads: int, cap: float, tree: bool = False, answer: Path | None = None
    ) -> bool:
        """Measure one run and read its answer; False if it did not end well."""
        print(f"{what}  {self.tool} {self.how}".rstrip() + f", run {len(self.runs) + 1}", file=sys.stderr)
        if answer is not None:
            answer.unlink(missing_ok=True)
        log = CACHE / "logs" / f"{self.tool}.log"
        # Our own time is never capped: a miss must be seen in full.
        done = measure(command, threads=threads, log=log, time_limit=24 * 3600 if self.ours else cap, tree=tree)
        if done.message.startswith("exit status 3: "):
            self.reason = done.message.splitlines()[-1].removeprefix("exit status 3: ")
            return False
        self.runs.append(done)
        if done.outcome == "ok":
            self.told.append(json.loads(answer.read_text()) if answer is not None else {})
        return done.outcome == "ok"

    def __str__(self) -> str:
        """One line of what was measured; of one that did not finish, why."""
        words = self.reason
        if self.finished:
            wall, cpu, peak = (
                tables.spread([getattr(run, name) for run in self.runs], unit)
                for name, unit in (("seconds", 1), ("cpu_seconds", 1), ("peak_bytes", 1e6))
            )
            words = f"{wall:>20} s   cpu {cpu} s   peak {peak} MB   {self.note} {self.agreement}"
        elif self.runs and not self.reason:
            last = self.runs[-1]
            words = f"{last.outcome} after {last.seconds:.0f} s, {last.peak_bytes / 1e6:,.0f} MB  {last.message[-300:]}"
        return f"  {self.tool:24} {self.how:8} {words}"


def ask(
    entries: Sequence[Entry],
    once: Callable[[Entry], object],
    *,
    repeats: int | None = None,
    wanted: Sequence[tuple[float, int]] = REPEATS,
    compare: Callable[[], Sequence[Entry] | None] = lambda: None,
) -> None:
    """Every tool once, then the comparison, then the other rounds; `compare` may say which entries are repeated.

    A round goes through all before the next begins, so that a slow minute of the machine hits everybody; another one
    starts each round, so that nobody always runs after the same neighbour.
    """
    for entry in entries:
        if not entry.reason:
            once(entry)
    entries = compare() or entries
    count = 1
    while pending := [
        entry
        for entry in entries
        if entry.finished and count < (repeats or next(n for limit, n in wanted if entry.runs[0].seconds < limit))
    ]:
        turn = count % len(pending)
        for entry in pending[turn:] + pending[:turn]:
            once(entry)
        count += 1


# Flags and records


def parser(
    about: str | None,
    *,
    kinds: Sequence[str] = (),
    peers: Sequence[str] = (),
    cap: float = 600,
    results: Path = RESULTS,
) -> argparse.ArgumentParser:
    """The flags that all have; `--only` and `--peers` where there is something to choose from."""
    made = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    made.set_defaults(only=",".join(kinds), peers=",".join(peers), usual=(cap, results))
    made.add_argument("--quick", action="store_true", help="small inputs, one run each, no table")
    if kinds:
        made.add_argument("--only", help=f"questions, separated by commas, of {','.join(kinds)}")
    if peers:
        made.add_argument("--peers", help="peers, separated by commas (default: all)")
    made.add_argument("--repeats", type=int, help="runs of each (default: 5, fewer of slow ones)")
    made.add_argument("--cap", type=float, default=cap, help=f"seconds after which one is stopped (default: {cap:.0f})")
    made.add_argument("--results", type=Path, default=results, help=f"records are appended here ({results.name})")
    instead = made.add_mutually_exclusive_group()
    instead.add_argument("--table", action="store_true", help="measure nothing, rewrite the table from the results")
    instead.add_argument("--dry-run", action="store_true", help="measure nothing, print what would be measured")
    return made


def dry_run(args: argparse.Namespace, asked: Iterable[tuple[object, Sequence[str]]], runs: str = "") -> None:
    """Print a line for each question: its tools and the number of runs."""
    repeats = 1 if args.quick else args.repeats
    runs = runs or (f"{repeats} {'run' if repeats == 1 else 'runs'} each" if repeats else "the default number of runs")
    for question, tools in asked:
        print(f"{question}: {', '.join(tools)}; {runs}")


def choose(names: str, allowed: Sequence[str], flag: str) -> list[str]:
    chosen = names.split(",")
    wrong = [name for name in chosen if name not in allowed]
    if wrong:
        raise SystemExit(f"{flag} {names}: there is no {', '.join(wrong)}; choose from {','.join(allowed)}")
    return chosen


class Session:
    """One call of a benchmark: when, where, of which commit; and whether it is complete, so that the page shows it."""

    def __init__(self, benchmark: str, args: argparse.Namespace, *, complete: bool = True) -> None:
        describe = ["git", "describe", "--always", "--dirty"]
        partly = args.quick or args.repeats or (args.cap, args.results) != args.usual
        self.results, self.repeats = args.results, 1 if args.quick else args.repeats
        self.facts = {
            "benchmark": benchmark,
            "session": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "complete": bool(complete and not partly),
            "commit": subprocess.run(describe, cwd=HERE, capture_output=True, text=True, check=False).stdout.strip(),
            "machine": machine(),
        }

    def ask(
        self,
        question: object,
        entries: Sequence[Entry],
        once: Callable[[Entry], object],
        facts: Callable[[Entry], dict],
        compare: Callable[[], None] = lambda: None,
    ) -> None:
        """Ask a question, show what was measured, fastest first, and keep it; `facts` is what a record says besides."""
        ask(entries, once, repeats=self.repeats, compare=compare)
        print(f"\n{question}")
        for entry in sorted(entries, key=lambda one: (not one.finished, one.runs[0].seconds if one.runs else 0)):
            print(entry, flush=True)
        for entry in entries:
            self.keep(entry, **facts(entry))

    def keep(self, entry: Entry, **facts: object) -> dict:
        """Append the record of an entry: the facts, then every run, the slow ones too."""
        about = {"tool": entry.tool, "reason": entry.reason, "agreement": entry.agreement}
        line = {**self.facts, **about, **entry.facts, **facts}
        line["runs"] = line.get("runs") or [asdict(run) for run in entry.runs]
        append(self.results, line)
        return line

    def records(self) -> list[dict]:
        return [line for line in read(self.results) if line.get("session") == self.facts["session"]]

    def finish(self, render: Callable[[Sequence[dict]], str]) -> None:
        """Rewrite the page if this session is complete."""
        if self.facts["complete"]:
            write_page(self.facts["benchmark"], render, self.results)


def show_bars(bars: Iterable[tables.Bar]) -> None:
    for bar in (one for one in bars if one.measured):
        print(f"{tables.WORDS[bar.passed]:12} {bar.promise}: {bar.measured}")


def write_page(benchmark: str, render: Callable[[Sequence[dict]], str], results: Path) -> None:
    tables.rewrite(PAGE, benchmark, render(read(results)))
    print(f"the table in {PAGE} is rewritten")


def append(path: Path, line: dict) -> None:
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line, ensure_ascii=False) + "\n")


def read(path: Path) -> list[dict]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
