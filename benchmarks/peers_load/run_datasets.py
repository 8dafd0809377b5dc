"""Hugging Face `datasets`: rows in an Arrow file, torch format, whole shuffled batches through torch's DataLoader."""

import os

from loop import loader, torch_loader, whole_rows


def _offline(folder):
    os.environ |= {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}


def write(args):
    _offline(args.out)
    import numpy as np
    import pyarrow as pa
    from datasets import Dataset

    rows = whole_rows(args)
    # int32, as uint16 has no place in torch's format; lists of a told width were slower (4 against 25 M tokens/s).
    bounds = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1])
    ids = pa.ListArray.from_arrays(bounds, pa.array(rows.reshape(-1).astype(np.int32)))
    Dataset(pa.table({"ids": ids})).save_to_disk(str(args.out / str(args.window)))


def batches(args, folder, batch, window):
    _offline(folder)
    from datasets import load_from_disk
    from torch.utils.data import BatchSampler, RandomSampler

    dataset = load_from_disk(str(folder / str(window))).with_format("torch")
    # Asked for whole batches, it gives one tensor and nothing is left to stack.
    whole = BatchSampler(RandomSampler(dataset), batch, drop_last=False)
    return torch_loader(dataset, None, args.workers, sampler=whole)


if __name__ == "__main__":
    loader(write, batches, lambda batch: batch["ids"])
