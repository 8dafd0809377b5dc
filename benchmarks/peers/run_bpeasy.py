"""bpeasy: its own order among equal counts, so no equality is claimed."""

import bpeasy
from protocol import GPT2, WHOLE, documents, peer, save_ranks, tokens_of_ranks

NO_LIMIT = 2**31


def train(args):
    pattern = WHOLE if args.split == "none" else GPT2
    vocab = bpeasy.train_bpe(documents(args.corpus), pattern, NO_LIMIT, args.vocab)
    save_ranks(vocab, args.out / "ranks.txt")


peer(train, lambda out: tokens_of_ranks(out / "ranks.txt"))
