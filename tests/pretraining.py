"""Small shards and small plans for the tests of pretraining, and how to read what a run wrote."""

import json
from pathlib import Path

import numpy as np

from corpora import small_tokenizer, texts
from piecemill.shards import RECORD, token_dtype
from prepared import SplitWriter, complete, prepare_folder

SMALL = {"size": "tiny", "window": 16, "batch_size": 4, "sample_tokens": 4, "curve": False, "device": "cpu"}
"Steps of a few milliseconds."


ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"Of a command: small products are slower on more, and wait for each other where cores are busy. See `conftest.py`."


def small_shards(folder: Path, seed: int = 1) -> Path:
    """A vocabulary of 300 and some thousand tokens in two splits."""
    splits = {"train": texts(200, seed=seed), "val": texts(40, seed=seed + 1)}
    return prepare_folder(folder, splits, small_tokenizer())


def id_shards(folder: Path, vocab_size: int = 64) -> Path:
    """Shards of ids that nobody encoded, each most often followed by the third next: for machines with torch alone."""
    draw = np.random.default_rng(7)
    folder.mkdir(parents=True)
    plan = {"format": 2, "vocab_size": vocab_size, "splits": {"train": 90, "val": 10}, "bos": None, "eos": 0}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "files.jsonl").write_text('{"path": "a.txt", "bytes": 10}\n')
    for name, documents in (("train", 200), ("val", 40)):
        writer = SplitWriter(folder / name, dtype=token_dtype(vocab_size), shard_tokens=5000)
        for _ in range(documents):
            steps = np.where(draw.random(100) < 0.8, 3, draw.integers(1, vocab_size, 100))
            ids = np.append(1 + np.cumsum(steps) % (vocab_size - 1), 0).astype(np.uint16)
            writer.append(ids, np.array([len(ids)]), np.zeros(1, RECORD))
        writer.finish()
    complete(folder, {"documents": 240})
    return folder


def flags(plan: dict) -> list[str]:
    """A plan as the command line has it."""
    given = []
    for name, value in plan.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            given.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            given += [f"--{flag}", str(value)]
    return given


def records(run: Path, kind: str) -> list[dict]:
    """The lines of metrics.jsonl of one kind; every line must be strict JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [record for line in lines if (record := json.loads(line, parse_constant=refuse))["kind"] == kind]


def losses(run: Path) -> list[tuple[int, float, float]]:
    """Step, loss and gradient norm of each step."""
    return [(record["step"], record["loss"], record["norm"]) for record in records(run, "train")]


def validations(run: Path) -> list[tuple[int, float]]:
    """Step and loss of each validation."""
    return [(record["step"], record["loss"]) for record in records(run, "val")]
