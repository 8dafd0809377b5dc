"""Documents in, ids out, for `prepare.py` and `strategies.py`.

Reading a share of a file, and the libraries that encode with the same calls: one document, a batch, the id of a token.
The worker of `strategies.py` reads the documents, loads the tokenizer, and encodes every document in one of the ways.
"""

import json
import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from worker import digest, texts, worker

EOS = "<|endoftext|>"


def one_thread_each():
    """Workers are processes here: HF's own threads on top of them would only get in each other's way.

    To be called before `tokenizers` is imported.
    """
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def shares(path, count):
    """The file of lines in `count` parts of about the same size: (path, first, last) in bytes."""
    size = path.stat().st_size
    return [(str(path), size * part // count, size * (part + 1) // count) for part in range(count)]


def lines_of(share):
    """A line belongs to the share in which it starts."""
    path, first, last = share
    with open(path, "rb") as lines:
        if first:
            lines.seek(first - 1)
            lines.readline()
        while lines.tell() < last and (line := lines.readline()):
            yield line


def batches(texts, size=256):
    rest = iter(texts)
    while held := list(islice(rest, size)):
        yield held


class Encoder:
    """The library that encodes, by its fastest call: HF `tokenizers`, the default of all pipelines, or gigatoken."""

    def __init__(self, path, library="tokenizers"):
        self._made_of, self._library = (path, library), None

    def __call__(self, texts):
        """The ids of each text and then the end, as uint16, which 50,257 entries fit in."""
        if self._library is None:
            # Only here, in the worker: not every library can be pickled, or used after a fork.
            path, library = self._made_of
            self._library = LIBRARIES[library](path)
            self._eos = self._library.id_of(EOS)
        found = []
        for ids in self._library.batch(texts, threads=1):
            found.append(np.empty(len(ids) + 1, np.uint16))
            found[-1][:-1], found[-1][-1] = ids, self._eos
        return found


class Tokenizers:
    """Hugging Face `tokenizers`, the release or the candidate of 1.0."""

    def __init__(self, model):
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(model))
        # Without offsets, which nobody asks for here: 2 GB would take most of an hour with them. On 127 MB both calls
        # gave the same ids. 1.0 has one call, which makes none.
        self._batch = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)

    def id_of(self, token):
        return self._tokenizer.token_to_id(token)

    def one(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def batch(self, texts, threads):
        return [encoding.ids for encoding in self._batch(texts, add_special_tokens=False)]


class Gigatoken:
    """gigatoken; a batch comes back as one buffer, which is cut into views of it."""

    def __init__(self, model):
        import gigatoken

        self._json = Path(model).read_text(encoding="utf-8")
        self._tokenizer = gigatoken.Tokenizer.from_json(self._json)

    def id_of(self, token):
        return json.loads(self._json)["model"]["vocab"][token]

    def one(self, text):
        return self._tokenizer.encode(text)

    def batch(self, texts, threads):
        if len(texts) == 1:  # the array of a batch takes 0.2 ms to make
            return [self._tokenizer.encode(texts[0])]
        layout = self._tokenizer.encode_batch(texts).layout
        offsets, ids = np.asarray(layout.offsets.data), np.asarray(layout.content.data)
        return [ids[start:end] for start, end in pairwise(offsets.tolist())]


class SentencePiece:
    """SentencePiece, with a separate model: its ids are compared with its own only."""

    def __init__(self, model):
        import sentencepiece

        self._tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(model))

    def one(self, text):
        return self._tokenizer.encode(text)

    def batch(self, texts, threads):
        return self._tokenizer.encode(texts, num_threads=threads)


LIBRARIES = {"tokenizers": Tokenizers, "gigatoken": Gigatoken, "sentencepiece": SentencePiece}


# The same ids from one library in different ways

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
    """The seconds of encoding alone, with the start of threads or processes, and the digest of the ids."""
    if args.strategy == "batches, one thread":
        os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    given, library = list(texts(args.input)), LIBRARIES[args.library](args.model)
    # First calls set things up (gigatoken's batch: 0.3 s), which is not measured here.
    library.one(given[0])
    library.batch(given[:2], args.workers)
    start = time.perf_counter()
    found = encoded(library, given, args)
    return {"seconds": time.perf_counter() - start, **digest(found)}


if __name__ == "__main__":
    worker({"library": sys.modules[__name__]})
