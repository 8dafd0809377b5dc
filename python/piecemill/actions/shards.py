"""Action shards: histories as numbers of items, with all that is needed to make batches of them.

A folder holds the items of all histories one after another (`items.npy`), where each history ends (`ends.npy`), the
initial tokens of every item (`table.npy`) and the tokenizer; `manifest.json` has their sizes and checksums. Tokens are
not stored: each epoch segments anew. The folder is written beside its place and renamed, so it is whole or not there.

Start with `write_action_shards` and `open_action_shards`; `piecemill.actions.batches` makes batches.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from piecemill.actions.histories import Histories
from piecemill.actions.tokenizer import ActionTokenizer
from piecemill.actions.vocabulary import NAME
from piecemill.errors import ShardError
from piecemill.files import hash_bytes, hash_file, new_folder, read_json

FORMAT = 1
MANIFEST, ITEMS, ENDS, TABLE, TOKENIZER = "manifest.json", "items.npy", "ends.npy", "table.npy", "tokenizer"


@dataclass(frozen=True, eq=False)
class ActionShards:
    """An opened folder. Arrays are read from the files as they are needed."""

    folder: Path
    items: NDArray[Any]
    "Numbers of the items of all histories, one after another."
    ends: NDArray[np.int64]
    "Where each history ends."
    table: NDArray[np.uint32]
    "The initial tokens of every item, a row each."
    tokenizer: ActionTokenizer
    manifest: Mapping[str, Any]
    identity: str
    "Of the content: the same for the same histories, items and vocabulary."

    def __len__(self) -> int:
        return len(self.ends)

    def __repr__(self) -> str:
        return f"ActionShards({self.folder}: {len(self):,} histories, {len(self.items):,} actions)"

    def check(self) -> list[str]:
        """Every file that is not what was written, with what is wrong; none if all is well."""
        return _problems(self.folder, self.manifest, content=True)


def write_action_shards(
    histories: Any,
    tokenizer: ActionTokenizer,
    out: str | os.PathLike[str],
    *,
    unknown: Literal["stop", "drop"] = "stop",
) -> ActionShards:
    """Write `histories` (as `Histories.of` takes them) as a folder at `out`, which must not be there yet.

    Items that the tokenizer does not know are an error, or with `unknown="drop"` left out and counted in the manifest.
    """
    over = Histories.of(histories).over(tokenizer.known_items, unknown=unknown)
    target = Path(out).resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ShardError(f"{target}: something is there already. Choose another folder, or remove it first.")
    try:
        with new_folder(target) as folder:
            _write(folder, over, tokenizer)
    except OSError as error:
        raise ShardError(f"{target}: could not be written ({error}). Free some space, or choose another.") from error
    return open_action_shards(target)


def _write(folder: Path, over: Histories, tokenizer: ActionTokenizer) -> None:
    # The narrowest type that holds every number; a training set is mostly this file.
    narrow = np.min_scalar_type(len(tokenizer.known_items) - 1)
    np.save(folder / ITEMS, over.items.astype(narrow))
    np.save(folder / ENDS, over.ends)
    np.save(folder / TABLE, tokenizer.table)
    tokenizer.save(folder / TOKENIZER)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    manifest = {
        "format": FORMAT,
        "kind": "actions",
        "histories": len(over.ends),
        "actions": len(over.items),
        "items": len(tokenizer.known_items),
        "vocab_size": tokenizer.vocabulary.size,
        "report": over.report,
        "files": {name: {"bytes": (folder / name).stat().st_size, "xxh3": hash_file(folder / name)} for name in names},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def open_action_shards(folder: str | os.PathLike[str]) -> ActionShards:
    """Open a folder that `write_action_shards` wrote. Sizes are compared with the manifest; `check` compares bytes."""
    folder = Path(folder)
    expected = "Expected a folder written by `piecemill actions encode --to shards`: name that one, or write it."
    manifest = read_json(folder / MANIFEST, expected)
    if manifest.get("kind") != "actions" or manifest.get("format") != FORMAT:
        raise ShardError(
            f"{folder / MANIFEST}: kind {manifest.get('kind')!r}, format {manifest.get('format')!r}; this version of "
            f"Piecemill reads actions of format {FORMAT}. {expected}"
        )
    problems = _problems(folder, manifest, content=False)
    if problems:
        raise ShardError(f"{folder}: {'; '.join(problems)}. Restore the folder from a copy, or write it again.")
    items, ends, table = (np.load(folder / name, mmap_mode="r") for name in (ITEMS, ENDS, TABLE))
    tokenizer = ActionTokenizer.load(folder / TOKENIZER / NAME)
    checksums = {name: manifest["files"][name]["xxh3"] for name in (ITEMS, ENDS, TABLE, f"{TOKENIZER}/{NAME}")}
    identity = hash_bytes(json.dumps(checksums, sort_keys=True).encode())
    return ActionShards(folder, items, np.asarray(ends), np.ascontiguousarray(table), tokenizer, manifest, identity)


def _problems(folder: Path, manifest: Mapping[str, Any], *, content: bool) -> list[str]:
    found = []
    for name, entry in manifest.get("files", {}).items():
        path = folder / name
        if not path.exists():
            found.append(f"{name} is missing")
        elif path.stat().st_size != entry["bytes"]:
            found.append(f"{name} has {path.stat().st_size:,} bytes; {entry['bytes']:,} were written")
        elif content and hash_file(path) != entry["xxh3"]:
            found.append(f"{name} was changed: other content than was written")
    needed = {ITEMS, ENDS, TABLE, f"{TOKENIZER}/{NAME}"} - set(manifest.get("files", {}))
    return found + [f"{MANIFEST} does not name {name}" for name in sorted(needed)]
