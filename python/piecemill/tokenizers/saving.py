"""Saves a tokenizer as a folder, atomically. Decides what may be replaced; `files.new_folder` writes it.

A killed process can leave a hidden folder, `.NAME.*.part`, behind; it is never read and may be deleted.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from piecemill.errors import TokenizerError
from piecemill.files import as_path, check_writable, new_folder
from piecemill.plans import option
from piecemill.tokenizers.models.config import TEMPLATES, is_carried

if TYPE_CHECKING:
    from piecemill.tokenizers.tokenizer import Tokenizer

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "ranks.tiktoken", "integers.json")
"One of these makes a folder a tokenizer."

TRAINING = "training.json"
FILES = (*VOCABULARIES, "tokenizer_config.json", "special_tokens_map.json", TRAINING, "encoding.json")


def save(tokenizer: "Tokenizer", path: str | os.PathLike[str], *, force: bool) -> None:
    """Write `tokenizer` as a folder at `path`; see `Tokenizer.save`."""
    # Through links, so that a link to a folder stays a link.
    try:
        target = Path(as_path(path)).resolve()
    except RuntimeError as error:  # links in a circle
        raise TokenizerError(f"{path}: {error}. Choose another place.") from None
    replace = check_target(target, force)
    contents = tokenizer.model.files()
    try:
        with new_folder(target, replace=replace) as part:
            for name, content in contents.items():
                (part / name).parent.mkdir(exist_ok=True)
                (part / name).write_bytes(content)
    except OSError as error:
        raise TokenizerError(
            f"{target}: could not be saved ({error}). Nothing there is half written: it is as before, or new and whole "
            "if only the last sync failed. Free some space or choose another folder, and save again."
        ) from error


def check_target(target: Path, force: bool) -> bool:
    """Whether there is a saved tokenizer to replace; an error if there is anything else."""
    try:
        inside = sorted(_names(target))
    except FileNotFoundError:
        inside = []
    except NotADirectoryError:
        raise TokenizerError(f"{target} is a file; a tokenizer is saved as a folder. Choose another name.") from None
    check_writable(target)
    if not inside:
        return False
    strange = [name for name in inside if name not in FILES and not is_carried(name)]
    if strange or not set(VOCABULARIES) & set(inside):
        shown = ", ".join((strange or inside)[:5]) + (", ..." if len(strange or inside) > 5 else "")
        raise TokenizerError(
            f"{target} is not only a saved tokenizer: it holds {shown}. "
            f"It is never replaced, even with {option('force', True)}; choose another folder."
        )
    if not force:
        raise TokenizerError(
            f"{target} already holds a tokenizer. Choose another folder, or replace it with {option('force', True)}."
        )
    return True


def _names(target: Path) -> Iterator[str]:
    for entry in os.scandir(target):
        if entry.name == TEMPLATES and entry.is_dir(follow_symlinks=False):
            yield from (f"{TEMPLATES}/{name}" for name in os.listdir(entry))
        else:
            yield entry.name
