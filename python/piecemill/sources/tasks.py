"""Tasks: files -> small units of independent reading.

What a task covers depends on the files, their sizes and the block size; not on who reads it. A task can be
pickled and sent to a worker; reading it needs nothing else but a `Reading`.

Start with `plan`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from piecemill.sources.documents import Skipped
from piecemill.sources.packing import Reading, bad_document
from piecemill.sources.remote import file_name, is_url, url_parts
from piecemill.sources.streams import PACKINGS

Kind = Literal["text", "jsonl", "parquet", "arrow", "memory"]

RANGE_BYTES = 64 * 1024 * 1024
"""A JSON lines file that is not packed is cut into ranges of this size, and row groups are gathered up to it."""

GROUP_FILES = 4_096
"""At most so many small files in one task, however small they are."""

_LINES = (".jsonl", ".ndjson")


class File(NamedTuple):
    """A file that was found: `named` by the user himself, or found in a folder."""

    path: str
    size: int
    named: bool
    inside: str = ""
    "Its path from the folder that was walked; its name, if it was named."


@dataclass(frozen=True, slots=True)
class Task:
    """Something to read by itself: whole files, or a part of one.

    `start` and `stop` are bytes of a JSON lines file (a line belongs to the range in which it starts) or row
    groups of a Parquet file; `stop` is None for the rest of the file.
    """

    index: int
    kind: Kind
    packing: str | None
    first_file: int
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    named: bool
    nbytes: int
    "Bytes of source this task stands for; over all tasks they come to `Source.total_bytes`."
    start: int = 0
    stop: int | None = None
    first_row: int = 0
    rows: int = 0


def kind_of(path: str) -> tuple[Kind, str | None]:
    """How a file is read, from its name alone: its kind and packing.

    `.json` is a text (in a code tree it is a settings file), but `.json.gz` and `.json.zst` are JSON lines,
    as published corpora name them.
    """
    name = file_name(path).lower()
    packing = None
    for suffix, packed_by in PACKINGS.items():
        if name.endswith(suffix):
            name, packing = name.removesuffix(suffix), packed_by
    if name.endswith(_LINES) or (packing and name.endswith(".json")):
        return "jsonl", packing
    if packing is None and name.endswith(".parquet"):
        return "parquet", None
    if packing is None and name.endswith(".arrow"):
        return "arrow", None
    return "text", packing


def plan(files: Sequence[File], reading: Reading) -> tuple[list[Task], list[Skipped]]:
    """The tasks in the order of the files, and the files that had to be skipped while planning."""
    tasks: list[Task] = []
    skipped: list[Skipped] = []
    numbered = enumerate(files)
    # Neighbours of one kind that can share a task stay together; a task never mixes named and found files, nor
    # files of two file systems.
    for (kind, packing, named, _), run in groupby(numbered, key=lambda item: _alike(item[1])):
        if kind == "text" and packing is None and reading.separator is None:
            for group in _grouped(list(run), reading.block_bytes):
                paths = tuple(file.path for _, file in group)
                sizes = tuple(file.size for _, file in group)
                tasks.append(Task(len(tasks), kind, None, group[0][0], paths, sizes, named, sum(sizes)))
            continue
        for number, file in run:
            one = Task(len(tasks), kind, packing, number, (file.path,), (file.size,), named, file.size)
            if kind == "jsonl" and packing is None:
                tasks += _ranges(one)
            elif kind == "parquet":
                from piecemill.sources.tables import row_groups

                cut, problem = row_groups(one, reading, RANGE_BYTES)
                tasks += cut
                if problem is not None:
                    if reading.on_bad_document == "stop":
                        raise bad_document(*problem)
                    skipped.append(problem)
            else:
                tasks.append(one)
    return tasks, skipped


def _alike(file: File) -> tuple[Kind, str | None, bool, tuple[str, str] | None]:
    elsewhere = url_parts(file.path) if is_url(file.path) else None
    return *kind_of(file.path), file.named, (elsewhere.head, elsewhere.tail) if elsewhere else None


def _grouped(files: list[tuple[int, File]], block_bytes: int) -> Iterator[list[tuple[int, File]]]:
    group: list[tuple[int, File]] = []
    size = 0
    for item in files:
        if group and (size + item[1].size > block_bytes or len(group) == GROUP_FILES):
            yield group
            group, size = [], 0
        group.append(item)
        size += item[1].size
    if group:
        yield group


def _ranges(whole: Task) -> Iterator[Task]:
    size = whole.nbytes
    starts = list(range(0, size, RANGE_BYTES)) or [0]
    for number, start in enumerate(starts):
        # The last range runs to the end of the file, wherever that is by then.
        stop = None if start == starts[-1] else start + RANGE_BYTES
        yield cut(whole, number, nbytes=(size if stop is None else stop) - start, start=start, stop=stop)


def cut(
    whole: Task, number: int, *, nbytes: int, start: int, stop: int | None, first_row: int = 0, rows: int = 0
) -> Task:
    """The part `number` of a task over one file."""
    index = whole.index + number
    file = (whole.kind, whole.packing, whole.first_file, whole.paths, whole.sizes, whole.named)
    return Task(index, *file, nbytes, start, stop, first_row, rows)
