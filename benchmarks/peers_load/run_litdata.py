"""litdata: optimised chunks of tokens, its streaming dataset with shuffling, its own loader."""

from functools import partial

from loop import SEED, loader

_PART = 1_000_000


def _part(number, path):
    import numpy as np
    import torch

    tokens = np.load(path, mmap_mode="r")[number * _PART : (number + 1) * _PART]
    # Its headers know no uint16.
    yield torch.from_numpy(tokens.astype(np.int32))


def write(args):
    import numpy as np
    from litdata import TokensLoader, optimize

    count = len(np.load(args.tokens, mmap_mode="r"))
    optimize(
        partial(_part, path=str(args.tokens)),
        list(range(-(-count // _PART))),
        output_dir=str(args.out / str(args.window)),
        num_workers=1,
        # A chunk holds whole blocks, and one that no block fills is left out.
        chunk_size=(args.window + 1) * 4096,
        item_loader=TokensLoader(block_size=args.window + 1),
        verbose=False,
    )


def batches(args, folder, batch, window):
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    dataset = StreamingDataset(
        str(folder / str(window)), item_loader=TokensLoader(block_size=window + 1), shuffle=True, seed=SEED
    )
    return StreamingDataLoader(dataset, batch_size=batch, num_workers=args.workers, drop_last=False)


if __name__ == "__main__":
    loader(write, batches)
