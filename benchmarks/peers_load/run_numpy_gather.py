"""The ceiling: a bare numpy gather of shuffled rows from an array in memory, nothing else. One thread, no workers."""

from loop import SEED, Epochs, loader, read_tokens


def write(args):
    pass


def batches(args, folder, batch, window):
    import numpy as np

    tokens = np.array(read_tokens(args))
    starts = np.random.default_rng(SEED).permutation((len(tokens) - 1) // window) * window
    columns = np.arange(window + 1)

    def epoch():
        for first in range(0, len(starts), batch):
            yield tokens[starts[first : first + batch, None] + columns]

    return Epochs(epoch)


if __name__ == "__main__":
    loader(write, batches)
