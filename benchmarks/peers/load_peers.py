"""The loaders that `load.py` compares.

`write` brings the tokens (one row of uint16) into the loader's own format. `check` goes through an epoch and digests
every row of window + 1 tokens, so that rows can be compared with those of numpy. `time` takes batches in shuffled order
for some seconds, for each pair of batch and window. A loader has `epochs(args, batch, window)`: a function that begins
an epoch of batches; `rows` makes a batch an array with rows of window + 1 tokens.
"""

import os
import time
from functools import partial
from pathlib import Path

import numpy as np

from worker import Peer, digest, worker

SEED = 1
WARM_BATCHES = 20


def timed(epoch, batch_tokens, seconds):
    """Tokens taken, in how many seconds of the clock and of all processors; the first batches are not counted."""
    batches, taken, cpu, started = epoch(), -WARM_BATCHES, 0.0, 0.0
    while True:
        if next(batches, None) is None:
            batches = epoch()
            continue
        taken += 1
        if taken == 0:
            cpu, started = cpu_seconds(), time.perf_counter()
        elif taken > 0 and time.perf_counter() - started > seconds:
            break
    wall, spent = time.perf_counter() - started, cpu_seconds() - cpu
    return {"tokens": taken * batch_tokens, "seconds": wall, "cpu_seconds": spent}


def cpu_seconds():
    """Processor time of this process and of the workers that live now; ended ones count once they were waited for."""
    ticks = sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK")
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def read_tokens(args):
    return np.load(args.tokens, mmap_mode="r")


def whole_rows(args):
    """The tokens as rows of window + 1, one after another: what loaders that store rows are given."""
    tokens, size = read_tokens(args), args.window + 1
    return tokens[: len(tokens) // size * size].reshape(-1, size)


def torch_loader(dataset, batch, workers, **more):
    """torch's DataLoader, as its users call it; workers are kept from epoch to epoch."""
    from torch.utils.data import DataLoader

    made = DataLoader(dataset, batch_size=batch, num_workers=workers, persistent_workers=workers > 0, **more)
    return partial(iter, made)


class Loader(Peer):
    environment = ""  # the pipeline in whose environment it runs, if it is no package itself
    writes = (1024, 2048)  # the windows for which it has its own files; none if it reads the tokens as they are
    stride_is_window = False  # whether rows begin every `window` tokens, as ours do, rather than every window + 1
    workers = (0, 1, 2)
    replaces = False  # whether it draws with replacement, so that an epoch is not all rows
    field = ""  # of a batch, if rows are in one

    def rows(self, batch):
        return batch[self.field] if self.field else batch

    def check(self, args):
        """A digest of all rows of an epoch, and some of them."""
        rows = [row for batch in self.epochs(args, args.batch, args.window)() for row in np.asarray(self.rows(batch))]
        return {**digest(rows), "some": [row.tolist() for row in rows[:20]]}

    def time(self, args):
        found = {}
        for asked in args.ask:
            batch, window = map(int, asked.split("x"))
            found[asked] = timed(self.epochs(args, batch, window), batch * window, args.seconds)
        return found


class Piecemill(Loader):
    """Batches of torch tensors, feeder threads for workers. Its own folder is made by `piecemill prepare`."""

    name, stride_is_window, writes = "piecemill", True, ()

    def epochs(self, args, batch, window):
        import piecemill as pm
        from piecemill.loading.torch import batches as fed

        options = {"seed": SEED, "epochs": args.epochs, "threads": args.workers}
        return partial(iter, fed(pm.open_shards(args.out), window=window, batch_size=batch, **options))

    def rows(self, batch):
        full = (batch["labels"] != -100).all(dim=1)  # the last window is padded; the others' last rows are left out
        return np.concatenate([batch["input_ids"][full][:, :1].numpy(), batch["labels"][full].numpy()], axis=1)


class NumpyGather(Loader):
    """The ceiling: a bare numpy gather of shuffled rows from an array in memory. One thread, no workers."""

    name, environment, stride_is_window, writes, workers = "numpy-gather", "litdata", True, (), (0,)

    def epochs(self, args, batch, window):
        tokens, columns = np.array(read_tokens(args)), np.arange(window + 1)
        starts = np.random.default_rng(SEED).permutation((len(tokens) - 1) // window) * window
        return lambda: (tokens[starts[at : at + batch, None] + columns] for at in range(0, len(starts), batch))


def _part(number, path, size):
    import torch

    # Its headers know no uint16.
    yield torch.from_numpy(np.load(path, mmap_mode="r")[number * size : (number + 1) * size].astype(np.int32))


class Litdata(Loader):
    """Optimised chunks of tokens, its streaming dataset with shuffling, its own loader."""

    name = "litdata"

    def write(self, args):
        from litdata import TokensLoader, optimize

        # It takes no block from two chunks, so all parts but the last are of whole blocks, and so are chunks of them.
        size, loader = (args.window + 1) * 1024, TokensLoader(block_size=args.window + 1)
        parts, out = list(range(-(-len(read_tokens(args)) // size))), str(args.out / str(args.window))
        how = {"num_workers": 1, "chunk_size": 4 * size, "item_loader": loader, "verbose": False}
        optimize(partial(_part, path=str(args.tokens), size=size), parts, output_dir=out, **how)

    def epochs(self, args, batch, window):
        from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

        how = {"item_loader": TokensLoader(block_size=window + 1), "shuffle": True, "seed": SEED}
        dataset = StreamingDataset(str(args.out / str(window)), **how)
        return partial(iter, StreamingDataLoader(dataset, batch_size=batch, num_workers=args.workers, drop_last=False))


class MosaicmlStreaming(Loader):
    """Rows in MDS shards, its streaming dataset with shuffling, torch's DataLoader."""

    name, field = "mosaicml-streaming", "ids"

    def write(self, args):
        from streaming import MDSWriter

        with MDSWriter(out=str(args.out / str(args.window)), columns={"ids": "ndarray:uint16"}) as writer:
            for row in whole_rows(args):
                writer.write({"ids": np.array(row)})

    def epochs(self, args, batch, window):
        import streaming

        streaming.base.util.clean_stale_shared_memory()
        options = {"shuffle": True, "shuffle_seed": SEED, "num_canonical_nodes": 1}
        dataset = streaming.StreamingDataset(local=str(args.out / str(window)), batch_size=batch, **options)
        return torch_loader(dataset, batch, args.workers)


class Datasets(Loader):
    """Hugging Face `datasets`: rows in an Arrow file, torch format, whole shuffled batches through DataLoader."""

    name, field = "datasets", "ids"

    def offline(self, args):
        os.environ |= {"HF_HOME": str(args.out / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}

    def write(self, args):
        self.offline(args)
        import pyarrow as pa
        from datasets import Dataset

        rows = whole_rows(args)
        # int32, as uint16 has no place in torch's format; lists of a fixed width were slower (4 against 25 M tokens/s).
        bounds = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1])
        ids = pa.ListArray.from_arrays(bounds, pa.array(rows.reshape(-1).astype(np.int32)))
        Dataset(pa.table({"ids": ids})).save_to_disk(str(args.out / str(args.window)))

    def epochs(self, args, batch, window):
        self.offline(args)
        from datasets import load_from_disk
        from torch.utils.data import BatchSampler, RandomSampler

        dataset = load_from_disk(str(args.out / str(window))).with_format("torch")
        # Asked for whole batches, it gives one tensor and nothing is left to stack.
        whole = BatchSampler(RandomSampler(dataset), batch, drop_last=False)
        return torch_loader(dataset, None, args.workers, sampler=whole)


class Datatrove(Loader):
    """Its file of tokens, its dataset, shuffled by torch's DataLoader."""

    name, writes, field = "datatrove", (1024,), "input_ids"

    def write(self, args):
        read_tokens(args).tofile(args.out / "tokens.ds")

    def epochs(self, args, batch, window):
        from datatrove.utils.dataset import DatatroveFileDataset

        dataset = DatatroveFileDataset(str(args.out / "tokens.ds"), window, token_size=2)
        return torch_loader(dataset, batch, args.workers, shuffle=True)


class Rows:
    """A map-style dataset of rows of a memory map."""

    def __init__(self, tokens, window):
        self.tokens, self.window = tokens, window

    def __len__(self):
        return (len(self.tokens) - 1) // self.window

    def __getitem__(self, number):
        import torch

        start = number * self.window
        return torch.from_numpy(self.tokens[start : start + self.window + 1].astype(np.int64))


class TorchMemmap(Loader):
    """torch's DataLoader over a memory map, shuffled."""

    name, environment, stride_is_window, writes = "torch-memmap", "litdata", True, ()

    def epochs(self, args, batch, window):
        return torch_loader(Rows(read_tokens(args), window), batch, args.workers, shuffle=True)


class NanogptLoop(Loader):
    """Random places of a memory map, rows stacked one by one. With replacement, so it has no epochs."""

    name, environment, writes, workers, replaces = "nanogpt-loop", "litdata", (), (0,), True

    def epochs(self, args, batch, window):
        import torch

        tokens = read_tokens(args)
        torch.manual_seed(SEED)

        def epoch():
            for _ in range(len(tokens) // (batch * window)):
                places = torch.randint(len(tokens) - window, (batch,))
                x = torch.stack([torch.from_numpy(tokens[i : i + window].astype(np.int64)) for i in places])
                y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + window].astype(np.int64)) for i in places])
                yield x, y

        return epoch

    def rows(self, batch):
        return np.concatenate([batch[0][:, :1].numpy(), batch[1].numpy()], axis=1)


if __name__ == "__main__":
    worker(Loader.tools)
