"""Shards of actions: a prepared folder (docs/shards.md) whose documents are histories and whose ids are items.

So `show`, `check`, `export` and `open_shards` take it as they take any other: `tokenizer/tokenizer.json` has an id for
each item key, and the text of a history is its keys with a space in between. Beside it lies the tokenizer of actions.
Tokens are not stored: each epoch segments anew. The folder is written beside its place and renamed.

Start with `write_action_shards` and `open_action_shards`; `piecemill.actions.batches` makes batches.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from piecemill import _core
from piecemill.actions.histories import Histories
from piecemill.actions.tokenizer import ActionTokenizer, Ids, Ints
from piecemill.actions.vocabulary import NAME
from piecemill.errors import ShardError, TokenizerError
from piecemill.files import LocalPlace, as_path, clear_scratch, hash_bytes, hash_file, new_folder, read_json
from piecemill.plans import did_you_mean
from piecemill.shards.check import check_shards
from piecemill.shards.folder import FILES, PLAN, TOKENIZER, read_stats, write_stats
from piecemill.shards.format import RECORD, VERSION, token_dtype
from piecemill.shards.manifest import Entry, piece_name, write_manifests
from piecemill.shards.reader import open_shards
from piecemill.shards.writer import ShardWriter

SPLIT = "all"
_OLD = "manifest.json"
"In folders of the format before, which had one of their own."


@dataclass(frozen=True, eq=False)
class ActionShards:
    """An opened folder. Items are read from the file as they are needed."""

    folder: Path
    items: NDArray[Any]
    "Numbers of the items of all histories, one after another."
    ends: NDArray[np.int64]
    "Where each history ends."
    tokenizer: ActionTokenizer
    manifest: Mapping[str, Any]
    "Histories, actions, items, vocab_size, and the report of what was read and dropped."
    identity: str
    "Of the content: the same for the same histories, items and vocabulary."

    def __len__(self) -> int:
        return len(self.ends)

    def __repr__(self) -> str:
        return f"ActionShards({self.folder}: {len(self):,} histories, {len(self.items):,} actions)"

    @property
    def table(self) -> Ids:
        """The initial tokens of every item, a row each."""
        return self.tokenizer.table

    def check(self) -> list[str]:
        """Every file that is not what was written, with what is wrong; none if all is well."""
        if "files" in self.manifest:
            return _old_problems(self.folder, self.manifest)
        return [str(problem) for problem in check_shards(self.folder).problems]


@did_you_mean
def write_action_shards(
    histories: Any,
    tokenizer: ActionTokenizer,
    *,
    out: str | os.PathLike[str],
    unknown: Literal["stop", "drop"] = "stop",
) -> ActionShards:
    """Write `histories` (as `Histories.of` takes them) as a folder at `out`, which must not be there yet.

    Items that the tokenizer does not know are an error, or with `unknown="drop"` left out and counted in the manifest.
    """
    if not isinstance(tokenizer, ActionTokenizer):
        raise TokenizerError(f"tokenizer: found {type(tokenizer).__name__}; ActionTokenizer.load opens one.")
    target = Path(as_path(out)).resolve()
    over = Histories.of(histories).map_to_items(tokenizer.known_items, unknown=unknown)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ShardError(f"{target}: something is there already. Choose another folder, or remove it first.")
    try:
        with new_folder(target) as folder:
            _write(LocalPlace(folder), over, tokenizer)
    except OSError as error:
        raise ShardError(f"{target}: could not be written ({error}). Free some space, or choose another.") from error
    return open_action_shards(target)


def _write(place: LocalPlace, over: Histories, tokenizer: ActionTokenizer) -> None:
    keys = tokenizer.known_items.known.cast(pa.large_string())
    of_items = _words(keys.to_pylist())
    plan = {
        "format": VERSION,
        "kind": "actions",
        "piecemill": _core.__version__,
        "vocab_size": len(keys),
        "splits": {SPLIT: 1},
        "bos": None,
        "eos": None,
        "tokenizer": {
            "kind": "items",
            "vocab_size": tokenizer.vocab_size,
            "identity": hash_bytes(b"\n".join((tokenizer.vocabulary.published(), of_items, tokenizer.table.tobytes()))),
        },
    }
    place.write(PLAN, (json.dumps(plan, indent=2) + "\n").encode())
    tokenizer.save(place.path / TOKENIZER)
    place.write(f"{TOKENIZER}/tokenizer.json", of_items)
    words = pc.binary_join_element_wise(keys, pa.scalar("", keys.type), pa.scalar(" ", keys.type))
    dtype, content = token_dtype(len(keys)), _core.Xxh3()
    with ShardWriter(place, SPLIT, piece_name(0, 0), dtype=dtype) as writer:
        for first, items, ends in over.chunks():
            text, text_ends = _texts(words, items, ends)
            records = np.zeros(len(ends), RECORD)
            records["hash_low"], records["hash_high"] = _core.hash_documents(text, text_ends).T
            records["bytes"] = np.diff(text_ends, prepend=0)
            records["place"] = np.arange(first, first + len(ends))
            content.update(records.view(np.uint8))
            writer.append(items.astype(dtype), ends, records)
        shard = writer.finish()
    entry = Entry(0, 0, True, content.hexdigest(), "row", {}, {}, {} if shard is None else {SPLIT: shard})
    place.write(entry.name, entry.to_json())
    list(write_manifests(place, [SPLIT], len(keys)))
    source = {"path": "histories", "bytes": 0 if shard is None else shard.text_bytes}
    place.write(FILES, (json.dumps(source) + "\n").encode())
    write_stats(place, {"histories": len(over), "actions": len(over.items), "report": over.report})
    clear_scratch(place)


def _words(keys: list[str]) -> bytes:
    """A tokenizer.json with an id for each key, by which anything that reads prepared folders can read these."""
    model = {"type": "WordLevel", "vocab": {key: number for number, key in enumerate(keys)}, "unk_token": ""}
    spaces = {"type": "WhitespaceSplit"}
    return json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": spaces, "model": model}).encode()


def _texts(words: Any, items: Ints, ends: Ints) -> tuple[NDArray[np.uint8], Ints]:
    """The texts of some histories one after another, and where each ends; `words` are the keys, with a space behind."""
    _, offsets, data = words.take(pa.array(items)).buffers()
    text_ends = np.frombuffer(offsets, np.int64)[ends]
    kept = np.ones(int(text_ends[-1]), bool)
    kept[text_ends - 1] = False  # no space behind the last key
    return np.frombuffer(data, np.uint8, len(kept))[kept], text_ends - np.arange(1, len(ends) + 1)


@did_you_mean
def open_action_shards(folder: str | os.PathLike[str]) -> ActionShards:
    """Open a folder that `write_action_shards` wrote. Sizes are compared with the manifest; `check` compares bytes."""
    folder = Path(as_path(folder))
    if (folder / _OLD).exists():
        return _open_old(folder)
    expected = "Expected a folder written by `piecemill actions encode --to shards`: name that one, or write it."
    if not (folder / PLAN).exists():
        raise ShardError(f"{folder / PLAN} is missing. {expected}")
    rows = open_shards(folder)
    if rows.plan.get("kind") != "actions":
        raise ShardError(f"{folder}: shards of text. {expected}")
    tokenizer = ActionTokenizer.load(folder / TOKENIZER / NAME)
    items = rows.array(0, "tokens") if rows.entries else np.zeros(0, rows.dtype)
    ends = rows.checked_ends(0) if rows.entries else np.zeros(0, np.int64)
    counts = {"histories": len(rows), "actions": rows.tokens, "items": rows.vocab_size}
    manifest = {**counts, "vocab_size": tokenizer.vocab_size, "report": (read_stats(folder) or {}).get("report", {})}
    identity = hash_bytes(f"{rows.identity} {rows.tokenizer_identity}".encode())
    return ActionShards(folder, items, ends, tokenizer, manifest, identity)


def _open_old(folder: Path) -> ActionShards:
    manifest = read_json(LocalPlace(folder), _OLD, "Encode the histories again.")
    problems = _old_problems(folder, manifest)
    if problems:
        raise ShardError(f"{folder}: {'; '.join(problems)}. Restore the folder from a copy, or encode it again.")
    items, ends = (np.load(folder / name, mmap_mode="r") for name in ("items.npy", "ends.npy"))
    tokenizer = ActionTokenizer.load(folder / TOKENIZER / NAME)
    return ActionShards(folder, items, np.asarray(ends), tokenizer, manifest, hash_file(folder / _OLD))


def _old_problems(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    files = manifest.get("files", {})
    if not isinstance(files, dict) or not all(isinstance(entry, dict) and "xxh3" in entry for entry in files.values()):
        return [f"{_OLD} does not say which files there are"]
    found = [f"{_OLD} does not name {name}" for name in ("items.npy", "ends.npy") if name not in files]
    for name, entry in files.items():
        if not (folder / name).exists():
            found.append(f"{name} is missing")
        elif hash_file(folder / name) != entry["xxh3"]:
            found.append(f"{name} was changed: other content than was written")
    return found
