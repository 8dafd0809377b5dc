"""Byte-level BPE: what Piecemill trains, and every tokenizer.json that says no more than that.

For the split `none` gigatoken's byte-level loader has no answer: it always splits. Its SentencePiece loader does not,
but works on characters. So that loader is given a vocabulary in which byte b is the character U+00b, and the
text is passed as Latin-1 reads its UTF-8. ASCII text goes in as it is. The ids are those of byte-level BPE, and
for a megabyte of source code they come about 15 times sooner than from HF `tokenizers`.
"""

import hashlib
import json
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import __version__
from piecemill.errors import TokenizerError
from piecemill.tokenizers.config import END_OF_TEXT, declared
from piecemill.tokenizers.engine import Declared, Engine
from piecemill.tokenizers.gigatoken import SCHEMES, GigatokenEngine
from piecemill.tokenizers.hf import HFEngine
from piecemill.tokenizers.splits import Pattern, name_of
from piecemill.tokenizers.tokenizer_json import assemble, body, complete, pre_tokenizer
from piecemill.tokenizers.vocabulary import Vocabulary

_FALLBACKS = [f"<0x{byte:02X}>" for byte in range(256)]
"How SentencePiece vocabularies spell a byte."


@dataclass(frozen=True, eq=False)
class ByteBPE:
    """A vocabulary and a split."""

    vocabulary: Vocabulary
    split: str
    pattern: Pattern | None
    training: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, bytes] = field(default_factory=dict)
    "tokenizer_config.json and the like, where it was loaded with some; kept as they are."
    post_processor: Any = None
    "Only read for whether it puts a bos before a text."

    kind = "byte-level BPE"
    home = "tokenizers"
    engines = ("gigatoken", "tokenizers")

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return self.vocabulary.special_tokens

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary.tokens)

    @property
    def declared(self) -> Declared:
        return declared(self.beside, self.special_tokens, self.post_processor)

    def why_not(self, engine: str) -> str | None:
        """Only splits we compared count for gigatoken."""
        if engine == "tokenizers":
            return None
        vocabulary = self.vocabulary
        twice = next(
            (text for text, i in vocabulary.special_tokens.items() if vocabulary.ids.get(text.encode(), i) != i), None
        )
        if twice is not None:
            return f"gigatoken may take the learned token {twice!r} for the special token of the same text"
        if self.pattern is not None:
            return None if name_of(self.pattern) in SCHEMES else "gigatoken does not have this split"
        learned = next((name for name in _FALLBACKS if name.encode() in vocabulary.ids), None)
        return learned and f"gigatoken would take the learned token {learned!r} for a byte"

    def start(self, engine: str, why: str) -> Engine:
        if engine == "tokenizers":
            return HFEngine(lambda parse: self._written, why, pattern=self.pattern)
        return GigatokenEngine(self._gigatoken, why, latin=self.pattern is None)

    def parse_refused(self) -> str | None:
        return None

    def identity(self) -> str:
        # Of the file we would write, so a tokenizer is the same before saving and after loading.
        return hashlib.sha256(self._written.encode()).hexdigest()

    @cached_property
    def _body(self) -> str:
        # Kept: a run asks for it four times (its identity, its files, and two engines), 50 ms each for 50,257 tokens.
        return body(self.vocabulary.characters(), self.vocabulary)

    @property
    def _written(self) -> str:
        return complete(self._body, self.special_tokens, self.pattern)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_body"}

    def files(self) -> dict[str, bytes]:
        """tokenizer.json as we write it, the ranks, and what stood beside it."""
        record = {
            "piecemill": __version__,
            "split": self.split,
            "pattern": self.pattern,
            "vocab_size": self.vocab_size,
            **self.training,
        }
        try:
            training = json.dumps(record, ensure_ascii=False, indent=2, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TokenizerError(
                f"training record: {error}; expected only what JSON can hold (text, numbers, lists, objects)."
            ) from error
        return {
            "tokenizer.json": complete(self._body, self.special_tokens, self.pattern, self.post_processor).encode(),
            "tokenizer_config.json": _config(self.vocabulary).encode(),
            "ranks.tiktoken": _ranks(self.vocabulary),
            # A name that is not Unicode has lone surrogates, which UTF-8 has no room for and JSON's escapes have.
            "training.json": f"{training}\n".encode("utf-8", "backslashreplace"),
            **self.beside,
        }

    def id_of(self, token: str | bytes) -> int | None:
        if isinstance(token, str) and token in self.special_tokens:
            return self.special_tokens[token]
        return self.vocabulary.ids.get(token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token)

    def decode(self, ids: NDArray[Any]) -> str:
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def decode_bytes(self, ids: NDArray[np.integer[Any]]) -> bytes:
        tokens = self.vocabulary.tokens
        return b"".join([tokens[i] for i in ids.tolist()])

    def _gigatoken(self, parse: bool) -> Any:
        import gigatoken

        # Without added_tokens the text of a special token is text like any other.
        added = self.vocabulary.special_tokens if parse else {}
        if self.pattern is None:
            return gigatoken.Tokenizer.from_json(_whole_documents(self.vocabulary, added))
        return gigatoken.Tokenizer.from_json(
            assemble(self._body, added_tokens=added, pre_tokenizer=pre_tokenizer(self.pattern), decoder=None)
        )


def _whole_documents(vocabulary: Vocabulary, added_tokens: dict[str, int]) -> str:
    spelled = [token.decode("latin-1") for token in vocabulary.tokens]
    for i in vocabulary.special_tokens.values():
        # Reached through added_tokens only: in the vocabulary it could stand in the way of a learned token
        # with the same bytes (" the" the special token and " the" the word are two).
        if i not in vocabulary.reachable:
            spelled[i] = f"\N{REPLACEMENT CHARACTER}{i}"
    # The loader asks for these; every byte has a token, so none is ever used.
    spelled += _FALLBACKS
    latin = {text.encode().decode("latin-1"): i for text, i in added_tokens.items()}
    written = body(spelled, vocabulary)
    return assemble(written, added_tokens=latin, pre_tokenizer=None, decoder=None, byte_fallback=True)


def _config(vocabulary: Vocabulary) -> str:
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        # transformers' own word for "no limit": a tokenizer does not know the model's.
        "model_max_length": int(1e30),
    }
    if END_OF_TEXT in vocabulary.special_tokens:
        config["eos_token"] = END_OF_TEXT
    return json.dumps(config, indent=2) + "\n"


def _ranks(vocabulary: Vocabulary) -> bytes:
    tokens = vocabulary.tokens
    lines = [b"%b %d" % (b2a_base64(tokens[i], newline=False), rank) for rank, i in enumerate(vocabulary.ranked)]
    return b"\n".join(lines) + b"\n"
