"""One library asked for the same ids in different ways: `strategies.py` runs this, a process for each.

    python peers_prepare/run_strategy.py encode --library X --strategy Y --input FILE.jsonl --model FILE --out FOLDER
    python peers_prepare/run_strategy.py train  --input FILE.jsonl --model FILE.model

`encode` reads the documents and loads the tokenizer, then encodes every document; `inside.json` has the seconds of
encoding alone, with the start of threads or processes, and the digest of the ids.
"""

import argparse
import json
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from pipeline import Digest, batches, read_share, shares

BATCH = 1000


class Tokenizers:
    """Hugging Face `tokenizers`."""

    def __init__(self, model):
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(model)

    def one(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def batch(self, texts, threads):
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


class Gigatoken:
    """gigatoken; a batch comes back as one buffer, which is cut into views of it."""

    def __init__(self, model):
        import gigatoken

        self._tokenizer = gigatoken.Tokenizer.from_json(Path(model).read_text(encoding="utf-8"))

    def one(self, text):
        return self._tokenizer.encode(text)

    def batch(self, texts, threads):
        import numpy as np

        layout = self._tokenizer.encode_batch(texts).layout
        offsets, ids = np.asarray(layout.offsets.data), np.asarray(layout.content.data)
        return [ids[start:end] for start, end in pairwise(offsets.tolist())]


class SentencePiece:
    """SentencePiece, with a model of its own: its ids are compared with its own only."""

    def __init__(self, model):
        import sentencepiece

        self._tokenizer = sentencepiece.SentencePieceProcessor(model_file=model)

    def one(self, text):
        return self._tokenizer.encode(text)

    def batch(self, texts, threads):
        return self._tokenizer.encode(texts, num_threads=threads)


LIBRARIES = {"tokenizers": Tokenizers, "gigatoken": Gigatoken, "sentencepiece": SentencePiece}
_library = None
_own = threading.local()


def _start_thread(name, model):
    _own.library = LIBRARIES[name](model)


def _start(name, model):
    global _library
    _library = LIBRARIES[name](model)


def _one_elsewhere(text):
    return _library.one(text)


def encode(strategy, library, texts, args):
    if strategy == "one by one":
        return [library.one(text) for text in texts]
    if strategy in ("batches", "batches, one thread"):
        threads = 1 if strategy.endswith("one thread") else args.workers
        return [ids for batch in batches(texts, BATCH) for ids in library.batch(batch, threads)]
    if strategy == "threads":
        # A tokenizer for each thread: gigatoken's refuses a second caller ("Already borrowed").
        with ThreadPoolExecutor(args.workers, initializer=_start_thread, initargs=(args.library, args.model)) as pool:
            return list(pool.map(lambda text: _own.library.one(text), texts))
    if strategy == "processes":
        with multiprocessing.get_context("spawn").Pool(args.workers, _start, (args.library, args.model)) as pool:
            return list(pool.imap(_one_elsewhere, texts, 32))
    return [library.one("".join(texts))]


def train(args):
    import sentencepiece

    lines = (line for text in read_share(shares(args.input, 1)[0]) for line in text.split("\n") if line)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_prefix=args.model.removesuffix(".model"),
        model_type="bpe",
        vocab_size=16_384,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("do", choices=["encode", "train"])
    parser.add_argument("--library", choices=list(LIBRARIES))
    parser.add_argument("--strategy")
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.do == "train":
        return train(args)
    if args.strategy == "batches, one thread":
        os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    texts = list(read_share(shares(args.input, 1)[0]))
    library = LIBRARIES[args.library](args.model)
    # First calls set things up (gigatoken's batch: 0.3 s), which is not what is asked here.
    library.one(texts[0])
    library.batch(texts[:1], args.workers)
    start = time.perf_counter()
    found = encode(args.strategy, library, texts, args)
    seconds = time.perf_counter() - start
    digest = Digest()
    for ids in found:
        digest.add(ids)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "inside.json").write_text(json.dumps({"seconds": seconds, **digest.summary()}))


if __name__ == "__main__":
    main()
