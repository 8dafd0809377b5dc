"""nanoGPT's loop: random places of a memory map, rows stacked one by one. With replacement, so it has no epochs."""

from loop import SEED, Epochs, loader, read_tokens


def write(args):
    pass


def batches(args, folder, batch, window):
    import numpy as np
    import torch

    tokens = read_tokens(args)
    torch.manual_seed(SEED)

    def epoch():
        for _ in range(len(tokens) // (batch * window)):
            places = torch.randint(len(tokens) - window, (batch,))
            x = torch.stack([torch.from_numpy(tokens[i : i + window].astype(np.int64)) for i in places])
            y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + window].astype(np.int64)) for i in places])
            yield x, y

    return Epochs(epoch)


def rows(batch):
    import numpy as np

    return np.concatenate([batch[0][:, :1].numpy(), batch[1].numpy()], axis=1)


if __name__ == "__main__":
    loader(write, batches, rows)
