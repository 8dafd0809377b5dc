"""litdata: optimised chunks of tokens, its streaming dataset with shuffling, its own loader."""

from functools import partial

from loop import SEED, loader

_BLOCKS = 1024


def _part(number, path, size):
    import numpy as np
    import torch

    tokens = np.load(path, mmap_mode="r")[number * size : (number + 1) * size]
    # Its headers know no uint16.
    yield torch.from_numpy(tokens.astype(np.int32))


def write(args):
    import numpy as np
    from litdata import TokensLoader, optimize

    # It takes no block from two chunks, so all parts but the last are of whole blocks, and so are chunks of them.
    size = (args.window + 1) * _BLOCKS
    count = len(np.load(args.tokens, mmap_mode="r"))
    optimize(
        partial(_part, path=str(args.tokens), size=size),
        list(range(-(-count // size))),
        output_dir=str(args.out / str(args.window)),
        num_workers=1,
        chunk_size=4 * size,
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
