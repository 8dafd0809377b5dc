"""Vocabularies of actions to 40,000 tokens: `python benchmarks/actions.py --data ../shared/actionpiece/data`.

    exact      whole numbers, published counts: the default
    current    whole numbers, vanished pairs subtracted
    float64    the published file to the last bit
    spr        random segmentations of the training part, one thread, with the exact vocabulary

Each run is a process of its own that loads a data set (`NAME.seq.txt.gz`, `NAME.feat.json.gz`; the last two items of
each user are left out) and trains; what counts is the time from the end of loading, and the peak memory of the whole
process. Before any time is shown, the golden vectors beside the data are learned in every mode and compared, and all
runs of a question must learn the same. Every run is appended to `results.jsonl`.

With `--published FOLDER`, a checkout of the published implementation, its first merges are timed on the same data
and compared with ours; else it stands with the figures of `tables_actions.PUBLISHED`.
"""

import argparse
import datetime
import gzip
import hashlib
import importlib
import json
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np

import tables_actions
from asking import PAGE, REPEATS, RESULTS, choose, commit
from measure import append, machine, measure, read, record
from piecemill import __version__
from piecemill._core import LearnedActions, Progress, train_actions
from piecemill.actions import ActionTokenizer, ActionVocabulary, Histories, Items
from piecemill.actions.training import MERGE_COST, initial_tokens, moment, rows_of
from piecemill.training.remaining import Moment
from tables_actions import DATA, QUESTIONS

HERE = Path(__file__).parent
SCRATCH = HERE / "cache" / "actions"
TRACES = HERE.parent / "tests" / "recorded_actions.json"
MODES = {"exact": ("published", "exact"), "current": ("current", "exact"), "float64": ("published", "float64")}
VOCAB = 40_000
FIRST = 932
"Merges for which there is a published figure."
PARTS = (0.01, 0.1, 0.25, 0.5, 1.0)
"Of all merges: where merges a second are told."
MOMENTS = 150
LEAST_TRACED = 5.0
"Seconds: in a shorter run nobody can be wrong about the time left."
SPR_RUNS = 5


class Corpus:
    """Sequences without their last two items, and the features of the items, as the core takes them."""

    def __init__(self, features: dict[str, list[int]], sequences: list[list[str]]) -> None:
        self.features, self.sequences = features, sequences
        self.items = Items.of(features)
        histories = Histories.of(sequences)
        initial = initial_tokens(self.items.codes)
        self.n_init = len(initial) + 1
        self.vocabulary = ActionVocabulary(
            self.items.codes.shape[1], initial, np.empty((0, 2)), [0] * self.n_init, self.items.columns
        )
        self.table = self.vocabulary.initial_ids(self.items.codes)
        self.rows, self.ends = rows_of(histories, self.items), histories.ends.astype(np.uint64)

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


def files(data: Path, name: str) -> tuple[Path, Path]:
    return data / f"{name}.feat.json.gz", data / f"{name}.seq.txt.gz"


# --- One run, in a process of its own.


def learn(data: Path, name: str, mode: str, out: Path) -> None:
    """Trains, watches, and writes what was seen."""
    began = time.perf_counter()
    corpus = Corpus.load(data, name)
    loaded = time.perf_counter() - began
    progress, learned = Progress(), []
    work = threading.Thread(target=lambda: learned.append(corpus.train(mode, VOCAB, progress)))
    began = time.perf_counter()
    work.start()
    trace: list[Moment] = []
    while True:
        work.join(0.002)
        ended = not work.is_alive()  # asked before the last look, so that it sees all
        trace.append(moment(time.perf_counter() - began, progress))
        if ended:
            break
    (result,) = learned
    merges = result.merges.tolist()
    told = {
        "load_seconds": round(loaded, 4),
        "train_seconds": round(trace[-1].seconds, 4),
        "first_seconds": round(_seconds_at(trace, FIRST), 4),
        "milestones": [[int(part * len(merges)), round(_seconds_at(trace, part * len(merges)), 4)] for part in PARTS],
        "merges": len(merges),
        "merges_sha256": hashlib.sha256(json.dumps(merges).encode()).hexdigest(),
        "stats": result.stats,
        "trace": _thinned(trace),
    }
    out.write_text(json.dumps(told), encoding="utf-8")


def _seconds_at(trace: list[Moment], merges: float) -> float:
    return next(seen.seconds for seen in trace if seen.merges >= merges)


def _thinned(trace: list[Moment]) -> list[list[float]]:
    """Even in time, as somebody who polls would see them."""
    chosen = np.searchsorted([seen.seconds for seen in trace], np.linspace(0, trace[-1].seconds, MOMENTS)).tolist()
    picked = [trace[min(at, len(trace) - 1)] for at in sorted(set(chosen))]
    return [[round(value, 4) for value in seen] for seen in picked]


def segment(data: Path, name: str, out: Path) -> None:
    """Random segmentations on one thread, with the exact vocabulary; every run is another epoch."""
    corpus = Corpus.load(data, name)
    learned = corpus.train("exact", VOCAB, Progress())
    weights = [weight / learned.denominator for weight in learned.weights]
    vocabulary = ActionVocabulary(
        corpus.vocabulary.n_categories,
        corpus.vocabulary.initial,
        learned.merges,
        [0] * corpus.n_init + weights,
        corpus.items.columns,
    )
    tokenizer = ActionTokenizer(vocabulary, corpus.items)
    rows, ends = corpus.rows.astype(np.int64), corpus.ends.astype(np.int64)
    some = ends[:100]
    tokenizer.encode_batch(rows[: some[-1]], some, seed=1, threads=1)
    seconds, cpu = [], []
    for epoch in range(SPR_RUNS):
        began, spent = time.perf_counter(), time.process_time()
        tokenizer.encode_batch(rows, ends, seed=1, epoch=epoch, threads=1)
        cpu.append(round(time.process_time() - spent, 4))
        seconds.append(round(time.perf_counter() - began, 4))
    out.write_text(json.dumps({"items": len(rows), "seconds": seconds, "cpu_seconds": cpu}), encoding="utf-8")


def published(folder: Path, data: Path, name: str, merges: int, out: Path) -> None:
    """The first merges of the published implementation, and whether ours are the same."""
    corpus = Corpus.load(data, name)
    core = published_core(folder)
    began = time.perf_counter()
    theirs = core.ActionPieceCore(state2feat=corpus.features)
    theirs.train(corpus.sequences, corpus.n_init + merges)
    seconds = time.perf_counter() - began
    found = [[a, b] for _, a, b in theirs.vocab[corpus.n_init :]]
    ours = corpus.train("float64", corpus.n_init + merges, Progress())
    if found != ours.merges.tolist() or theirs.priority[corpus.n_init :] != ours.weights:
        raise SystemExit(f"{name}: our first {merges} merges are not the published ones; no time is reported")
    out.write_text(json.dumps({"merges": merges, "seconds": round(seconds, 4)}), encoding="utf-8")


def published_core(folder: Path) -> Any:
    """Its module of training alone: the packages around it import what training does not need, and each other."""
    at = folder / "genrec"
    if not (at / "models" / "ActionPiece" / "core.py").is_file():
        raise SystemExit(f"--published {folder}: no genrec/models/ActionPiece/core.py in it; name a checkout")
    for name in ("genrec", "genrec.models", "genrec.models.ActionPiece"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
    return importlib.import_module("genrec.models.ActionPiece.core")


# --- All runs.


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


def ask(data: Path, name: str, question: str, session: dict, repeats: int | None) -> tuple[dict, list[dict]]:
    """The record of one question and what the runs told."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    out, log = SCRATCH / "told.json", SCRATCH / "run.log"
    threads = 1 if question == "spr" else 2
    runs, told = [], []
    while not runs or len(runs) < (repeats or next(count for limit, count in REPEATS if runs[0].seconds < limit)):
        out.unlink(missing_ok=True)
        command = [sys.executable, __file__, "--data", str(data), "--one", name, question, str(out)]
        print(f"actions {name} {question}, run {len(runs) + 1}", file=sys.stderr)
        runs.append(measure(command, threads=threads, log=log, time_limit=3600))
        if runs[-1].outcome != "ok":
            break
        told.append(json.loads(out.read_text(encoding="utf-8")))
        if question == "spr":
            break  # its runs are inside
    hashes = {run.get("merges_sha256") for run in told}
    if len(hashes) > 1:
        raise SystemExit(f"{name} {question}: two runs learned different merges; no time is reported")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files(data, name))).hexdigest()
    line = record(
        runs,
        benchmark="actions",
        **session,
        question=question,
        corpus=name,
        input=digest,
        vocab=VOCAB,
        threads=threads,
        tool="piecemill",
        version=__version__,
        inside=[{key: value for key, value in run.items() if key != "trace"} for run in told],
    )
    return line, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared/actionpiece/data", help="data sets")
    parser.add_argument("--only", default=",".join(DATA), help=f"data sets, of {','.join(DATA)}")
    parser.add_argument("--modes", default=",".join(QUESTIONS), help=f"questions, of {','.join(QUESTIONS)}")
    parser.add_argument("--repeats", type=int, help="runs of each (default: 5 under 20 s, 3 under 60 s, else 1)")
    parser.add_argument("--published", type=Path, help="folder with a checkout of the published implementation")
    parser.add_argument("--published-merges", type=int, default=10, help="merges to ask it for (default: 10)")
    parser.add_argument("--traces", action="store_true", help=f"write {TRACES.name}, for the test of the time left")
    parser.add_argument("--table", action="store_true", help="measure nothing, rewrite the table from the results")
    parser.add_argument("--one", nargs=3, metavar=("DATA", "MODE", "OUT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        name, question, out = args.one
        if question == "spr":
            segment(args.data, name, Path(out))
        elif question == "published":
            published(args.published, args.data, name, args.published_merges, Path(out))
        else:
            learn(args.data, name, question, Path(out))
        return
    if args.table:
        tables_actions.page(read(RESULTS), PAGE)
        return
    names, questions = choose(args.only, list(DATA), "--only"), choose(args.modes, list(QUESTIONS), "--modes")
    print(f"golden  {check_golden(args.data.parent / 'golden')} lists of merges are as they should be", file=sys.stderr)
    session = {
        "session": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "complete": set(names) == set(DATA) and set(questions) == set(QUESTIONS) and not args.repeats,
        "commit": commit(),
        "machine": machine(),
    }
    traces = []
    for name in names:
        for question in questions:
            line, told = ask(args.data, name, question, session, args.repeats)
            append(RESULTS, line)
            print(tables_actions.row(line), flush=True)
            if question != "spr" and told and told[0]["train_seconds"] > LEAST_TRACED:
                run = f"{name}, {question}"
                traces.append(
                    {"run": run, "merges": told[0]["merges"], "merge_cost": MERGE_COST, "trace": told[0]["trace"]}
                )
        if args.published:
            time_published(args, name)
    if args.traces:
        TRACES.write_text(json.dumps(traces, separators=(",", ":")) + "\n", encoding="utf-8")
    if session["complete"]:
        tables_actions.page(read(RESULTS), PAGE)
        print(f"\nthe table in {PAGE} is rewritten")


def time_published(args: argparse.Namespace, name: str) -> None:
    out = SCRATCH / "published.json"
    more = ["--published", str(args.published.resolve()), "--published-merges", str(args.published_merges)]
    command = [sys.executable, __file__, "--data", str(args.data), *more, "--one", name, "published", str(out)]
    run = measure(command, threads=1, log=SCRATCH / "published.log", time_limit=24 * 3600)
    if run.outcome != "ok":
        raise SystemExit(f"the published implementation on {name}: {run.outcome}: {run.message}")
    told = json.loads(out.read_text(encoding="utf-8"))
    print(
        f"| {name} | published | first {told['merges']} merges and what comes before them: {told['seconds']:,.1f} s, "
        f"{run.peak_bytes / 1e6:,.0f} MB; ours are the same |"
    )


if __name__ == "__main__":
    main()
