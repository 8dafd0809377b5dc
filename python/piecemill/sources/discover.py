"""Discovery: what the user wrote -> files, in a stable order.

A folder is walked; a glob is a walk from its first folder without a wildcard; a file is taken as it is; a URL may
be any of the three, and its listing goes through the same rules; `file://` and a path is that path. Files
come in the order of the sources, and within a folder in the order of their paths, component by component and
byte by byte. A file that is reached twice is read once, where it came first.

Start with `discover`.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from glob import iglob
from os import PathLike, fspath

from piecemill._core import first_match, walk_folder
from piecemill.errors import SourceError
from piecemill.plans import by_place, option
from piecemill.sources.documents import LISTED_SKIPS, Skipped, Tally
from piecemill.sources.matching import as_typed
from piecemill.sources.packing import Reading, bad_document
from piecemill.sources.remote import canonical, cut_glob, find, is_glob, is_url
from piecemill.sources.tasks import File, kind_of

_SHORTENED_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which files of a folder are wanted."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    gitignore: bool = True
    hidden: bool = False
    out: str | None = None
    "The output folder: never read, even if it is inside a source."


@dataclass(slots=True)
class _FoundFiles:
    files: list[File] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    skipped: list[Skipped] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    included_by: set[int] = field(default_factory=set)
    excluded_by: set[int] = field(default_factory=set)

    def add(self, file: File, key: str | None = None) -> None:
        key = key or _real_path(file.path)
        if key in self.seen:
            self.left_out["repeated"] += 1
        else:
            self.seen.add(key)
            self.files.append(file)


def discover(
    sources: Sequence[str | PathLike[str]], wanted: Wanted, reading: Reading
) -> tuple[list[File], Tally, tuple[str, ...]]:
    """The files of all `sources`, what was left out, and notes; a source that gives no file is an error."""
    findings = _FoundFiles()
    _real_folder.cache_clear()  # links may have changed since the last call, and so may the current folder
    for source in sources:
        seen, skipped, before = len(findings.seen), len(findings.skipped), findings.left_out.copy()
        _discover_one(fspath(source), wanted, reading, findings)
        own = findings.left_out - before
        if len(findings.seen) == seen and not own["repeated"]:
            raise _no_file(fspath(source), own, findings.skipped[skipped:])
    listed = tuple(findings.skipped[:LISTED_SKIPS])
    left_out = {rule: count for rule, count in findings.left_out.items() if count}
    tally = Tally(left_out=left_out, skipped_count=len(findings.skipped), skipped=listed)
    return findings.files, tally, tuple(_unmatched(wanted, findings))


def _unmatched(wanted: Wanted, findings: _FoundFiles) -> Iterator[str]:
    given = (("include", wanted.include, findings.included_by), ("exclude", wanted.exclude, findings.excluded_by))
    for name, patterns, matched in given:
        for number, pattern in enumerate(patterns):
            if number not in matched:
                yield f"{option(name, pattern)} matched no file of a folder: is it spelled as the paths are?"


def _real_path(path: str) -> str:
    """The path with all symbolic links resolved; folders are cached."""
    folder, name = os.path.split(path)
    return os.path.realpath(path) if os.path.islink(path) else os.path.join(_real_folder(folder), name)


@lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder or ".")


def exists(source: str) -> bool:
    """Whether a string names a file or a folder, or is a glob that matches one; no text of any length is."""
    if len(source) > 4096 or "\0" in source or "\n" in source:
        return False
    # Also called with texts ("what? *"), so the wildcards of `glob` are enough here: braces look like a path anyway.
    return os.path.lexists(source) or (is_glob(source) and any(True for _ in iglob(source, recursive=True)))


def _discover_one(source: str, wanted: Wanted, reading: Reading, findings: _FoundFiles) -> None:
    source = source.removeprefix("file://")  # links are followed and files told apart as in any folder
    if is_url(source):
        return _discover_url(source, wanted, reading, findings)
    try:
        found = os.stat(source)
    except (OSError, ValueError) as error:
        # A name that exists wins over a wildcard in it; only what does not exist can be a glob.
        if isinstance(error, PermissionError):
            raise SourceError(f"{source}: cannot be read: {error.strerror}.") from None
        if not is_glob(source):
            return
        folder, pattern = cut_glob(source)
        if os.path.isdir(folder or "."):
            _walk(folder, pattern, wanted, reading, findings)
        return
    if stat.S_ISDIR(found.st_mode):
        _walk(source, None, wanted, reading, findings)
    elif stat.S_ISREG(found.st_mode):
        findings.add(File(source, found.st_size, named=True, inside=os.path.basename(source)))
    else:
        way_out = by_place("pass an iterable", "pipe it to standard input, and name - as the source")
        raise SourceError(f"{source}: neither a file nor a folder. Save what it gives to a file, or {way_out}.")


def _discover_url(source: str, wanted: Wanted, reading: Reading, findings: _FoundFiles) -> None:
    found = find(source, reading.storage, **asdict(wanted))
    if found is None:
        return
    _note_included(wanted.include, range(len(wanted.include)), found.inside if not found.is_file else (), findings)
    findings.excluded_by.update(found.excluded_by)
    findings.left_out.update(found.left_out)
    for url, inside, (size, version) in zip(found.urls, found.inside, found.states, strict=True):
        if not found.is_file and _oversized(url, size, reading):
            findings.left_out["oversized"] += 1
        else:
            file = File(url, size, named=found.is_file, inside=inside.lstrip("/"), version=version)
            findings.add(file, canonical(url, reading.storage))


def _walk(folder: str, only: str | None, wanted: Wanted, reading: Reading, findings: _FoundFiles) -> None:
    include, including = as_typed(wanted.include, folder)
    exclude, excluding = as_typed(wanted.exclude, folder)
    rules = asdict(wanted) | {"include": include, "exclude": exclude, "out": _inside(wanted.out, folder)}
    paths, sizes, left_out, problems, excluded_by = walk_folder(folder, only=only, **rules)
    findings.excluded_by.update(excluding[number] for number in excluded_by)
    insides = [path[len(folder) :].lstrip("/") for path in paths]
    _note_included(include, including, insides, findings)
    for problem in problems:
        if reading.on_bad_document == "stop":
            raise bad_document(*problem)
        findings.skipped.append(Skipped(*problem))
    findings.left_out.update(left_out)
    for path, inside, size in zip(paths, insides, sizes, strict=True):
        if _oversized(path, size, reading):
            findings.left_out["oversized"] += 1
        else:
            findings.add(File(path, size, named=False, inside=inside))


def _note_included(
    include: Sequence[str], owners: Sequence[int], insides: Sequence[str], findings: _FoundFiles
) -> None:
    for pattern, owner in zip(include, owners, strict=True):
        if owner not in findings.included_by and bool((first_match([pattern], list(insides)) == 0).any()):
            findings.included_by.add(owner)


def _inside(out: str | None, folder: str) -> str | None:
    """The path of `out` from `folder`, if it lies in there."""
    if out is None or is_url(out):
        return None
    inside = os.path.relpath(os.path.realpath(out), os.path.realpath(folder or "."))
    return None if inside == "." or inside.split("/")[0] == ".." else inside


def _oversized(path: str, size: int, reading: Reading) -> bool:
    # Tables and files that are cut into pieces are never held whole, so their size does not matter.
    return size > reading.max_file_bytes and reading.separator is None and kind_of(path)[0] == "text"


def _no_file(source: str, left_out: Counter[str], skipped: list[Skipped]) -> SourceError:
    kind = "a folder" if os.path.isdir(source) else "a path"
    kind = "a glob" if is_glob(source) else "a URL" if is_url(source) else kind
    tally = Tally(left_out=left_out, skipped_count=len(skipped), skipped=tuple(skipped[:1]))
    what = f" Left out: {tally.describe()}." if tally.describe() else ""
    options = [
        way
        for rule, way in (
            ("hidden", option("hidden", True)),
            ("ignored", option("gitignore", False)),
            ("oversized", f"a larger {option('max_file_bytes')}"),
            ("not_included", f"another {option('include')}"),
            ("excluded", f"another {option('exclude')}"),
        )
        if left_out[rule]
    ]
    way_out = f" To read them, pass {' or '.join(options)}." if options else ""
    if not what and kind == "a folder":
        return SourceError(f"{source}: no file in this folder.")
    folder = "s3://bucket/corpus" if is_url(source) else "corpus"
    expected = "" if what else f" Expected an existing file or folder, or a glob such as '{folder}/**/*.txt'."
    if _SHORTENED_URL.match(source):
        expected = " A URL must be a string: a Path drops one of its slashes."
    return SourceError(f"{source}: no file matched ({kind}).{what}{way_out}{expected}")
