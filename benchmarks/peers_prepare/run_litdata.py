"""litdata: `optimize` over parts of the file, a process for each worker; an item is the ids of a document."""

from functools import partial

from pipeline import Encoder, batches, one_thread_each, peer, read_share, shares

_encoders = {}


def _documents(share, tokenizer):
    # One for each process, kept from part to part: it takes a while to load.
    if tokenizer not in _encoders:
        _encoders[tokenizer] = Encoder(tokenizer)
    for texts in batches(read_share(share)):
        yield from _encoders[tokenizer](texts)


def prepare(args):
    one_thread_each()
    from litdata import optimize

    optimize(
        partial(_documents, tokenizer=args.tokenizer),
        # More parts than workers, so that none waits long for the other; in order all the same.
        shares(args.input[0], 4 * args.workers),
        output_dir=str(args.out / "tokens"),
        num_workers=args.workers,
        chunk_bytes="64MB",
        verbose=False,
    )


def tokens(out):
    from litdata import StreamingDataset

    dataset = StreamingDataset(str(out / "tokens"))
    for number in range(len(dataset)):
        yield dataset[number]


if __name__ == "__main__":
    peer(prepare, tokens)
