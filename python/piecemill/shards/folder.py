"""The files beside the shards: plan.json, files.jsonl, stats.json and the tokenizer.

stats.json is written last and makes the folder complete: it holds the checksum of every file that no manifest
speaks of, and its own. It is stored in one form only, byte for byte, so that even a changed space in it shows.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from piecemill._core import Xxh3
from piecemill.errors import ShardError
from piecemill.shards import manifest
from piecemill.shards.format import VERSION
from piecemill.shards.manifest import read_json, replace_file

PLAN, FILES, STATS, TOKENIZER = "plan.json", "files.jsonl", "stats.json", "tokenizer"
JOURNAL, LOCK = ".journal.jsonl", ".lock"
# Of the run, not of the data: not checked, and not part of what is promised to be the same.
TIMING, CHANGED = "timing.json", ".sources.npy"

_CHUNK = 1 << 22


def read_plan(folder: Path) -> dict[str, Any]:
    """plan.json, once what every reader needs is known to be in it.

    `format` (1), `vocab_size`, `splits` (name -> share, in order), and `bos` and `eos`: the ids that stand before and
    after each document, or null.
    """
    plan = read_json(folder / PLAN, "Expected a folder written by `piecemill prepare`: name that one, or prepare it.")
    if plan.get("format") != VERSION:
        raise ShardError(
            f"{folder / PLAN}: format {plan.get('format')!r}; this version of Piecemill reads format {VERSION}. "
            "Use the version that wrote it, or prepare the folder again."
        )
    kinds = {"vocab_size": int, "splits": dict, "bos": int | None, "eos": int | None}
    for key, kind in kinds.items():
        if key not in plan or not isinstance(plan[key], kind):
            raise ShardError(
                f"{folder / PLAN}: {key} is {plan.get(key, 'missing')!r}; expected {getattr(kind, '__name__', kind)}. "
                "The file was changed: restore it, or prepare the folder again."
            )
    return plan


def write_stats(folder: Path, stats: Mapping[str, Any]) -> None:
    """Write stats.json: the folder is complete from here on.

    Call it when every split is finished and plan.json, files.jsonl and the tokenizer are there. `stats` is anything
    that JSON can hold; the keys `checksums` and `xxh3` are added.
    """
    checksums = {name: hash_file(folder / name) for name in sealed_files(folder)}
    replace_file(folder / STATS, render_stats({**stats, "checksums": checksums}))


def read_stats(folder: Path) -> dict[str, Any] | None:
    """stats.json; None if the folder is not complete."""
    if not (folder / STATS).exists():
        return None
    return read_json(folder / STATS, "The file was changed: prepare the folder again, or restore it from a copy.")


def render_stats(stats: Mapping[str, Any]) -> bytes:
    """The one form of stats.json: sorted keys, two spaces, and `xxh3` over the same without that key."""
    rest = {key: value for key, value in stats.items() if key != "xxh3"}
    seal = hash_bytes(_render(rest))
    return _render({**rest, "xxh3": seal})


def _render(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, sort_keys=True, indent=2, allow_nan=False) + "\n").encode()


def sealed_files(folder: Path) -> list[str]:
    """What stats.json vouches for, by relative name: all that no manifest does."""
    tokenizer = folder / TOKENIZER
    names = [PLAN, FILES]
    if tokenizer.is_dir():
        names += [
            f"{TOKENIZER}/{path.relative_to(tokenizer).as_posix()}" for path in tokenizer.rglob("*") if path.is_file()
        ]
    for split in read_plan(folder)["splits"]:
        if (folder / split / manifest.NAME).exists():
            names.append(f"{split}/{manifest.NAME}")
    return sorted(names)


def hash_file(path: Path, skip: int = 0) -> str:
    """The xxh3-64 of a file behind its first `skip` bytes, as 16 hexadecimal digits."""
    hash = Xxh3()
    with open(path, "rb", buffering=0) as file:
        file.seek(skip)
        while chunk := file.read(_CHUNK):
            hash.update(np.frombuffer(chunk, np.uint8))
    return hash.hexdigest()


def hash_bytes(data: bytes) -> str:
    """The xxh3-64 of some bytes, as 16 hexadecimal digits."""
    hash = Xxh3()
    hash.update(np.frombuffer(data, np.uint8))
    return hash.hexdigest()


def source_files(folder: Path) -> int:
    """How many source files files.jsonl lists."""
    with open(folder / FILES, "rb") as file:
        return sum(1 for _ in file)


def listed(folder: Path) -> set[str]:
    """Every file under `folder`, by relative name."""
    return {
        os.path.relpath(os.path.join(where, name), folder).replace(os.sep, "/")
        for where, _, names in os.walk(folder)
        for name in names
    }
