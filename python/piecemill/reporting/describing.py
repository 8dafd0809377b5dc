"""What is at a path: one function and one result for everything that Piecemill writes or reads.

Start with `describe`.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from piecemill.errors import PlanError, ShardError, TokenizerError
from piecemill.files import as_path, regular
from piecemill.objects import is_object_url
from piecemill.plans import did_you_mean, option
from piecemill.reporting import shards, tokenizers
from piecemill.shards import folder as prepared
from piecemill.shards.export import CLAIM

Kind = Literal["shards", "tokenizer", "action_vocabulary", "action_shards", "run"]
KINDS: dict[Kind, str] = {
    "shards": "prepared shards",
    "tokenizer": "a tokenizer",
    "action_vocabulary": "a vocabulary of actions",
    "action_shards": "shards of actions",
    "run": "a pretraining run",
}


@dataclass(frozen=True, slots=True)
class Description:
    """What is at a path. `str()` is the page for people, `to_dict()` everything, ready for JSON."""

    kind: Kind
    path: str
    facts: Mapping[str, Any]
    "By kind: docs/report.md lists the names."

    def to_dict(self) -> dict[str, Any]:
        """What `piecemill show --json` prints."""
        return {"kind": self.kind, "path": self.path, **self.facts}

    def __str__(self) -> str:
        return "\n".join(line.rstrip() for line in _LINES[self.kind](self.path, self.facts))


def kind_of(path: str | PathLike[str]) -> Kind | None:
    """What is at `path`, by the names of its files; None if it is an unknown folder, or a file but actionpiece.json."""
    try:
        names = set(os.listdir(path))
    except OSError:
        return "action_vocabulary" if os.path.basename(path) == "actionpiece.json" else None
    if "actionpiece.json" in names:
        return "action_vocabulary"
    if {"manifest.json", "items.npy"} <= names:  # of an earlier version: now they are prepared folders
        return "action_shards"
    if prepared.PLAN in names or {prepared.FILES, prepared.STATS} <= names:  # also one that lost its plan
        return "run" if _is_run(Path(path) / prepared.PLAN) else "shards"
    if names & {"tokenizer.json", "integers.json", "tokenizer.model", "vocab.json"} or any(
        name.removesuffix(".gz").endswith((".model", ".tiktoken")) for name in names
    ):
        return "tokenizer"
    return None


def _is_run(plan: Path) -> bool:
    try:
        found = json.loads(regular(plan).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False  # the reader of shards says what is wrong with it
    return isinstance(found, dict) and "data" in found and "splits" not in found


def other_output(path: Path) -> str | None:
    """What is at a path that a command of Piecemill wrote for others to read, and what to name; None if not known."""
    if not path.exists():
        return None
    if any((folder / CLAIM).exists() for folder in (path, path.parent, path.parent.parent)):
        return (
            "rows that `piecemill export` wrote for other loaders. Name the prepared folder that they were made from."
        )
    if {"report.json", "train.parquet"} <= _names(path):
        return f"histories that `piecemill actions split` wrote. {_ACTIONS}"
    if path.is_dir() and (whole := kind_of(path.parent)) in ("shards", "run"):
        return f"a part of {KINDS[whole]}. Name the whole folder: {path.parent}"
    if not path.is_file() or path.suffix not in ("", ".parquet"):
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException):
        return None
    if b"piecemill.items" in metadata:
        return f"items and their codes, which `piecemill actions features` wrote. {_ACTIONS}"
    return f"histories of users. {_ACTIONS}" if b"piecemill.histories" in metadata else None


_ACTIONS = "`piecemill actions train` makes a vocabulary of histories and items: name that one."


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


@did_you_mean
def describe(path: str | PathLike[str], *, engine: str | None = None, pretokenizer: str | None = None) -> Description:
    """What is at `path`: a tokenizer (folder, file, hub id), prepared shards, a vocabulary or shards of actions, a run.

    Shards may also be in an object store; their arrays are downloaded. `engine` and `pretokenizer` are for tokenizers
    what they mean in `load_tokenizer`.

    >>> import tempfile, piecemill as pm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pm.train_bpe(["low lower lowest"] * 10, vocab_size=262, pretokenizer="gpt2").save(folder, force=True)
    ...     found = describe(folder)
    >>> found.kind, found.facts["vocab_size"], found.facts["pretokenizer"]
    ('tokenizer', 262, 'gpt2')
    """
    where = as_path(path)
    kind = "shards" if is_object_url(where) else kind_of(where)
    for name, value in (("engine", engine), ("pretokenizer", pretokenizer)):
        if value is not None and kind not in ("tokenizer", None):
            raise PlanError(f"{option(name, value)} is for tokenizers; {where} is {KINDS[kind]}. Leave it out.")
    if is_object_url(where):
        return Description("shards", where, shards.describe_shards(where))
    match kind:
        case "shards":
            return Description("shards", where, shards.describe_shards(Path(where)))
        case "action_vocabulary":
            from piecemill.actions.show import describe as describe_vocabulary
            from piecemill.actions.tokenizer import ActionTokenizer

            facts = describe_vocabulary(ActionTokenizer.load(Path(where))).to_dict()
            del facts["kind"]
            return Description("action_vocabulary", where, facts)
        case "action_shards":
            from piecemill.actions.shards import open_action_shards

            manifest = open_action_shards(Path(where)).manifest
            facts = {key: value for key, value in manifest.items() if key not in ("files", "kind")}
            return Description("action_shards", where, facts)
        case "run":
            return Description("run", where, describe_run(Path(where)))
    if kind is None and (known := other_output(Path(where))) is not None:
        raise ShardError(f"{where}: {known}")
    try:
        facts = tokenizers.describe_tokenizer(path, engine=engine, pretokenizer=pretokenizer)
        return Description("tokenizer", where, facts)
    except TokenizerError as error:
        if not Path(where).is_dir() or kind == "tokenizer":
            raise
        raise ShardError(
            f"{path}: neither prepared (it has no {prepared.PLAN}) nor a tokenizer ({error}) "
            "Name a folder written by a command of Piecemill, or a tokenizer."
        ) from None


def describe_run(path: Path) -> dict[str, Any]:
    """The facts of a pretraining run."""
    from piecemill.pretraining.folder import PLAN, RESULT, checkpoints, read_metrics, read_record

    result = read_record(path, RESULT) if (path / RESULT).exists() else None
    return {
        "steps": max((int(record["step"]) for record in read_metrics(path) if "step" in record), default=0),
        "complete": bool(result and result.get("complete")),
        "guard": (result or {}).get("guard"),
        "checkpoints": [folder.name for folder in checkpoints(path)],
        "plan": read_record(path, PLAN),
        "result": result,
    }


def _run_lines(path: str, facts: Mapping[str, Any]) -> list[str]:
    state = "complete" if facts["complete"] else "not complete: run the same pretrain again to go on"
    state = state if facts["guard"] is None else "ended by the guard"
    losses = (facts["result"] or {}).get("validation")
    validation = f"; validation loss {losses[-1][1]:.4f}" if losses else ""
    return [
        f"{path}: a pretraining run after {facts['steps']:,} steps{validation}; {state}",
        f"checkpoints  {', '.join(facts['checkpoints']) or 'none'}",
        *([] if facts["guard"] is None else [f"guard        {facts['guard']}"]),
    ]


def _vocabulary_lines(path: str, facts: Mapping[str, Any]) -> list[str]:
    from piecemill.actions.show import VocabularyDescription

    return [f"{path}: {VocabularyDescription(facts)}"]


def _action_shard_lines(path: str, facts: Mapping[str, Any]) -> list[str]:
    counts = ", ".join(f"{facts[key]:,} {key}" for key in ("histories", "actions", "items"))
    return [f"{path}: shards of actions: {counts}; a vocabulary of {facts['vocab_size']:,} tokens"]


_LINES: dict[Kind, Callable[[str, Mapping[str, Any]], list[str]]] = {
    "shards": shards.lines,
    "tokenizer": tokenizers.lines,
    "action_vocabulary": _vocabulary_lines,
    "action_shards": _action_shard_lines,
    "run": _run_lines,
}
