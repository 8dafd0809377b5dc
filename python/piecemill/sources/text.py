"""Text files -> documents: a document per file.

Text is UTF-8. A byte order mark at the start of a file is dropped. A file found in a folder is left out if it
is binary (a NUL byte in the first 8 KiB, as git has it); a file that was named is a bad document then.
Empty files are left out and counted.

Memory: files up to a block, or one larger file. A file that is larger than a block is held once.

Start with `read`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from piecemill._core import invalid_documents, read_texts
from piecemill.sources.documents import LISTED_SKIPS, Documents, Place
from piecemill.sources.packing import Packer, Reading
from piecemill.sources.remote import fetch, is_url, open_bytes
from piecemill.sources.streams import BOM, BrokenStream, ByteStream
from piecemill.sources.tasks import Task, grouped

PLACE: Place = "file"

_BINARY_WINDOW = 8 * 1024
_BINARY = "binary file (a NUL byte near its start), expected text"

_Documents = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], int, tuple[list[tuple[int, str]], int]]


def cut(file: Task, reading: Reading, size: int) -> list[Task]:
    """A packed file is one task; `plan` groups the others."""
    return [file]


def read(task: Task, packer: Packer) -> Iterator[Documents]:
    """The documents of a group of files, or of a packed file."""
    if task.packing is not None:
        _add_packed(task, packer)
        yield from packer.full()
        return
    for numbers in grouped(task.sizes, packer.reading.block_bytes, len(task.sizes)):
        _add_files(task, numbers, packer)
        packer.progress(sum(task.sizes[: numbers.stop]))
        yield from packer.full()


def _add_files(task: Task, numbers: range, packer: Packer) -> None:
    paths = task.paths[numbers.start : numbers.stop]
    if is_url(paths[0]):
        contents = fetch(paths, packer.reading.storage)
        (data, ends, origins, empty, (listed, count)), binary = _take_texts(contents, task.named)
    else:
        sizes = task.sizes[numbers.start : numbers.stop]
        (data, ends, origins, empty, (listed, count)), binary = read_texts(paths, sizes, task.named)
    packer.bad_many([(paths[number], reason) for number, reason in listed], count)
    packer.left_out("empty", empty)
    packer.left_out("binary", binary)
    files = (origins + task.first_file + numbers.start).astype(np.int32)
    packer.add(data, ends, files, np.zeros(len(ends), np.int64))


def _take_texts(contents: Sequence[bytes | OSError], named: bool) -> tuple[_Documents, int]:
    """The same as `read_texts`, for files that were fetched."""
    taken: list[tuple[int, bytes]] = []
    problems: list[tuple[int, str]] = []
    empty = binary = 0
    for number, content in enumerate(contents):
        if isinstance(content, OSError):
            problems.append((number, failure(content)))
            continue
        text = content.removeprefix(BOM)
        if is_binary(text):
            if named:
                problems.append((number, _BINARY))
            else:
                binary += 1
        elif reason := _invalid(np.frombuffer(text, np.uint8), len(content) - len(text)):
            problems.append((number, reason))
        elif not text:
            empty += 1
        else:
            taken.append((number, text))
    data = np.frombuffer(b"".join(text for _, text in taken), np.uint8)  # one alone is not copied
    ends = np.cumsum([len(text) for _, text in taken], dtype=np.int64)
    numbers = np.array([number for number, _ in taken], np.int64)
    return (data, ends, numbers, empty, (problems[:LISTED_SKIPS], len(problems))), binary


def _add_packed(task: Task, packer: Packer) -> None:
    """A packed file is one document, so a break anywhere spoils all of it."""
    path, whole = task.paths[0], bytearray()  # it grows in place
    try:
        with open_bytes(path, packer.reading.storage) as file:
            for chunk in ByteStream(file, task.packing):
                if not whole and is_binary(chunk):
                    return refuse_binary(task, packer)
                whole += chunk
                # The size on disk passed the rule; the unpacked text must pass it too.
                if not task.named and len(whole) > packer.reading.max_file_bytes:
                    return packer.left_out("oversized")
    except (OSError, BrokenStream) as error:
        return packer.bad(path, failure(error))
    marked = len(BOM) if whole.startswith(BOM) else 0
    text = np.frombuffer(whole, np.uint8)[marked:]
    if reason := _invalid(text, marked):
        packer.bad(path, reason)
    elif not len(text):
        packer.left_out("empty")
    else:
        packer.add(text, np.array([len(text)], np.int64), task.first_file, np.zeros(1, np.int64))


def _invalid(text: NDArray[np.uint8], marked: int) -> str:
    """Where a text is not UTF-8, counted from the start of its file; empty if it is."""
    found = invalid_documents(text, np.array([len(text)], np.int64)) if len(text) else []
    return f"invalid UTF-8 at byte {found[0][1] + marked} (found 0x{text[found[0][1]]:02x})" if found else ""


def is_binary(chunk: bytes) -> bool:
    """Whether git would call a file that starts with this binary."""
    return chunk.find(b"\0", 0, _BINARY_WINDOW) >= 0


def refuse_binary(task: Task, packer: Packer) -> None:
    """A binary file is a bad document if it was named, and left out if it was found."""
    if task.named:
        packer.bad(task.paths[0], _BINARY)
    else:
        packer.left_out("binary")


def failure(error: OSError | BrokenStream) -> str:
    """Why a file cannot be read."""
    return str(error) if isinstance(error, BrokenStream) else f"cannot be read: {error.strerror or error}"
