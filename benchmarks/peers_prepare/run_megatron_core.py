"""Megatron: the steps of its `tools/preprocess_data.py` with megatron-core's own builder.

The script itself is not in the package. What it does: a pool of workers is fed lines 32 at a time, each encodes
one document and appends the end, and the parent adds the documents to the .bin and .idx in order.
"""

import json
import multiprocessing

from pipeline import Encoder, one_thread_each, peer, read_share, shares

_encode = None


def _start(tokenizer, library):
    global _encode
    _encode = Encoder(tokenizer, library)


def _line(line):
    return _encode([json.loads(line)["text"]])[0]


def _text(text):
    return _encode([text])[0]


def prepare(args):
    one_thread_each()
    import numpy as np
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    path = args.input[0]
    builder = IndexedDatasetBuilder(str(args.out / "tokens.bin"), dtype=np.uint16)
    with multiprocessing.Pool(args.workers, _start, (args.tokenizer, args.library)) as pool:
        if path.suffix == ".parquet":  # the script knows JSON lines only
            documents = pool.imap(_text, read_share(shares(path, 1)[0]), 32)
        else:
            documents = pool.imap(_line, path.open("rb"), 32)
        for ids in documents:
            builder.add_document(ids, [len(ids)])
    builder.finalize(str(args.out / "tokens.idx"))


def tokens(out):
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    dataset = IndexedDataset(str(out / "tokens"))
    for number in range(len(dataset)):
        yield dataset[number]


if __name__ == "__main__":
    peer(prepare, tokens)
