"""A training loop without a framework: batches as numpy arrays, a bigram model that learns from them, and a restart.

    python examples/load_numpy.py shards/ --split train

`make demo` leaves shards to try it with. Needs Piecemill and numpy, nothing else.
"""

import argparse

import numpy as np

import piecemill as pm
from piecemill.loading import batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shards")
    parser.add_argument("--split")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    rows = pm.open_shards(args.shards, split=args.split)
    print(f"{len(rows):,} documents, {rows.tokens:,} tokens, {rows.vocab_size:,} ids")

    # How often each id came after ids of the same last digit: a small model, but the loss falls all the same.
    counts = np.ones((64, rows.vocab_size))
    options = {"window": args.window, "batch_size": 8, "seed": 1}
    with batches(rows, **options) as fed:
        for step, batch in zip(range(args.steps), fed, strict=False):
            trained = batch["labels"] != -100  # padding and what an overlap brings again
            before, after = batch["input_ids"][trained] % 64, batch["labels"][trained]
            loss = -np.log(counts[before, after] / counts.sum(axis=1)[before]).mean()
            np.add.at(counts, (before, after), 1)
            if step % max(1, args.steps // 5) == 0:
                print(f"step {step:5}  loss {loss:.3f} nats, chance {np.log(rows.vocab_size):.3f}")
        state = fed.state_dict()
        stats = fed.stats
        expected = next(fed)
    print(f"{stats.tokens:,} tokens; waited {stats.waited:.3f} s; feeder {stats.cpu:.3f} s of processor time")
    print(f"state: {state}")

    with batches(rows, **options) as fed:
        fed.load_state_dict(state)
        if not np.array_equal(next(fed)["input_ids"], expected["input_ids"]):
            raise SystemExit("another batch after the restart")
    print("went on with the same batch")


if __name__ == "__main__":
    main()
