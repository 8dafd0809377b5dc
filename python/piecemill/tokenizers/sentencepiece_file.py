"""The `.model` file of SentencePiece, read without the library: a protobuf message of pieces and two specifications.

Only the fields that are needed here are named; all others are passed over, and kept when a file is rewritten.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from piecemill.errors import TokenizerError

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_MODEL_TYPE, _BYTE_FALLBACK, _UNK_SURFACE, _BOS, _EOS = 3, 35, 44, 46, 47
_CHARSMAP, _DUMMY_PREFIX, _EXTRA_SPACES = 2, 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NAMES = {1: "Unigram", 2: "BPE", 3: "word", 4: "character"}


class PieceType(IntEnum):
    """What a piece is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; its id is its place."""

    text: str
    score: float
    type: PieceType


@dataclass(frozen=True)
class SentencePieceFile:
    """What a `.model` says."""

    pieces: list[Piece]
    model_type: str
    byte_fallback: bool
    bos: str
    eos: str
    unk_surface: str
    dummy_prefix: bool
    normalizes: bool
    "Whether it changes texts before encoding: characters replaced (nmt_nfkc and the like), or spaces taken away."


def read(content: bytes) -> SentencePieceFile:
    """The parts of a `.model` file that say what its ids mean."""
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    try:
        for number, value, _ in _fields(content):
            if number == _PIECES:
                pieces.append(_piece(_message(value)))
            elif number == _TRAINER:
                trainer = _message(value)
            elif number == _NORMALIZER:
                normalizer = _message(value)
    except (IndexError, ValueError, TypeError, struct.error) as error:
        raise TokenizerError(f"not a SentencePiece model ({error}); expected a .model file.") from error
    if not pieces:
        raise TokenizerError("not a SentencePiece model: it has no pieces; expected a .model file.")
    return SentencePieceFile(
        pieces,
        _NAMES.get(int(trainer.get(_MODEL_TYPE, 1)), "unknown"),
        bool(trainer.get(_BYTE_FALLBACK, 0)),
        _text(trainer.get(_BOS, b"<s>")),
        _text(trainer.get(_EOS, b"</s>")),
        _text(trainer.get(_UNK_SURFACE, " \N{DOUBLE QUESTION MARK} ".encode())),
        bool(normalizer.get(_DUMMY_PREFIX, 1)),
        bool(normalizer.get(_CHARSMAP, b"") or normalizer.get(_EXTRA_SPACES, 1)),
    )


def without_control(content: bytes) -> bytes:
    """The same model with every control piece renamed to a string that no text and no merge can make.

    SentencePiece itself never finds a control piece in a text. A loader that does is so kept from it; the ids stay.
    """
    parts = []
    for i, (number, value, raw) in enumerate(_fields(content)):
        if number == _PIECES and (piece := _piece(_message(value))).type is PieceType.CONTROL:
            # U+0000 twice and a number: single pieces of U+0000 would be needed to merge it, and there are none.
            name = f"\0\0{i}".encode()
            message = b"\x0a%b%b\x15%b" % (_varint(len(name)), name, struct.pack("<f", piece.score))
            raw = b"\x0a%b%b" % (_varint(len(message)), message)
        parts.append(raw)
    return b"".join(parts)


def _piece(fields: dict[int, int | bytes]) -> Piece:
    score = fields.get(2, b"\0\0\0\0")
    if isinstance(score, int):
        raise ValueError("a score that is no float")
    return Piece(_text(fields.get(1, b"")), struct.unpack("<f", score)[0], PieceType(int(fields.get(3, 1))))


def _text(value: int | bytes) -> str:
    if isinstance(value, int):
        raise ValueError("a number where text was expected")
    return value.decode()


def _message(value: int | bytes) -> dict[int, int | bytes]:
    if isinstance(value, int):
        raise ValueError("a number where a message was expected")
    return {number: inner for number, inner, _ in _fields(value)}


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Number, value and raw bytes of each field of a protobuf message."""
    at = 0
    while at < len(message):
        start = at
        key, at = _read_varint(message, at)
        kind = key & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _read_varint(message, at)
        elif kind in (_FIXED64, _FIXED32, _BYTES):
            length = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
            if kind == _BYTES:
                length, at = _read_varint(message, at)
            value, at = message[at : at + length], at + length
            if at > len(message):
                raise ValueError("it ends inside a field")
        else:
            raise ValueError(f"field of wire type {kind}")
        yield key >> 3, value, message[start:at]


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
