"""Byte-level BPE: what Piecemill trains, and every tokenizer.json that says no more than that.

Read as `ByteBPE`, a tokenizer offers its merges and the bytes of its tokens. A tokenizer.json that says more is
`NotPlain` and becomes a `TokenizerJson`; one that contradicts itself is a TokenizerError.
"""

import hashlib
import json
from binascii import b2a_base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from piecemill._core import __version__, bpe_body, bpe_parts, bpe_vocabulary
from piecemill.errors import PretokenizerError, TokenizerError
from piecemill.tokenizers.models import Declared, DecodeTable, Stored, find_id
from piecemill.tokenizers.models.byte_level import characters_of
from piecemill.tokenizers.models.config import (
    ALPHABET,
    DEFAULT_CONFIG,
    END_OF_TEXT,
    TOKENIZER_CONFIG,
    declared,
    has_alphabet,
    training_json,
    with_roles,
)
from piecemill.tokenizers.models.vocabulary import Vocabulary, check_special_tokens, checked_merges
from piecemill.tokenizers.models.writing import DIGITS, complete
from piecemill.tokenizers.pretokenizers import PATTERNS, Pattern, name_of

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "dropout": (None, 0, 0.0),
    "unk_token": (None,),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (None, False),
    "ignore_merges": (None, False),
}
"Values of a BPE model's settings that leave the ids alone. (fuse_unk has no effect without an unk_token.)"


class NotPlain(Exception):
    """Why a tokenizer.json is more than byte-level BPE."""


@dataclass(frozen=True, eq=False)
class ByteBPE(Stored):
    """A vocabulary and a pretokenizer."""

    vocabulary: Vocabulary
    pretokenizer: str
    pattern: Pattern | None
    training: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, bytes] = field(default_factory=dict)
    "tokenizer_config.json and the like, as they were where the tokenizer was loaded."
    post_processor: Any = None
    "Only read for whether it puts a bos before a text."

    kind = "byte-level BPE"
    exact = True
    home = "tokenizers"

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return self.vocabulary.special_tokens

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary.tokens)

    @property
    def declared(self) -> Declared:
        return declared(self.beside, self.special_tokens, self.post_processor)

    def identity(self) -> str:
        # Of the file we would write, so a tokenizer is the same before saving and after loading.
        return hashlib.sha256(self.tokenizer_json(self.special_tokens).encode()).hexdigest()

    def tokenizer_json(self, parse: Collection[str]) -> str:
        """A tokenizer.json that finds the special tokens in `parse` in texts, and no others."""
        return complete(self._body, {text: i for text, i in self.special_tokens.items() if text in parse}, self.pattern)

    def files(self) -> dict[str, bytes]:
        """tokenizer.json as we write it, the ranks, and the files that came with it."""
        record = {
            "piecemill": __version__,
            "pretokenizer": self.pretokenizer,
            "pattern": self.pattern,
            "vocab_size": self.vocab_size,
            **self.training,
        }
        return {
            "tokenizer.json": complete(self._body, self.special_tokens, self.pattern, self.post_processor).encode(),
            TOKENIZER_CONFIG: self.config(),
            "ranks.tiktoken": _ranks(self.vocabulary),
            "training.json": training_json(record),
            **self.beside,
        }

    def config(self) -> bytes:
        """tokenizer_config.json, as it came or as we write it."""
        roles = {"eos": END_OF_TEXT} if END_OF_TEXT in self.special_tokens else {}
        base = self.vocabulary.alphabet
        config = DEFAULT_CONFIG if len(base) == 256 else {**DEFAULT_CONFIG, ALPHABET: characters_of(base)}
        return self.beside.get(TOKENIZER_CONFIG) or with_roles(config, roles, self.special_tokens)

    def with_special(self, texts: Sequence[str]) -> "ByteBPE":
        vocabulary = self.vocabulary.with_special(texts)
        training = {**self.training, "vocab_size": len(vocabulary.tokens)}
        return replace(self, vocabulary=vocabulary, training=training if self.training else {})

    def id_of(self, token: str | bytes) -> int | None:
        return find_id(self.special_tokens, token, self.vocabulary.ids.get)

    def decode_table(self) -> DecodeTable:
        return DecodeTable(list(self.vocabulary.tokens))

    @cached_property
    def _body(self) -> str:
        # Kept: the identity, the files and the HF engine all need it, and it takes 50 ms for 50,257 tokens.
        special = {i: text for text, i in self.special_tokens.items()}
        return bpe_body(self.vocabulary.tokens, special, self.vocabulary.merges)


def byte_bpe(content: bytes, file: Path, *, training: Mapping[str, Any], beside: Mapping[str, bytes]) -> ByteBPE:
    """The byte-level BPE that a tokenizer.json, `content` of `file`, describes; else NotPlain."""
    if (parts := bpe_parts(content)) is None:
        raise NotPlain("no JSON object with a model")
    settings, vocab, merges = parts
    data = json.loads(settings)
    pretokenizer, pattern = pretokenizer_of(data.get("pre_tokenizer"))
    _check_settings(data)
    special = {added["content"]: added["id"] for added in data.get("added_tokens") or []}
    try:
        check_special_tokens(list(special))
    except TokenizerError as error:  # HF carries them out; we would not train such a vocabulary
        raise NotPlain(str(error)) from None
    try:
        found = bpe_vocabulary(vocab, merges, list(special.items()), has_alphabet(beside))
    except TokenizerError as error:
        raise TokenizerError(f"{file}: {error}") from None
    if found is None:
        raise NotPlain("ids, merges, tokens or special tokens of its vocabulary")
    tokens, pairs, ranked = found
    vocabulary = Vocabulary(tokens, checked_merges(pairs), special, ranked)
    return ByteBPE(vocabulary, pretokenizer, pattern, training, beside, data.get("post_processor"))


def merge_pairs(model: Mapping[str, Any]) -> list[list[str]]:
    """The merges of a tokenizer.json, in either of the two forms it may have."""
    return [merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges") or []]


def pretokenizer_of(pre_tokenizer: Any) -> tuple[str, Pattern | None]:
    """Name and pattern of the pretokenizer: any sequence of regexes and digits that ends in ByteLevel."""
    given = pre_tokenizer or {}
    steps = given.get("pretokenizers", []) if given.get("type") == "Sequence" else [given]
    patterns = [_step(step) for step in steps]
    # The last and no other: steps behind a ByteLevel get its characters in place of bytes, and spell or cut those.
    last_only = [False] * (len(steps) - 1) + [True]
    if [step.get("type") == "ByteLevel" for step in steps] != last_only or None in patterns:
        raise NotPlain(f"pre_tokenizer {json.dumps(pre_tokenizer)[:200]}")
    regexes = tuple(regex for regex in patterns if regex)
    pattern = regexes[0] if len(regexes) == 1 else regexes or None
    try:
        return name_of(pattern), pattern
    except PretokenizerError as error:  # HF may compile it: Oniguruma has another syntax
        raise NotPlain(str(error)) from None


def _step(step: dict[str, Any]) -> str | None:
    """The regex of one step; empty if it does not cut, None if it does more than a regex can express."""
    if step.get("type") == "ByteLevel" and not step.get("add_prefix_space", True):
        gpt2 = PATTERNS["gpt2"]
        return gpt2 if step.get("use_regex", True) and isinstance(gpt2, str) else ""
    if step.get("type") == "Digits":
        return next(regex for regex, each in DIGITS.items() if each == bool(step.get("individual_digits")))
    if step.get("type") == "Split" and step.get("behavior") == "Isolated" and not step.get("invert"):
        regex = step.get("pattern", {}).get("Regex")
        return regex if isinstance(regex, str) and regex else None
    return None


def _check_settings(data: dict[str, Any]) -> None:
    model = data.get("model") or {}
    if model.get("type") != "BPE":
        raise NotPlain(f"a model of type {model.get('type')!r}")
    for name, neutral in _NEUTRAL.items():
        if model.get(name) not in neutral:
            raise NotPlain(f"model.{name} is {model[name]!r}")
    if data.get("normalizer") is not None:
        raise NotPlain("a normalizer")
    added_tokens = data.get("added_tokens") or []
    for added in added_tokens:
        if not added.get("special") or added.get("lstrip") or added.get("rstrip") or added.get("single_word"):
            raise NotPlain(f"added token {added.get('content')!r}")
    if len({bool(added.get("normalized")) for added in added_tokens}) > 1:
        raise NotPlain("added tokens of which only some are normalized, so that HF looks for the others first")


def _ranks(vocabulary: Vocabulary) -> bytes:
    tokens = vocabulary.tokens
    lines = [b"%b %d" % (b2a_base64(tokens[i], newline=False), rank) for rank, i in enumerate(vocabulary.ranked)]
    return b"\n".join(lines) + b"\n"
