"""The table writer of every benchmark: records to tables and bars, between the markers of `docs/benchmarks.md`.

A table is described by its columns (header -> cell of a record), a bar by its promise, words with figures in them, and
a limit. Tables show the median and the spread, never the best run. Start with `section`, `bar` and `latest`.
"""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import median_and_spread

OURS = "piecemill"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
WORDS = {True: "pass", False: "**FAIL**", None: "not measured"}
Columns = dict[str, Callable[[dict], object]]


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
    table = grid(["bar", "measured", ""], ([one.promise, one.measured, WORDS[one.passed]] for one in bars))
    return f"\n## {title}\n\n" + table.replace("|  |", "| |", 1)


# Tables


def table(rows: Iterable[dict], names: Columns, figures: Columns, last: Columns | None = None) -> str:
    """A row for each record. One that did not finish has no figures; the first says why."""

    def cells(record: dict) -> list[object]:
        none = [why_not(record), *[""] * (len(figures) - 1)] if median(record) is None else None
        shown = ([cell(record) for cell in part.values()] for part in (names, {} if none else figures, last or {}))
        first, measured, rest = shown
        return [*first, *(none or measured), *rest]

    return grid([*names, *figures, *(last or {})], map(cells, rows))


def grid(header: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    lines = [f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |\n" for row in (header, *rows)]
    return lines[0] + "|" + "---|" * len(header) + "\n" + "".join(lines[1:])


def section(title: str, about: str, table: str, level: int = 2) -> str:
    """A heading, if there is one, a paragraph and a table."""
    head = f"\n{'#' * level} {title}\n" if title else ""
    return f"{head}\n{wrapped(about)}\n\n{table}"


def wrapped(text: str) -> str:
    return "\n".join(textwrap.fill(line, 100) for line in text.splitlines())


def times(base: Callable[[dict], float | None]) -> Callable[[dict], str]:
    """How many times as long as `base`."""
    return lambda record: f"{found:.2f}" if (found := ratio(median(record), base(record))) else ""


def column(field: str, unit: float = 1) -> Callable[[dict], str]:
    """Median and spread over the runs."""
    return lambda record: spread([run[field] for run in record["runs"]], unit)


WALL = {"wall s": column("seconds")}
CPU_AND_PEAK = {"CPU s": column("cpu_seconds"), "peak MB": column("peak_bytes", 1e6)}
RUNS = {"runs": lambda record: len(record["runs"])}


def titled(record: dict) -> str:
    """Name and version of a tool, ours in bold."""
    name = f"**{OURS}**" if record["tool"] == OURS else record["tool"]
    return f"{name} {record['version']}".strip()


def field(name: str) -> Callable[[dict], object]:
    return lambda record: record[name]


def machine(record: dict) -> str:
    where = record["machine"]
    return f"{where['processor']}, {where['cores']} cores, {where['memory_gb']} GB"


def moment(record: dict) -> str:
    """When its session began."""
    return record["session"][:16].replace("T", " ")


def machine_and_time(record: dict) -> str:
    return f"{machine(record)}; {moment(record)}"


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
    return median_and_spread([run[field] for run in record["runs"]])[0] / unit


def why_not(record: dict) -> str:
    if record.get("reason") or not record["runs"]:
        return record["reason"]
    run = next(run for run in record["runs"] if run["outcome"] != "ok")
    if run["outcome"] == "over time":
        return f"> {run['seconds']:,.0f}"
    if run["outcome"] == "over memory":
        return f"stopped at {run['peak_bytes'] / 1e9:,.1f} GB after {run['seconds']:,.0f} s"
    return "failed"


# Records


def of(group: Iterable[dict], tool: str) -> dict | None:
    return next((record for record in group if record["tool"] == tool), None)


def fastest(group: Iterable[dict]) -> dict | None:
    return min(filter(median, group), key=median, default=None)


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


def latest(records: Sequence[dict], *by: str, of_each_tool: bool = False) -> dict[tuple, list[dict]]:
    """Of each question the last session, or the last record of each tool; fastest first."""
    found = {}
    for key, group in grouped(records, *by).items():
        chosen = {line["tool"]: line for line in group}.values() if of_each_tool else last_session(group)
        found[key] = sorted(chosen, key=lambda record: median(record) or float("inf"))
    return found
