"""A SentencePiece `.model`, BPE or Unigram, kept as the file it came in and read without the library.

The file is a protobuf message of pieces and two specifications. Only the fields needed here are named; all others are
skipped.
"""

import hashlib
import struct
from codecs import register_error
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from pathlib import Path

from piecemill.errors import TokenizerError
from piecemill.tokenizers.models import Declared, DecodeTable, Stored, special_by_bytes
from piecemill.tokenizers.models.config import declared
from piecemill.tokenizers.models.vocabulary import check_special_tokens

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"What SentencePiece writes for a space."

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_MODEL_TYPE, _SPACE_AS_SUFFIX, _BYTE_FALLBACK, _UNK_SURFACE, _BOS, _EOS = 3, 24, 35, 44, 46, 47
_CHARSMAP, _DUMMY_PREFIX, _EXTRA_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5
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
class VocabularyPiece:
    """One entry of the vocabulary; its id is its place."""

    text: str
    score: float
    type: PieceType


@dataclass(frozen=True)
class SentencePieceFile:
    """What a `.model` says."""

    pieces: list[VocabularyPiece]
    model_type: str
    byte_fallback: bool
    bos: str
    eos: str
    unk_surface: str
    dummy_prefix: bool
    charsmap: bool
    "Whether characters are replaced before encoding (nmt_nfkc and the like)."
    extra_spaces: bool
    "Whether extra spaces are removed before encoding."
    plain_spaces: bool
    "Whether a space is written as U+2581 at the start of a word, as in nearly every model."


@dataclass(frozen=True, eq=False)
class SentencePiece(Stored):
    """A `.model`, and the files beside it."""

    content: bytes
    file: Path
    "Where it came from, for messages."
    beside: Mapping[str, bytes] = field(default_factory=dict)

    home = "sentencepiece"
    exact = False  # it normalizes, and replaces spaces by another character

    def __post_init__(self) -> None:
        try:
            _ = self.read
        except TokenizerError as error:
            raise TokenizerError(f"{self.file}: {error}") from error

    @cached_property
    def read(self) -> SentencePieceFile:
        """The file, parsed."""
        return read(self.content)

    @property
    def kind(self) -> str:
        return f"SentencePiece {self.read.model_type} model"

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        return {piece.text: i for i, piece in enumerate(self.read.pieces) if piece.type is PieceType.CONTROL}

    @property
    def vocab_size(self) -> int:
        return len(self.read.pieces)

    @property
    def declared(self) -> Declared:
        beside = declared(self.beside, self.special_tokens)
        eos = beside.eos or (self.read.eos if self.read.eos in self.special_tokens else None)
        bos = beside.bos or (self.read.bos if self.read.bos in self.special_tokens else None)
        return Declared(eos, bos, beside.adds_bos)

    def parse_refused(self) -> str | None:
        return "sentencepiece has no way to find control tokens in a text"

    def identity(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def files(self) -> dict[str, bytes]:
        return {**self.beside, "tokenizer.model": self.content}

    def with_special(self, texts: Sequence[str]) -> "SentencePiece":
        """With control pieces for `texts` at the end: fields of a message that repeat may stand anywhere in it."""
        check_special_tokens(texts)
        for text in texts:
            if text in self._ids:
                raise TokenizerError(
                    f"{self.file}: {text!r} is a piece already, and no control piece (id {self._ids[text]}): a .model "
                    "cannot make it special. Choose another text, or edit a tokenizer.json of this tokenizer."
                )
        return replace(self, content=self.content + b"".join(map(_control_piece, texts)))

    def id_of(self, token: str | bytes) -> int | None:
        if isinstance(token, bytes):
            return special_by_bytes(self.special_tokens, token)
        return self._ids.get(token)

    def decode_table(self) -> DecodeTable:
        """As sentencepiece decodes: control tokens are nothing, and the space it put before the text is removed.

        A model that removes extra spaces takes one off each piece until one has text: no table gives that.
        """
        tokens: list[bytes | None] = [self._surface(piece) for piece in self.read.pieces]
        if self.read.extra_spaces:
            return DecodeTable(tokens, rows=False)
        if not self.read.dummy_prefix:
            return DecodeTable(tokens, errors=_EACH_BYTE)
        first = [
            token[1:] if token and piece.text.startswith(SPACE) else token
            for token, piece in zip(tokens, self.read.pieces, strict=True)
        ]
        return DecodeTable(tokens, first, errors=_EACH_BYTE)

    def _surface(self, piece: VocabularyPiece) -> bytes:
        if piece.type is PieceType.CONTROL:
            return b""
        if piece.type is PieceType.UNKNOWN:
            return self.read.unk_surface.encode()
        if piece.type is PieceType.BYTE:
            return bytes([int(piece.text[3:5], 16)])  # "<0x41>"
        return piece.text.replace(SPACE, " ").encode()

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {piece.text: i for i, piece in enumerate(self.read.pieces)}


_EACH_BYTE = "piecemill.each_byte"
"Error handler: a U+FFFD for every byte that is not UTF-8, as sentencepiece decodes; Python's own gives fewer."


def _each_byte(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


register_error(_EACH_BYTE, _each_byte)


def read(content: bytes) -> SentencePieceFile:
    """The parts of a `.model` file that say what its ids mean."""
    pieces: list[VocabularyPiece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    try:
        for number, value in _fields(content):
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
        bool(normalizer.get(_CHARSMAP, b"")),
        bool(normalizer.get(_EXTRA_SPACES, 1)),
        bool(normalizer.get(_ESCAPE_SPACES, 1)) and not trainer.get(_SPACE_AS_SUFFIX, 0),
    )


def _piece(fields: dict[int, int | bytes]) -> VocabularyPiece:
    score = fields.get(2, b"\0\0\0\0")
    if isinstance(score, int):
        raise ValueError("a score that is not a float")
    return VocabularyPiece(_text(fields.get(1, b"")), struct.unpack("<f", score)[0], PieceType(int(fields.get(3, 1))))


def _control_piece(text: str) -> bytes:
    """A field with a control piece of score 0."""

    def part(number: int, data: bytes) -> bytes:
        size, left = b"", len(data)
        while left > 0x7F:
            size, left = size + bytes([left & 0x7F | 0x80]), left >> 7
        return bytes([number << 3 | _BYTES]) + size + bytes([left]) + data

    score, kind = bytes([2 << 3 | _FIXED32, 0, 0, 0, 0]), bytes([3 << 3 | _VARINT, PieceType.CONTROL])
    return part(_PIECES, part(1, text.encode()) + score + kind)


def _text(value: int | bytes) -> str:
    if isinstance(value, int):
        raise ValueError("a number where text was expected")
    return value.decode()


def _message(value: int | bytes) -> dict[int, int | bytes]:
    if isinstance(value, int):
        raise ValueError("a number where a message was expected")
    return dict(_fields(value))


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protobuf message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32, _BYTES):
            length = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
            if kind == _BYTES:
                length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
            if at > len(message):
                raise ValueError("it ends inside a field")
        else:
            raise ValueError(f"field of wire type {kind}")
        yield key >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
