"""Models: what a tokenizer is, as data.

One class per kind of file: `ByteBPE` (what Piecemill trains, and every tokenizer.json that says no more than that),
`TokenizerJson` (any other tokenizer.json), `Ranks` (.tiktoken), `SentencePiece` (.model) and `IntegerBPE`
(integers.json). A model holds plain
data, can be pickled, and knows its files, its special tokens and what each id decodes to. It does not encode: engines
do, and they read what they need from the model.

Start with `Model`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from piecemill.tokenizers.models.byte_bpe import ByteBPE
    from piecemill.tokenizers.models.integers import IntegerBPE
    from piecemill.tokenizers.models.sentencepiece import SentencePiece
    from piecemill.tokenizers.models.tokenizer_json import TokenizerJson


@dataclass(frozen=True)
class Declared:
    """What a tokenizer's own files say about the start and the end of a text."""

    eos: str | None = None
    bos: str | None = None
    adds_bos: bool = False
    "Whether the home library itself puts the bos before every text."


@dataclass(frozen=True)
class DecodeTable:
    """Ids to bytes, where decoding is one lookup per id."""

    tokens: list[bytes | None]
    "The bytes of each id; None for an id that does not exist."
    first: list[bytes | None] | None = None
    "What the first id that has any bytes gives instead."
    errors: str = "replace"
    "Error handler of `bytes.decode` for bytes that are not UTF-8, or `home`: then the home library decodes."
    rows: bool = True
    "Whether a row is the bytes of its ids one after another; else the home library decodes rows."


class Model(Protocol):
    """One kind of tokenizer."""

    @property
    def kind(self) -> str:
        """What it is, in words."""

    @property
    def home(self) -> str:
        """The engine whose ids are right by definition."""

    @property
    def special_tokens(self) -> Mapping[str, int]: ...

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def exact(self) -> bool:
        """Whether every text decodes to the same bytes."""

    @property
    def declared(self) -> Declared: ...

    def parse_refused(self) -> str | None:
        """Why the text of a special token cannot be turned into the token; None if it can."""

    def identity(self) -> str:
        """A SHA-256 of everything that decides the ids."""

    def files(self) -> dict[str, bytes]:
        """The files of the saved tokenizer, by name."""

    def with_special(self, texts: Sequence[str]) -> "ByteBPE | IntegerBPE | SentencePiece | TokenizerJson":
        """The same with special tokens for `texts`, none of which is one: after the last id, or that of such a token.

        It also has a place for files beside it, which say what special tokens are for.
        """

    def id_of(self, token: str | bytes) -> int | None: ...

    def decode_table(self) -> DecodeTable | None:
        """What each id decodes to; None where only the home library can decode exactly."""


class Stored:
    """What models share, each a dataclass: its fields are pickled, and nothing that was computed from them."""

    def parse_refused(self) -> str | None:
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type] # a dataclass


def find_id(special_tokens: Mapping[str, int], token: str | bytes, ids: Callable[[bytes], int | None]) -> int | None:
    """The id of a special token by its text, or of another token by its bytes, which `ids` knows."""
    if isinstance(token, str):
        if token in special_tokens:
            return special_tokens[token]
        token = token.encode("utf-8", "surrogatepass")
    found = ids(token)
    return special_by_bytes(special_tokens, token) if found is None else found


def special_by_bytes(special_tokens: Mapping[str, int], token: bytes) -> int | None:
    """The id of the special token whose text is `token` in UTF-8."""
    return next((i for text, i in special_tokens.items() if text.encode() == token), None)
