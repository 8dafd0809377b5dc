"""Files by their names: weights for those that match a pattern, and keys for those that lie in one folder."""

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from piecemill._core import first_match, hash_documents
from piecemill.errors import PlanError
from piecemill.plans import option
from piecemill.sources.remote import is_url, spelled_out
from piecemill.sources.tasks import File


class Weight(NamedTuple):
    """A sampling weight for the files that match a pattern; group 0 has no pattern: files that match no other group."""

    pattern: str | None
    weight: float


def parse_weights(texts: Sequence[str]) -> tuple[Weight, ...]:
    """The groups from texts such as "src/**=2".

    >>> parse_weights(["src/**=2"])[1]
    Weight(pattern='src/**', weight=2.0)
    """
    if not isinstance(texts, list | tuple):
        raise PlanError(f"{option('weight', texts)}: expected a list, such as ['src/**=2'].")
    groups = [Weight(None, 1.0)]
    for text in texts:
        pattern, _, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = -1.0
        if not pattern or not 0 <= weight < float("inf"):
            raise PlanError(
                f"{option('weight', text)}: expected a pattern and a number of 0 or more, such as 'src/**=2'."
            )
        groups.append(Weight(pattern, weight))
    return tuple(groups)


def weight_groups(groups: Sequence[Weight], files: Sequence[File]) -> NDArray[np.int32] | None:
    """The group of each file: the first pattern that matches it, or 0; None if there are no patterns.

    A pattern is tried from the file's source, from the folder that the source lies in, and as the path was typed.
    PlanError for a pattern that matches none.
    """
    patterns = [group.pattern for group in groups if group.pattern is not None]
    if not patterns or not files:
        return None
    spelled = [_spellings(file) for file in files]
    found = np.stack([first_match(patterns, list(paths)) for paths in zip(*spelled, strict=True)])
    last = np.int32(len(patterns))
    first = np.where(found < 0, last, found).min(axis=0)
    for number, pattern in enumerate(patterns):
        # A pattern whose files all match an earlier one is valid: its group has 0 documents in the result.
        if not (first == number).any() and not _matches(pattern, spelled):
            raise PlanError(
                f"{option('weight', pattern)}: it matches none of the {len(files):,} files, the first of which is "
                f"{files[0].path}. Expected a pattern of the path as typed or from the source, such as "
                f"{_example(files[0])!r}."
            )
    return np.where(first == last, np.int32(0), first + np.int32(1)).astype(np.int32)


def _spellings(file: File) -> tuple[str, str, str]:
    """The path of a file from its source, from the folder around that, and as typed."""
    if is_url(file.path):
        return file.inside, file.path, file.path
    typed = os.path.normpath(file.path)
    inside = file.inside or os.path.basename(typed)
    source = typed[: -len(inside)].rstrip("/")
    return inside, f"{os.path.basename(source)}/{inside}".lstrip("/"), typed.lstrip("/")


def _matches(pattern: str, spelled: Sequence[tuple[str, str, str]]) -> bool:
    return any((first_match([pattern], list(paths)) == 0).any() for paths in zip(*spelled, strict=True))


def _example(file: File) -> str:
    folder = os.path.dirname(file.path)
    return f"{folder}/**" if folder else file.path


def as_typed(patterns: Sequence[str], folder: str) -> tuple[list[str], list[int]]:
    """Patterns for a walk of `folder`, with those relative to the typed path rewritten; and the index of each original.

    >>> as_typed(["web/*.txt", "*.md"], "web")
    (['web/*.txt', '*.md', '/*.txt'], [0, 1, 0])
    """
    made, owners = list(patterns), list(range(len(patterns)))
    parts = [part for part in os.path.normpath(folder).split("/") if part not in ("", ".")]
    for owner, pattern in enumerate(patterns):
        if parts and "/" in pattern.rstrip("/"):
            for spelled in spelled_out(pattern):
                rests = _rests([part for part in spelled.split("/") if part not in ("", ".")], parts)
                made += [f"/{rest}" for rest in rests]
                owners += [owner] * len(rests)
    return made, owners


def _rests(pattern: list[str], parts: list[str]) -> list[str]:
    """What is left of a pattern for paths in the folder `parts`; none if it leads elsewhere."""
    if not parts or not pattern:
        return ["/".join(pattern) or "**"]
    if pattern[0] == "**":
        return sorted({*_rests(pattern[1:], parts), *_rests(pattern, parts[1:])})
    return _rests(pattern[1:], parts[1:]) if fnmatchcase(parts[0], pattern[0]) else []


def parse_grouping(text: str | None, name: str) -> tuple[int | None, str | None]:
    """How many folders make a group, or else the field that does; from the option called `name`.

    >>> parse_grouping("directory:2", "split_by"), parse_grouping("repo", "split_by")
    ((2, None), (None, 'repo'))
    """
    if text == "" or not isinstance(text, str | None):
        raise PlanError(f"{option(name, text)}: expected directory, directory:2, or the name of a field.")
    kind, colon, levels = (text or "").partition(":")
    if kind != "directory":
        return None, text
    if colon and not (levels.isdecimal() and len(levels) < 10 and int(levels)):
        raise PlanError(f"{option(name, text)}: expected a number of folders of 1 or more after the colon.")
    return int(levels) if colon else 1, None


def directory_groups(files: Sequence[File], levels: int) -> list[str]:
    """The first `levels` folders of each file under its source; of a file in no folder, its name up to the dot."""
    parts = [file.inside.split("/") for file in files]
    return ["/".join(folders[:levels]) if folders else name.partition(".")[0] or name for *folders, name in parts]


def directory_keys(files: Sequence[File], levels: int) -> NDArray[np.uint64]:
    """A hash of each file's first `levels` folders under its source; a file that is in no folder is its own group."""
    keys = []
    for file in files:
        folders = file.inside.split("/")[:-1]
        keys.append(("/".join(folders[:levels]) + "/" if folders else file.inside).encode("utf-8", "surrogateescape"))
    ends = np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)), dtype=np.int64)
    return np.ascontiguousarray(hash_documents(np.frombuffer(b"".join(keys), np.uint8), ends)[:, 0])
