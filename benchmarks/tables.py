"""Records to tables: the page `docs/benchmarks.md` between its markers, and the bars with pass or fail.

Only sessions with every repeat count; of each question and tool the last one. Peers that take many minutes need not run
each time we do: a row from another session than ours says so. Start with `page`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import median_and_spread

OURS = "piecemill"
WORDS = {True: "pass", False: "**FAIL**", None: "not measured"}
HF = "tokenizers"
Key = tuple[str, str, int]  # question, corpus, threads


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise and what was measured; `passed` is None when it was not."""

    promise: str
    measured: str
    passed: bool | None


def latest(records: Sequence[dict]) -> dict[Key, list[dict]]:
    """Of each question the last record of every tool, fastest first."""
    found: dict[Key, dict[str, dict]] = {}
    for record in records:
        if record["complete"]:
            key = (record["question"], record["corpus"], record["threads"])
            found.setdefault(key, {})[record["tool"]] = record
    return {
        key: sorted(group.values(), key=lambda record: seconds(record) or float("inf")) for key, group in found.items()
    }


def seconds(record: dict) -> float | None:
    """The median wall time, or None if the tool did not finish."""
    return median(record, "seconds")


def median(record: dict, field: str) -> float | None:
    runs = record["runs"]
    if not runs or any(run["outcome"] != "ok" for run in runs):
        return None
    return median_and_spread([run[field] for run in runs])[0]


def page(records: Sequence[dict], path: Path) -> None:
    """Rewrite the training tables of the page."""
    # Records from before there was a second benchmark do not say that they are of the first.
    rewrite(path, "train", render([record for record in records if record.get("benchmark", "train") == "train"]))


def rewrite(path: Path, name: str, table: str) -> None:
    """Rewrite the part of the page between the markers `name`; the words around it are left alone."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = path.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{path}: needs one {begin} and one {end}")
    before, _, rest = text.partition(begin)
    path.write_text(f"{before}{begin}\n{table}{end}{rest.partition(end)[2]}", encoding="utf-8")


def render(records: Sequence[dict]) -> str:
    groups = latest(records)
    parts = ["\n## Bars\n\n| bar | measured | |\n|---|---|---|\n"]
    parts += [f"| {bar.promise} | {bar.measured} | {WORDS[bar.passed]} |\n" for bar in bars(groups)]
    parts += [table(group) for group in groups.values()]
    return "".join(parts) + "\n"


def table(group: Sequence[dict]) -> str:
    """One question: median (lowest-highest) of each tool, and how many times our time it took."""
    first = next((record for record in group if record["tool"] == OURS), group[0])
    machine = first["machine"]
    ours = seconds(first) if first["tool"] == OURS else None
    lines = [
        f"\n## {first['question']}: {first['corpus']}, split `{first['split']}`, vocabulary {first['vocab']:,}, "
        f"{first['threads']} {'thread' if first['threads'] == 1 else 'threads'}\n\n"
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; {moment(first)}; "
        f"input {first['input'][:16]}\n\n"
        "| tool | wall s | x ours | CPU s | peak MB | runs | merges |\n|---|---|---|---|---|---|---|\n"
    ]
    for record in group:
        runs, taken = record["runs"], seconds(record)
        if taken is None:
            wall, ratio, cpu, peak = why_not(record), "", "", ""
        else:
            wall = spread(runs, "seconds")
            ratio = f"{taken / ours:.2f}" if ours else ""
            cpu = spread(runs, "cpu_seconds")
            peak = spread(runs, "peak_bytes", 1e6)
        name = f"**{OURS}**" if record["tool"] == OURS else record["tool"]
        other = f" (session of {moment(record)})" if record["session"] != first["session"] else ""
        cells = [f"{name} {record['version']}{other}", wall, ratio, cpu, peak, str(len(runs)), record["agreement"]]
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def moment(record: dict) -> str:
    """When a session began."""
    return record["session"][:16].replace("T", " ")


def spread(runs: Sequence[dict], field: str, unit: float = 1) -> str:
    middle, low, high = (value / unit for value in median_and_spread([run[field] for run in runs]))
    digits = 0 if middle >= 100 else 1 if middle >= 10 else 2
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def why_not(record: dict) -> str:
    if not record["runs"]:
        return record["reason"]
    run = next(run for run in record["runs"] if run["outcome"] != "ok")
    if run["outcome"] == "over time":
        return f"> {run['seconds']:,.0f}"
    if run["outcome"] == "over memory":
        return f"stopped at {run['peak_bytes'] / 1e9:,.1f} GB after {run['seconds']:,.0f} s"
    return "failed"


def bars(groups: dict[Key, list[dict]]) -> list[Bar]:
    """The promises of the training benchmark, on two cores."""
    words = _Question(groups.get(("words", "python-127mb", 2), []))
    whole = _Question(groups.get(("none", "python-127mb", 2), []))
    smaller = _Question(groups.get(("none", "python-20mb", 2), []))
    functions = _Question(groups.get(("functions", "functions-127mb", 2), []))
    return [
        words.at_most("words 127 MB: at most 0.5x the time of the fastest peer", words.fastest_peer, 0.5),
        words.at_most("words 127 MB: at most 1/12 of the time of HF tokenizers", words.tool(HF), 1 / 12),
        words.under("words 127 MB: peak memory at most 400 MB", "peak_bytes", 400e6, 1e6, "MB"),
        words.equal_to_hf("words 127 MB: merges equal to HF tokenizers'"),
        whole.under("no split 127 MB, whole files: at most 15 s", "seconds", 15, 1, "s"),
        whole.under("no split 127 MB, whole files: peak memory at most 1.5 GB", "peak_bytes", 1.5e9, 1e6, "MB"),
        functions.at_most("no split 127 MB, functions: at least 5x faster than the fastest peer",
                          functions.fastest_peer, 1 / 5),
        whole.at_most("no split, 20 to 127 MB (6.35x): time grows at most 9x", smaller.ours, 9, "20 MB"),
    ]  # fmt: skip


class _Question:
    """The records of one question, as the bars ask about them."""

    def __init__(self, group: list[dict]) -> None:
        self._records = {record["tool"]: record for record in group}
        self.ours = self.tool(OURS)

    def tool(self, name: str) -> tuple[str, float] | None:
        record = self._records.get(name)
        taken = seconds(record) if record else None
        return (name, taken) if taken is not None else None

    @property
    def fastest_peer(self) -> tuple[str, float] | None:
        peers = [found for name in self._records if name != OURS and (found := self.tool(name))]
        return min(peers, key=lambda peer: peer[1], default=None)

    def at_most(self, promise: str, other: tuple[str, float] | None, ratio: float, label: str = "") -> Bar:
        if self.ours is None or other is None:
            return Bar(promise, "", None)
        found = self.ours[1] / other[1]
        text = f"{self.ours[1]:.2f} s, {label or other[0]} {other[1]:.2f} s: {found:.3f}x"
        return Bar(promise, text, found <= ratio)

    def under(self, promise: str, field: str, limit: float, unit: float, name: str) -> Bar:
        found = median(self._records[OURS], field) if OURS in self._records else None
        if found is None:
            return Bar(promise, "", None)
        return Bar(promise, f"{found / unit:,.1f} {name}", found <= limit)

    def equal_to_hf(self, promise: str) -> Bar:
        if self.ours is None or self.tool(HF) is None:
            return Bar(promise, "", None)
        ours, theirs = self._records[OURS], self._records[HF]
        return Bar(promise, f"{ours['merges']:,} merges", ours["merges_sha256"] == theirs["merges_sha256"])
