"""Tasks: files -> units of independent reading; and the table of formats.

What a task covers depends on the files, their sizes and the options; not on the executor, nor on the block size. A
task can be pickled and sent to a worker; reading it needs nothing else but a `Reading`.

A format is a module of this room and a line in `ENDINGS`. The module implements `Reader`, and is imported when
the first file of its kind is planned or read: a tree of text files does not load pyarrow.

Start with `plan`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import groupby
from typing import NamedTuple, Protocol, cast

from piecemill.sources.documents import Documents, Place, Skipped
from piecemill.sources.packing import Packer, Reading, bad_document
from piecemill.sources.remote import file_name, is_url, open_bytes, url_parts
from piecemill.sources.streams import PACKINGS, ByteStream

_SEQUENCES = dict.fromkeys((".fa", ".fasta", ".fna", ".ffn", ".faa", ".frn", ".fq", ".fastq"), "sequences")

ENDINGS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    **_SEQUENCES,
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".npy": "npy",
}
"""The module that reads a file, by the ending of its name; `text` (or `pieces`, with a separator) reads all others, and
.npy files where integers are not requested."""

PACKED_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", **_SEQUENCES}
"""The same for names that go on with `.gz` or `.zst`. `.json` alone is a text: in a code tree it is a settings file."""

RANGE_BYTES = 64 * 1024 * 1024
"""About how much of the source one task reads."""

GROUP_FILES = 4_096
"""Most files in one task, however small they are."""

_PACKED = 4
"""Assumed compression ratio of packed files, used to decide which files are small."""


class File(NamedTuple):
    """A file that was found: `named` by the user, or found in a folder."""

    path: str
    size: int
    named: bool
    inside: str = ""
    "Its path from the folder that was walked; its name, if it was named."
    version: int = -1
    "Of a URL, a hash of its ETag, generation or time of change; -1 if the server reports none."


@dataclass(frozen=True, slots=True)
class Task:
    """Something to read by itself: whole files, or a part of one.

    `start` and `stop` are bytes of a JSON lines, FASTA or FASTQ file (a line or record belongs to the range in which it
    starts) or row groups of a Parquet file; `stop` is None for the rest of the file.
    """

    index: int
    kind: str
    "The module that reads it, or `memory`."
    packing: str | None
    first_file: int
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    named: bool
    nbytes: int
    "Bytes of the source that this task covers; the sum over all tasks is `Source.total_bytes`."
    start: int = 0
    stop: int | None = None
    first_row: int = 0
    rows: int = 0

    def alone(self) -> "Iterator[Task]":
        """A task for each of its files."""
        if len(self.paths) == 1:
            yield self
            return
        for number, (path, size) in enumerate(zip(self.paths, self.sizes, strict=True), self.first_file):
            yield replace(self, first_file=number, paths=(path,), sizes=(size,), nbytes=size)


def one_task(file: Task, reading: Reading, size: int) -> list[Task]:
    """The file is one task: `Reader.cut` of formats that are read from the start."""
    return [file]


def ranges(file: Task, reading: Reading, size: int) -> list[Task]:
    """The file in ranges of `size` bytes, for formats that can be read from any line; a packed file is one task."""
    if file.packing is not None:
        return [file]
    starts = range(0, max(file.nbytes, 1), size)
    # The last range has no end, in case the file has grown.
    parts = [replace(file, nbytes=size, start=start, stop=start + size) for start in starts[:-1]]
    return [*parts, replace(file, nbytes=file.nbytes - starts[-1], start=starts[-1])]


def chunks(task: Task, packer: Packer) -> Iterator[bytes]:
    """The unpacked bytes of a file, a chunk at a time; of a range, from one byte before it to the end of the file.

    That byte says whether a line or record starts exactly at the range.
    """
    with open_bytes(task.paths[0], packer.reading.storage, task.sizes[0]) as file:
        if task.start:
            file.seek(task.start - 1)
        stream = ByteStream(file, task.packing)
        for chunk in stream:
            packer.progress(stream.consumed)
            yield chunk


class Reader(Protocol):
    """What the module of a format offers."""

    PLACE: Place
    "What `Documents.places` holds."

    def cut(self, file: Task, reading: Reading, size: int) -> Sequence[Task]:
        """One file in tasks of about `size` bytes; raises `Unreadable`. The indices are set later."""

    def read(self, task: Task, packer: Packer) -> Iterator[Documents]:
        """The blocks of a task but the last, which `Packer.finish` gives; of one file, but for `text`."""


class Unreadable(Exception):
    """The file cannot be planned; the message is the reason."""


def reader_of(kind: str) -> Reader:
    """The module that reads files of this kind."""
    return cast(Reader, import_module(f"piecemill.sources.{kind}"))


def kind_of(path: str) -> tuple[str, str | None]:
    """How a file is read, from its name alone: its kind and packing."""
    name = file_name(path).lower()
    packing = next((packing for ending, packing in PACKINGS.items() if name.endswith(ending)), None)
    if packing is not None:
        name = name.rpartition(".")[0]
    ending = f".{name.rpartition('.')[2]}"
    return (PACKED_ENDINGS if packing else ENDINGS).get(ending, "text"), packing


def plan(files: Sequence[File], reading: Reading, group_bytes: int | None) -> tuple[list[Task], list[Skipped]]:
    """The tasks in the order of the files, and the files that had to be skipped while planning.

    Large files are cut into tasks. Small ones share a task up to `group_bytes`, where that is less than a task reads.
    """
    most = min(RANGE_BYTES, group_bytes or RANGE_BYTES)
    tasks: list[Task] = []
    skipped: list[Skipped] = []
    # Neighbours that can share a task stay together: of one kind and one file system, all named or all found.
    for (kind, packing, named, _), run in groupby(enumerate(files), key=lambda item: _alike(item[1], reading)):
        alike = list(run)
        if kind == "text" and packing is None and reading.separator is None:
            for chosen in grouped([file.size for _, file in alike], most, GROUP_FILES):
                paths = tuple(alike[number][1].path for number in chosen)
                sizes = tuple(alike[number][1].size for number in chosen)
                tasks.append(Task(len(tasks), kind, None, alike[chosen[0]][0], paths, sizes, named, sum(sizes)))
            continue
        kind = "pieces" if kind == "text" and reading.separator is not None else kind
        parts: list[Task] = []
        for number, file in alike:
            whole = Task(0, kind, packing, number, (file.path,), (file.size,), named, file.size)
            try:
                parts += reader_of(kind).cut(whole, reading, RANGE_BYTES)
            except Unreadable as error:
                if reading.on_bad_document == "stop":
                    raise bad_document(file.path, str(error)) from None
                skipped.append(Skipped(file.path, str(error)))
        tasks += [replace(task, index=len(tasks) + count) for count, task in enumerate(_joined(parts, most))]
    return tasks, skipped


def _joined(parts: Sequence[Task], most_bytes: int) -> Iterator[Task]:
    """Tasks of one kind, where neighbours that are small whole files become one."""
    numbers = [part.first_file for part in parts]
    cuts = Counter(numbers)
    sizes = [part.nbytes * (_PACKED if part.packing or part.kind == "parquet" else 1) for part in parts]
    sizes = [size if cuts[file] == 1 else most_bytes + 1 for size, file in zip(sizes, numbers, strict=True)]
    for chosen in grouped(sizes, most_bytes, GROUP_FILES):
        # A skipped file leaves a gap in the numbers, but the file numbers of a task are consecutive.
        for _, run in groupby(chosen, key=lambda number: numbers[number] - number):
            some = [parts[number] for number in run]
            paths, file_sizes = tuple(part.paths[0] for part in some), tuple(part.sizes[0] for part in some)
            whole = replace(some[0], paths=paths, sizes=file_sizes, nbytes=sum(file_sizes), start=0, stop=None, rows=0)
            yield whole if len(some) > 1 else some[0]


def grouped(sizes: Sequence[int], most_bytes: int, most_files: int) -> Iterator[range]:
    """Neighbours that come to at most `most_bytes`, or one that is larger by itself: ranges of their numbers."""
    start = size = 0
    for number, more in enumerate(sizes):
        if number > start and (size + more > most_bytes or number - start == most_files):
            yield range(start, number)
            start, size = number, 0
        size += more
    if start < len(sizes):
        yield range(start, len(sizes))


def _alike(file: File, reading: Reading) -> tuple[str, str | None, bool, tuple[str, str] | None]:
    remote = url_parts(file.path) if is_url(file.path) else None
    kind, packing = kind_of(file.path)
    kind = "text" if kind == "npy" and not reading.integers else kind
    return kind, packing, file.named, (remote.head, remote.tail) if remote else None
