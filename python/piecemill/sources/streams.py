"""Streams: a file, packed or not -> its bytes, a chunk at a time.

Packed streams are unpacked here rather than by a file object, because a stream that ends early must be noticed
(`zstandard`'s reader takes it for the end) and what came before the break must not be lost (`gzip`'s reader
drops what it has of the current buffer).

Start with `ByteStream`.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

CHUNK_BYTES = 1024 * 1024
"""How much of an unpacked file is read at a time."""

_GZIP_BYTES = 1024 * 1024
_ZSTD_BYTES = 128 * 1024
# zstd has no output limit per call, so it gets a few blocks at a time, each of at most 128 KiB unpacked.
_ZSTD_BLOCKS = 8
_ZSTD_WINDOW = 2**27
"The largest window, as of the `zstd` command: 128 MiB. It is held while a frame is read."

BOM = b"\xef\xbb\xbf"

PACKINGS = {".gz": "gzip", ".zst": "zstd"}


class BrokenStream(Exception):
    """The packed stream ends early or is damaged; everything before the break was yielded."""


class ByteStream:
    """The unpacked bytes of one file in chunks of at most about `CHUNK_BYTES`.

    `consumed` counts the file's bytes so far. Chunks may have any size, but the first has the first 8 KiB, or the whole
    of a smaller file: readers look there for a byte order mark and NUL bytes.
    """

    def __init__(self, file: BinaryIO, packing: str | None) -> None:
        self.consumed = 0
        self._file = file
        self._packing = packing

    def __iter__(self) -> Iterator[bytes]:
        match self._packing:
            case None:
                return self._gathered(self._raw(CHUNK_BYTES))  # a stream of the web gives few bytes at once
            case "gzip":
                return self._gathered(self._gzip())
            case "zstd":
                return self._gathered(self._zstd())
            case other:
                raise ValueError(f"packing {other!r}: expected one of {sorted(set(PACKINGS.values()))}")

    def _raw(self, size: int) -> Iterator[bytes]:
        while chunk := self._file.read(size):
            self.consumed += len(chunk)
            yield chunk

    def _gathered(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """Join small unpacked parts into chunks (larger ones are not copied); before a break, all parts are yielded."""
        held: list[bytes] = []
        held_bytes = 0
        try:
            for part in parts:
                held.append(part)
                held_bytes += len(part)
                if held_bytes >= CHUNK_BYTES // 4:
                    yield b"".join(held)
                    held, held_bytes = [], 0
        except (BrokenStream, OSError) as broken:
            if held_bytes:
                yield b"".join(held)
            raise broken
        if held_bytes:
            yield b"".join(held)

    def _gzip(self) -> Iterator[bytes]:
        """Members one after another, as `cat a.gz b.gz` makes them; zeros after the last one are padding."""
        member, members = None, 0
        for packed in self._raw(_GZIP_BYTES):
            while packed:
                if member is None:
                    packed = packed.lstrip(b"\0") if members else packed
                    if not packed:
                        break
                    member, members = zlib.decompressobj(wbits=31), members + 1
                try:
                    part = member.decompress(packed, CHUNK_BYTES)
                except zlib.error as error:
                    raise BrokenStream(f"broken gzip near byte {self.consumed - len(packed)}: {error}") from None
                if part:
                    yield part
                if member.eof:
                    packed, member = member.unused_data, None
                else:
                    packed = member.unconsumed_tail
        if member is not None or not self.consumed:
            raise BrokenStream(f"truncated gzip: the file ends at byte {self.consumed}, inside the packed stream")

    def _zstd(self) -> Iterator[bytes]:
        """Frames one after another; skippable ones unpack to nothing."""
        import zstandard

        unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        frame: _Unpacker | None = None
        blocks = _ZstdBlocks()
        for chunk in self._raw(_ZSTD_BYTES):
            for packed in blocks.cut(chunk):
                while packed:
                    frame = frame or unpacker.decompressobj()
                    try:
                        part = frame.decompress(packed)
                    except zstandard.ZstdError as error:
                        raise BrokenStream(f"broken zstd near byte {self.consumed - len(packed)}: {error}") from None
                    if part:
                        yield part
                    packed = b""
                    if frame.eof:
                        packed, frame = frame.unused_data, None
        if frame is not None or not self.consumed:
            raise BrokenStream(f"truncated zstd: the file ends at byte {self.consumed}, inside the packed stream")


class _ZstdBlocks:
    """Cuts a zstd stream after every few blocks, wherever the chunks of it end (RFC 8878, section 3.1).

    Data that is not zstd is passed on uncut: the decoder reports the error.
    """

    def __init__(self) -> None:
        self._head, self._want = bytearray(), 4
        self._parse: Callable[[bytes], None] = self._magic
        self._pass = self._blocks = 0
        self._descriptor = 0

    def cut(self, chunk: bytes) -> Iterator[bytes]:
        """The chunk in parts of at most `_ZSTD_BLOCKS` blocks each."""
        start = at = 0
        while at < len(chunk) and self._want:
            passed = min(self._pass, len(chunk) - at)
            at, self._pass = at + passed, self._pass - passed
            if self._pass:
                break
            more = chunk[at : at + self._want - len(self._head)]
            self._head += more
            at += len(more)
            if len(self._head) == self._want:
                head, self._head = bytes(self._head), bytearray()
                self._parse(head)
                if self._blocks == _ZSTD_BLOCKS:
                    yield chunk[start:at]
                    start, self._blocks = at, 0
        yield chunk[start:]

    def _next(self, parse: Callable[[bytes], None], want: int) -> None:
        self._parse, self._want = parse, want

    def _magic(self, head: bytes) -> None:
        number = int.from_bytes(head, "little")
        if number == 0xFD2FB528:
            self._next(self._frame, 1)
        elif number >> 4 == 0x184D2A5:
            self._next(self._skippable, 4)
        else:
            self._want = 0

    def _skippable(self, head: bytes) -> None:
        self._pass = int.from_bytes(head, "little")
        self._next(self._magic, 4)

    def _frame(self, head: bytes) -> None:
        self._descriptor = head[0]
        single = head[0] >> 5 & 1
        content = (single, 2, 4, 8)[head[0] >> 6]
        self._pass = (1 - single) + (0, 1, 2, 4)[head[0] & 3] + content
        self._next(self._block, 3)

    def _block(self, head: bytes) -> None:
        number = int.from_bytes(head, "little")
        self._blocks += 1
        self._pass = 1 if number >> 1 & 3 == 1 else number >> 3
        if number & 1:
            self._pass += 4 if self._descriptor >> 2 & 1 else 0
            self._next(self._magic, 4)


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...
