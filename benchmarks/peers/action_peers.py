"""Vocabularies of actions, for `actions.py`: one run of a question, with Piecemill or the published implementation.

Options: `data` is the folder of data sets (`golden`: of golden vectors), `name` one of them, `vocab` the size of the
vocabulary.
"""

import gzip
import hashlib
import importlib
import json
import sys
import tempfile
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from piecemill._core import LearnedActions, Progress, train_actions
from piecemill.actions import ActionTokenizer, ActionVocabulary, Histories, Items
from piecemill.actions.batches import action_batches
from piecemill.actions.shards import write_action_shards
from piecemill.actions.training import initial_tokens, moment, rows_of
from piecemill.reference import segments
from worker import worker

MODES = {"exact": ("published", "exact"), "current": ("current", "exact"), "float64": ("published", "float64")}
GOLDEN = {"float64": "official", "exact": "official_int_rule", "current": "paper_int_rule"}
PARTS = (0.01, 0.1, 0.25, 0.5, 1.0)  # of all merges, at which merges a second are reported
RUNS = 5  # inside a process, of what is timed there
HISTORY, BATCH, BATCHES = 20, 256, 300


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
        with gzip.open(data / f"{name}.feat.json.gz") as file:
            table = json.load(file)
        with gzip.open(data / f"{name}.seq.txt.gz", "rt") as file:
            rows = [line.split()[1:] for line in file]
        return cls(table, [row[:-2] for row in rows if len(row) > 2])

    def train(self, mode: str, vocab_size: int, progress: Progress | None = None) -> LearnedActions:
        plan = (self.n_init, vocab_size, *MODES[mode], 0.0, 2)
        return train_actions(self.table, self.rows, self.ends, *plan, progress or Progress())

    def tokenizer(self, vocab_size: int) -> ActionTokenizer:
        """With the exact vocabulary."""
        learned, empty = self.train("exact", vocab_size), self.vocabulary
        weights = [0] * self.n_init + [weight / learned.denominator for weight in learned.weights]
        vocabulary = ActionVocabulary(empty.n_categories, empty.initial, learned.merges, weights, self.items.columns)
        return ActionTokenizer(vocabulary, self.items)


def learn(args: SimpleNamespace) -> dict:
    """Trains, looks at the progress every two milliseconds, and reports what was seen."""
    corpus, progress, trace = Corpus.load(args.data, args.name), Progress(), []
    with ThreadPoolExecutor(1) as thread:
        began, work = time.perf_counter(), thread.submit(corpus.train, args.mode, args.vocab, progress)
        while wait([work], 0.002).not_done:
            trace.append(moment(time.perf_counter() - began, progress))
        trace.append(moment(time.perf_counter() - began, progress))  # the last one, which sees all
    result = work.result()
    merges = result.merges.tolist()

    def seconds_at(count: float) -> float:
        return round(next(seen.seconds for seen in trace if seen.merges >= count), 4)

    return {
        "train_seconds": round(trace[-1].seconds, 4),
        "first_seconds": seconds_at(args.first),
        "milestones": [[int(part * len(merges)), seconds_at(part * len(merges))] for part in PARTS],
        "merges": len(merges),
        "merges_sha256": hashlib.sha256(json.dumps(merges).encode()).hexdigest(),
        "stats": result.stats,
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


def segment(args: SimpleNamespace) -> dict:
    """Random segmentations on one thread, with the exact vocabulary; every run is another epoch."""
    corpus = Corpus.load(args.data, args.name)
    tokenizer = corpus.tokenizer(args.vocab)
    rows, ends = corpus.rows.astype(np.int64), corpus.ends.astype(np.int64)
    tokenizer.encode_batch(rows[: ends[:100][-1]], ends[:100], seed=1, threads=1)
    runs = timed(lambda epoch: tokenizer.encode_batch(rows, ends, seed=1, epoch=epoch, threads=1))
    return {"items": len(rows), **runs}


def published(args: SimpleNamespace) -> dict:
    """The first merges of the published implementation; an error if ours are not the same."""
    corpus, core, merges = Corpus.load(args.data, args.name), published_core(args.published), args.merges
    began = time.perf_counter()
    theirs = core.ActionPieceCore(state2feat=corpus.features)
    theirs.train(corpus.sequences, corpus.n_init + merges)
    seconds = time.perf_counter() - began
    found = [[a, b] for _, a, b in theirs.vocab[corpus.n_init :]]
    ours = corpus.train("float64", corpus.n_init + merges)
    if found != ours.merges.tolist() or theirs.priority[corpus.n_init :] != ours.weights:
        raise SystemExit(f"{args.name}: our first {merges} merges are not the published ones; no time is reported")
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


def batches(args: SimpleNamespace) -> list[dict]:
    """How fast histories become tokens, and examples batches; some are compared with the definition first."""
    corpus = Corpus.load(args.data, args.name)
    tokenizer, ends = corpus.tokenizer(args.vocab), corpus.ends.astype(np.int64)
    rows, vocabulary = corpus.rows.astype(np.int64), tokenizer.vocabulary
    rules, some = segments.rules(vocabulary.merges.tolist(), vocabulary.n_init_feats), ends[:200]
    ids, cut = tokenizer.encode_batch(rows[: some[-1]], some, seed=1)
    sequences = np.split(tokenizer.table[rows[: some[-1]]], some[:-1])
    for row, (sequence, got) in enumerate(zip(sequences, np.split(ids, cut[:-1]), strict=True)):
        if got.tolist() != segments.spr(sequence.tolist(), rules, 1, 0, row):
            raise SystemExit(f"history {row}: tokens differ from the definition; no time is reported")
    found = []
    for threads in (1, 2):
        for what, seed in (("items, SPR", {"seed": 1}), ("items, by weight", {})):
            runs = timed(lambda _, how={"threads": threads, **seed}: tokenizer.encode_batch(rows, ends, **how))
            found.append({"what": what, "threads": threads, "count": len(rows), **runs})
    with tempfile.TemporaryDirectory() as folder:
        shards = write_action_shards(corpus.histories, tokenizer, out=Path(folder) / "shards")
        for threads in (0, 1, 2):
            with action_batches(shards, batch_size=BATCH, history=HISTORY, threads=threads) as made:
                next(made)  # threads started, labels made
                runs = timed(lambda _, of=made: [None for _ in islice(of, BATCHES)])
            found.append({"what": "sequences in batches", "threads": threads, "count": BATCH * BATCHES, **runs})
    return found


def golden(args: SimpleNamespace) -> int:
    """Learns the golden vectors in every mode; a difference ends the benchmark. Gives how many were compared."""
    cases = [path for path in sorted(args.data.glob("*.json")) if path.stem != "tiny_traces"]
    for path in cases:
        case = json.loads(path.read_text(encoding="utf-8"))
        corpus = Corpus(case["state2feat"], case["corpus"])
        for mode, key in GOLDEN.items():
            if corpus.train(mode, case["target_vocab_size"]).merges.tolist() != case[key]["merges"]:
                raise SystemExit(f"{path.name}, {mode}: not the golden merges; no time is reported")
    return len(cases) * len(GOLDEN)


if __name__ == "__main__":
    worker({"actions": sys.modules[__name__]})
