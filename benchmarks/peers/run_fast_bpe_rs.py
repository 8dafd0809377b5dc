"""fast-bpe-rs: its own order among equal counts, so no equality is claimed."""

from fast_bpe_rs import BPE
from protocol import GPT2, WHOLE, documents, learned_tokens, peer, save_tokens


def train(args):
    bpe = BPE(WHOLE if args.split == "none" else GPT2)
    bpe.train(args.vocab, list(documents(args.corpus)))
    # It can neither save nor list what it learned; decoding each id gives the tokens in order.
    save_tokens((bytes(bpe.decode([rank])) for rank in range(args.vocab)), args.out / "tokens.txt")


peer(train, lambda out: learned_tokens(out / "tokens.txt"))
