"""A SentencePiece `.model`: BPE or Unigram, kept as the file it came in.

sentencepiece never turns the text `<s>` into the control token, gigatoken's loading of the same file does. gigatoken is
therefore given a copy whose control pieces have names that no text contains; then both agree.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from piecemill.errors import TokenizerError
from piecemill.tokenizers import sentencepiece
from piecemill.tokenizers.config import declared
from piecemill.tokenizers.engine import Declared, Engine
from piecemill.tokenizers.gigatoken import GigatokenEngine, refusal
from piecemill.tokenizers.sentencepiece_file import PieceType, SentencePieceFile, read, without_control

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"What SentencePiece writes for a space."


@dataclass(frozen=True, eq=False)
class SentencePieceModel:
    """A `.model`, and the files beside it."""

    content: bytes
    file: Path
    "Where it came from, for messages."
    beside: Mapping[str, bytes] = field(default_factory=dict)

    home = "sentencepiece"
    engines = ("gigatoken", "sentencepiece")

    def __post_init__(self) -> None:
        try:
            _ = self._read
        except TokenizerError as error:
            raise TokenizerError(f"{self.file}: {error}") from error

    @cached_property
    def _read(self) -> SentencePieceFile:
        return read(self.content)

    @property
    def kind(self) -> str:
        return f"SentencePiece {self._read.model_type} model"

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        return {piece.text: i for i, piece in enumerate(self._read.pieces) if piece.type is PieceType.CONTROL}

    @property
    def vocab_size(self) -> int:
        return len(self._read.pieces)

    @property
    def declared(self) -> Declared:
        said = declared(self.beside, self.special_tokens)
        eos = said.eos or (self._read.eos if self._read.eos in self.special_tokens else None)
        bos = said.bos or (self._read.bos if self._read.bos in self.special_tokens else None)
        return Declared(eos, bos, said.adds_bos)

    def why_not(self, engine: str) -> str | None:
        if engine == "sentencepiece":
            return sentencepiece.missing()
        if self._read.model_type != "BPE":
            return f"gigatoken has no {self._read.model_type} models"
        if not self._read.byte_fallback:
            return "gigatoken has only BPE models with byte fallback"
        if self._read.normalizes:
            # Seen with gigatoken 0.10 and sentencepiece 0.2: with nmt_nfkc U+1E9B U+0323 is lost, and
            # remove_extra_whitespaces takes line ends for spaces.
            return "gigatoken does not change texts before encoding quite as this model does"
        if (made := self._makeable()) is not None:
            return f"gigatoken would merge the text {made!r} into the token of that name"
        return refusal(lambda: self._gigatoken(False))

    def start(self, engine: str, why: str) -> Engine:
        if engine == "sentencepiece":
            return sentencepiece.SentencePieceEngine(self.content, why)
        return GigatokenEngine(self._gigatoken, why)

    def parse_refused(self) -> str | None:
        return "sentencepiece has no way to find control tokens in a text"

    def identity(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def files(self) -> dict[str, bytes]:
        return {"tokenizer.model": self.content, **self.beside}

    def id_of(self, token: str | bytes) -> int | None:
        return self._ids.get(token) if isinstance(token, str) else None

    def decode(self, ids: NDArray[Any]) -> str:
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def decode_bytes(self, ids: NDArray[Any]) -> bytes:
        """As sentencepiece decodes: control tokens are nothing, and the space it put before the text goes."""
        given = ids.tolist()
        first = next((i for i in given if self._bytes[i]), None)
        whole = b"".join([self._bytes[i] for i in given])
        if first is None or not self._read.dummy_prefix or not self._read.pieces[first].text.startswith(_SPACE):
            return whole
        return whole[1:]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {piece.text: i for i, piece in enumerate(self._read.pieces)}

    @cached_property
    def _bytes(self) -> list[bytes]:
        surfaces = []
        for piece in self._read.pieces:
            if piece.type is PieceType.CONTROL:
                surfaces.append(b"")
            elif piece.type is PieceType.UNKNOWN:
                surfaces.append(self._read.unk_surface.encode())
            elif piece.type is PieceType.BYTE:
                surfaces.append(bytes([int(piece.text[3:5], 16)]))  # "<0x41>"
            else:
                surfaces.append(piece.text.replace(_SPACE, " ").encode())
        return surfaces

    def _makeable(self) -> str | None:
        """A piece that is no text, but that merging two pieces of text would spell."""
        texts = {piece.text for piece in self._read.pieces if piece.type in (PieceType.NORMAL, PieceType.USER_DEFINED)}
        for piece in self._read.pieces:
            if piece.type in (PieceType.BYTE, PieceType.UNKNOWN, PieceType.UNUSED):
                name = piece.text
                if any(name[:cut] in texts and name[cut:] in texts for cut in range(1, len(name))):
                    return name
        return None

    def _gigatoken(self, parse: bool) -> Any:
        import gigatoken

        return gigatoken.Tokenizer.from_sentencepiece(without_control(self.content))

    def __getstate__(self) -> dict[str, Any]:
        return {"content": self.content, "file": self.file, "beside": self.beside}
