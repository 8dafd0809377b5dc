"""How fast histories become tokens, and examples batches.

    python benchmarks/action_batches.py HISTORIES ITEMS [VOCABULARY]

Without a vocabulary, one of 40,000 tokens is learned from all but the last two items of each history. Before anything
is timed, some histories are encoded by the definition as well: other tokens are an error, not a footnote. Prints one
JSON line per measurement, with all runs; processor time stands beside the wall, as the machine is rarely quiet.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

from measure import machine
from piecemill.actions import ActionTokenizer, Items, leave_out, max_items, read_interactions
from piecemill.actions.batches import action_batches
from piecemill.actions.shards import write_action_shards
from piecemill.actions.training import train_actions
from piecemill.reference import segments

RUNS = 5
HISTORY = 20
BATCHES, BATCH = 300, 256


def timed(call: Callable[[int], object]) -> dict[str, list[float]]:
    """Wall and processor seconds of every run; the number of the run is the epoch."""
    wall, cpu = [], []
    for run in range(RUNS):
        started, spent = time.perf_counter(), time.process_time()
        call(run)
        cpu.append(time.process_time() - spent)
        wall.append(time.perf_counter() - started)
    return {"seconds": wall, "cpu_seconds": cpu}


def said(name: str, count: int, unit: str, runs: dict[str, list[float]], **facts: object) -> None:
    rate = count / statistics.median(runs["seconds"])
    per_core = count / statistics.median(runs["cpu_seconds"])
    rates = {f"{unit}_per_second": round(rate), f"{unit}_per_core_second": round(per_core)}
    print(json.dumps({"name": name, **rates, "count": count, **facts, **runs}), flush=True)


def check(tokenizer: ActionTokenizer, items: np.ndarray, ends: np.ndarray) -> None:
    vocabulary = tokenizer.vocabulary
    rules = segments.rules(vocabulary.merges.tolist(), vocabulary.n_init_feats)
    ids, cut = tokenizer.encode_batch(items, ends, seed=1)
    sequences = np.split(tokenizer.table[items], ends[:-1])
    for row, (sequence, got) in enumerate(zip(sequences, np.split(ids, cut[:-1]), strict=True)):
        if got.tolist() != segments.spr(sequence.tolist(), rules, 1, 0, row):
            raise SystemExit(f"history {row}: tokens differ from the definition; no time is reported")


def main(histories_at: str, items_at: str, vocabulary: str | None = None) -> None:
    items = Items.of(items_at)
    split = leave_out(read_interactions(histories_at), 2)
    if vocabulary is None:
        tokenizer = train_actions(split.train, items, vocab_size=40_000)
    else:
        tokenizer = ActionTokenizer.load(vocabulary, items=items)
    print(json.dumps({"machine": machine(), "histories": histories_at, "tokens": tokenizer.vocabulary.size}))
    recent = max_items(split.train, HISTORY).over(items)
    check(tokenizer, recent.items[: recent.ends[199]], recent.ends[:200])
    count = len(recent.items)
    for threads in (1, 2):
        runs = timed(lambda n, t=threads: tokenizer.encode_batch(recent.items, recent.ends, seed=1, epoch=n, threads=t))
        said("encode, SPR", count, "items", runs, threads=threads)
        runs = timed(lambda n, t=threads: tokenizer.encode_batch(recent.items, recent.ends, threads=t))
        said("encode, by weight", count, "items", runs, threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        shards = write_action_shards(split.train, tokenizer, Path(folder) / "shards")
        for threads in (0, 1, 2):
            with action_batches(shards, batch_size=BATCH, history=HISTORY, threads=threads) as batches:
                next(batches)  # threads started, labels made
                runs = timed(lambda n, b=batches: [None for _ in islice(b, BATCHES)])
            said("batches", BATCH * BATCHES, "sequences", runs, threads=threads, batch_size=BATCH)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
