"""Folders of made-up ids, without a tokenizer: for the tests of everything that loads them."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import piecemill as pm
from piecemill.shards import RECORD, token_dtype
from prepared import SplitWriter, complete


def write_rows(
    folder: Path,
    documents: Sequence[Sequence[int]],
    *,
    vocab_size: int = 1000,
    eos: int | None = None,
    shard_tokens: int = 20,
    groups: Sequence[int] | None = None,
    weights: Sequence[float] = (1.0,),
):
    """Write documents of ids as a prepared folder of one split, and open it; `groups` has the group of each."""
    folder.mkdir(parents=True)
    stored = [{"pattern": None if n == 0 else f"{n}/**", "weight": weight} for n, weight in enumerate(weights)]
    plan = {"format": 2, "vocab_size": vocab_size, "splits": {"all": 1}, "bos": None, "eos": eos, "groups": stored}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "files.jsonl").write_text('{"path": "a.txt", "bytes": 10}\n')
    writer = SplitWriter(folder / "all", dtype=token_dtype(vocab_size), shard_tokens=shard_tokens)
    for number, document in enumerate(documents):
        record = np.zeros(1, RECORD)
        record["group"] = groups[number] if groups else 0
        writer.append(np.array(document, token_dtype(vocab_size)), np.array([len(document)]), record)
    writer.finish()
    complete(folder, {})
    return pm.open_shards(folder)


def some_documents(count: int, seed: int = 0, longest: int = 40, vocab_size: int = 1000) -> list[list[int]]:
    """Documents of 0 to `longest` ids, each id unlikely to come twice in a row."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab_size, rng.integers(0, longest + 1)).tolist() for _ in range(count)]
