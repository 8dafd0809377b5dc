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

from documents import LIBRARIES, batches, digest, read
from worker import train_sentencepiece, worker

_library = None
_own = threading.local()


def _start_thread(name, model):
    _own.library = LIBRARIES[name](model)


def _start(name, model):
    global _library
    _library = LIBRARIES[name](model)


def _one_elsewhere(text):
    return _library.one(text)


def encoded(library, texts, args):
    strategy, own = args.strategy, (args.library, args.model)
    if strategy == "one by one":
        return [library.one(text) for text in texts]
    if strategy in ("batches", "batches, one thread"):
        threads = 1 if strategy.endswith("one thread") else args.workers
        return [ids for batch in batches(texts, 1000) for ids in library.batch(batch, threads)]
    if strategy == "threads":
        # A tokenizer for each thread: gigatoken's refuses a second caller ("Already borrowed").
        with ThreadPoolExecutor(args.workers, initializer=_start_thread, initargs=own) as pool:
            return list(pool.map(lambda text: _own.library.one(text), texts))
    if strategy == "processes":
        with multiprocessing.get_context("spawn").Pool(args.workers, _start, own) as pool:
            return list(pool.imap(_one_elsewhere, texts, 32))
    return [library.one("".join(texts))]


def encode(args):
    if args.strategy == "batches, one thread":
        os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    texts, library = list(read(args.input)), LIBRARIES[args.library](args.model)
    # First calls set things up (gigatoken's batch: 0.3 s), which is not measured here.
    library.one(texts[0])
    library.batch(texts[:2], args.workers)
    start = time.perf_counter()
    found = encoded(library, texts, args)
    return {"seconds": time.perf_counter() - start, **digest(found)}


def train(args):
    lines = (line for text in read(args.input) for line in text.split("\n") if line)
    train_sentencepiece(lines, str(args.model).removesuffix(".model"), 16_384)


if __name__ == "__main__":
    worker({"library": sys.modules[__name__]})
