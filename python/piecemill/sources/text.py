"""Text files -> documents: a document per file, or one per piece between separators.

Text is UTF-8. A byte order mark at the start of a file is dropped. A file found in a folder is left out if it
is binary (a NUL byte in the first 8 KiB, as git has it); a file that was named is a bad document then.
Empty files and pieces are left out and counted.

Start with `read_text`.
"""

from collections.abc import Generator, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from piecemill._core import cut_text, invalid_documents, read_texts
from piecemill.sizes import show_bytes
from piecemill.sources.documents import LISTED_SKIPS, Documents
from piecemill.sources.packing import LARGE, Growing, Packer
from piecemill.sources.remote import fetch, is_url, open_bytes
from piecemill.sources.streams import BrokenStream, ByteStream
from piecemill.sources.tasks import Task

BOM = b"\xef\xbb\xbf"
_BINARY_WINDOW = 8 * 1024
_BINARY = "binary file (a NUL byte near its start), expected text"

_Documents = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], int, tuple[list[tuple[int, str]], int]]


def read_text(task: Task, packer: Packer) -> Iterator[Documents]:
    """The documents of a task of text files."""
    if packer.reading.separator is not None:
        return _read_pieces(task, packer, packer.reading.separator.encode())
    if task.packing is not None:
        return _read_packed(task, packer)
    return _read_group(task, packer)


def _read_group(task: Task, packer: Packer) -> Iterator[Documents]:
    if task.nbytes >= LARGE and packer.reading.make_room is not None:
        # Before it is read: of a file its size is known. What was fetched is joined, so it is there twice.
        besides = task.nbytes * (2 if is_url(task.paths[0]) else 1)
        packer.reading.make_room(task.paths[0], f"a document of {show_bytes(task.nbytes)}", besides)
    if is_url(task.paths[0]):
        contents = fetch(task.paths, packer.reading.storage)
        (data, ends, numbers, empty, (listed, count)), binary = _take_texts(contents, task.named)
    else:
        (data, ends, numbers, empty, (listed, count)), binary = read_texts(task.paths, task.sizes, task.named)
    packer.bad_many([(task.paths[number], reason) for number, reason in listed], count)
    packer.left_out("empty", empty)
    packer.left_out("binary", binary)
    packer.progress(task.nbytes)
    files = (numbers + task.first_file).astype(np.int32)
    yield from packer.add(data, ends, files, np.zeros(len(ends), np.int64))


def _take_texts(contents: Sequence[bytes | OSError], named: bool) -> tuple[_Documents, int]:
    """What `read_texts` does, for files that somebody else has fetched."""
    taken: list[tuple[int, bytes]] = []
    problems: list[tuple[int, str]] = []
    empty = binary = 0
    for number, content in enumerate(contents):
        if isinstance(content, OSError):
            problems.append((number, _reason(content)))
            continue
        text = content.removeprefix(BOM)
        if _is_binary(text):
            if named:
                problems.append((number, _BINARY))
            else:
                binary += 1
        elif reason := _invalid(text, len(content) - len(text)):
            problems.append((number, reason))
        elif not text:
            empty += 1
        else:
            taken.append((number, text))
    data = np.frombuffer(b"".join(text for _, text in taken), np.uint8)
    ends = np.cumsum([len(text) for _, text in taken], dtype=np.int64)
    numbers = np.array([number for number, _ in taken], np.int64)
    return (data, ends, numbers, empty, (problems[:LISTED_SKIPS], len(problems))), binary


def _invalid(text: bytes, marked: int) -> str:
    """Where a text is not UTF-8, counted from the start of its file; empty if it is."""
    found = invalid_documents(np.frombuffer(text, np.uint8), np.array([len(text)], np.int64)) if text else []
    return f"invalid UTF-8 at byte {found[0][1] + marked} (found 0x{text[found[0][1]]:02x})" if found else ""


def _read_packed(task: Task, packer: Packer) -> Iterator[Documents]:
    """A packed file is one document, so a break anywhere spoils all of it."""
    path, parts = task.paths[0], []
    whole = Growing(packer.reading, besides=1)
    try:
        with open_bytes(path, packer.reading.storage) as file:
            stream = ByteStream(file, task.packing)
            for chunk in stream:
                parts.append(chunk)
                whole.grow(len(chunk), path)
                if len(parts) == 1 and _is_binary(chunk):
                    return _refuse_binary(task, packer)
                # The size on disk passed the rule; the unpacked text must pass it too.
                if not task.named and whole.size > packer.reading.max_file_bytes:
                    return packer.left_out("oversized")
    except (OSError, BrokenStream) as error:
        return packer.bad(path, _reason(error))
    whole.end(path)
    joined = b"".join(parts)
    del parts
    text = joined.removeprefix(BOM)
    if reason := _invalid(text, len(joined) - len(text)):
        packer.bad(path, reason)
    elif not text:
        packer.left_out("empty")
    else:
        ends = np.array([len(text)], np.int64)
        yield from packer.add(np.frombuffer(text, np.uint8), ends, task.first_file, np.zeros(1, np.int64))


def _read_pieces(task: Task, packer: Packer, separator: bytes) -> Iterator[Documents]:
    """One file after another piece; memory holds a chunk and the piece that is being read."""
    path, base = task.paths[0], 0
    held: list[bytes] = []
    edge = b""  # the end of what is held, where a separator may have begun
    piece = Growing(packer.reading, besides=2)
    try:
        with open_bytes(path, packer.reading.storage) as file:
            stream = ByteStream(file, task.packing)
            for number, chunk in enumerate(stream):
                if number == 0:
                    unmarked = chunk.removeprefix(BOM)
                    base, chunk = len(chunk) - len(unmarked), unmarked
                    if _is_binary(chunk):
                        return _refuse_binary(task, packer)
                held.append(chunk)
                piece.grow(len(chunk), f"{path}@{base}")
                # Joining only when there is something to cut: a piece of many chunks is joined once.
                window = edge + chunk
                edge = window[len(window) - len(separator) + 1 :] if len(separator) <= len(window) else window
                if separator in window:
                    piece.end(f"{path}@{base}")
                    text = b"".join(held)
                    done = yield from _take_pieces(task, packer, text, separator, base, last=False)
                    packer.progress(stream.consumed)
                    base, held = base + done, [text[done:]]
                    piece.begin()
                    piece.grow(len(held[0]), f"{path}@{base}")
                    del text
    except (OSError, BrokenStream) as error:
        # Whole pieces before the break were handed over; the piece that is broken goes with it.
        return packer.bad(f"{path}@{base}", _reason(error))
    piece.end(f"{path}@{base}")
    yield from _take_pieces(task, packer, b"".join(held), separator, base, last=True)


def _take_pieces(
    task: Task, packer: Packer, text: bytes, separator: bytes, base: int, *, last: bool
) -> Generator[Documents, None, int]:
    (data, ends, starts, empty, (listed, count)), done = cut_text(text, separator, base, last)
    packer.bad_many([(task.paths[0], reason) for _, reason in listed], count)
    packer.left_out("empty", empty)
    yield from packer.add(data, ends, task.first_file, starts)
    return done


def _is_binary(chunk: bytes) -> bool:
    return chunk.find(b"\0", 0, _BINARY_WINDOW) >= 0


def _refuse_binary(task: Task, packer: Packer) -> None:
    if task.named:
        packer.bad(task.paths[0], _BINARY)
    else:
        packer.left_out("binary")


def _reason(error: OSError | BrokenStream) -> str:
    return str(error) if isinstance(error, BrokenStream) else f"cannot be read: {error.strerror or error}"
