"""Records of `actions.py` to a table: the page between its markers, and the bars with pass or fail.

Only the last complete session counts. Start with `page`.
"""

from collections.abc import Sequence
from pathlib import Path

from measure import median_and_spread
from tables import WORDS, Bar, rewrite, spread, why_not

PUBLISHED = {
    "beauty": "29 s to build, 345 s for the first 932 merges; 1.4 GB",
    "cds_like": "92 s to build, 26 s for the first merge, 267 s for ten; 5.8 GB",
}
THEIRS = "2-core Xeon of 2.8 GHz with other work on it, Python 3.11"
PUBLISHED_SECONDS = 345.0
"Of the first 932 merges of Beauty, without what comes before them."
DATA = ("beauty", "sports", "cds_hgn", "cds_like")
QUESTIONS = ("exact", "current", "float64", "spr")
Key = tuple[str, str]  # corpus, question


def latest(records: Sequence[dict]) -> dict[Key, dict]:
    """The records of the last session that came to its end: one that was stopped has not all questions."""
    sessions: dict[str, dict[Key, dict]] = {}
    for record in records:
        if record.get("benchmark") == "actions" and record["complete"]:
            sessions.setdefault(record["session"], {})[record["corpus"], record["question"]] = record
    asked = {(corpus, question) for corpus in DATA for question in QUESTIONS}
    whole = [found for found in sessions.values() if found.keys() == asked]
    return whole[-1] if whole else {}


def page(records: Sequence[dict], path: Path) -> None:
    rewrite(path, "actions", render(records))


def render(records: Sequence[dict]) -> str:
    found = latest(records)
    if not found:
        return "No complete session has been recorded yet.\n"
    first = next(iter(found.values()))
    machine = first["machine"]
    parts = ["\n## Bars of actions\n\n| bar | measured | |\n|---|---|---|\n"]
    parts += [f"| {bar.promise} | {bar.measured} | {WORDS[bar.passed]} |\n" for bar in bars(found)]
    parts.append(
        f"\n## Vocabularies of actions, {first['vocab']:,} tokens, 2 threads\n\n"
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; {first['session'][:10]}; load "
        f"{machine['load_before']} before\n\n"
        "| data | mode | after loading s | of it counting s | first 932 merges s | merges/s: first 1%, to 10%, 25%, "
        "50%, 100% | process s | peak MB | runs |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    parts += [f"{row(record)}\n" for record in found.values() if record["question"] != "spr"]
    parts.append("\n| data | SPR, one thread | items/s | items/s of CPU time |\n|---|---|---|---|\n")
    parts += [f"{row(record)}\n" for record in found.values() if record["question"] == "spr"]
    told = "; ".join(f"{name}: {figures}" for name, figures in PUBLISHED.items())
    parts.append(f"\nThe published implementation, on a {THEIRS}: {told}.\n")
    return "".join(parts) + "\n"


def row(record: dict) -> str:
    """One line of a table."""
    runs, inside = record["runs"], record["inside"]
    if not inside or any(run["outcome"] != "ok" for run in runs):
        return f"| {record['corpus']} | {record['question']} | {why_not(record)} |"
    if record["question"] == "spr":
        rates = [f"{figure / 1000:,.0f}k" for figure in spr_rates(record)]
        return f"| {record['corpus']} | {inside[0]['items']:,} items | {' | '.join(rates)} |"
    counted = [{"seconds": run["stats"]["count_seconds"]} for run in inside]
    cells = [
        record["corpus"],
        record["question"],
        spread(inside, "train_seconds"),
        spread(counted, "seconds"),
        spread(inside, "first_seconds"),
        ", ".join(f"{rate:,.0f}" for rate in pace(record)),
        spread(runs, "seconds"),
        spread(runs, "peak_bytes", 1e6),
        str(len(runs)),
    ]
    return f"| {' | '.join(cells)} |"


def pace(record: dict) -> list[float]:
    """Merges a second between the milestones, counting left out; of the run in the middle."""
    inside = sorted(record["inside"], key=lambda run: run["train_seconds"])
    run = inside[len(inside) // 2]
    before, rates = (0, run["stats"]["count_seconds"]), []
    for merges, seconds in run["milestones"]:
        rates.append((merges - before[0]) / max(seconds - before[1], 1e-3))
        before = (merges, seconds)
    return rates


def spr_rates(record: dict) -> tuple[float, float]:
    """Items a second, by the wall and by processor time."""
    told = record["inside"][0]
    return tuple(told["items"] / median_and_spread(told[field])[0] for field in ("seconds", "cpu_seconds"))


def bars(found: dict[Key, dict]) -> list[Bar]:
    """The promises, on two cores."""
    return [
        _under("Beauty to 40,000, exact: at most 5 s after loading", found.get(("beauty", "exact")), 5),
        _peak("Beauty to 40,000, exact: at most 1 GB", found.get(("beauty", "exact")), 1e9),
        _under("CDs-sized to 40,000, exact: at most 60 s after loading", found.get(("cds_like", "exact")), 60),
        _peak("CDs-sized to 40,000, exact: at most 3 GB", found.get(("cds_like", "exact")), 3e9),
        *(_float(found, name) for name in ("beauty", "cds_like")),
        _first(found.get(("beauty", "exact"))),
        _spr(found.get(("beauty", "spr"))),
    ]


def _median(record: dict | None, field: str) -> float | None:
    if record is None or not record["inside"] or any(run["outcome"] != "ok" for run in record["runs"]):
        return None
    return median_and_spread([run[field] for run in record["inside"]])[0]


def _under(promise: str, record: dict | None, limit: float) -> Bar:
    taken = _median(record, "train_seconds")
    return Bar(promise, "", None) if taken is None else Bar(promise, f"{taken:.2f} s", taken <= limit)


def _peak(promise: str, record: dict | None, limit: float) -> Bar:
    if _median(record, "train_seconds") is None or record is None:
        return Bar(promise, "", None)
    peak = max(run["peak_bytes"] for run in record["runs"])
    return Bar(promise, f"{peak / 1e6:,.0f} MB, the whole process", peak <= limit)


def _float(found: dict[Key, dict], name: str) -> Bar:
    promise = f"{name}, float64: at most 3x the time of exact"
    exact, floats = (_median(found.get((name, mode)), "train_seconds") for mode in ("exact", "float64"))
    if exact is None or floats is None:
        return Bar(promise, "", None)
    return Bar(promise, f"{floats:.2f} s, {exact:.2f} s: {floats / exact:.2f}x", floats <= 3 * exact)


def _first(record: dict | None) -> Bar:
    promise = "first 932 merges of Beauty: at least 300x as fast as the published implementation (345 s elsewhere)"
    taken = _median(record, "first_seconds")
    if taken is None:
        return Bar(promise, "", None)
    times = PUBLISHED_SECONDS / taken
    return Bar(promise, f"{taken:.2f} s with counting, which the 345 s are without: {times:,.0f}x", times >= 300)


def _spr(record: dict | None) -> Bar:
    promise = "SPR encoding, Beauty vocabulary: at least 200,000 items a second and core"
    if record is None or not record["inside"]:
        return Bar(promise, "", None)
    rate = spr_rates(record)[0]
    return Bar(promise, f"{rate:,.0f}", rate >= 200_000)
