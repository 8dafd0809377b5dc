"""Which kind of folder is it? `show` and `check` for those that are neither prepared shards nor a tokenizer of text.

Start with `kind_of`.
"""

import json
import os
from pathlib import Path
from typing import Any, Literal

from piecemill.errors import PiecemillError

Kind = Literal["shards", "tokenizer", "vocabulary", "actions", "run"]
KINDS: dict[Kind, str] = {
    "shards": "prepared shards",
    "tokenizer": "a tokenizer",
    "vocabulary": "a vocabulary of actions",
    "actions": "shards of actions",
    "run": "a pretraining run",
}


def kind_of(path: Path) -> Kind | None:
    """What the folder at `path` holds, by the names of its files; None if it is no folder, or an unknown one."""
    try:
        names = set(os.listdir(path))
    except OSError:
        return None
    if "actionpiece.json" in names:
        return "vocabulary"
    if {"manifest.json", "items.npy"} <= names:
        return "actions"
    if "plan.json" in names:
        return "run" if _is_run(path / "plan.json") else "shards"
    if names & {"tokenizer.json", "tokenizer.model", "vocab.json"} or any(
        name.removesuffix(".gz").endswith((".model", ".tiktoken")) for name in names
    ):
        return "tokenizer"
    return None


def _is_run(plan: Path) -> bool:
    try:
        found = json.loads(plan.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "data" in found and "splits" not in found


def describe(path: Path, kind: Kind) -> tuple[dict[str, Any], str]:
    """What `show` prints, as JSON and for people."""
    if kind == "vocabulary":
        from piecemill.actions.show import as_text
        from piecemill.actions.show import describe as describe_vocabulary
        from piecemill.actions.tokenizer import ActionTokenizer

        found = describe_vocabulary(ActionTokenizer.load(path))
        return found, as_text(found)
    if kind == "actions":
        from piecemill.actions.shards import open_action_shards

        manifest = open_action_shards(path).manifest
        found = {**{key: value for key, value in manifest.items() if key != "files"}, "folder": str(path)}
        counts = ", ".join(f"{manifest[key]:,} {key}" for key in ("histories", "actions", "items"))
        return found, f"{path}: shards of actions: {counts}; a vocabulary of {manifest['vocab_size']:,} tokens"
    return _describe_run(path)


def _describe_run(path: Path) -> tuple[dict[str, Any], str]:
    from piecemill.pretraining.folder import PLAN, RESULT, checkpoints, read_metrics

    steps = max((int(record["step"]) for record in read_metrics(path) if "step" in record), default=0)
    result = json.loads((path / RESULT).read_bytes()) if (path / RESULT).exists() else None
    saved = [folder.name for folder in checkpoints(path)]
    complete = bool(result and result.get("complete"))
    plan = json.loads((path / PLAN).read_bytes())
    found = {"kind": "run", "folder": str(path), "steps": steps, "complete": complete, "checkpoints": saved}
    state = "complete" if complete else "not complete: run the same pretrain again to go on"
    validation = f"; validation loss {result['validation'][-1][1]:.4f}" if result and result.get("validation") else ""
    text = f"{path}: a pretraining run after {steps:,} steps{validation}; {state}"
    return {**found, "plan": plan, "result": result}, f"{text}\ncheckpoints  {', '.join(saved) or 'none'}"


def check(path: Path, kind: Kind) -> list[str]:
    """What is wrong with the folder, a line each; none if it is sound."""
    try:
        if kind == "actions":
            from piecemill.actions.shards import open_action_shards

            return [f"{path}/{problem}" for problem in open_action_shards(path).check()]
        if kind == "vocabulary":
            from piecemill.actions.tokenizer import ActionTokenizer

            ActionTokenizer.load(path)
        elif kind == "tokenizer":
            from piecemill.tokenizers import load_tokenizer

            load_tokenizer(path).encode("loads the engine")
        else:
            _describe_run(path)
            return _unreadable_checkpoints(path)
    except (PiecemillError, OSError, ValueError) as error:
        return [str(error)]
    return []


def _unreadable_checkpoints(path: Path) -> list[str]:
    from piecemill.pretraining.folder import checkpoints

    found = []
    for folder in checkpoints(path):
        try:
            json.loads((folder / "state.json").read_bytes())
            json.loads((folder / "config.json").read_bytes())
            for name in ("model.safetensors", "optimizer.safetensors"):
                with open(folder / name, "rb") as file:  # 8 bytes: the length of a JSON header; then the tensors
                    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
                    ends = [each["data_offsets"][1] for key, each in header.items() if key != "__metadata__"]
                    if file.tell() + max(ends, default=0) != os.path.getsize(folder / name):
                        found.append(f"{folder / name}: cut short. Delete the checkpoint to go on from an older one.")
        except (OSError, ValueError) as error:
            found.append(f"{folder}: cannot be read ({error}). Delete it to go on from the one before it.")
    return found
