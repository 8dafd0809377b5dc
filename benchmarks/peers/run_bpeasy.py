"""bpeasy: its own order among equal counts, so no equality is claimed."""

import bpeasy
from protocol import GPT2, WHOLE, documents, learned_tokens, peer, save_tokens

NO_LIMIT = 2**31


def train(args):
    pattern = WHOLE if args.split == "none" else GPT2
    vocab = bpeasy.train_bpe(documents(args.corpus), pattern, NO_LIMIT, args.vocab)
    save_tokens(sorted(vocab, key=vocab.__getitem__), args.out / "tokens.txt")


peer(train, lambda out: learned_tokens(out / "tokens.txt"))
