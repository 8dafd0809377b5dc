"""Records of `load.py` to tables: the page between its markers, and the bars with pass or fail.

Of each loader the last complete session counts. Speeds are tokens of input a second, medians over the runs; a loader is
compared with the number of workers that suits it best. Start with `page`.
"""

from collections.abc import Sequence
from pathlib import Path

from loaders import CEILING, LIBRARIES
from measure import median_and_spread
from tables import OURS, WORDS, Bar, rewrite


def latest(records: Sequence[dict]) -> list[dict]:
    """The records of the last session; only complete ones where there are any."""
    mine = [record for record in records if record.get("benchmark") == "load"]
    mine = [record for record in mine if record["complete"]] or mine
    return [record for record in mine if record["session"] == mine[-1]["session"]]


def speeds(record: dict, kind: str) -> list[float]:
    """Tokens a second in every run."""
    return [answer[kind]["tokens"] / answer[kind]["seconds"] for answer in record["answers"]]


def speed(record: dict, kind: str) -> float | None:
    """The median; None of a loader that has other rows or did not finish."""
    found = speeds(record, kind)
    return median_and_spread(found)[0] if found and not record["reason"] else None


def nanoseconds(record: dict, kind: str) -> float:
    """Processor time of a token, of all processes; the median."""
    return median_and_spread([a[kind]["cpu_seconds"] / a[kind]["tokens"] * 1e9 for a in record["answers"]])[0]


def kinds_of(records: Sequence[dict]) -> list[str]:
    return list(next((answer for record in records for answer in record["answers"]), {}))


def best(records: Sequence[dict], tools: Sequence[str], kind: str) -> tuple[float, dict] | None:
    """The fastest of some loaders, with the workers that suit it."""
    found = [(value, record) for record in records if record["tool"] in tools and (value := speed(record, kind))]
    return max(found, key=lambda pair: pair[0]) if found else None


def bars(records: Sequence[dict]) -> list[Bar]:
    """The promises of loading, on two cores, each for the kind of batch where it is closest."""
    return [
        _closest(
            records, LIBRARIES, 2, "at least 2x the fastest of litdata, mosaicml-streaming, datasets and datatrove"
        ),
        _closest(records, (CEILING,), 0.7, "at least 0.7x a bare numpy gather of the same rows"),
    ]


def _closest(records: Sequence[dict], others: Sequence[str], least: float, promise: str) -> Bar:
    found = []
    for kind in kinds_of(records):
        ours, other = best(records, (OURS,), kind), best(records, others, kind)
        if ours is not None and other is not None:
            found.append((ours[0] / other[0], kind, ours[0], other))
    if not found:
        return Bar(f"tokens a second, shuffled: {promise}", "", None)
    ratio, kind, ours_speed, (other_speed, record) = min(found, key=lambda each: each[0])
    measured = f"{kind}: {ours_speed / 1e6:,.0f} M/s, {record['tool']} {other_speed / 1e6:,.0f} M/s: {ratio:.2f}x"
    return Bar(f"tokens a second, shuffled: {promise}", measured, ratio >= least)


def page(records: Sequence[dict], path: Path) -> None:
    rewrite(path, "load", render(records))


def render(records: Sequence[dict]) -> str:
    records = latest(records) if any(record.get("benchmark") == "load" for record in records) else []
    if not records:
        return "\nNot measured yet.\n"
    first, machine, kinds = records[0], records[0]["machine"], kinds_of(records)
    parts = ["\n## Bars of loading\n\n| bar | measured | |\n|---|---|---|\n"]
    parts += [f"| {bar.promise} | {bar.measured} | {WORDS[bar.passed]} |\n" for bar in bars(records)]
    parts.append(
        f"\n## load: {first['tokens']:,} tokens of {first['corpus']}, shuffled\n\n"
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; {first['session'][:10]}; "
        f"input {first['input'][:16]}; load before {machine['load_before']}\n\n"
        "Batch x window: million tokens a second, median (lowest-highest), and nanoseconds of processor time of each."
        "\n\n"
        f"| loader | workers | {' | '.join(kinds)} | rows |\n|---|---|{'---|' * len(kinds)}---|\n"
    )
    for record in sorted(records, key=lambda each: -(speed(each, kinds[-1]) or 0)):
        name = f"**{OURS}**" if record["tool"] == OURS else record["tool"]
        cells = [f"{name} {record['version']}".strip(), str(record["workers"])]
        if record["reason"]:
            cells += [record["reason"].replace("|", "/").replace("\n", " "), *[""] * (len(kinds) - 1)]
        else:
            cells += [_cell(record, kind) for kind in kinds]
        parts.append(f"| {' | '.join([*cells, record['agreement']])} |\n")
    return "".join(parts) + "\n"


def _cell(record: dict, kind: str) -> str:
    middle, low, high = median_and_spread([value / 1e6 for value in speeds(record, kind)])
    return f"{middle:,.0f} ({low:,.0f}-{high:,.0f}), {nanoseconds(record, kind):.1f} ns"
