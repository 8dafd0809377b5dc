"""Is a source still what it was? Which files it had, how large they were, and when each was last changed.

For a URL, the version that the server reports (ETag, generation, time of change) takes the place of the time. A file
with another time is read again: only different content is a change. Paths may be spelled differently.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import Xxh3, hash_documents
from piecemill.errors import SourceError
from piecemill.plans import another_out
from piecemill.sources.documents import Documents
from piecemill.sources.patience import source_changed
from piecemill.sources.remote import State, Storage, is_url, states
from piecemill.sources.source import Source
from piecemill.sources.tasks import File, Task


def numbered_files(source: Source) -> Sequence[File]:
    """The files that documents refer to by number; a source in memory counts as one."""
    return source.files or [File(task.paths[0], task.nbytes, True) for task in source.tasks[:1]]


def file_lines(source: Source) -> bytes:
    """The files of a source as JSON lines: the path and size of each."""
    lines = [json.dumps({"path": file.path, "bytes": file.size}) + "\n" for file in numbered_files(source)]
    return "".join(lines).encode()


def changed_times(files: Sequence[File]) -> NDArray[np.int64]:
    """When each file was last changed, in nanoseconds; of a URL its version; -1 if unknown."""
    times = np.array([file.version for file in files], np.int64)
    for number, file in enumerate(files):
        if not is_url(file.path) and (now := _local_state(file.path)) is not None:
            times[number] = now.version
    return times


def _local_state(path: str) -> State | None:
    """What `states` gives for a URL: size and time of a file on disk; None if it is not there."""
    try:
        now = os.stat(path)
    except OSError:
        return None
    return State(now.st_size, now.st_mtime_ns)


def check_files(source: Source, lines: bytes, where: str) -> None:
    """SourceError, with what differs first, if the files of `source` are not those that `file_lines` gave before."""
    if lines == file_lines(source):
        return
    listed = [_listed(line, f"{where}: line {number:,}") for number, line in enumerate(lines.splitlines(), 1)]
    files = numbered_files(source)
    differs = "" if len(listed) == len(files) else f"made from {len(listed):,} source files, found {len(files):,} now"
    for number, (was, file) in enumerate(zip(listed, files, strict=False)):
        if not same_path(was["path"], file.path):
            differs = f"its source file {number + 1:,} was {was['path']}, and is {file.path} now"
            break
        if was["bytes"] != file.size and source.files:
            raise source_changed(file.path, f"it had {was['bytes']:,} bytes and has {file.size:,} now")
    if differs:
        raise SourceError(f"{where}: {differs}. Resuming needs the same files: restore them, {another_out()}")


def _listed(line: bytes, where: str) -> dict[str, Any]:
    """A line of `file_lines`."""
    try:
        found = json.loads(line)
        if isinstance(found["path"], str) and type(found["bytes"]) is int:
            return {"path": found["path"], "bytes": found["bytes"]}
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise SourceError(
        f"{where} of its list of source files is {line[:60]!r}; expected a path and bytes. The list was changed: "
        f"restore it, {another_out()}"
    )


def same_path(one: str, other: str) -> bool:
    """Whether two names can be those of one file: both absolute and the same, or one of them ends in the other.

    >>> same_path("../mix/./a.txt", "/data/mix/a.txt"), same_path("mix/a.txt", "/data/max/a.txt")
    (True, False)
    """
    one, other = one.removeprefix("file://"), other.removeprefix("file://")  # files were once listed by such URLs
    if one == other or is_url(one) or is_url(other):
        return one == other
    parts = [[part for part in os.path.normpath(path).split(os.sep) if part not in ("", "..")] for path in (one, other)]
    length = min(map(len, parts))
    if os.path.isabs(one) and os.path.isabs(other):
        return os.path.realpath(one) == os.path.realpath(other)
    return parts[0][-length:] == parts[1][-length:]


def check_content(
    source: Source,
    times: NDArray[np.int64],
    prepared: Iterable[tuple[int, int, str, bool]],
    piece_bytes: int,
    piece_documents: int,
) -> NDArray[np.int64]:
    """The current times of the files; SourceError if a file with another time differs from what was prepared.

    `prepared` are the pieces that exist: number of the task, of the piece, and what `piece_contents` gives for it. Only
    the tasks of files with another time are read and compared; the part of a task that was not prepared yet may differ.
    A URL without a version is not compared.
    """
    now = changed_times(source.files)
    for number in np.flatnonzero((now != times) & (times < 0)):
        if is_url(source.files[number].path):
            now[number] = times[number]
    changed = np.flatnonzero(now != times)
    tasks = [task for task in source.tasks if _within(changed, task) is not None] if len(changed) else []
    before: dict[int, dict[int, tuple[str, bool]]] = {task.index: {} for task in tasks}
    for index, piece, content, last in prepared if tasks else ():
        if index in before:
            before[index][piece] = content, last
    for task in tasks:
        was = before[task.index]
        found = piece_contents(source, task, piece_bytes, piece_documents) if was else iter(())
        pieces = dict(enumerate(islice(found, max(was, default=-1) + 1)))
        if any(pieces.get(number) != content for number, content in was.items()):
            path = source.files[_within(changed, task) or 0].path
            raise source_changed(path, "it was written to since, and its content is another")
    return now


def _within(files: NDArray[np.int64], task: Task) -> int | None:
    """The first of the numbers of files that `task` reads."""
    at = int(np.searchsorted(files, task.first_file))
    return int(files[at]) if at < len(files) and files[at] < task.first_file + len(task.paths) else None


def add_content(hash: Xxh3, hashes: NDArray[np.uint64], block: Documents) -> None:
    """Add what shards are made from: the hashes of the documents of a block, and of their groups if it has those."""
    for words in (hashes, block.keys):
        if words is not None:
            hash.update(np.ascontiguousarray(words).view(np.uint8).reshape(-1))


def piece_contents(source: Source, task: Task, piece_bytes: int, piece_documents: int) -> Iterator[tuple[str, bool]]:
    """`add_content` of all documents of each piece of a task, which ends with the block that fills it.

    With each, whether it is the last one.
    """
    hash, text_bytes, documents = Xxh3(), 0, 0
    for block in source.read(task):
        if text_bytes >= piece_bytes or documents >= piece_documents:
            yield hash.hexdigest(), False
            hash, text_bytes, documents = Xxh3(), 0, 0
        add_content(hash, hash_documents(block.data, block.ends), block)
        text_bytes += block.nbytes
        documents += len(block)
    yield hash.hexdigest(), True


def check_task(task: Task, times: NDArray[np.int64], storage: Storage) -> None:
    """SourceError if a file of `task` is not as it was when the run began, or `times` (of all files) were taken."""
    if not len(times):
        return  # a source in memory
    remote = is_url(task.paths[0])
    found = states(task.paths, storage) if remote else map(_local_state, task.paths)
    for number, (path, size, now) in enumerate(zip(task.paths, task.sizes, found, strict=True), task.first_file):
        if now is None:
            continue  # gone: then the reader has reported it
        if now.size != size:
            raise source_changed(path, f"it had {size:,} bytes and has {now.size:,} now")
        if times[number] >= 0 and now.version != times[number]:
            what = (
                "its ETag, generation or time of change is another than when" if remote else "it was written to since"
            )
            raise source_changed(path, f"{what} the run began")
