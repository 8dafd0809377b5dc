"""rustbpe: its own order among equal counts, so no equality is claimed."""

import rustbpe
from protocol import GPT2, WHOLE, documents, peer, save_ranks, tokens_of_ranks


def train(args):
    tokenizer = rustbpe.Tokenizer()
    pattern = WHOLE if args.split == "none" else GPT2
    tokenizer.train_from_iterator(documents(args.corpus), args.vocab, pattern=pattern)
    save_ranks({bytes(token): rank for token, rank in tokenizer.get_mergeable_ranks()}, args.out / "ranks.txt")


peer(train, lambda out: tokens_of_ranks(out / "ranks.txt"))
