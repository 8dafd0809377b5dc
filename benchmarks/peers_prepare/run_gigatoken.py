"""gigatoken in memory, the yardstick: how fast its own `encode_batch` is on text that is already there.

Reading and saving do not count: the seconds of the call alone go to `inside.json`. It adds no <|endoftext|>,
so `tokens` puts it at the end of each document before anything is compared.
"""

import json
import time

from pipeline import EOS, peer, read_share, shares


def prepare(args):
    import gigatoken
    import numpy as np

    texts = [text.encode() for text in read_share(shares(args.input[0], 1)[0])]
    tokenizer = gigatoken.Tokenizer.from_json(args.tokenizer.read_text(encoding="utf-8"))
    # Its first call imports and sets up for 0.3 s; a yardstick shall not be shorter for that.
    tokenizer.encode_batch(texts[:1])
    start = time.perf_counter()
    layout = tokenizer.encode_batch(texts).layout
    seconds = time.perf_counter() - start
    np.save(args.out / "offsets.npy", np.asarray(layout.offsets.data))
    np.save(args.out / "ids.npy", np.asarray(layout.content.data))
    eos = json.loads(args.tokenizer.read_text(encoding="utf-8"))["model"]["vocab"][EOS]
    (args.out / "inside.json").write_text(json.dumps({"seconds": seconds, "eos": eos}))


def tokens(out):
    import numpy as np

    eos = json.loads((out / "inside.json").read_text())["eos"]
    ids, offsets = np.load(out / "ids.npy", mmap_mode="r"), np.load(out / "offsets.npy")
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        yield np.append(ids[start:end], np.uint32(eos))


if __name__ == "__main__":
    peer(prepare, tokens)
