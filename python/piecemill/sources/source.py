"""Sources: anything a corpus can be -> tasks -> blocks of documents.

Start with `open_source`.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PlanError, SourceError
from piecemill.plans import did_you_mean
from piecemill.sources.discover import Wanted, discover, exists
from piecemill.sources.documents import Documents, Skipped, Tally
from piecemill.sources.items import read_items
from piecemill.sources.packing import BLOCK_BYTES, MAX_FILE_BYTES, BadDocument, Packer, Reading
from piecemill.sources.patience import stopped_by
from piecemill.sources.remote import Storage, is_glob, is_url, is_web
from piecemill.sources.secrets import hide
from piecemill.sources.tasks import File, Task, kind_of, plan, reader_of

_LOOKED_AT = 64
"""Number of strings of a list that are checked to distinguish paths from texts."""


@did_you_mean
def open_source(
    source: object,
    *,
    field: str = "text",
    separator: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    gitignore: bool = True,
    hidden: bool = False,
    max_file_bytes: int = MAX_FILE_BYTES,
    block_bytes: int = BLOCK_BYTES,
    on_bad_document: BadDocument = "stop",
    group: str | None = None,
    raw: bool = False,
    upper: bool = False,
    alphabet: bytes | None = None,
    integers: bool = False,
    known: NDArray[np.int64] | None = None,
    storage_options: Storage | None = None,
    group_bytes: int | None = None,
    out: str | PathLike[str] | None = None,
) -> "Source":
    """Find what `source` holds and plan how to read it; nothing is read yet.

    `source` is a path, a URL that fsspec knows, a glob of either, a list of those, a table (anything with the Arrow
    PyCapsule interface, or a Hugging Face dataset), or an iterable of strings. A string or path alone is never
    taken for text. A list of strings is taken for paths if one of them exists, and for texts if none looks like a
    path; in doubt it is an error. With `raw`, documents may be any bytes. `upper` writes FASTA and FASTQ in capitals.
    A document with a byte that is not in `alphabet` is a bad one. With `integers`, documents are sequences of integers
    (those in `known`, if given). `storage_options` go to fsspec. Small files share a
    task up to `group_bytes`, and never more than 64 MiB. `out` is where the output goes: it is never read, nor are
    folders that this library wrote, unless one is `source` itself. `docs/sources.md` has the rules.

    >>> [block.text(0) for block in open_source(["one two", "three"], block_bytes=1).blocks()]
    ['one two', 'three']
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, str | PathLike):
        sources: Sequence[str | PathLike[str]] | None = [source]
    else:
        sources = _as_paths(source)
    if not isinstance(storage_options, Mapping | None):
        raise PlanError(f"storage_options: found {type(storage_options).__name__}, expected a dict.")
    storage = dict(storage_options or {})
    if sources is not None:
        sources, storage = hide(sources, storage)
    reading = Reading(
        field=field,
        separator=separator,
        max_file_bytes=max_file_bytes,
        block_bytes=block_bytes,
        on_bad_document=on_bad_document,
        group=group,
        raw=raw,
        upper=upper,
        alphabet=alphabet,
        integers=integers,
        known=known,
        storage=storage,
    )
    if isinstance(include, str) or isinstance(exclude, str):
        raise SourceError("include and exclude: found a string, expected a list of patterns such as ['*.py'].")
    never = None if out is None else fspath(out)
    wanted = Wanted(include=tuple(include), exclude=tuple(exclude), gitignore=gitignore, hidden=hidden, out=never)
    files, tally, notes = discover(sources or (), wanted, reading)
    if sources is None:
        return replace(_in_memory(source, reading), notes=notes)
    no_fields = ("text", "sequences", "npy")
    if group is not None and (plain := next((f.path for f in files if kind_of(f.path)[0] in no_fields), None)):
        raise SourceError(
            f"{plain}: a text file has no field {group!r} to group by. Exclude it, or group by directory."
        )
    tasks, unplanned = plan(files, reading, group_bytes)
    tally += Tally(skipped_count=len(unplanned), skipped=tuple(unplanned))
    return Source(tuple(tasks), reading, tally, sum(task.nbytes for task in tasks), files=tuple(files), notes=notes)


@dataclass(frozen=True, slots=True)
class Source:
    """A corpus that was found and can be read, task by task.

    Tasks and blocks depend on the files, their sizes and the options, not on the executor. `read_task(task,
    source.reading)` does the same as `source.read(task)` without the list of all files, for workers elsewhere.
    """

    tasks: tuple[Task, ...]
    reading: Reading
    found: Tally
    "What discovery left out or skipped; add the tallies of the blocks to know all."
    total_bytes: int | None
    "Bytes of the source as they lie on disk; None where that cannot be known."
    memory: Any = None
    "The object to read, of a source that is not files."
    files: tuple[File, ...] = ()
    "Every file, in order: documents refer to them by number. None of a source that is not files."
    notes: tuple[str, ...] = ()
    "What a user should know about how the source was found: patterns that matched nothing."

    @property
    def left_out(self) -> Mapping[str, int]:
        """How many files discovery left out, by rule; binary and empty ones are only known by reading."""
        return self.found.left_out

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What discovery had to skip."""
        return self.found.skipped

    def read(self, task: Task) -> Iterator[Documents]:
        """The blocks of one task, in order."""
        return read_task(task, self.reading, self.memory)

    def blocks(self) -> Iterator[Documents]:
        """The blocks of all tasks, in order; a source without a single document is an error."""
        tally = self.found
        for task in self.tasks:
            for block in self.read(task):
                tally += block.tally
                yield block
        self.refuse_empty(tally)

    def refuse_empty(self, tally: Tally) -> None:
        """Raises `SourceError` if `tally`, the sum over the whole source, has no documents."""
        if not tally.documents:
            name = self.tasks[0].paths[0] if self.tasks else "source"
            more = f" and {len(self.tasks) - 1:,} more tasks" if len(self.tasks) > 1 else ""
            why = tally.describe() or "there was nothing in it"
            raise SourceError(f"{name}{more}: empty corpus, no document with text in it ({why}).")


def read_task(
    task: Task, reading: Reading, memory: Any = None, buffer: Callable[[], NDArray[np.uint8]] | None = None
) -> Iterator[Documents]:
    """The blocks of one task, in order; their text is copied to what `buffer` returns, if given (see `Packer`)."""
    packer = Packer(
        reading,
        task=task.index,
        place="row" if task.kind == "memory" else reader_of(task.kind).PLACE,
        paths=task.paths,
        first_file=task.first_file,
        source_bytes=task.nbytes,
        buffer=buffer,
    )
    path = task.paths[0]
    try:
        if task.kind == "memory":
            yield from _read_memory(memory, task, packer)
        elif task.kind == "text" and task.packing is None:
            yield from reader_of("text").read(task, packer)
        else:
            for file in task.alone():
                path = file.paths[0]
                yield from reader_of(task.kind).read(file, packer)
                packer.next_file(file.nbytes)
    except MemoryError:  # of a line of 100 GB, for example
        raise stopped_by(path, OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))) from None
    yield from packer.finish()


def _in_memory(source: object, reading: Reading) -> Source:
    if isinstance(source, bytes | bytearray | memoryview | Mapping) or not (
        _is_table(source) or isinstance(source, Iterable)
    ):
        hint = " Choose one of its parts, such as source['train']." if isinstance(source, Mapping) else ""
        raise SourceError(
            f"source: found {type(source).__name__}, expected a path, a glob, a list of those, a table, "
            f"or an iterable of strings.{hint}"
        )
    if isinstance(source, set | frozenset):
        raise SourceError(
            f"source: found {type(source).__name__}, whose order is another in each process. Pass sorted(source)."
        )
    known = getattr(source, "nbytes", None) if _is_table(source) else None
    total = known if isinstance(known, int) else None
    name = f"<{type(source).__name__}>"
    task = Task(0, "memory", None, 0, (name,), (total or 0,), True, total or 0)
    memory = _Once(source) if isinstance(source, Iterator) else source
    return Source((task,), reading, Tally(), total, memory)


def _read_memory(memory: Any, task: Task, packer: Packer) -> Iterator[Documents]:
    name = task.paths[0]
    if memory is None:
        raise SourceError(f"{name}: a source in memory can only be read where it was opened, with source.read(task).")
    if isinstance(memory, _Once):
        memory = memory.items_once(name)
    if _is_table(memory):
        from piecemill.sources.arrow import read_capsule

        return read_capsule(memory, name, packer)
    if packer.reading.group is not None:
        raise SourceError(f"{name}: strings have no field {packer.reading.group!r} to group by. Pass a table.")
    return read_items(memory, name, packer)


def _is_table(source: object) -> bool:
    capsule = hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")
    # A Hugging Face dataset has no capsule, but can iterate over Arrow tables.
    return capsule or (hasattr(source, "with_format") and hasattr(source, "iter"))


class _Once:
    """An iterator, which can be read once."""

    def __init__(self, items: Iterator[object]) -> None:
        self._items: Iterator[object] | None = items

    def items_once(self, name: str) -> Iterator[object]:
        items, self._items = self._items, None
        if items is None:
            raise SourceError(f"{name}: was read before, and an iterator can be read once. Pass a list or a file.")
        return items


def _as_paths(source: object) -> Sequence[str | PathLike[str]] | None:
    """A list of paths and globs, if that is what it is; None if it is something to read in memory."""
    if not isinstance(source, list | tuple) or not source:
        return None
    if any(isinstance(item, PathLike) for item in source[:_LOOKED_AT]):
        for item in source:
            if not isinstance(item, str | PathLike):
                raise SourceError(f"source: found {type(item).__name__} in a list of paths, expected str or Path.")
        return source
    first = source[:_LOOKED_AT]
    if not all(isinstance(item, str) for item in source):
        return None
    if any(exists(item) for item in first):
        return source
    if all(_looks_like_path(item) for item in first):
        # Checking a URL costs a request; discovery makes it later, and reports a URL that does not exist.
        if any(is_url(item) for item in first):
            return source
        raise SourceError(
            f"source: {first[0]!r} looks like a path, but no file matched any of the list. "
            "Correct the paths (a Path is never taken for text); or, if these are the texts, pass iter([...])."
        )
    return None


def _looks_like_path(item: str) -> bool:
    if not item or "\n" in item or len(item) > 4096:
        return False
    if " " in item:
        # A text may begin with a web address; names in buckets and folders have spaces, and no text begins with s3://.
        return not is_web(item) if is_url(item) else "/" in item and is_glob(item)
    return "/" in item or is_glob(item) or kind_of(item)[0] != "text" or PurePath(item).suffix in (".txt", ".md", ".gz")
