"""Text files -> documents: a document per file.

Text is UTF-8, unless `Reading.raw` takes any bytes as they are. A byte order mark at the start of a file is dropped. A
file found in a folder is left out if it is binary (a NUL byte in the first 8 KiB, as git has it); a file that was named
is a bad document then. Empty files are left out and counted.

Memory: files up to a block, or one larger file. A file that is larger than a block is held once.

Start with `read`.
"""

from collections.abc import Iterator

import numpy as np

from piecemill._core import invalid_documents, read_texts
from piecemill.sources.documents import Documents, Place
from piecemill.sources.packing import Packer
from piecemill.sources.patience import about_the_file, patiently, stopped_by
from piecemill.sources.remote import fetch, is_url, open_bytes
from piecemill.sources.streams import BOM, BrokenStream, ByteStream
from piecemill.sources.tasks import Task, grouped, one_task

PLACE: Place = "file"
cut = one_task  # of packed files; `plan` groups the others

_BINARY_WINDOW = 8 * 1024


def read(task: Task, packer: Packer) -> Iterator[Documents]:
    """The documents of a group of files, or of a packed file."""
    if task.packing is not None:
        _add_packed(task, packer)
        yield from packer.full()
        return
    for numbers in grouped(task.sizes, packer.reading.block_bytes, len(task.sizes)):
        packer.progress(sum(task.sizes[: numbers.stop]))
        _add_files(task, numbers, packer)
        yield from packer.full()


def _add_files(task: Task, numbers: range, packer: Packer) -> None:
    paths = task.paths[numbers.start : numbers.stop]
    if is_url(paths[0]):
        try:
            contents = fetch(paths, task.sizes[numbers.start : numbers.stop], packer.reading.storage)
        except OSError as error:
            raise stopped_by(error.filename or paths[0], error) from None
        for number, content in zip(numbers, contents, strict=True):
            if isinstance(content, OSError):
                packer.bad(task.paths[number], failure(content))
            else:
                _add_text(task, number, content, packer)
        return
    sizes = task.sizes[numbers.start : numbers.stop]
    try:
        found = patiently(lambda: read_texts(paths, sizes, task.named, packer.reading.raw))
    except OSError as error:
        raise stopped_by(error.filename or paths[0], error) from None
    (data, ends, origins, empty, (listed, count)), binary = found
    packer.bad_many([(paths[number], reason) for number, reason in listed], count)
    packer.left_out("empty", empty)
    packer.left_out("binary", binary)
    files = (origins + task.first_file + numbers.start).astype(np.int32)
    packer.add(data, ends, files, np.zeros(len(ends), np.int64))


def _add_packed(task: Task, packer: Packer) -> None:
    """Add a packed file as one document; if the stream is broken anywhere, it is a bad document."""
    path, whole = task.paths[0], bytearray()  # it grows in place
    try:
        with open_bytes(path, packer.reading.storage, task.sizes[0]) as file:
            for chunk in ByteStream(file, task.packing):
                if not whole and not packer.reading.raw and is_binary(chunk):
                    return refuse_binary(path, task, packer)
                whole += chunk
                # The size on disk passed the rule; the unpacked text must pass it too.
                if not task.named and len(whole) > packer.reading.max_file_bytes:
                    return packer.left_out("oversized")
    except (OSError, BrokenStream) as error:
        return packer.bad(path, failure(error, path))
    _add_text(task, 0, whole, packer)


def _add_text(task: Task, number: int, whole: bytes | bytearray, packer: Packer) -> None:
    """Add one file of the task: what `read_texts` does for files on disk."""
    path, raw = task.paths[number], packer.reading.raw
    marked = len(BOM) if whole.startswith(BOM) and not raw else 0
    text = np.frombuffer(whole, np.uint8)[marked:]
    ends = np.array([len(text)], np.int64)
    if not raw and is_binary(whole[marked : marked + _BINARY_WINDOW]):
        refuse_binary(path, task, packer)
    elif not len(text):
        packer.left_out("empty")
    elif not raw and (invalid := invalid_documents(text, ends)):
        at = invalid[0][1]
        packer.bad(path, f"invalid UTF-8 at byte {at + marked} (found 0x{text[at]:02x})")
    else:
        packer.add(text, ends, task.first_file + number, np.zeros(1, np.int64))


def is_binary(start: bytes | bytearray) -> bool:
    """Whether git would call a file that starts with this binary."""
    return start.find(b"\0", 0, _BINARY_WINDOW) >= 0


def refuse_binary(path: str, task: Task, packer: Packer) -> None:
    """A binary file is a bad document if it was named, and left out if it was found."""
    if task.named:
        packer.bad(path, "binary file (a NUL byte near its start), expected text (or option bytes)")
    else:
        packer.left_out("binary")


def failure(error: OSError | BrokenStream, path: str = "") -> str:
    """The reason why a file cannot be read; raises the error that stops the run if the file is not the cause."""
    if isinstance(error, OSError) and not about_the_file(error):
        raise stopped_by(path, error) from None
    return str(error) if isinstance(error, BrokenStream) else f"cannot be read: {error.strerror or error}"
