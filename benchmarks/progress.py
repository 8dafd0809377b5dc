"""Record how merging goes over time, for the test of the estimated time left: `python benchmarks/progress.py`.

Writes `tests/recorded_runs.json`: the progress of each run at some 150 moments. The corpora are those of the training
benchmark (`corpus.py` builds them) and the interpreter's own standard library.
"""

import json
import os
import sysconfig
from functools import partial
from itertools import product
from pathlib import Path

from piecemill._core import FlatCorpus, Progress, WordCounter
from piecemill.sources import open_source
from piecemill.training.remaining import Moment, moment
from protocol import CACHE, HERE
from worker import watched

THREADS = {"a thread for each core": len(os.sched_getaffinity(0)), "one thread": 1}
RUNS = [
    ("words of 127 MB of Python", CACHE / "python-127mb", "gpt2", 50_257),
    ("words of 30 MB in many languages", CACHE / "multilingual-30mb", "cl100k", 100_000),
    ("lines of 127 MB of Python", CACHE / "python-127mb", r"[^\n]+|\n+", 200_000),
    ("words of the standard library", Path(sysconfig.get_path("stdlib")), "gpt2", 32_768),
    ("127 MB of Python, whole files", CACHE / "python-127mb", "none", 50_257),
    ("127 MB of Python, whole files, large vocabulary", CACHE / "python-127mb", "none", 200_000),
    ("20 MB of Python, whole files", CACHE / "python-20mb", "none", 32_768),
    ("5 MB of Python, whole files", CACHE / "python-5mb", "none", 8_192),
    ("30 MB in many languages, whole files", CACHE / "multilingual-30mb", "none", 50_257),
]


def record(path: Path, split: str, vocab_size: int, threads: int) -> list[Moment]:
    progress, asked, whole = Progress(), (vocab_size, 0, None, []), split == "none"
    corpus, counter = FlatCorpus(*asked, threads if whole else 1), WordCounter(split, 2**31, ".")
    add = corpus.add if whole else counter.add
    for block in open_source(path, on_bad_document="skip").blocks():
        add(block.data, block.ends)
    if not whole:
        corpus.add_words(counter.finish(), 0)
    _, some, _ = watched(partial(corpus.train, progress), lambda seconds: moment(seconds, progress))
    return [Moment(round(seen.seconds, 4), *seen[1:7], round(seen.round_seconds, 4)) for seen in some]


if __name__ == "__main__":
    runs = []
    for (how, threads), (what, corpus, split, vocab_size) in product(THREADS.items(), RUNS):
        trace = record(corpus, split, vocab_size, threads)
        print(f"{what}, {how}: {trace[-1][0]:.2f} s, {trace[-1][1]:,} merges")
        about = {"run": f"{what}, {how}", "vocab_size": vocab_size, "merges": vocab_size - 256}
        runs.append({**about, "trace": trace})
    path = HERE.parent / "tests" / "recorded_runs.json"
    path.write_text(json.dumps(runs, separators=(",", ":")) + "\n", encoding="utf-8")
