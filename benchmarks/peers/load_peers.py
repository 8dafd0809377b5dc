"""The loaders that `load.py` compares.

`write` brings the tokens (one row of uint16) into the loader's own format; nothing of it is timed. `check` goes through
an epoch and digests every row of window + 1 tokens, so that rows can be compared with those of numpy. `time` takes
batches in shuffled order for some seconds, for each pair of batch and window: the first batches are not counted, and
when an epoch ends the next one begins.

A loader has `batches(args, batch, window)`, which gives what can be iterated over, an epoch each time; `rows` makes a
batch an array with rows of window + 1 tokens.
"""

import os
import time
from functools import partial
from pathlib import Path

from worker import digest_rows, worker

SEED = 1
WARM_BATCHES = 20


def timed(epochs, batch_tokens, seconds):
    """Tokens taken, in how many seconds of the clock and of all processors."""
    batches, taken, cpu, started = iter(epochs), -WARM_BATCHES, 0.0, 0.0
    while True:
        batch = next(batches, None)
        if batch is None:
            batches = iter(epochs)
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
    import numpy as np

    return np.load(args.tokens, mmap_mode="r")


def whole_rows(args):
    """The tokens as rows of window + 1, one after another: what loaders that store rows are given."""
    tokens = read_tokens(args)
    count = len(tokens) // (args.window + 1)
    return tokens[: count * (args.window + 1)].reshape(count, args.window + 1)


def torch_loader(dataset, batch, workers, **more):
    """torch's DataLoader, as its users call it; workers are kept from epoch to epoch."""
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=batch, num_workers=workers, persistent_workers=workers > 0, **more)


class Epochs:
    """A generator function that can be iterated over again and again."""

    def __init__(self, epoch):
        self._epoch = epoch

    def __iter__(self):
        return self._epoch()


class Loader:
    def rows(self, batch):
        return batch

    def check(self, args):
        args.epochs = 1
        return digest_rows(self.rows(batch) for batch in self.batches(args, args.batch, args.window))

    def time(self, args):
        args.epochs = None
        kinds = {asked: tuple(map(int, asked.split("x"))) for asked in args.ask}
        return {
            asked: timed(self.batches(args, batch, window), batch * window, args.seconds)
            for asked, (batch, window) in kinds.items()
        }


class Piecemill(Loader):
    """Batches of torch tensors, feeder threads for workers. Its own folder is made by `piecemill prepare`."""

    def batches(self, args, batch, window):
        import piecemill as pm
        from piecemill.loading.torch import batches as fed

        options = {"seed": SEED, "epochs": args.epochs, "threads": args.workers}
        return fed(pm.open_shards(args.out), window=window, batch_size=batch, **options)

    def rows(self, batch):
        import numpy as np

        full = (batch["labels"] != -100).all(dim=1)  # the last window is padded; the others' last rows are left out
        return np.concatenate([batch["input_ids"][full][:, :1].numpy(), batch["labels"][full].numpy()], axis=1)


class NumpyGather(Loader):
    """The ceiling: a bare numpy gather of shuffled rows from an array in memory. One thread, no workers."""

    def batches(self, args, batch, window):
        import numpy as np

        tokens = np.array(read_tokens(args))
        starts = np.random.default_rng(SEED).permutation((len(tokens) - 1) // window) * window
        columns = np.arange(window + 1)

        def epoch():
            for first in range(0, len(starts), batch):
                yield tokens[starts[first : first + batch, None] + columns]

        return Epochs(epoch)


class NanogptLoop(Loader):
    """Random places of a memory map, rows stacked one by one. With replacement, so it has no epochs."""

    def batches(self, args, batch, window):
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

    def rows(self, batch):
        import numpy as np

        return np.concatenate([batch[0][:, :1].numpy(), batch[1].numpy()], axis=1)


class Rows:
    """A map-style dataset of rows of a memory map."""

    def __init__(self, tokens, window):
        self.tokens, self.window = tokens, window

    def __len__(self):
        return (len(self.tokens) - 1) // self.window

    def __getitem__(self, number):
        import numpy as np
        import torch

        start = number * self.window
        return torch.from_numpy(self.tokens[start : start + self.window + 1].astype(np.int64))


class TorchMemmap(Loader):
    """torch's DataLoader over a memory map, shuffled."""

    def batches(self, args, batch, window):
        return torch_loader(Rows(read_tokens(args), window), batch, args.workers, shuffle=True)


class Datatrove(Loader):
    """Its file of tokens, its dataset, shuffled by torch's DataLoader."""

    def write(self, args):
        read_tokens(args).tofile(args.out / "tokens.ds")

    def batches(self, args, batch, window):
        from datatrove.utils.dataset import DatatroveFileDataset

        dataset = DatatroveFileDataset(str(args.out / "tokens.ds"), window, token_size=2)
        return torch_loader(dataset, batch, args.workers, shuffle=True)

    def rows(self, batch):
        return batch["input_ids"]


class Datasets(Loader):
    """Hugging Face `datasets`: rows in an Arrow file, torch format, whole shuffled batches through DataLoader."""

    def offline(self, args):
        os.environ |= {"HF_HOME": str(args.out / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}

    def write(self, args):
        self.offline(args)
        import numpy as np
        import pyarrow as pa
        from datasets import Dataset

        rows = whole_rows(args)
        # int32, as uint16 has no place in torch's format; lists of a fixed width were slower (4 against 25 M tokens/s).
        bounds = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1])
        ids = pa.ListArray.from_arrays(bounds, pa.array(rows.reshape(-1).astype(np.int32)))
        Dataset(pa.table({"ids": ids})).save_to_disk(str(args.out / str(args.window)))

    def batches(self, args, batch, window):
        self.offline(args)
        from datasets import load_from_disk
        from torch.utils.data import BatchSampler, RandomSampler

        dataset = load_from_disk(str(args.out / str(window))).with_format("torch")
        # Asked for whole batches, it gives one tensor and nothing is left to stack.
        whole = BatchSampler(RandomSampler(dataset), batch, drop_last=False)
        return torch_loader(dataset, None, args.workers, sampler=whole)

    def rows(self, batch):
        return batch["ids"]


class MosaicmlStreaming(Loader):
    """Rows in MDS shards, its streaming dataset with shuffling, torch's DataLoader."""

    def write(self, args):
        import numpy as np
        from streaming import MDSWriter

        with MDSWriter(out=str(args.out / str(args.window)), columns={"ids": "ndarray:uint16"}) as writer:
            for row in whole_rows(args):
                writer.write({"ids": np.array(row)})

    def batches(self, args, batch, window):
        import streaming

        streaming.base.util.clean_stale_shared_memory()
        options = {"shuffle": True, "shuffle_seed": SEED, "num_canonical_nodes": 1}
        dataset = streaming.StreamingDataset(local=str(args.out / str(window)), batch_size=batch, **options)
        return torch_loader(dataset, batch, args.workers)

    def rows(self, batch):
        return batch["ids"]


def _part(number, path, size):
    import numpy as np
    import torch

    tokens = np.load(path, mmap_mode="r")[number * size : (number + 1) * size]
    # Its headers know no uint16.
    yield torch.from_numpy(tokens.astype(np.int32))


class Litdata(Loader):
    """Optimised chunks of tokens, its streaming dataset with shuffling, its own loader."""

    def write(self, args):
        from litdata import TokensLoader, optimize

        # It takes no block from two chunks, so all parts but the last are of whole blocks, and so are chunks of them.
        size = (args.window + 1) * 1024
        optimize(
            partial(_part, path=str(args.tokens), size=size),
            list(range(-(-len(read_tokens(args)) // size))),
            output_dir=str(args.out / str(args.window)),
            num_workers=1,
            chunk_size=4 * size,
            item_loader=TokensLoader(block_size=args.window + 1),
            verbose=False,
        )

    def batches(self, args, batch, window):
        from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

        item_loader = TokensLoader(block_size=window + 1)
        dataset = StreamingDataset(str(args.out / str(window)), item_loader=item_loader, shuffle=True, seed=SEED)
        return StreamingDataLoader(dataset, batch_size=batch, num_workers=args.workers, drop_last=False)


TOOLS = {
    "piecemill": Piecemill(),
    "numpy-gather": NumpyGather(),
    "litdata": Litdata(),
    "mosaicml-streaming": MosaicmlStreaming(),
    "datasets": Datasets(),
    "datatrove": Datatrove(),
    "torch-memmap": TorchMemmap(),
    "nanogpt-loop": NanogptLoop(),
}

if __name__ == "__main__":
    worker(TOOLS)
