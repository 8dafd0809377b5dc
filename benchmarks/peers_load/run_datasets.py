"""Hugging Face `datasets`: rows in an Arrow file, torch format, shuffled by torch's DataLoader."""

import os

from loop import loader, torch_loader, whole_rows


def _offline(folder):
    os.environ |= {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}


def write(args):
    _offline(args.out)
    import pyarrow as pa
    from datasets import Dataset

    rows = whole_rows(args)
    # The width is told, so a row is found without its offsets; int32, as uint16 has no place in torch's format.
    ids = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1).astype("int32")), rows.shape[1])
    Dataset(pa.table({"ids": ids})).save_to_disk(str(args.out / str(args.window)))


def batches(args, folder, batch, window):
    _offline(folder)
    from datasets import load_from_disk

    dataset = load_from_disk(str(folder / str(window))).with_format("torch")
    return torch_loader(dataset, batch, args.workers, shuffle=True)


if __name__ == "__main__":
    loader(write, batches, lambda batch: batch["ids"])
