"""datatrove: its file of tokens, its dataset, shuffled by torch's DataLoader."""

from loop import loader, read_tokens, torch_loader


def write(args):
    read_tokens(args).tofile(args.out / "tokens.ds")


def batches(args, folder, batch, window):
    from datatrove.utils.dataset import DatatroveFileDataset

    dataset = DatatroveFileDataset(str(folder / "tokens.ds"), window, token_size=2)
    return torch_loader(dataset, batch, args.workers, shuffle=True)


if __name__ == "__main__":
    loader(write, batches, lambda batch: batch["input_ids"])
