"""Is a source still what it was? Which files it had, how large they were, and when each was last changed.

Of a URL, the version that its server tells (ETag, generation, time of change) stands for the time.
"""

import json
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import SourceError
from piecemill.sources.patience import source_changed
from piecemill.sources.remote import Storage, is_url, states
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
    """When each file was last changed, in nanoseconds; of a URL its version; -1 if it cannot be asked."""
    times = np.array([file.version for file in files], np.int64)
    for number, file in enumerate(files):
        if is_url(file.path):
            continue
        try:
            times[number] = os.stat(file.path).st_mtime_ns
        except OSError:
            continue
    return times


def check_files(source: Source, lines: bytes, where: str) -> None:
    """SourceError, with what differs first, if the files of `source` are not those that `file_lines` gave before."""
    if lines == file_lines(source):
        return
    listed, files = [json.loads(line) for line in lines.splitlines()], numbered_files(source)
    differs = "" if len(listed) == len(files) else f"made from {len(listed):,} source files, found {len(files):,} now"
    for number, (was, file) in enumerate(zip(listed, files, strict=False)):
        if was["path"] != file.path:
            differs = f"its source file {number + 1:,} was {was['path']}, and is {file.path} now"
            break
        if was["bytes"] != file.size and source.files:
            raise source_changed(file.path, f"it had {was['bytes']:,} bytes and has {file.size:,} now")
    if differs:
        raise SourceError(
            f"{where}: {differs}. Resuming needs the same files: restore them, choose another --out, "
            "or pass --force to replace what is there."
        )


def check_times(files: Sequence[File], times: NDArray[np.int64]) -> None:
    """SourceError if one of `files` was written to since `changed_times` gave these."""
    for file, was, now in zip(files, times, changed_times(files), strict=True):
        if was != now and not (is_url(file.path) and was < 0):
            raise source_changed(file.path, "it was written to since")


def check_task(task: Task, times: NDArray[np.int64], storage: Storage) -> None:
    """SourceError if a file of `task` is not as it was when the run began, or `times` (of all files) were taken."""
    if not len(times):
        return  # a source in memory
    if is_url(task.paths[0]):
        return _check_urls(task, times, storage)
    for number, (path, size) in enumerate(zip(task.paths, task.sizes, strict=True), task.first_file):
        try:
            now = os.stat(path)
        except OSError:
            continue  # gone: then the reader has reported it
        if now.st_size != size:
            raise source_changed(path, f"it had {size:,} bytes and has {now.st_size:,} now")
        if now.st_mtime_ns != times[number]:
            raise source_changed(path, "it was written to since the run began")


def _check_urls(task: Task, times: NDArray[np.int64], storage: Storage) -> None:
    found = states(task.paths, storage)
    for number, (path, size, now) in enumerate(zip(task.paths, task.sizes, found, strict=True), task.first_file):
        if now is None:
            continue  # gone: then the reader has reported it
        if now.size != size:
            raise source_changed(path, f"it had {size:,} bytes and has {now.size:,} now")
        if times[number] >= 0 and now.version != times[number]:
            raise source_changed(path, "its ETag, generation or time of change is another than when the run began")
