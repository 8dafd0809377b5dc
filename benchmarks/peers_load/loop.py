"""What every loader's script has in common: how it is called, what is timed, how its rows are shown.

    python peers_load/run_X.py write --tokens tokens.npy --window W --out FOLDER
    python peers_load/run_X.py check --tokens tokens.npy --window W --out FOLDER --batch B --workers N --answer FILE
    python peers_load/run_X.py time  --tokens tokens.npy --out FOLDER --workers N --seconds S --answer FILE
                                     --ask 8x1024 8x2048 ...

`write` brings the tokens (one row of uint16) into the loader's own format; nothing of it is timed. `check` goes through
an epoch and digests every row of window + 1 tokens, so that rows can be compared with those of numpy. `time` takes
batches in shuffled order for some seconds, for each pair of batch and window: the first batches are not counted, and
when an epoch ends the next one begins.

Nothing here knows the loaders. Start with `loader`; a script gives it `write` and `batches`.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

# torch weighs gigabytes, so there is one for all; behind everything else, so that nothing of theirs gives way to it.
if os.environ.get("TORCH_SITE"):
    sys.path.append(os.environ["TORCH_SITE"])

SEED = 1
_WARM_BATCHES = 20
_SAMPLE = 20

Batches = Callable[[argparse.Namespace, Path, int, int], Iterable[Any]]


def loader(
    write: Callable[[argparse.Namespace], None],
    batches: Batches,
    rows: Callable[[Any], Any] = lambda batch: batch,
) -> None:
    """`batches` has (args, folder, batch, window) and gives what can be iterated over, an epoch each time.

    `rows` makes a batch an array with rows of window + 1 tokens.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("do", choices=["write", "check", "time"])
    parser.add_argument("--tokens", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--window", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--ask", nargs="+")
    parser.add_argument("--answer", type=Path)
    args = parser.parse_args()
    if args.do == "write":
        args.out.mkdir(parents=True, exist_ok=True)
        write(args)
    elif args.do == "check":
        found = digest(rows(batch) for batch in batches(args, args.out, args.batch, args.window))
        args.answer.write_text(json.dumps(found))
    else:
        answer = {}
        for asked in args.ask:
            batch, window = map(int, asked.split("x"))
            answer[asked] = timed(batches(args, args.out, batch, window), batch * window, args.seconds)
        args.answer.write_text(json.dumps(answer))


def digest(batches: Iterable[Any]) -> dict[str, Any]:
    """How many rows there were, a hash of all of them in whatever order, and some of the rows themselves."""
    import numpy as np

    found, some = [], []
    for batch in batches:
        for row in np.asarray(batch):
            found.append(hashlib.blake2b(np.ascontiguousarray(row, "<u4").tobytes(), digest_size=16).digest())
            if len(some) < _SAMPLE:
                some.append(row.tolist())
    return {"rows": len(found), "sha256": hashlib.sha256(b"".join(sorted(found))).hexdigest(), "some": some}


def timed(epochs: Iterable[Any], batch_tokens: int, seconds: float) -> dict[str, float]:
    """Tokens taken, in how many seconds of the clock and of all processors."""
    batches, taken, cpu, started = iter(epochs), -_WARM_BATCHES, 0.0, 0.0
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


def cpu_seconds() -> float:
    """Processor time of this process and of the workers that live now; ended ones count once they were waited for."""
    ticks = sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK")
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def read_tokens(args: argparse.Namespace) -> Any:
    import numpy as np

    return np.load(args.tokens, mmap_mode="r")


def whole_rows(args: argparse.Namespace) -> Any:
    """The tokens as rows of window + 1, one after another: what loaders that store rows are given."""
    tokens = read_tokens(args)
    count = len(tokens) // (args.window + 1)
    return tokens[: count * (args.window + 1)].reshape(count, args.window + 1)


def torch_loader(dataset: Any, batch: int, workers: int, **more: Any) -> Any:
    """torch's DataLoader, as its users call it; workers are kept from epoch to epoch."""
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=batch, num_workers=workers, persistent_workers=workers > 0, **more)


class Epochs:
    """A generator function that can be iterated over again and again."""

    def __init__(self, epoch: Callable[[], Iterator[Any]]) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return self._epoch()
