"""gigatoken: promises HF's order of merges. It has one split for training, GPT-2's."""

import json

from gigatoken import JsonlFileSource, TextFileSource, train_bpe
from protocol import files, peer


def train(args):
    source = TextFileSource(files(args.corpus)) if args.corpus.is_dir() else JsonlFileSource([args.corpus])
    _, merges = train_bpe(source, args.vocab, [], tie_breaking="huggingface")
    # It returns the merges and leaves saving to the user.
    (args.out / "saved.json").write_text(json.dumps([(left.hex(), right.hex()) for left, right in merges]))


def merges(out):
    return [(bytes.fromhex(left), bytes.fromhex(right)) for left, right in json.loads((out / "saved.json").read_text())]


peer(train, merges)
