"""Small shards and small plans for the tests of pretraining, and how to read what a run wrote."""

import json
from pathlib import Path

from corpora import small_tokenizer, texts
from prepared import prepare_folder

SMALL = {"size": "tiny", "window": 16, "batch_size": 4, "sample_tokens": 4, "curve": False, "device": "cpu"}
"Steps of a few milliseconds."


def small_shards(folder: Path, seed: int = 1) -> Path:
    """A vocabulary of 300 and some thousand tokens in two splits."""
    splits = {"train": texts(200, seed=seed), "val": texts(40, seed=seed + 1)}
    return prepare_folder(folder, splits, small_tokenizer())


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
