"""Strings in memory -> documents.

Any iterable of `str` or `bytes` is one task, read in order by one reader, because it has no random access. An iterator
can be read once; a list any number of times.

Start with `read_items`.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from piecemill._core import invalid_documents
from piecemill.errors import SourceError
from piecemill.integers import as_integers, text_of
from piecemill.sources.documents import Documents
from piecemill.sources.packing import Packer

_GATHER_BYTES = 1024 * 1024


def read_items(items: Iterable[object], name: str, packer: Packer) -> Iterator[Documents]:
    """The documents of an iterable of strings; `name[i]` is what item i is called."""
    held: list[bytes] = []
    places: list[int] = []
    held_bytes = 0
    for place, item in enumerate(items):
        text = _encoded(item, f"{name}[{place}]", packer)
        if text is None:
            continue
        if not text:
            packer.left_out("empty")
            continue
        if held_bytes + len(text) > _GATHER_BYTES:
            _add(held, places, packer)
            held_bytes = 0
            yield from packer.full()
        held.append(text)
        places.append(place)
        held_bytes += len(text)
    _add(held, places, packer)


def _add(held: list[bytes], places: list[int], packer: Packer) -> None:
    data = np.frombuffer(b"".join(held), np.uint8)  # one alone is not copied
    ends = np.cumsum(np.fromiter(map(len, held), np.int64, len(held)))
    packer.add(data, ends, 0, np.array(places, np.int64))
    held.clear()
    places.clear()


def _encoded(item: object, name: str, packer: Packer) -> bytes | None:
    if packer.reading.integers and (values := as_integers(item)) is not None:
        return text_of(values)
    if isinstance(item, str):
        try:
            return item.encode()
        except UnicodeEncodeError as error:
            lone = ord(item[error.start])
            packer.bad(name, f"lone surrogate U+{lone:04X} at character {error.start}, which UTF-8 cannot hold")
            return None
    if isinstance(item, bytes):
        if packer.reading.raw:
            return item
        text = np.frombuffer(item, np.uint8)
        if invalid := invalid_documents(text, np.array([len(text)], np.int64)):
            at = invalid[0][1]
            packer.bad(name, f"invalid UTF-8 at byte {at} (found 0x{item[at]:02x})")
            return None
        return item
    hint = " For rows, pass (row['text'] for row in rows)." if isinstance(item, dict) else ""
    expected = "a list or array of integers" if packer.reading.integers else "str or bytes"
    raise SourceError(f"{name}: found {type(item).__name__}, expected {expected}.{hint}")
