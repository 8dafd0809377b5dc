"""The table writer of every benchmark: records to tables and bars, between the markers of `docs/benchmarks.md`.

A table is a declaration of columns: header -> a format string over the record, or a function of the record and those it
is shown with, which gives a figure. Tables show the median and the spread, never the best run. A bar is a promise,
words with figures in them, and a limit. Start with `table` and `bar`.
"""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import median_and_spread

OURS = "piecemill"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
WORDS = {True: "pass", False: "**FAIL**", None: "not measured"}
MACHINE = "{machine[processor]}, {machine[cores]} cores, {machine[memory_gb]} GB"
Columns = dict[str, str | Callable[[dict, Sequence[dict]], str]]


def rewrite(path: Path, name: str, text: str) -> None:
    """Rewrite the part of the page between the markers `name`; the words around it are left alone."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = path.read_text(encoding="utf-8")
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"{path}: needs one {begin} and one {end}")
    before, _, rest = page.partition(begin)
    path.write_text(f"{before}{begin}\n{text}{end}{rest.partition(end)[2]}", encoding="utf-8")


# Bars


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise and what was measured; `passed` is None when it was not."""

    promise: str
    measured: str = ""
    passed: bool | None = None


def bar(promise: str, words: str, *figures: object, most: float | None = None, least: float | None = None) -> Bar:
    """A promise about the last of the figures, which `words` formats; not measured if one of them is missing."""
    if None in figures:
        return Bar(promise)
    passed = (most is None or figures[-1] <= most) and (least is None or figures[-1] >= least)
    return Bar(promise, words.format(*figures), passed)


def ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def at_most(promise: str, ours: dict | None, other: dict | None, limit: float, label: str = "", digits: int = 2) -> Bar:
    """Our time over that of another record."""
    label, taken, theirs = label or (other or {}).get("tool"), median(ours), median(other)
    words = f"{{:.2f}} s, {label} {{:.2f}} s: {{:.{digits}f}}x"
    return bar(promise, words, taken, theirs, ratio(taken, theirs), most=limit)


def bars_table(title: str, bars: Iterable[Bar]) -> str:
    rows = grid(["bar", "measured", ""], ([one.promise, one.measured, WORDS[one.passed]] for one in bars))
    return f"\n## {title}\n\n" + rows.replace("|  |", "| |", 1)


# Tables


def table(group: Sequence[dict], columns: Columns) -> str:
    """A row for each record. One that did not finish has no figures; the first says why."""

    def cells(record: dict) -> Iterable[object]:
        finished, why, said = median(record) is not None, [why_not(record)], words(record)
        for cell in columns.values():
            if isinstance(cell, str):
                yield cell.format_map(said)
            elif finished:
                yield cell(record, group)
            else:
                yield why.pop() if why else ""

    return grid(columns, map(cells, group))


def grid(header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    lines = [f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |\n" for row in (header, *rows)]
    return lines[0] + "|" + "---|" * len(list(header)) + "\n" + "".join(lines[1:])


def section(title: str, about: str, table: str, level: int = 2) -> str:
    """A heading, if there is one, a paragraph and a table."""
    head = f"\n{'#' * level} {title}\n" if title else ""
    return f"{head}\n{wrapped(about)}\n\n{table}"


def wrapped(text: str) -> str:
    return "\n".join(textwrap.fill(line, 100) for line in text.splitlines())


def words(record: dict) -> dict:
    """The record, and what format strings of columns and headings need besides."""
    name = f"**{OURS}**" if record.get("tool") == OURS else record.get("tool")
    titled, moment = f"{name} {record.get('version', '')}".strip(), record["session"][:16].replace("T", " ")
    return {**record, "titled": titled, "moment": moment, "count": len(record["runs"])}


def column(field: str, unit: float = 1) -> Callable[[dict, object], str]:
    """Median and spread over the runs."""
    return lambda record, _: spread([run[field] for run in record["runs"]], unit)


def times(is_base: Callable[[dict, dict], bool]) -> Callable[[dict, Sequence[dict]], str]:
    """How many times as long as another record of the group: the one that `is_base` for this record."""

    def cell(record: dict, group: Sequence[dict]) -> str:
        base = next((other for other in group if is_base(other, record)), None)
        return f"{found:.2f}" if (found := ratio(median(record), median(base))) else ""

    return cell


WALL = {"wall s": column("seconds")}
X_OURS = {"x ours": times(lambda other, _: other["tool"] == OURS)}
CPU_AND_PEAK = {"CPU s": column("cpu_seconds"), "peak MB": column("peak_bytes", 1e6)}


def spread(values: Sequence[float], unit: float = 1, digits: int | None = None) -> str:
    """Median (lowest-highest)."""
    middle, low, high = (value / unit for value in median_and_spread(values))
    if digits is None:
        digits = 0 if middle >= 100 else 1 if middle >= 10 else 2
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def median(record: dict | None, field: str = "seconds", unit: float = 1) -> float | None:
    """The median over the runs, or None of a tool that did not finish or gave another answer."""
    runs = record["runs"] if record and not record.get("reason") else []
    if not runs or any(run["outcome"] != "ok" for run in runs):
        return None
    return median_and_spread([run[field] for run in runs])[0] / unit


def why_not(record: dict) -> str:
    run = next((run for run in record["runs"] if run["outcome"] != "ok"), None)
    if record.get("reason") or run is None:
        return record.get("reason", "")
    stopped = {
        "over time": f"> {run['seconds']:,.0f}",
        "over memory": f"stopped at {run['peak_bytes'] / 1e9:,.1f} GB after {run['seconds']:,.0f} s",
    }
    return stopped.get(run["outcome"], "failed")


# Records


def of(group: Iterable[dict], tool: str) -> dict | None:
    return next((record for record in group if record.get("tool") == tool), None)


def fastest(group: Iterable[dict]) -> dict | None:
    return min(filter(median, group), key=median, default=None)


def grouped(records: Iterable[dict], *fields: str) -> dict[tuple, list[dict]]:
    found: dict[tuple, list[dict]] = {}
    for record in records:
        found.setdefault(tuple(record[name] for name in fields), []).append(record)
    return found


def last_session(records: Sequence[dict]) -> list[dict]:
    return [record for record in records if record["session"] == records[-1]["session"]]


def fastest_first(records: Iterable[dict]) -> list[dict]:
    return sorted(records, key=lambda record: median(record) or float("inf"))
