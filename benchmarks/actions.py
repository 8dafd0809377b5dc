"""Vocabularies of actions to 40,000 tokens: `python benchmarks/actions.py --data ../shared/actionpiece/data`.

    exact      whole numbers, published counts: the default
    current    whole numbers, vanished pairs subtracted
    float64    the published file to the last bit
    spr        random segmentations of the training part, one thread, with the exact vocabulary

Each run is a separate process that loads a data set (`NAME.seq.txt.gz`, `NAME.feat.json.gz`; the last two items of
each user are left out) and trains; what counts is the time from the end of loading, and the peak memory of the whole
process. Before any time is shown, the golden vectors beside the data are learned in every mode and compared, and all
runs of a question must learn the same. Every run is appended to `results.jsonl`; the page shows the last session with
all questions.

With `--published FOLDER`, a checkout of the published implementation, its first merges are timed on the same data
and compared with ours; else it stands with the figures of `PUBLISHED`. `--batches` makes batches of examples instead,
after some histories were compared with the definition, and prints how fast.
"""

import argparse
import hashlib
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import protocol
import tables
from measure import median_and_spread
from piecemill.actions.training import MERGE_COST
from protocol import CACHE, HERE, OURS, Entry, Session, call, choose
from tables import Bar, bar, spread_of

SCRATCH = CACHE / "actions"
TRACES = HERE.parent / "tests" / "recorded_actions.json"
DATA = ["beauty", "sports", "cds_hgn", "cds_like"]
QUESTIONS = ["exact", "current", "float64", "spr"]
VOCAB = 40_000
FIRST = 932
"Merges for which there is a published figure."
LEAST_TRACED = 5.0
"Seconds: in a shorter run nobody can be wrong about the time left."
PUBLISHED = {
    "beauty": "29 s to build, 345 s for the first 932 merges; 1.4 GB",
    "cds_like": "92 s to build, 26 s for the first merge, 267 s for ten; 5.8 GB",
}
THEIRS = "2-core Xeon of 2.8 GHz with other work on it, Python 3.11"
PUBLISHED_SECONDS = 345.0
"Of the first 932 merges of Beauty, without what comes before them."


def command(verb: str, **options: object) -> list[str]:
    return protocol.worker(sys.executable, "action_peers.py", "actions", verb, SCRATCH / "told.json", **options)


def ask(args: argparse.Namespace, name: str, question: str, session: Session) -> tuple[dict, list[dict]]:
    """The record of one question and the answers of its runs."""
    entry, threads, verb = Entry(OURS), *((1, "segment") if question == "spr" else (2, "learn"))
    run = command(verb, data=args.data, name=name, mode=question, vocab=VOCAB, first=FIRST)
    files = [args.data / f"{name}.{kind}.gz" for kind in ("feat.json", "seq.txt")]
    protocol.ask(
        [entry],
        lambda entry: entry.run(f"actions {name} {question}", run, threads=threads, cap=args.cap, answer=Path(run[-1])),
        repeats=1 if question == "spr" else args.repeats,  # its runs are inside
    )
    if len({told.get("merges_sha256") for told in entry.told}) > 1:
        raise SystemExit(f"{name} {question}: two runs learned different merges; no time is reported")
    line = session.keep(
        entry,
        question=question,
        corpus=name,
        input=hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest(),
        vocab=VOCAB,
        threads=threads,
        version=protocol.installed_version(),
        inside=[{key: value for key, value in told.items() if key != "trace"} for told in entry.told],
    )
    return line, entry.told


# Tables


def latest(records: Sequence[dict]) -> dict[tuple, dict]:
    """The records of the last session that came to its end, by data and question: a stopped one has not all."""
    asked, whole = {(name, question) for name in DATA for question in QUESTIONS}, {}
    for lines in tables.grouped(tables.complete(records, "actions"), "session").values():
        found = {(line["corpus"], line["question"]): line for line in lines}
        whole = found if found.keys() == asked else whole
    return whole


def render(records: Sequence[dict]) -> str:
    found = latest(records)
    if not found:
        return "No complete session has been recorded yet.\n"
    first = next(iter(found.values()))
    header = ["data", "mode", "after loading s", "of it counting s", "first 932 merges s"]
    header += ["merges/s: first 1%, to 10%, 25%, 50%, 100%", "process s", "peak MB", "runs"]
    rows, spr = (
        [row(line) for line in found.values() if (line["question"] == "spr") is last] for last in (False, True)
    )
    return (
        tables.bars_table("Bars of actions", bars(found))
        + f"\n## Vocabularies of actions, {first['vocab']:,} tokens, 2 threads\n\n"
        f"{tables.machine(first)}; {first['session'][:10]}; load {first['machine']['load_before']} before\n\n"
        f"{tables.table(header, rows)}\n"
        f"{tables.table(['data', 'SPR, one thread', 'items/s', 'items/s of CPU time'], spr)}"
        f"\nThe published implementation, on a {THEIRS}: "
        f"{'; '.join(f'{name}: {figures}' for name, figures in PUBLISHED.items())}.\n\n"
    )


def row(record: dict) -> list[str]:
    """One line of a table."""
    runs, inside, cells = record["runs"], record["inside"], [record["corpus"], record["question"]]
    if not finished(record):
        return [*cells, tables.why_not(record)]
    if record["question"] == "spr":
        rates = [f"{rate / 1000:,.0f}k" for rate in (spr_rate(record), spr_rate(record, "cpu_seconds"))]
        return [cells[0], f"{inside[0]['items']:,} items", *rates]
    return [
        *cells,
        spread_of(inside, "train_seconds"),
        tables.spread([told["stats"]["count_seconds"] for told in inside]),
        spread_of(inside, "first_seconds"),
        ", ".join(f"{rate:,.0f}" for rate in pace(record)),
        spread_of(runs, "seconds"),
        spread_of(runs, "peak_bytes", 1e6),
        str(len(runs)),
    ]


def finished(record: dict | None) -> bool:
    return bool(record and record["inside"]) and tables.median(record) is not None


def pace(record: dict) -> list[float]:
    """Merges a second between the milestones, counting left out; of the run in the middle."""
    inside = sorted(record["inside"], key=lambda run: run["train_seconds"])
    run = inside[len(inside) // 2]
    before, rates = (0, run["stats"]["count_seconds"]), []
    for merges, seconds in run["milestones"]:
        rates.append((merges - before[0]) / max(seconds - before[1], 1e-3))
        before = (merges, seconds)
    return rates


def spr_rate(record: dict, clock: str = "seconds") -> float:
    """Items a second."""
    return record["inside"][0]["items"] / median_and_spread(record["inside"][0][clock])[0]


def bars(found: dict[tuple, dict]) -> list[Bar]:
    """The promises, on two cores."""

    def middle(name: str, question: str, field: str = "train_seconds") -> float | None:
        record = found.get((name, question))
        return statistics.median(told[field] for told in record["inside"]) if finished(record) else None

    def within(data: str, name: str, seconds: float, gigabytes: float) -> list[Bar]:
        taken, promise = middle(name, "exact"), f"{data} to 40,000, exact: at most"
        peak = None if taken is None else max(run["peak_bytes"] for run in found[name, "exact"]["runs"])
        return [
            bar(f"{promise} {seconds} s after loading", [taken], lambda taken: (f"{taken:.2f} s", taken <= seconds)),
            bar(f"{promise} {gigabytes} GB", [peak],
                lambda peak: (f"{peak / 1e6:,.0f} MB, the whole process", peak <= gigabytes * 1e9)),
        ]  # fmt: skip

    def first(taken: float) -> tuple[str, bool]:
        times = PUBLISHED_SECONDS / taken
        return f"{taken:.2f} s with counting, which the 345 s are without: {times:,.0f}x", times >= 300

    spr = found.get(("beauty", "spr"))
    return [
        *within("Beauty", "beauty", 5, 1),
        *within("CDs-sized", "cds_like", 60, 3),
        *(bar(f"{name}, float64: at most 3x the time of exact", [middle(name, "float64"), middle(name, "exact")],
              lambda floats, exact: (f"{floats:.2f} s, {exact:.2f} s: {floats / exact:.2f}x", floats <= 3 * exact))
          for name in ("beauty", "cds_like")),
        bar("first 932 merges of Beauty: at least 300x as fast as the published implementation (345 s elsewhere)",
            [middle("beauty", "exact", "first_seconds")], first),
        bar("SPR encoding, Beauty vocabulary: at least 200,000 items a second and core",
            [spr_rate(spr) if finished(spr) else None], lambda rate: (f"{rate:,.0f}", rate >= 200_000)),
    ]  # fmt: skip


def main() -> None:
    flags = protocol.parser(__doc__, kinds=DATA, cap=3600)
    flags.add_argument("--data", type=Path, default=HERE.parent.parent / "shared/actionpiece/data", help="data sets")
    flags.add_argument("--modes", default=",".join(QUESTIONS), help=f"questions, of {','.join(QUESTIONS)}")
    flags.add_argument("--published", type=Path, help="folder with a checkout of the published implementation")
    flags.add_argument("--published-merges", type=int, default=10, help="merges to ask it for (default: 10)")
    flags.add_argument("--batches", action="store_true", help="only: how fast batches of examples are made")
    flags.add_argument("--traces", action="store_true", help=f"write {TRACES.name}, for the test of the time left")
    args = flags.parse_args()
    if args.table:
        return protocol.write_page("actions", render, args.results)
    names, questions = choose(args.only, DATA, "--only"), choose(args.modes, QUESTIONS, "--modes")
    if args.dry_run:
        modes = ["batches"] if args.batches else questions
        return protocol.dry_run(args, ((f"actions {name} {mode}", [OURS]) for name in names for mode in modes))
    SCRATCH.mkdir(parents=True, exist_ok=True)
    if args.batches:
        for name in names:
            for told in call(command("batches", data=args.data, name=name, vocab=VOCAB)):
                wall, cpu = (told["count"] / statistics.median(told[name]) for name in ("seconds", "cpu_seconds"))
                print(
                    f"{told['what']}, {told['threads']} threads: {wall:,.0f} a second, {cpu:,.0f} of CPU time; {told}"
                )
        return
    compared = call(command("golden", data=args.data.parent / "golden"))
    print(f"golden  {compared} lists of merges are as they should be", file=sys.stderr)
    args.repeats = 1 if args.quick else args.repeats
    session = Session("actions", args, complete=set(names) == set(DATA) and set(questions) == set(QUESTIONS))
    traces = []
    for name in names:
        for question in questions:
            line, told = ask(args, name, question, session)
            print(tables.row(row(line)), end="", flush=True)
            if question != "spr" and told and told[0]["train_seconds"] > LEAST_TRACED:
                first = {key: told[0][key] for key in ("merges", "trace")}
                traces.append({"run": f"{name}, {question}", "merge_cost": MERGE_COST, **first})
        if args.published:
            asked = {"data": args.data, "name": name, "published": args.published.resolve()}
            told = call(command("published", **asked, merges=args.published_merges))
            print(
                f"| {name} | published | first {told['merges']} merges: {told['seconds']:,.1f} s; ours are the same |"
            )
    if args.traces:
        TRACES.write_text(json.dumps(traces, separators=(",", ":")) + "\n", encoding="utf-8")
    session.finish(render)


if __name__ == "__main__":
    main()
