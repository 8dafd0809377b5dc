"""Vocabularies of actions to 40,000 tokens: `python benchmarks/actions.py --data ../shared/actionpiece/data`.

    exact      whole numbers, published counts: the default
    current    whole numbers, vanished pairs subtracted
    float64    the published file to the last bit
    spr        random segmentations of the training part, one thread, with the exact vocabulary

Each run is a process of its own that loads a data set (`NAME.seq.txt.gz`, `NAME.feat.json.gz`; the last two items of
each user are left out) and trains; what counts is the time from the end of loading, and the peak memory of the whole
process. Before any time is shown, the golden vectors beside the data are learned in every mode and compared, and all
runs of a question must learn the same. Every run is appended to `results.jsonl`; the page shows the last session with
all questions.

With `--published FOLDER`, a checkout of the published implementation, its first merges are timed on the same data
and compared with ours; else it stands with the figures of `PUBLISHED`. `--batches` makes batches of examples instead,
after some histories were compared with the definition, and prints how fast.
"""

import argparse
import gzip
import hashlib
import importlib
import json
import statistics
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import protocol
import tables
from measure import median_and_spread
from piecemill._core import LearnedActions, Progress, train_actions
from piecemill.actions import ActionTokenizer, ActionVocabulary, Histories, Items
from piecemill.actions.batches import action_batches
from piecemill.actions.shards import write_action_shards
from piecemill.actions.training import MERGE_COST, initial_tokens, moment, rows_of
from piecemill.reference import segments
from progress import thinned
from protocol import CACHE, HERE, OURS, Entry, Session, call, choose
from tables import Bar, bar, spread_of

SCRATCH = CACHE / "actions"
TRACES = HERE.parent / "tests" / "recorded_actions.json"
MODES = {"exact": ("published", "exact"), "current": ("current", "exact"), "float64": ("published", "float64")}
DATA = ["beauty", "sports", "cds_hgn", "cds_like"]
QUESTIONS = ["exact", "current", "float64", "spr"]
VOCAB = 40_000
FIRST = 932
"Merges for which there is a published figure."
PARTS = (0.01, 0.1, 0.25, 0.5, 1.0)
"Of all merges: where merges a second are told."
LEAST_TRACED = 5.0
"Seconds: in a shorter run nobody can be wrong about the time left."
RUNS = 5
"Inside a process, of what is timed there."
HISTORY, BATCH, BATCHES = 20, 256, 300
PUBLISHED = {
    "beauty": "29 s to build, 345 s for the first 932 merges; 1.4 GB",
    "cds_like": "92 s to build, 26 s for the first merge, 267 s for ten; 5.8 GB",
}
THEIRS = "2-core Xeon of 2.8 GHz with other work on it, Python 3.11"
PUBLISHED_SECONDS = 345.0
"Of the first 932 merges of Beauty, without what comes before them."


class Corpus:
    """Sequences without their last two items, and the features of the items, as the core takes them."""

    def __init__(self, features: dict[str, list[int]], sequences: list[list[str]]) -> None:
        self.features, self.sequences = features, sequences
        self.items, self.histories = Items.of(features), Histories.of(sequences)
        initial = initial_tokens(self.items.codes)
        self.n_init = len(initial) + 1
        self.vocabulary = ActionVocabulary(
            self.items.codes.shape[1], initial, np.empty((0, 2)), [0] * self.n_init, self.items.columns
        )
        self.table = self.vocabulary.initial_ids(self.items.codes)
        self.rows, self.ends = rows_of(self.histories, self.items), self.histories.ends.astype(np.uint64)

    @classmethod
    def load(cls, data: Path, name: str) -> "Corpus":
        features, sequences = files(data, name)
        with gzip.open(features) as file:
            table = json.load(file)
        with gzip.open(sequences, "rt") as file:
            rows = [line.split()[1:] for line in file]
        return cls(table, [row[:-2] for row in rows if len(row) > 2])

    def train(self, mode: str, vocab_size: int, progress: Progress) -> LearnedActions:
        plan = (self.n_init, vocab_size, *MODES[mode], 0.0, 2)
        return train_actions(self.table, self.rows, self.ends, *plan, progress)

    def tokenizer(self) -> ActionTokenizer:
        """With the exact vocabulary."""
        learned, empty = self.train("exact", VOCAB, Progress()), self.vocabulary
        weights = [0] * self.n_init + [weight / (learned.denominator or 1) for weight in learned.weights]
        vocabulary = ActionVocabulary(empty.n_categories, empty.initial, learned.merges, weights, self.items.columns)
        return ActionTokenizer(vocabulary, self.items)


def files(data: Path, name: str) -> tuple[Path, Path]:
    return data / f"{name}.feat.json.gz", data / f"{name}.seq.txt.gz"


# One run, in a process of its own


def learn(data: Path, name: str, mode: str) -> dict:
    """Trains, watches, and tells what was seen."""
    began = time.perf_counter()
    corpus = Corpus.load(data, name)
    loaded = time.perf_counter() - began
    progress, learned = Progress(), []
    work = threading.Thread(target=lambda: learned.append(corpus.train(mode, VOCAB, progress)))
    began = time.perf_counter()
    work.start()
    trace, ended = [], False
    while not ended:
        work.join(0.002)
        ended = not work.is_alive()  # asked before the last look, so that it sees all
        trace.append(moment(time.perf_counter() - began, progress))
    (result,) = learned
    merges = result.merges.tolist()

    def seconds_at(count: float) -> float:
        return round(next(seen.seconds for seen in trace if seen.merges >= count), 4)

    return {
        "load_seconds": round(loaded, 4),
        "train_seconds": round(trace[-1].seconds, 4),
        "first_seconds": seconds_at(FIRST),
        "milestones": [[int(part * len(merges)), seconds_at(part * len(merges))] for part in PARTS],
        "merges": len(merges),
        "merges_sha256": hashlib.sha256(json.dumps(merges).encode()).hexdigest(),
        "stats": result.stats,
        "trace": [[round(value, 4) for value in seen] for seen in thinned(trace)],
    }


def timed(call: Callable[[int], object]) -> dict[str, list[float]]:
    """Wall and processor seconds of every run; the number of the run is the epoch."""
    seconds, cpu = [], []
    for epoch in range(RUNS):
        began, spent = time.perf_counter(), time.process_time()
        call(epoch)
        cpu.append(round(time.process_time() - spent, 4))
        seconds.append(round(time.perf_counter() - began, 4))
    return {"seconds": seconds, "cpu_seconds": cpu}


def segment(data: Path, name: str) -> dict:
    """Random segmentations on one thread, with the exact vocabulary; every run is another epoch."""
    corpus = Corpus.load(data, name)
    tokenizer = corpus.tokenizer()
    rows, ends = corpus.rows.astype(np.int64), corpus.ends.astype(np.int64)
    tokenizer.encode_batch(rows[: ends[:100][-1]], ends[:100], seed=1, threads=1)
    runs = timed(lambda epoch: tokenizer.encode_batch(rows, ends, seed=1, epoch=epoch, threads=1))
    return {"items": len(rows), **runs}


def published(data: Path, name: str, folder: Path, merges: int) -> dict:
    """The first merges of the published implementation; an error if ours are not the same."""
    corpus, core = Corpus.load(data, name), published_core(folder)
    began = time.perf_counter()
    theirs = core.ActionPieceCore(state2feat=corpus.features)
    theirs.train(corpus.sequences, corpus.n_init + merges)
    seconds = time.perf_counter() - began
    found = [[a, b] for _, a, b in theirs.vocab[corpus.n_init :]]
    ours = corpus.train("float64", corpus.n_init + merges, Progress())
    if found != ours.merges.tolist() or theirs.priority[corpus.n_init :] != ours.weights:
        raise SystemExit(f"{name}: our first {merges} merges are not the published ones; no time is reported")
    return {"merges": merges, "seconds": round(seconds, 4)}


def published_core(folder: Path) -> Any:
    """Its module of training alone: the packages around it import what training does not need, and each other."""
    if not (folder / "genrec" / "models" / "ActionPiece" / "core.py").is_file():
        raise SystemExit(f"--published {folder}: no genrec/models/ActionPiece/core.py in it; name a checkout")
    for name in ("genrec", "genrec.models", "genrec.models.ActionPiece"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
    return importlib.import_module("genrec.models.ActionPiece.core")


def show_batches(data: Path, name: str) -> None:
    """How fast histories become tokens, and examples batches: a JSON line per measurement, with all runs."""
    corpus = Corpus.load(data, name)
    tokenizer, ends = corpus.tokenizer(), corpus.ends.astype(np.int64)
    rows, vocabulary = corpus.rows.astype(np.int64), tokenizer.vocabulary
    rules, some = segments.rules(vocabulary.merges.tolist(), vocabulary.n_init_feats), ends[:200]
    ids, cut = tokenizer.encode_batch(rows[: some[-1]], some, seed=1)
    sequences = np.split(tokenizer.table[rows[: some[-1]]], some[:-1])
    for row, (sequence, got) in enumerate(zip(sequences, np.split(ids, cut[:-1]), strict=True)):
        if got.tolist() != segments.spr(sequence.tolist(), rules, 1, 0, row):
            raise SystemExit(f"history {row}: tokens differ from the definition; no time is reported")

    def say(what: str, threads: int, count: int, runs: dict[str, list[float]]) -> None:
        rates = {f"per_second_{key}": round(count / statistics.median(value)) for key, value in runs.items()}
        print(json.dumps({"name": what, "threads": threads, **rates, "count": count, **runs}), flush=True)

    for threads in (1, 2):
        how = {"threads": threads}
        for what, seed in (("items, SPR", {"seed": 1}), ("items, by weight", {})):
            say(
                what,
                threads,
                len(rows),
                timed(lambda _, seed=seed, how=how: tokenizer.encode_batch(rows, ends, **seed, **how)),
            )
    with tempfile.TemporaryDirectory() as folder:
        shards = write_action_shards(corpus.histories, tokenizer, Path(folder) / "shards")
        for threads in (0, 1, 2):
            with action_batches(shards, batch_size=BATCH, history=HISTORY, threads=threads) as batches:
                next(batches)  # threads started, labels made
                runs = timed(lambda _, of=batches: [None for _ in islice(of, BATCHES)])
            say(f"sequences in batches of {BATCH}", threads, BATCH * BATCHES, runs)


# All runs


def check_golden(golden: Path) -> int:
    """Learns the golden vectors in every mode; a difference ends the benchmark. Gives how many were compared."""
    asked = {"float64": "official", "exact": "official_int_rule", "current": "paper_int_rule"}
    cases = [path for path in sorted(golden.glob("*.json")) if path.stem != "tiny_traces"]
    for path in cases:
        case = json.loads(path.read_text(encoding="utf-8"))
        corpus = Corpus(case["state2feat"], case["corpus"])
        for mode, key in asked.items():
            learned = corpus.train(mode, case["target_vocab_size"], Progress())
            if learned.merges.tolist() != case[key]["merges"]:
                raise SystemExit(f"{path.name}, {mode}: not the golden merges; no time is reported")
    return len(cases) * len(asked)


def command(args: argparse.Namespace, name: str, question: str) -> list[str]:
    more = ["--published", str(args.published), "--published-merges", str(args.published_merges)]
    one = ["--one", name, question, str(SCRATCH / "told.json")]
    return [sys.executable, __file__, "--data", str(args.data), *(more if args.published else []), *one]


def ask(args: argparse.Namespace, name: str, question: str, session: Session) -> tuple[dict, list[dict]]:
    """The record of one question and what the runs told."""
    entry, threads, run = Entry(OURS), 1 if question == "spr" else 2, command(args, name, question)
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
        input=hashlib.sha256(b"".join(path.read_bytes() for path in files(args.data, name))).hexdigest(),
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
    flags.add_argument("--one", nargs=3, metavar=("DATA", "MODE", "ANSWER"), help=argparse.SUPPRESS)
    args = flags.parse_args()
    if args.one:
        name, question, answer = args.one
        if question == "published":
            told = published(args.data, name, args.published.resolve(), args.published_merges)
        else:
            told = segment(args.data, name) if question == "spr" else learn(args.data, name, question)
        Path(answer).write_text(json.dumps(told), encoding="utf-8")
        return
    if args.table:
        protocol.write_page("actions", render, args.results)
        return
    names, questions = choose(args.only, DATA, "--only"), choose(args.modes, QUESTIONS, "--modes")
    if args.batches:
        for name in names:
            show_batches(args.data, name)
        return
    print(f"golden  {check_golden(args.data.parent / 'golden')} lists of merges are as they should be", file=sys.stderr)
    SCRATCH.mkdir(parents=True, exist_ok=True)
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
            told = call(command(args, name, "published"))
            print(
                f"| {name} | published | first {told['merges']} merges: {told['seconds']:,.1f} s; ours are the same |"
            )
    if args.traces:
        TRACES.write_text(json.dumps(traces, separators=(",", ":")) + "\n", encoding="utf-8")
    session.finish(render)


if __name__ == "__main__":
    main()
