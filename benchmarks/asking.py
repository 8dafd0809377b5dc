"""What every benchmark that asks several tools has in common: its flags, its session, and its rounds.

A round goes through all before the next begins, so that a slow minute of the machine hits everybody; another one
starts each round, so that nobody always runs after the same neighbour. Start with `parser` and `rounds`.
"""

import argparse
import datetime
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from measure import Run, machine, median_and_spread

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"
PAGE = HERE.parent / "docs" / "benchmarks.md"
# Runs of each, by the seconds of its first: a run of minutes says enough by itself, and others are waiting.
REPEATS = ((20, 5), (60, 3), (float("inf"), 1))


class Asked(Protocol):
    """One tool on one question: its runs so far."""

    runs: list[Run]
    reason: str

    @property
    def finished(self) -> bool: ...


E = TypeVar("E", bound=Asked)


def parser(about: str, *, kinds: list[str] = [], peers: list[str] = [], cap: float) -> argparse.ArgumentParser:  # noqa: B006
    """The flags that all have; `--only` and `--peers` where there is something to choose from."""
    made = argparse.ArgumentParser(description=about.partition("\n")[0])
    made.set_defaults(only=",".join(kinds), peers=",".join(peers), full_cap=cap)
    made.add_argument("--quick", action="store_true", help="5 MB, one run each, no table")
    if kinds:
        made.add_argument("--only", help="questions, separated by commas (default: all)")
    if peers:
        made.add_argument("--peers", help="peers, separated by commas (default: all)")
    made.add_argument("--repeats", type=int, help="runs of each (default: 5 under 20 s, 3 under 60 s, else 1)")
    made.add_argument("--cap", type=float, default=cap, help=f"seconds after which one is stopped (default: {cap:.0f})")
    made.add_argument("--without-ours", action="store_true", help="only the others, to try them out")
    made.add_argument("--table", action="store_true", help="measure nothing, rewrite the table from the results")
    return made


def choose(names: str, allowed: list[str], flag: str) -> list[str]:
    chosen = names.split(",")
    wrong = [name for name in chosen if name not in allowed]
    if wrong:
        raise SystemExit(f"{flag} {names}: there is no {', '.join(wrong)}; choose from {','.join(allowed)}")
    return chosen


def session(args: argparse.Namespace, *, all_peers: bool = True) -> dict:
    """When, where and of which commit; and whether it is complete, so that the page may show it."""
    partly = args.quick or args.without_ours or args.repeats or args.cap != args.full_cap
    return {
        "session": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "complete": all_peers and not partly,
        "commit": commit(),
        "machine": machine(),
    }


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()


def rounds(
    entries: Sequence[E],
    run_once: Callable[[E], None],
    repeats: int | None,
    wanted: Sequence[tuple[float, int]] = REPEATS,
) -> None:
    """Every round after the first, which was compared; who did not finish one is not asked again."""
    pending = [entry for entry in entries if entry.finished]
    count = 1
    while pending := [entry for entry in pending if count < (repeats or wanted_runs(entry.runs[0].seconds, wanted))]:
        turn = count % len(pending)
        for entry in pending[turn:] + pending[:turn]:
            run_once(entry)
        pending = [entry for entry in pending if entry.finished]
        count += 1


def wanted_runs(seconds: float, wanted: Sequence[tuple[float, int]] = REPEATS) -> int:
    return next(runs for limit, runs in wanted if seconds < limit)


def fastest_first(entries: Sequence[E]) -> list[E]:
    return sorted(entries, key=lambda entry: (not entry.finished, entry.runs[0].seconds if entry.runs else 0))


def in_words(entry: Asked, more: str) -> str:
    """One line of what was measured; of who did not finish, why."""
    if entry.finished:
        wall, low, high = median_and_spread([run.seconds for run in entry.runs])
        cpu = median_and_spread([run.cpu_seconds for run in entry.runs])[0]
        peak = median_and_spread([run.peak_bytes for run in entry.runs])[0]
        return f"{wall:8.2f} s ({low:.2f}-{high:.2f})  cpu {cpu:8.2f} s  peak {peak / 1e6:8,.0f} MB  {more}"
    if entry.runs and not entry.reason:
        last = entry.runs[-1]
        return f"{last.outcome} after {last.seconds:.0f} s, {last.peak_bytes / 1e6:,.0f} MB  {last.message[-300:]}"
    return entry.reason
