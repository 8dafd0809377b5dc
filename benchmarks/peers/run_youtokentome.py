"""YouTokenToMe: BPE over characters between white space. Other rules, so its merges are not compared."""

import youtokentome
from protocol import documents, peer, unspaced


def train(args):
    # It reads one text file only, so making that file is part of using it.
    text = args.out / "corpus.txt"
    with text.open("w", encoding="utf-8", newline="") as handle:
        if args.split == "none":
            handle.writelines(unspaced(text) + "\n" for text in documents(args.corpus))
        else:
            handle.writelines(documents(args.corpus))
    youtokentome.BPE.train(
        str(text), str(args.out / "yttm.model"), vocab_size=args.vocab, coverage=1.0, n_threads=args.threads
    )
    text.unlink()


peer(train, lambda out: [])
