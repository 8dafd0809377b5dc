"""The same ids from one library in different ways, for `strategies.py`.

`encode` reads the documents and loads the tokenizer, then encodes every document; it reports the seconds of encoding
alone, with the start of threads or processes, and the digest of the ids. `train` makes the model of SentencePiece.
"""

import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from documents import LIBRARIES, batches
from worker import digest, texts, train_sentencepiece, worker

_own = threading.local()


def _start(name, model):
    """A tokenizer for each thread or process: gigatoken's refuses a second thread ("Already borrowed")."""
    _own.library = LIBRARIES[name](model)


def _one(text):
    return _own.library.one(text)


def encoded(library, given, args):
    workers, own = args.workers, (args.library, args.model)
    if args.strategy == "one by one":
        return [library.one(text) for text in given]
    if args.strategy in ("batches", "batches, one thread"):
        threads = workers if args.strategy == "batches" else 1
        return [ids for batch in batches(given, 1000) for ids in library.batch(batch, threads)]
    if args.strategy == "threads":
        with ThreadPoolExecutor(workers, initializer=_start, initargs=own) as pool:
            return list(pool.map(_one, given))
    if args.strategy == "processes":
        with multiprocessing.get_context("spawn").Pool(workers, _start, own) as pool:
            return list(pool.imap(_one, given, 32))
    return [library.one("".join(given))]


def encode(args):
    if args.strategy == "batches, one thread":
        os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    given, library = list(texts(args.input)), LIBRARIES[args.library](args.model)
    # First calls set things up (gigatoken's batch: 0.3 s), which is not measured here.
    library.one(given[0])
    library.batch(given[:2], args.workers)
    start = time.perf_counter()
    found = encoded(library, given, args)
    return {"seconds": time.perf_counter() - start, **digest(found)}


def train(args):
    lines = (line for text in texts(args.input) for line in text.split("\n") if line)
    train_sentencepiece(lines, str(args.model).removesuffix(".model"), 16_384)


if __name__ == "__main__":
    worker({"library": sys.modules[__name__]})
