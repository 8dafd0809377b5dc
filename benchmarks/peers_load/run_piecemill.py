"""Piecemill: batches of torch tensors, feeder threads for workers. Its own folder is made by `piecemill prepare`."""

from loop import SEED, loader


def write(args):
    raise SystemExit("run: piecemill prepare")


def batches(args, folder, batch, window):
    import piecemill as pm
    from piecemill.loading.torch import batches as fed

    rows = pm.open_shards(folder)
    epochs = None if args.do == "time" else 1
    return fed(rows, window=window, batch_size=batch, seed=SEED, epochs=epochs, threads=args.workers)


def rows(batch):
    import numpy as np

    full = (batch["labels"] != -100).all(dim=1)  # the last window is padded; the others' last rows are left out
    return np.concatenate([batch["input_ids"][full][:, :1].numpy(), batch["labels"][full].numpy()], axis=1)


if __name__ == "__main__":
    loader(write, batches, rows)
