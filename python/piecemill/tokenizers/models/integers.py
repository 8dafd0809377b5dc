"""BPE over integers: codes of audio, images or actions, or any other sequence of whole numbers.

Ids are special tokens, then the distinct integers in ascending order, then what each merge makes. No other library has
such a tokenizer, so it is saved in a separate file, integers.json. (A tokenizer.json with a character for each
integer would load elsewhere, but encode texts there that no one has.)
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import __version__
from piecemill.errors import TokenizerError
from piecemill.integers import LIMIT, text_of, values_of
from piecemill.tokenizers.models import Declared, DecodeTable, Stored, find_id
from piecemill.tokenizers.models.config import declared, training_json
from piecemill.tokenizers.models.vocabulary import check_special_tokens, checked_merges

FILE = "integers.json"
_FORMAT = "piecemill integers 1"


@dataclass(frozen=True, eq=False)
class IntegerBPE(Stored):
    """Integers and merges."""

    values: NDArray[np.int64]
    "The integers, in ascending order."
    merges: NDArray[np.uint32]
    "Pairs of ids, best first; shape (n, 2)."
    first: Sequence[str]
    "Special tokens with the first ids."
    more: Sequence[str] = ()
    "Special tokens with the last ids."
    training: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, bytes] = field(default_factory=dict)

    kind = "BPE over integers"
    exact = True
    home = "piecemill"

    @cached_property
    def tokens(self) -> list[bytes]:
        """The text of each id: its integers, each with a space after it; of a special token, its text."""
        tokens = [text.encode() for text in self.first] + [b"%d " % value for value in self.values.tolist()]
        for row, (left, right) in enumerate(self.merges.tolist()):
            if max(left, right) >= len(tokens) or min(left, right) < len(self.first):
                raise TokenizerError(f"merges[{row}] = ({left}, {right}): expected ids of integers or earlier merges.")
            tokens.append(tokens[left] + tokens[right])
        return tokens + [text.encode() for text in self.more]

    @property
    def special_tokens(self) -> Mapping[str, int]:
        start = len(self.first) + len(self.values) + len(self.merges)
        return {text: i for i, text in enumerate(self.first)} | {text: start + i for i, text in enumerate(self.more)}

    @property
    def vocab_size(self) -> int:
        return len(self.first) + len(self.values) + len(self.merges) + len(self.more)

    @property
    def declared(self) -> Declared:
        return declared(self.beside, self.special_tokens)

    def parse_refused(self) -> str | None:
        return "its documents are integers, in which no text can stand"

    def identity(self) -> str:
        return hashlib.sha256(self._content).hexdigest()

    @cached_property
    def _content(self) -> bytes:
        said = {
            "format": _FORMAT,
            "special_tokens": list(self.first),
            "integers": self.values.tolist(),
            "merges": self.merges.tolist(),
            "more_special_tokens": list(self.more),
        }
        return (json.dumps(said, ensure_ascii=False, separators=(",", ":")) + "\n").encode()

    def files(self) -> dict[str, bytes]:
        """integers.json, the training record, and the files that came with it."""
        record = {"piecemill": __version__, "vocab_size": self.vocab_size, **self.training}
        return {FILE: self._content, "training.json": training_json(record), **self.beside}

    def with_special(self, texts: Sequence[str]) -> "IntegerBPE":
        check_special_tokens([*self.first, *self.more, *texts])
        made = replace(self, more=[*self.more, *texts])
        return replace(made, training={**self.training, "vocab_size": made.vocab_size} if self.training else {})

    def id_of(self, token: str | bytes) -> int | None:
        def ordinary(token: bytes) -> int | None:
            values = values_of(token)
            return None if values is None or not len(values) else self._ids.get(text_of(values))

        return find_id(self.special_tokens, token, ordinary)

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        special = frozenset(self.special_tokens.values())
        return {token: i for i, token in enumerate(self.tokens) if i not in special}

    def decode_table(self) -> DecodeTable:
        return DecodeTable(list(self.tokens))


def read_integers_json(data: Mapping[str, Any], file: Path, training: Mapping[str, Any], beside: Any) -> IntegerBPE:
    """The model that integers.json, `data` read from `file`, describes."""
    if data.get("format") != _FORMAT:
        raise TokenizerError(f"{file}: in format {data.get('format')!r}; expected {_FORMAT!r}.")
    values = np.array(data["integers"], np.int64)
    if values.ndim != 1 or (np.diff(values) <= 0).any() or not 0 < len(values) <= LIMIT:
        raise TokenizerError(f"{file}: expected 1 to {LIMIT:,} different integers in ascending order.")
    special = data["special_tokens"], data["more_special_tokens"]
    check_special_tokens([*special[0], *special[1]])
    model = IntegerBPE(values, checked_merges(np.array(data["merges"])), *special, training, beside)
    _ = model.tokens  # so that a merge of something else is an error now
    return model
