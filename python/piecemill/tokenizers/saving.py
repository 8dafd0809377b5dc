"""Saving a tokenizer as a folder, whole or not at all.

Everything is written and synced in a hidden folder beside the target, which is then renamed. Replacing an
older one swaps the two names in one step where the system can (Linux); elsewhere the old folder is renamed
aside first, and for that instant nothing is at the target, but both are complete beside it. A killed process can
leave the hidden folder, `.NAME.saving-*` or `.NAME.old-*`, behind; it is never read and may be deleted.
"""

import ctypes
import errno
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from piecemill.errors import TokenizerError
from piecemill.files import sync_folder
from piecemill.tokenizers.models.config import TEMPLATES, is_carried

if TYPE_CHECKING:
    from piecemill.tokenizers.tokenizer import Tokenizer

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "ranks.tiktoken")
"One of these makes a folder a tokenizer."

FILES = (*VOCABULARIES, "tokenizer_config.json", "special_tokens_map.json", "training.json", "encoding.json")


def save(tokenizer: "Tokenizer", path: str | os.PathLike[str], *, force: bool) -> None:
    """Write `tokenizer` as a folder at `path`; see `Tokenizer.save`."""
    # Through links, so that a link to a folder stays a link.
    target = Path(path).resolve()
    replace = check_target(target, force)
    contents = files_of(tokenizer)
    beside = f"{target.name}.{{}}-{os.getpid()}-{secrets.token_hex(4)}"
    temporary = target.parent / f".{beside.format('saving')}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        for name, content in contents.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            _write(temporary / name, content)
        for folder in {(temporary / name).parent for name in contents}:
            sync_folder(folder)
        if replace:
            _replace(target, temporary, target.parent / f".{beside.format('old')}")
        else:
            # Replaces an empty folder, but fails on one that somebody filled since the check.
            os.rename(temporary, target)
        sync_folder(target.parent)
    except OSError as error:
        raise TokenizerError(
            f"{target}: could not be saved ({error}). Nothing there is half written: it is as before, or new and whole "
            "if only the last sync failed. Make room or choose another folder, and save again."
        ) from error
    finally:
        # Twice, because Ctrl-C can come in the middle of the first.
        try:
            shutil.rmtree(temporary, ignore_errors=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def files_of(tokenizer: "Tokenizer") -> dict[str, bytes]:
    """The content of each file of a saved tokenizer."""
    return tokenizer.model.files()


def check_target(target: Path, force: bool) -> bool:
    """Whether there is a saved tokenizer to replace; an error if there is anything that may not be."""
    try:
        inside = sorted(_names(target))
    except FileNotFoundError:
        parent = next(folder for folder in target.parents if folder.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            raise TokenizerError(f"{target}: {parent} cannot be written to. Choose another folder.") from None
        return False
    except NotADirectoryError:
        raise TokenizerError(f"{target} is a file; a tokenizer is saved as a folder. Choose another name.") from None
    if not inside:
        return False
    strange = [name for name in inside if name not in FILES and not is_carried(name)]
    if strange or not set(VOCABULARIES) & set(inside):
        shown = ", ".join((strange or inside)[:5]) + (", ..." if len(strange or inside) > 5 else "")
        raise TokenizerError(
            f"{target} is not only a saved tokenizer: it holds {shown}. "
            "It is never replaced, even with force; choose another folder."
        )
    if not force:
        raise TokenizerError(
            f"{target} already holds a tokenizer. Choose another folder, or replace it with force (--force)."
        )
    return True


def _names(target: Path) -> Iterator[str]:
    for entry in os.scandir(target):
        if entry.name == TEMPLATES and entry.is_dir(follow_symlinks=False):
            yield from (f"{TEMPLATES}/{name}" for name in os.listdir(entry))
        else:
            yield entry.name


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _replace(target: Path, temporary: Path, aside: Path) -> None:
    """Put `temporary` at `target`; what was there ends up deleted."""
    if _exchange(temporary, target):
        return  # The old one now has the temporary name, which the caller deletes.
    try:
        os.rename(target, aside)
        os.rename(temporary, target)
    finally:
        # An interrupt can come between any two lines, so look rather than remember how far it got.
        if not target.exists():
            os.rename(aside, target)
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system or the file system cannot."""
    if sys.platform != "linux":
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))
