"""Headers inside Parquet and Arrow files: how large what comes next is, before it is read.

pyarrow unpacks a page of Parquet and a record batch of Arrow as a whole, whatever few rows it is asked for, and tells
no sizes of either beforehand. No document is larger than the page or batch that it lies in, so these headers say what
a file can cost at most; a footer only knows whole row groups.

Pages have a Thrift struct before them (compact protocol), batches a FlatBuffer. Of both, only what is needed here is
read, and everything else is passed over. Start with `page_sizes`, `batch_bytes`.
"""

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_FIRST_LOOK = 4 * 1024
_MOST = 16 * 1024 * 1024
_MAGIC = b"ARROW1"
_MARKER = 0xFFFF_FFFF
_DICTIONARY, _RECORD_BATCH = 2, 3
_BOOLEANS, _BYTE, _NUMBERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 11, 12


class PageSize(NamedTuple):
    """Bytes of a page as it lies in the file and unpacked; a dictionary is kept for all pages after it."""

    packed: int
    unpacked: int
    dictionary: bool


def page_sizes(file: BinaryIO, start: int, packed: int) -> Iterator[PageSize]:
    """The pages of one column in one row group: `packed` bytes from `start` on, headers included.

    Ends without a word where no header is found: who reads the pages says what is wrong.
    """
    at, stop, look = start, start + packed, _FIRST_LOOK
    while at < stop and look <= _MOST:
        file.seek(at)
        header = _Thrift(file.read(min(look, stop - at)))
        try:
            fields = header.struct()
        except IndexError:
            look *= 8  # some writers put whole values in, as smallest and largest
            continue
        unpacked, size = fields.get(2), fields.get(3)
        if unpacked is None or size is None or min(unpacked, size) < 0:
            return
        yield PageSize(size, unpacked, fields.get(1) == 2)
        at, look = at + header.at + size, _FIRST_LOOK


class _Thrift:
    """A struct of the compact protocol. IndexError where the bytes end before it does."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self) -> dict[int, int | None]:
        """Its numbers by field; other values are passed over."""
        fields: dict[int, int | None] = {}
        number = 0
        while (head := self._byte()) & 0x0F:
            number = number + (head >> 4) if head >> 4 else self._number()
            fields[number] = self._value(head & 0x0F)
        return fields

    def _value(self, kind: int) -> int | None:
        if kind in _NUMBERS:
            return self._number()
        if kind == _BYTE:
            self._pass(1)
        elif kind == _DOUBLE:
            self._pass(8)
        elif kind == _BINARY:
            self._pass(self._varint())
        elif kind in _LISTS:
            head = self._byte()
            for _ in range(self._varint() if head >> 4 == 15 else head >> 4):
                self._element(head & 0x0F)
        elif kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self._element(kinds >> 4)
                self._element(kinds & 0x0F)
        elif kind == _STRUCT:
            self.struct()
        elif kind not in _BOOLEANS:
            raise IndexError(f"type {kind}")
        return None

    def _element(self, kind: int) -> None:
        if kind in _BOOLEANS:  # in a field its type says it, in a list a byte does
            self._pass(1)
        else:
            self._value(kind)

    def _pass(self, size: int) -> None:
        self.at += size
        if self.at > len(self._data):
            raise IndexError("the bytes end")

    def _byte(self) -> int:
        self._pass(1)
        return self._data[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def batch_bytes(file: BinaryIO) -> Iterator[int]:
    """What each record batch of an Arrow file or stream, with dictionaries before it, takes in memory to be read.

    Ends without a word where the bytes are none of these: who reads them says so.
    """
    file.seek(0)
    at = 8 if file.read(len(_MAGIC)) == _MAGIC else 0
    dictionaries = 0
    while True:
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            return
        marker, size = struct.unpack("<II", head)
        if marker != _MARKER:  # written before Arrow 0.15
            marker, size = 0, marker
        at += 8 if marker else 4
        if not size or size > _MOST:
            return
        file.seek(at)
        body = at + size
        try:
            message = _Table.root(file.read(size))
            kind, header, length = message.number(1, "<B"), message.table(2), message.number(3, "<q")
            if header is not None and kind == _DICTIONARY:
                dictionaries += length + sum(_unpacked(file, body, header.table(1)))
            elif header is not None and kind == _RECORD_BATCH:
                yield dictionaries + length + sum(_unpacked(file, body, header))
                dictionaries = 0
        except struct.error:
            return
        at = body + length


def _unpacked(file: BinaryIO, body: int, batch: "_Table | None") -> Iterator[int]:
    """Bytes of the buffers of a batch beside those in the file: none, unless they are packed."""
    if batch is None or batch.table(3) is None:
        return
    for offset, length in batch.pairs(2):
        if length:
            file.seek(body + offset)
            yield max(0, struct.unpack("<q", file.read(8))[0])  # -1: this one is as it is


class _Table(NamedTuple):
    """A table of a FlatBuffer; struct.error where the bytes are none."""

    data: bytes
    at: int

    @classmethod
    def root(cls, data: bytes) -> "_Table":
        return cls(data, struct.unpack_from("<I", data)[0])

    def _field(self, slot: int) -> int | None:
        names = self.at - int(struct.unpack_from("<i", self.data, self.at)[0])
        if 4 + 2 * slot >= struct.unpack_from("<H", self.data, names)[0]:
            return None
        offset = int(struct.unpack_from("<H", self.data, names + 4 + 2 * slot)[0])
        return self.at + offset if offset else None

    def number(self, slot: int, kind: str) -> int:
        at = self._field(slot)
        return 0 if at is None else int(struct.unpack_from(kind, self.data, at)[0])

    def table(self, slot: int) -> "_Table | None":
        at = self._field(slot)
        return None if at is None else _Table(self.data, at + struct.unpack_from("<I", self.data, at)[0])

    def pairs(self, slot: int) -> list[tuple[int, int]]:
        if (vector := self.table(slot)) is None:
            return []
        count = struct.unpack_from("<I", self.data, vector.at)[0]
        return [struct.unpack_from("<qq", self.data, vector.at + 4 + 16 * n) for n in range(count)]
