"""Records of `prepare.py` to tables: the page between its markers, and the bars with pass or fail.

Only complete sessions count, of each question the last one; a bar compares figures of one session only.
Start with `page`.
"""

from collections.abc import Sequence
from pathlib import Path

from measure import median_and_spread
from tables import OURS, WORDS, Bar, median, rewrite, seconds, spread, why_not

YARDSTICK, BEFORE = "gigatoken", "piecemill-before"
GIB = 2**30
Key = tuple[str, str, str, str]  # question, corpus, format, memory
LARGE = "mixed-2000mb"
FORMATS = ("jsonl", "parquet", "jsonl.zst")


def latest(records: Sequence[dict], session: str | None = None) -> dict[Key, list[dict]]:
    """Of each question the records of the last complete session, or of `session`, fastest first."""
    found: dict[Key, list[dict]] = {}
    for record in records:
        wanted = record["complete"] if session is None else record["session"] == session
        if record.get("benchmark") == "prepare" and wanted:
            group = found.setdefault(tuple(record[name] for name in ("question", "corpus", "format", "memory")), [])
            if group and group[0]["session"] != record["session"]:
                group.clear()
            group.append(record)
    return {key: sorted(group, key=lambda record: taken(record) or float("inf")) for key, group in found.items()}


def taken(record: dict | None) -> float | None:
    """The median wall time, or None of one that did not finish or wrote other tokens."""
    return seconds(record) if record and not record["reason"] else None


def speed(record: dict | None) -> float | None:
    """Bytes of text a second: of the yardstick for its call alone, of the others from start to end of the process."""
    if taken(record) is None or record is None:
        return None
    inside = record["inside_seconds"]
    return record["text_bytes"] / (median_and_spread(inside)[0] if inside else taken(record))


def page(records: Sequence[dict], path: Path) -> None:
    rewrite(path, "prepare", render(records))


def render(records: Sequence[dict]) -> str:
    groups = latest(records)
    parts = ["\n## Bars of preparing\n\n| bar | measured | |\n|---|---|---|\n"]
    parts += [f"| {bar.promise} | {bar.measured} | {WORDS[bar.passed]} |\n" for bar in bars(groups)]
    parts += [table(group) for group in groups.values()]
    return "".join(parts) + "\n"


def table(group: Sequence[dict]) -> str:
    """One question: median (lowest-highest) of each, and how many times our time it took."""
    about = {"dedup": ", without and with dedup", "ray": ", with threads and on Ray"}
    first, machine = group[0], group[0]["machine"]
    ours = next((taken(record) for record in group if record["tool"] == OURS), None)
    lines = [
        f"\n## prepare: {first['corpus']}.{first['format']}, {first['workers']} workers, "
        f"ours with {first['memory']}{about.get(first['question'], '')}\n\n"
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; {first['session'][:10]}; "
        f"input {first['input'][:16]}, {first['text_bytes'] / 1e6:,.0f} MB of text\n\n"
        "| pipeline | wall s | x ours | MB/s of text | CPU s | peak MB | wrote MB | runs | tokens |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    ]
    for record in group:
        runs, wall = record["runs"], taken(record)
        name = f"**{OURS}**" if record["tool"] == OURS else record["tool"]
        cells = [f"{name} {record['version']}"]
        if wall is None:
            cells += [record["reason"] or why_not(record), "", "", "", "", ""]
        elif record["tool"] == YARDSTICK:
            # Its wall time is no answer to the question: reading and saving were not what it was asked.
            cells += ["encode_batch in memory alone", "", f"{speed(record) / 1e6:,.1f}", "", "", ""]
        else:
            cells += [
                spread(runs, "seconds"),
                f"{wall / ours:.2f}" if ours else "",
                f"{speed(record) / 1e6:,.1f}",
                spread(runs, "cpu_seconds"),
                spread(runs, "peak_bytes", 1e6),
                f"{record['output_bytes'] / 1e6:,.1f}",
            ]
        lines.append(f"| {' | '.join([*cells, str(len(runs)), record['agreement']])} |\n")
    return "".join(lines)


def bars(groups: dict[Key, list[dict]]) -> list[Bar]:
    """The promises of preparing, on two cores."""
    small = groups.get(("127mb", "python-127mb", "jsonl", "2GiB"), [])
    others = [record for record in small if not record["tool"].startswith(OURS) and record["tool"] != YARDSTICK]
    default = [record for record in others if "+" not in record["tool"]]
    found = [
        _at_most("127 MB JSONL: at most 0.75x the time of the version before", small, OURS, BEFORE, 0.75),
        _fastest("each other pipeline with its default library", 15, small, default),
        _fastest("each with the fastest library it accepts", 3, small, others),
    ]
    for kind in FORMATS:
        found.append(_yardstick(kind, groups.get(("2gb", LARGE, kind, "2GiB"), [])))
    for memory, limit in (("2GiB", 2 * GIB), ("1GiB", GIB)):
        for kind in FORMATS:
            found.append(_peak(kind, memory, limit, groups.get(("2gb", LARGE, kind, memory), [])))
    for question, tool, words, limit in (
        ("dedup", f"{OURS}+dedup", "dedup of no duplicates: at most 1.25x the time of none", 1.25),
        ("ray", f"{OURS}+ray-1-node", "Ray on one machine: at most 1.15x the time of threads", 1.15),
    ):
        group = groups.get((question, LARGE, "jsonl", "2GiB"), [])
        found.append(_at_most(f"2 GB jsonl, {words}", group, tool, OURS, limit))
    return found


def _of(group: Sequence[dict], tool: str) -> dict | None:
    return next((record for record in group if record["tool"] == tool), None)


def _at_most(promise: str, group: Sequence[dict], tool: str, than: str, limit: float) -> Bar:
    time, other = taken(_of(group, tool)), taken(_of(group, than))
    if time is None or other is None:
        return Bar(promise, "", None)
    return Bar(promise, f"{time:.2f} s, {than} {other:.2f} s: {time / other:.2f}x", time / other <= limit)


def _fastest(whom: str, times: int, group: Sequence[dict], others: Sequence[dict]) -> Bar:
    """The fastest of the others decides: who is that much faster than it is so than each."""
    promise = f"127 MB JSONL: at least {times}x as fast as {whom}"
    ours, finished = taken(_of(group, OURS)), [record for record in others if taken(record)]
    if ours is None or not finished:
        return Bar(promise, "", None)
    other = min(finished, key=taken)
    ratio = taken(other) / ours
    return Bar(promise, f"{ours:.2f} s, {other['tool']} {taken(other):.2f} s: {ratio:.1f}x", ratio >= times)


def _yardstick(kind: str, group: Sequence[dict]) -> Bar:
    promise = f"2 GB {kind}: at least 1.0x the bytes a second of gigatoken's encode_batch in memory"
    ours, other = speed(_of(group, OURS)), speed(_of(group, YARDSTICK))
    if ours is None or other is None:
        return Bar(promise, "", None)
    return Bar(promise, f"{ours / 1e6:,.1f} MB/s, {other / 1e6:,.1f} MB/s: {ours / other:.2f}x", ours / other >= 1)


def _peak(kind: str, memory: str, limit: int, group: Sequence[dict]) -> Bar:
    promise = f"2 GB {kind} with --memory {memory}: all processes together at most {limit // GIB} GiB"
    ours = _of(group, OURS)
    if taken(ours) is None:
        return Bar(promise, "", None)
    # The highest run and not the median: a limit is a limit.
    peak = max(run["peak_bytes"] for run in ours["runs"])
    return Bar(promise, f"{peak / GIB:.2f} GiB, median {median(ours, 'peak_bytes') / GIB:.2f}", peak <= limit)
