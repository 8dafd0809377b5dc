"""QuickBPE: Re-Pair in C over one flat array; its own order among equal counts, so no equality is claimed."""

import json

import numpy as np
from protocol import GPT2, documents, peer
from QuickBPE import RegexTokenizerFast
from QuickBPE.fastfuncs.funcs import trainFast


def whole(text: str) -> np.ndarray:
    """A document as one word, in the form `presplit` gives: ids, and a 0 after each word."""
    return np.frombuffer(text.encode() + b"\0", dtype=np.uint8).astype(np.int32)


def train(args):
    # Document by document, because its own `train` takes one string and would join words across documents.
    split = whole if args.split == "none" else RegexTokenizerFast(GPT2).presplit
    ids = np.concatenate([split(text) for text in documents(args.corpus)])
    merges, vocab = trainFast(ids, args.vocab)
    pairs = sorted(merges, key=merges.__getitem__)
    (args.out / "saved.json").write_text(json.dumps([(vocab[a].hex(), vocab[b].hex()) for a, b in pairs]))


def merges(out):
    return [(bytes.fromhex(left), bytes.fromhex(right)) for left, right in json.loads((out / "saved.json").read_text())]


peer(train, merges)
