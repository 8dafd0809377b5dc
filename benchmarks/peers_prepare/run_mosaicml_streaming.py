"""mosaicml-streaming: an MDSWriter in each of the worker processes over its share, then one merged index."""

import multiprocessing

from pipeline import Encoder, batches, one_thread_each, peer, read_share, shares


def _write(folder, share, tokenizer):
    from streaming import MDSWriter

    encode = Encoder(tokenizer)
    with MDSWriter(out=folder, columns={"ids": "ndarray:uint16"}) as writer:
        for texts in batches(read_share(share)):
            for ids in encode(texts):
                writer.write({"ids": ids})


def prepare(args):
    one_thread_each()
    from streaming.base.util import merge_index

    work = [
        (str(args.out / "tokens" / f"{number:02}"), share, args.tokenizer)
        for number, share in enumerate(shares(args.input[0], args.workers))
    ]
    processes = [multiprocessing.Process(target=_write, args=one) for one in work]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a worker failed")
    merge_index(str(args.out / "tokens"))


def tokens(out):
    from streaming import LocalDataset

    dataset = LocalDataset(str(out / "tokens"))
    for number in range(len(dataset)):
        yield dataset[number]["ids"]


if __name__ == "__main__":
    peer(prepare, tokens)
