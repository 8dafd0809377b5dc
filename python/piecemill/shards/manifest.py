"""The manifest of a split: one line per finished shard, in order.

A line means that the three files of its shard are whole and under their final names.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from piecemill.errors import ShardError
from piecemill.shards.format import KINDS, Kind, file_name

NAME = "manifest.jsonl"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a shard: its name, its size with the header, and the xxh3-64 of the data behind the header."""

    name: str
    bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One finished shard."""

    shard: int
    documents: int
    tokens: int
    text_bytes: int
    files: Mapping[Kind, FileEntry]

    def line(self) -> str:
        """The entry as it stands in the manifest, with its line end."""
        files = {kind: {"name": file.name, "bytes": file.bytes, "xxh3": file.xxh3} for kind, file in self.files.items()}
        counts = {"shard": self.shard, "documents": self.documents, "tokens": self.tokens}
        return json.dumps({**counts, "text_bytes": self.text_bytes, "files": files}) + "\n"


def parse_line(line: bytes, number: int, where: str) -> ShardEntry:
    """The entry in a line that should describe shard `number`."""
    try:
        record = json.loads(line)
        files = {kind: FileEntry(**record["files"][kind]) for kind in KINDS}
        entry = ShardEntry(record["shard"], record["documents"], record["tokens"], record["text_bytes"], files)
        sizes = (entry.documents, entry.tokens, entry.text_bytes, *(file.bytes for file in files.values()))
        names = [file.name for file in files.values()]
        sound = all(type(size) is int and size >= 0 for size in sizes)
        if entry.shard != number or not sound or names != [file_name(number, kind) for kind in KINDS]:
            raise ValueError("other numbers or names")
    except (ValueError, KeyError, TypeError) as error:
        raise ShardError(
            f"{where}, line {number + 1}: {line[:80]!r} does not describe shard {number} ({error}). "
            "The file was changed or cut after it was written: prepare the folder again, or restore it from a copy."
        ) from None
    return entry


def read_manifest(folder: Path) -> list[ShardEntry]:
    """The finished shards of a split, in order; none if there is no manifest yet."""
    return [parse_line(line, number, str(folder / NAME)) for number, line in enumerate(_lines(folder))]


def first_lines(folder: Path, count: int) -> list[ShardEntry]:
    """The first `count` shards, without a look at what follows; an error if there are fewer."""
    lines = _lines(folder)
    if len(lines) < count:
        raise ShardError(
            f"{folder / NAME} has {len(lines)} whole lines; expected at least {count}, one per finished shard."
        )
    return [parse_line(line, number, str(folder / NAME)) for number, line in enumerate(lines[:count])]


def _lines(folder: Path) -> list[bytes]:
    try:
        content = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return []
    return content.split(b"\n")[:-1]  # a line counts only with its end: a crash can cut the last one


def append_line(folder: Path, entry: ShardEntry) -> None:
    """Add a line and sync it: from here on, the shard counts."""
    path = folder / NAME
    new = not path.exists()
    with open(path, "ab") as file:
        file.write(entry.line().encode())
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync_folder(folder)


def keep_lines(folder: Path, count: int) -> None:
    """Cut the manifest back to its first `count` lines, whatever follows them; in one step, and synced."""
    path = folder / NAME
    if not path.exists():
        return
    if count == 0:
        path.unlink()  # as in a folder that never had a shard
        sync_folder(folder)
        return
    content = b"".join(line + b"\n" for line in _lines(folder)[:count])
    if path.stat().st_size != len(content):
        replace_file(path, content)


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` at `path`, whole or not at all, and sync it."""
    temporary = path.with_name(f".{path.name}.part")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names in `folder` last: new, renamed and deleted ones."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object from a file of a prepared folder."""
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ShardError(f"{path} is missing. {what}") from None
    except ValueError as error:
        raise ShardError(f"{path}: not JSON ({error}). {what}") from None
    if not isinstance(record, dict):
        raise ShardError(f"{path}: expected a JSON object, found {type(record).__name__}. {what}")
    return record
