"""The table writer of every benchmark: records to the page `docs/benchmarks.md` between its markers, and bars.

Tables show the median and the spread, never the best run; bars are promises with pass or fail. What each benchmark
shows is in its own file. Start with `table`, `bar` and `rewrite`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import median_and_spread

OURS = "piecemill"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
WORDS = {True: "pass", False: "**FAIL**", None: "not measured"}


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise and what was measured; `passed` is None when it was not."""

    promise: str
    measured: str = ""
    passed: bool | None = None


def bar(promise: str, values: Sequence[float | None], judge: Callable[..., tuple[str, bool]]) -> Bar:
    """A bar that `judge` decides from the values; not measured if one of them is missing."""
    return Bar(promise) if None in values else Bar(promise, *judge(*values))


def at_most(promise: str, ours: dict | None, other: dict | None, limit: float, label: str = "", digits: int = 2) -> Bar:
    """Our time over that of another record."""

    def judge(taken: float, theirs: float) -> tuple[str, bool]:
        ratio = taken / theirs
        return f"{taken:.2f} s, {label or other['tool']} {theirs:.2f} s: {ratio:.{digits}f}x", ratio <= limit

    return bar(promise, [median(ours), median(other)], judge)


def rewrite(path: Path, name: str, text: str) -> None:
    """Rewrite the part of the page between the markers `name`; the words around it are left alone."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = path.read_text(encoding="utf-8")
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"{path}: needs one {begin} and one {end}")
    before, _, rest = page.partition(begin)
    path.write_text(f"{before}{begin}\n{text}{end}{rest.partition(end)[2]}", encoding="utf-8")


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


def table(header: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    return row(header) + "|" + "---|" * len(header) + "\n" + "".join(map(row, rows))


def bars_table(title: str, bars: Iterable[Bar]) -> str:
    rows = [row([bar.promise, bar.measured, WORDS[bar.passed]]) for bar in bars]
    return f"\n## {title}\n\n| bar | measured | |\n|---|---|---|\n{''.join(rows)}"


def titled(record: dict) -> str:
    """Name and version of a tool, ours in bold."""
    name = f"**{OURS}**" if record["tool"] == OURS else record["tool"]
    return f"{name} {record['version']}".strip()


def machine(record: dict) -> str:
    where = record["machine"]
    return f"{where['processor']}, {where['cores']} cores, {where['memory_gb']} GB"


def moment(record: dict) -> str:
    """When its session began."""
    return record["session"][:16].replace("T", " ")


def spread(values: Sequence[float], unit: float = 1, digits: int | None = None) -> str:
    """Median (lowest-highest)."""
    middle, low, high = (value / unit for value in median_and_spread(values))
    if digits is None:
        digits = 0 if middle >= 100 else 1 if middle >= 10 else 2
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def spread_of(runs: Sequence[dict], field: str, unit: float = 1) -> str:
    return spread([run[field] for run in runs], unit)


def median(record: dict | None, field: str = "seconds") -> float | None:
    """The median over the runs, or None of a tool that did not finish or gave another answer."""
    if record is None or not record["runs"] or record.get("reason"):
        return None
    if any(run["outcome"] != "ok" for run in record["runs"]):
        return None
    return median_and_spread([run[field] for run in record["runs"]])[0]


def measured(record: dict, ours: float | None) -> list[str]:
    """Wall time, how many times ours it is, CPU time and peak memory; of one that did not finish, why."""
    runs, taken = record["runs"], median(record)
    if taken is None:
        return [why_not(record), "", "", ""]
    ratio = f"{taken / ours:.2f}" if ours else ""
    return [spread_of(runs, "seconds"), ratio, spread_of(runs, "cpu_seconds"), spread_of(runs, "peak_bytes", 1e6)]


def why_not(record: dict) -> str:
    if record.get("reason") or not record["runs"]:
        return record["reason"]
    run = next(run for run in record["runs"] if run["outcome"] != "ok")
    if run["outcome"] == "over time":
        return f"> {run['seconds']:,.0f}"
    if run["outcome"] == "over memory":
        return f"stopped at {run['peak_bytes'] / 1e9:,.1f} GB after {run['seconds']:,.0f} s"
    return "failed"


def of(group: Iterable[dict], tool: str) -> dict | None:
    return next((record for record in group if record["tool"] == tool), None)


def fastest(group: Iterable[dict]) -> dict | None:
    return min(filter(median, group), key=median, default=None)


def fastest_first(group: Iterable[dict]) -> list[dict]:
    return sorted(group, key=lambda record: median(record) or float("inf"))


def grouped(records: Iterable[dict], *fields: str) -> dict[tuple, list[dict]]:
    found: dict[tuple, list[dict]] = {}
    for record in records:
        found.setdefault(tuple(record[name] for name in fields), []).append(record)
    return found


def complete(records: Iterable[dict], benchmark: str) -> list[dict]:
    """The records of complete sessions. The oldest, of training, do not say which benchmark they are of.

    The first of WordPiece (2026-11-16) do not say that they are complete: they have both corpora and five runs of each.
    """
    return [line for line in records if line.get("benchmark", "train") == benchmark and line.get("complete", True)]


def last_session(records: Sequence[dict]) -> list[dict]:
    return [record for record in records if record["session"] == records[-1]["session"]]
