"""rustbpe: its own order among equal counts, so no equality is claimed."""

import rustbpe
from protocol import GPT2, WHOLE, documents, learned_tokens, peer, save_tokens


def train(args):
    tokenizer = rustbpe.Tokenizer()
    pattern = WHOLE if args.split == "none" else GPT2
    tokenizer.train_from_iterator(documents(args.corpus), args.vocab, pattern=pattern)
    ranks = sorted(tokenizer.get_mergeable_ranks(), key=lambda entry: entry[1])
    save_tokens((bytes(token) for token, _ in ranks), args.out / "tokens.txt")


peer(train, lambda out: learned_tokens(out / "tokens.txt"))
