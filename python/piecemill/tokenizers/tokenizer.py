"""`Tokenizer`: the public face of a vocabulary, a split and an engine."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from piecemill.errors import TokenizerError
from piecemill.tokenizers import gigatoken, hf
from piecemill.tokenizers.splits import pattern_of
from piecemill.tokenizers.vocabulary import Vocabulary

Special = Literal["plain", "parse"]


class Engine(Protocol):
    """A library that encodes. Texts come checked: `str` without surrogates, `bytes` of valid UTF-8."""

    name: str
    why: str

    def encode(self, text: str | bytes, *, parse: bool) -> NDArray[np.uint32]: ...

    def encode_batch(
        self, texts: Sequence[str | bytes], *, parse: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]: ...


class Tokenizer:
    """A byte-level BPE tokenizer: exact both ways for every valid UTF-8 text.

    Make one with `train_bpe`, `Tokenizer.from_merges` or `load_tokenizer`. The text of a special token inside a
    text is data and is encoded as such; `special="parse"` turns it into the token. (One exception, by the numbering
    that all libraries share: a vocabulary that learned exactly that string has one id for both.)
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        split: str,
        pattern: str | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._split = split
        self._pattern = pattern_of(split, pattern)
        self._training = dict(training or {})

    @classmethod
    def from_merges(
        cls,
        merges: NDArray[np.uint32],
        *,
        split: str,
        pattern: str | None = None,
        special_tokens: Sequence[str] = (),
        training: Mapping[str, Any] | None = None,
    ) -> "Tokenizer":
        """A tokenizer from `merges`, pairs of final ids: special tokens, 256 bytes, then what each merge makes.

        `pattern` is the regex of `split` where it is not the one this library knows by that name; `training` is
        any JSON record, kept and written as training.json.

        >>> tok = Tokenizer.from_merges(np.array([[64, 65]]), split="gpt2")
        >>> tok.vocab_size, tok.bytes_of(256), tok.decode(tok.encode("abba"))
        (257, b'ab', 'abba')
        """
        vocabulary = Vocabulary.from_merges(merges, special_tokens)
        return cls(vocabulary, split=split, pattern=pattern, training=training)

    def encode(self, text: str | bytes, *, special: Special = "plain") -> NDArray[np.uint32]:
        """The token ids of one text; `bytes` are taken as UTF-8."""
        _check_text(text, "text")
        return self.engine.encode(text, parse=_parse(special))

    def encode_batch(
        self, texts: Iterable[str | bytes], *, special: Special = "plain"
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The ids of all texts one after another, and where each text ends.

        Text i is `ids[ends[i - 1] : ends[i]]`, from 0 for the first; an empty text ends where it begins.
        """
        if isinstance(texts, str | bytes):
            raise TokenizerError("encode_batch: got one text; expected a list of texts. Use encode, or pass [text].")
        given = list(texts)
        for i, text in enumerate(given):
            _check_text(text, f"texts[{i}]")
        return self.engine.encode_batch(given, parse=_parse(special))

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes that `ids` stand for; a special token stands for its text."""
        given = np.asarray(ids)
        if given.size == 0:
            return b""
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise TokenizerError(
                f"decode: got an array of shape {given.shape} and type {given.dtype}; expected one row of token ids."
            )
        outside = (given < 0) | (given >= self.vocab_size)
        if outside.any():
            at = int(outside.argmax())
            raise TokenizerError(f"decode: ids[{at}] is {given[at]}; expected 0 to {self.vocab_size - 1:,}.")
        tokens = self._vocabulary.tokens
        return b"".join([tokens[i] for i in given.tolist()])

    def decode(self, ids: ArrayLike) -> str:
        """The text that `ids` stand for; where they cut a character in two, U+FFFD stands for the pieces."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def save(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write the tokenizer as a folder at `path`, whole or not at all; `force` replaces one saved there before."""
        from piecemill.tokenizers.saving import save

        save(self, path, force=force)

    @property
    def vocab_size(self) -> int:
        """How many ids there are, special tokens included."""
        return len(self._vocabulary.tokens)

    def id_of(self, token: str | bytes) -> int:
        """The id of a token; a TokenizerError if there is none.

        A `str` names the special token with that text, or else stands for its UTF-8. `bytes` are only ever
        ordinary bytes.
        """
        if isinstance(token, str) and token in self._vocabulary.special_tokens:
            return self._vocabulary.special_tokens[token]
        found = self._vocabulary.ids.get(token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token)
        if found is None:
            raise TokenizerError(
                f"{token!r} is not one of the {self.vocab_size:,} tokens; encode() splits it into some."
            )
        return found

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of one id; of a special token, its text in UTF-8."""
        if not 0 <= token_id < self.vocab_size:
            raise TokenizerError(f"id {token_id} does not exist; expected 0 to {self.vocab_size - 1:,}.")
        return self._vocabulary.tokens[token_id]

    @property
    def vocabulary(self) -> Vocabulary:
        """What the ids mean."""
        return self._vocabulary

    @property
    def merges(self) -> NDArray[np.uint32]:
        """Pairs of ids, best first; read-only."""
        return self._vocabulary.merges

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text and id of each special token."""
        return dict(self._vocabulary.special_tokens)

    @property
    def split(self) -> str:
        """What cuts a text before merging: "gpt2", "cl100k", "o200k", "none", or a regex."""
        return self._split

    @property
    def pattern(self) -> str | None:
        """The regex of the split; None for "none"."""
        return self._pattern

    @property
    def training(self) -> dict[str, Any]:
        """How it was trained, as training.json has it; empty if unknown."""
        return dict(self._training)

    @cached_property
    def engine(self) -> Engine:
        """The library that encodes: its `name`, and `why` it was chosen."""
        why_not = gigatoken.why_not(self._vocabulary, self._pattern)
        if why_not is None:
            return gigatoken.GigatokenEngine(self._vocabulary, self._pattern)
        return hf.HFEngine(self._vocabulary, self._pattern, why_not)

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        special = f", {len(self._vocabulary.special_tokens)} special" if self._vocabulary.special_tokens else ""
        return f"Tokenizer(split={self._split!r}, {self.vocab_size:,} tokens{special}, engine={self.engine.name})"

    def __getstate__(self) -> dict[str, Any]:
        # A worker process loads its own engine: gigatoken's and HF's hold threads and caches.
        return {name: value for name, value in self.__dict__.items() if name != "engine"}


def _parse(special: Special) -> bool:
    if special not in ("plain", "parse"):
        raise TokenizerError(f"special={special!r}: expected 'plain' (special tokens in a text are text) or 'parse'.")
    return special == "parse"


def _check_text(text: str | bytes, where: str) -> None:
    if not isinstance(text, str | bytes):
        raise TokenizerError(f"{where} is {type(text).__name__}; expected str or bytes.")
    if text.isascii():
        return
    try:
        _ = text.encode() if isinstance(text, str) else text.decode()
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        what = "character" if isinstance(text, str) else "byte"
        raise TokenizerError(
            f"{where}: {what} {error.start:,} is {text[error.start : error.start + 1]!r}: {error.reason}. "
            "Expected valid UTF-8; repair it first, for example with decode('utf-8', 'replace')."
        ) from None
