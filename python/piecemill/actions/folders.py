"""What lies in a folder of actions, for `piecemill show` and `piecemill check`: a vocabulary, or shards.

Imports nothing heavy: every command looks here what kind of folder it was given.
"""

import json
from pathlib import Path
from typing import Any

from piecemill.command import FolderKind
from piecemill.errors import PiecemillError

_VOCABULARY, _MANIFEST = "actionpiece.json", "manifest.json"


def _is_vocabulary(path: Path) -> bool:
    return (path / _VOCABULARY).is_file()


def _is_shards(path: Path) -> bool:
    try:
        with open(path / _MANIFEST, "rb") as file:
            return b'"kind": "actions"' in file.read(200)
    except OSError:
        return False


def _show_vocabulary(path: Path) -> dict[str, Any]:
    from piecemill.actions.show import describe
    from piecemill.actions.tokenizer import ActionTokenizer

    return describe(ActionTokenizer.load(path))


def _vocabulary_text(found: dict[str, Any]) -> str:
    from piecemill.actions.show import as_text

    return as_text(found)


def _vocabulary_problems(path: Path) -> list[str]:
    from piecemill.actions.tokenizer import ActionTokenizer

    try:
        ActionTokenizer.load(path)  # compares the checksums of all its files
    except PiecemillError as error:
        return [str(error)]
    return []


def _show_shards(path: Path) -> dict[str, Any]:
    from piecemill.actions.shards import open_action_shards

    manifest = open_action_shards(path).manifest
    kept = ("kind", "format", "histories", "actions", "items", "vocab_size", "report", "files")
    return {"folder": str(path), **{name: manifest[name] for name in kept}}


def _shards_text(found: dict[str, Any]) -> str:
    from piecemill.actions.histories import show_report

    size = sum(entry["bytes"] for entry in found["files"].values())
    first = (
        f"action shards: {found['histories']:,} histories, {found['actions']:,} actions of {found['items']:,} items; "
        f"vocabulary of {found['vocab_size']:,} tokens; {size:,} bytes in {found['folder']}"
    )
    return "\n".join([first, *([show_report(found["report"])] if found["report"] else [])])


def _shards_problems(path: Path) -> list[str]:
    from piecemill.actions.shards import open_action_shards, problems_in

    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
        wrong = problems_in(path, manifest, content=True)
        if not wrong:
            open_action_shards(path)
    except (PiecemillError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{_MANIFEST}: {error}"]
    return wrong


FOLDERS = (
    FolderKind(_is_vocabulary, _show_vocabulary, _vocabulary_text, _vocabulary_problems),
    FolderKind(_is_shards, _show_shards, _shards_text, _shards_problems),
)
