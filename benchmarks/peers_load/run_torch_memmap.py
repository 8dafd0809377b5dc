"""torch's DataLoader over a map-style dataset of rows of a memory map, shuffled."""

from loop import loader, read_tokens, torch_loader


def write(args):
    pass


class Rows:
    def __init__(self, tokens, window):
        self.tokens, self.window = tokens, window

    def __len__(self):
        return (len(self.tokens) - 1) // self.window

    def __getitem__(self, number):
        import numpy as np
        import torch

        start = number * self.window
        return torch.from_numpy(self.tokens[start : start + self.window + 1].astype(np.int64))


def batches(args, folder, batch, window):
    return torch_loader(Rows(read_tokens(args), window), batch, args.workers, shuffle=True)


if __name__ == "__main__":
    loader(write, batches)
