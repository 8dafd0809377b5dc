"""What feeding costs a training step on a GPU: `python benchmarks/load_device.py SHARDS`; with no folder, made-up ids.

The same step (a small transformer's worth of matrix products) over one batch that stays on the device, over batches
from Piecemill, and over batches from a loop that copies each and waits. Prints JSON: milliseconds of a step, the share
of time that the loop waited for data, and the processor time of the feeder. The steps with Piecemill run with torch's
sync debug mode set to error. Needs a CUDA device and torch; no pytest, no other package.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import piecemill as pm
from piecemill.files import LocalPlace
from piecemill.loading import batches as plain
from piecemill.loading.torch import batches
from piecemill.shards import RECORD, ShardWriter, write_stats
from piecemill.shards.manifest import NAME, piece_name


def made_up(folder: Path, tokens: int = 20_000_000) -> Path:
    plan = {"format": 2, "vocab_size": 50_257, "splits": {"all": 1}, "bos": None, "eos": 0}
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "files.jsonl").write_text("")
    place, lines = LocalPlace(folder), []
    for shard in range(4):
        with ShardWriter(place, "all", piece_name(shard, 0), dtype=np.dtype("<u2")) as writer:
            for number in range(5):
                ids = np.random.default_rng(5 * shard + number).integers(0, 50_257, tokens // 20).astype("<u2")
                writer.append(ids, np.array([len(ids)]), np.zeros(1, RECORD))
            lines.append(writer.finish().line(shard))
    place.write(f"all/{NAME}", "".join(lines).encode())
    write_stats(place, {})
    return folder


class Step:
    """Embedding, `layers` pairs of products, a loss over every place: a step of about a small model's size."""

    def __init__(self, vocab_size: int, width: int, layers: int) -> None:
        make = {"device": "cuda", "dtype": torch.bfloat16}
        self.embedding = torch.randn(vocab_size, width, **make)
        self.layers = [torch.randn(width, width, **make) / width**0.5 for _ in range(layers)]
        self.total = torch.zeros((), device="cuda")

    def __call__(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        hidden = torch.nn.functional.embedding(inputs, self.embedding)
        for layer in self.layers:
            hidden = torch.nn.functional.silu(hidden @ layer)
        self.total += (hidden * torch.nn.functional.embedding(labels.clamp(min=0), self.embedding)).float().mean()


def timed(steps: int, one: Callable[[], None], *, strict: bool = False) -> float:
    """Milliseconds of a step; only the ends wait for the device, and if `strict`, waiting in between is an error."""
    for _ in range(20):
        one()
    torch.cuda.synchronize()
    started = time.perf_counter()
    torch.cuda.set_sync_debug_mode("error" if strict else "default")
    try:
        for _ in range(steps):
            one()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shards", nargs="?")
    parser.add_argument("--split")
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = pm.open_shards(args.shards or made_up(Path(scratch) / "shards"), args.split)
        print(json.dumps(measured(rows, args), indent=1))


def measured(rows: pm.Shards, args: argparse.Namespace) -> dict:
    options = {"window": args.window, "batch_size": args.batch, "seed": 1}
    step = Step(rows.vocab_size, 2048, 24)
    with plain(rows, **options) as here, batches(rows, device="cuda", **options) as there:
        for _ in range(50):
            want, have = next(here), next(there)
            for name, array in want.items():
                if not np.array_equal(have[name].cpu().numpy(), array):
                    raise SystemExit(f"{name}: another batch on the device than in numpy. No time is reported.")
    found: dict = {"resident": [], "piecemill": [], "waiting copies": [], "waited share": [], "feeder cores": []}
    for _ in range(args.rounds):
        with plain(rows, **options) as here:
            still = {name: torch.from_numpy(array).cuda() for name, array in next(here).items()}
            found["resident"].append(timed(args.steps, lambda s=still: step(s["input_ids"], s["labels"])))

            def copying(fed: Iterator[dict] = here) -> None:
                batch = next(fed)
                step(torch.from_numpy(batch["input_ids"]).cuda(), torch.from_numpy(batch["labels"]).cuda())

            found["waiting copies"].append(timed(args.steps, copying))
        with batches(rows, device="cuda", **options) as fed:

            def feeding(fed: Iterator[dict] = fed) -> None:
                batch = next(fed)
                step(batch["input_ids"], batch["labels"])

            next(fed)
            before = fed.stats.waited, fed.stats.cpu
            started = time.perf_counter()
            found["piecemill"].append(timed(args.steps, feeding, strict=True))
            wall = time.perf_counter() - started
            found["waited share"].append((fed.stats.waited - before[0]) / wall)
            found["feeder cores"].append((fed.stats.cpu - before[1]) / wall)
    medians = {name: float(np.median(values)) for name, values in found.items()}
    medians["piecemill / resident"] = medians["piecemill"] / medians["resident"]
    medians["tokens a second"] = args.batch * args.window / medians["piecemill"] * 1e3
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "median": medians, "all": found}


if __name__ == "__main__":
    main()
