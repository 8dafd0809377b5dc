"""A tokenizer.json of any kind: WordPiece, Unigram, BPE with a normalizer, byte fallback or a custom pre-tokenizer.

The file is kept as it is. Where special tokens are text, HF `tokenizers` gets a copy in which they have names that no
text contains. Taking them out of `added_tokens` is not enough: Unigram, WordPiece and WordLevel find any entry of the
vocabulary in a text, `<s>` too.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from piecemill.errors import TokenizerError
from piecemill.tokenizers.malformed import BROKEN, check_ids, malformed
from piecemill.tokenizers.models import Declared, DecodeTable, Stored, special_by_bytes
from piecemill.tokenizers.models.byte_bpe import merge_pairs
from piecemill.tokenizers.models.byte_level import CHARACTERS, bytes_of, characters_of
from piecemill.tokenizers.models.config import declared
from piecemill.tokenizers.models.vocabulary import check_special_tokens
from piecemill.tokenizers.models.writing import added_token

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"What SentencePiece vocabularies write for a space."

BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
"How a vocabulary with byte fallback spells the token of each byte."

_KEEP_ASCII = ("NFC", "NFD", "NFKC", "NFKD", "StripAccents")
"Normalizers that leave ASCII and U+2581 as they are."

_LLAMA = ["Replace", "ByteFallback", "Fuse"]
_CLEANUP = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip
"What the `cleanup` of HF's WordPiece decoder replaces in each token, in this order."


@dataclass(frozen=True, eq=False)
class TokenizerJson(Stored):
    """A tokenizer.json, and the files beside it."""

    content: bytes
    file: Path
    "Where it came from, for messages."
    beside: Mapping[str, bytes] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    "How it was trained, if that is known."

    home = "tokenizers"

    def __post_init__(self) -> None:
        model = self.data.get("model")
        if not isinstance(model, dict):
            raise TokenizerError(f"{self.file}: it has no model; expected a tokenizer.json of HF tokenizers.")
        if model.get("dropout"):
            raise TokenizerError(
                f"{self.file}: model.dropout is {model['dropout']!r}, so its ids are random; expected null. "
                "Set it to null in a copy of the file: dropout belongs to a training loop."
            )
        try:
            check_ids(self.file, self.vocab)
            _ = self.vocab_size, self.special_tokens
            _refuse_cut_letters(self.file, model)
        except BROKEN as error:
            raise TokenizerError(
                f"{self.file}: its vocabulary or added tokens cannot be read ({error!r}); expected a tokenizer.json of "
                "HF tokenizers."
            ) from error

    @cached_property
    def data(self) -> dict[str, Any]:
        """The file, parsed."""
        data: dict[str, Any] = json.loads(self.content)
        return data

    @property
    def kind(self) -> str:
        # Files from before 2020 do not name the type; HF infers it from the fields.
        return f"tokenizer.json ({self.data['model'].get('type', 'model without a type')})"

    @property
    def added_tokens(self) -> list[dict[str, Any]]:
        """The added tokens as the file lists them, special or not."""
        return self.data.get("added_tokens") or []

    @cached_property
    def vocab(self) -> Mapping[str, int]:
        """Spelling and id of each entry of the model's vocabulary."""
        vocab = self.data["model"].get("vocab") or {}
        return vocab if isinstance(vocab, dict) else {text: i for i, (text, _) in enumerate(vocab)}

    @cached_property
    def added_ids(self) -> Mapping[str, int]:
        """Text and id of each added token."""
        return added_ids(self.vocab, [one["content"] for one in self.added_tokens])

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        return {
            one["content"]: self.added_ids[one["content"]]
            for one in self.added_tokens
            if one.get("special") and one["content"]
        }

    @cached_property
    def vocab_size(self) -> int:
        return max((*self.vocab.values(), *self.added_ids.values()), default=-1) + 1

    @cached_property
    def exact(self) -> bool:
        """True only where every part of the file keeps all bytes."""
        with malformed(self.file):
            return self._keeps_all_bytes()

    def _keeps_all_bytes(self) -> bool:
        steps = self.data.get("pre_tokenizer") or {}
        steps = steps.get("pretokenizers", [steps])
        kept = all(
            step.get("type") in ("ByteLevel", "Split", "Digits")
            and not step.get("add_prefix_space", False)
            and step.get("behavior") != "Removed"
            for step in steps
        )
        kept &= [step.get("type") == "ByteLevel" for step in steps] == [False] * (len(steps) - 1) + [True]
        plain = not any(one.get("lstrip") or one.get("rstrip") for one in self.added_tokens)
        plain &= not any(self.data["model"].get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix"))
        whole = all(character in self.vocab for character in CHARACTERS)
        whole &= len({*self.vocab.values(), *self.added_ids.values()}) == len({*self.vocab, *self.added_ids})
        # An added token "é" decodes to those two bytes, also where byte 0xE9, which is spelled so, was encoded as it.
        whole &= all(bytes_of(text) in (None, text.encode()) for text in self.added_ids if text in self.vocab)
        return self.byte_level and self.data.get("normalizer") is None and kept and plain and whole

    @property
    def declared(self) -> Declared:
        return declared(self.beside, self.special_tokens, self.data.get("post_processor"))

    def identity(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def files(self) -> dict[str, bytes]:
        record = f"{json.dumps(self.training, indent=2)}\n".encode()
        return {**self.beside, "tokenizer.json": self.content, **({"training.json": record} if self.training else {})}

    def tokenizer_json(self, parse: Collection[str]) -> str:
        """A tokenizer.json that finds the special tokens in `parse` in texts, and no others."""
        hidden = [text for text in self.special_tokens if text not in parse]
        if not hidden:
            return self.content.decode()
        return json.dumps(self.data | _hide(self.data["model"], self.added_tokens, hidden), ensure_ascii=False)

    def with_special(self, texts: Sequence[str]) -> "TokenizerJson":
        check_special_tokens(texts)
        model, vocab, ids = self.data["model"], self.vocab, dict(self.added_ids)
        for text in texts:
            ids.setdefault(text, vocab.get(text, max([self.vocab_size - 1, *ids.values()]) + 1))
        if added_ids(vocab, ids) != ids:  # with gaps between ids HF would take one that is in use, if it were not said
            vocab = {**vocab, **{text: ids[text] for text in texts}}
            model = {**model, "vocab": vocab}
        if added_ids(vocab, ids) != ids:
            raise TokenizerError(
                f"{self.file}: HF tokenizers numbers its added tokens otherwise than from {self.vocab_size:,} on, so "
                "that none can follow. Save it with HF tokenizers first, which gives every token the id it has there."
            )
        added = [one | {"special": True} if one["content"] in texts else one for one in self.added_tokens]
        added += [added_token(text, ids[text]) for text in texts if text not in self.added_ids]
        data = json.dumps(self.data | {"added_tokens": added, "model": model}, ensure_ascii=False)
        return replace(self, content=data.encode("utf-8", "backslashreplace"))

    def id_of(self, token: str | bytes) -> int | None:
        if isinstance(token, str):
            found = self.added_ids.get(token, self.vocab.get(token))
            if found is None and self.byte_level:
                found = self.vocab.get(characters_of(token.encode("utf-8", "surrogatepass")))
            return found
        found = self.vocab.get(characters_of(token)) if self.byte_level else None
        return special_by_bytes(self.special_tokens, token) if found is None else found

    @property
    def byte_level(self) -> bool:
        """Whether its tokens are spelled in the byte alphabet."""
        return (self.data.get("decoder") or {}).get("type") == "ByteLevel"

    def decode_table(self) -> DecodeTable | None:
        with malformed(self.file):
            return self._decode_table()

    def _decode_table(self) -> DecodeTable | None:
        decoder = self.data.get("decoder") or {"type": None}
        spelled: list[str | None] = [None] * self.vocab_size
        for text, i in self.vocab.items():
            spelled[i] = text
        listed = {one["content"]: one for one in reversed(self.added_tokens)}  # HF takes the first of two
        for text, i in self.added_ids.items():
            normalizer = self.data.get("normalizer") if listed[text].get("normalized") else None
            spelled[i] = _normalized(text, normalizer)
            if not spelled[i]:
                return None
        if "" in spelled:
            return None
        kind = decoder.get("type")
        if kind == "ByteLevel":
            # An added token is text, as HF 1.0 decodes it; 0.2x reads "é" as a byte even there.
            added = {spelled[i] for i in self.added_ids.values()}
            return DecodeTable(
                _each(spelled, lambda text: (None if text in added else bytes_of(text)) or text.encode())
            )
        if kind is None:  # HF puts spaces between the tokens
            return DecodeTable(_each(spelled, lambda text: b" " + text.encode()), _each(spelled, str.encode))
        if kind == "WordPiece":
            return _word_piece(spelled, decoder)
        if kind == "Metaspace":
            return _metaspace(spelled, decoder)
        if kind == "Sequence":
            return _llama(spelled, decoder.get("decoders") or [])
        return None


def _refuse_cut_letters(file: Path, model: Mapping[str, Any]) -> None:
    """TokenizerError for merges on which HF 0.2x ends the process: it cuts the prefix off the second by bytes."""
    prefix = model.get("continuing_subword_prefix")
    if model.get("type") not in (None, "BPE") or not isinstance(prefix, str) or not prefix:
        return
    for _, right in merge_pairs(model):
        data = right.encode()
        if len(data) < len(prefix) or (len(data) > len(prefix) and data[len(prefix)] & 0xC0 == 0x80):
            raise TokenizerError(
                f"{file}: the merge with {right!r:.40} has no room for continuing_subword_prefix {prefix!r:.40}; "
                "expected the prefix before the second token of every merge."
            )


def added_ids(vocab: Mapping[str, int], added: Iterable[str]) -> dict[str, int]:
    """The id of each added token, as HF numbers them: that of the vocabulary, else the next free one.

    HF does not always keep the id that the file gives.
    """
    ids: dict[str, int] = {}
    highest = len(vocab) - 1
    for text in added:
        if text and text not in ids:
            found = vocab.get(text)
            ids[text] = highest + 1 if found is None else found
            highest = max(highest, ids[text])
    return ids


def _hide(model: dict[str, Any], added: list[dict[str, Any]], hidden: list[str]) -> dict[str, Any]:
    """The model and the added tokens with the `hidden` ones renamed to strings that no text contains.

    Renamed, not removed: HF numbers the added tokens that are not in the vocabulary one after another.
    """
    vocab, unknown = model.get("vocab"), model.get("unk_token")
    ordinary: set[str] = set()
    if model.get("type") == "BPE":
        # Single characters and what merges join are ordinary text as well as special, and must keep their names.
        ordinary |= {text for text in vocab or () if len(text) == 1}
        ordinary.update(*((left, right, left + right) for left, right in merge_pairs(model)))
    if model.get("byte_fallback"):  # characters without a token become these, special or not
        ordinary |= set(BYTE_TOKENS) & {*(vocab if isinstance(vocab, dict) else (text for text, _ in vocab or ()))}
    # Byte 0xFF as ByteLevel spells it, which UTF-8 never contains, and two noncharacters for models that read
    # characters.
    names = {text: f"ÿ\uffff{i}\ufffe" for i, text in enumerate(hidden) if text not in ordinary}
    if isinstance(vocab, dict):
        changed: Any = {names.get(text, text): i for text, i in vocab.items()}
    else:
        changed = [[names.get(text, text), score] for text, score in vocab or []]
    renamed = {"vocab": changed} | ({} if unknown is None else {"unk_token": names.get(unknown, unknown)})
    out = set(hidden) - names.keys()
    return {
        "model": {**model, **renamed},
        "added_tokens": [
            {**one, "content": names.get(one["content"], one["content"])} for one in added if one["content"] not in out
        ],
    }


# Decoders of HF as tables: each gives a token the same bytes wherever it stands, the first token aside.


def _normalized(text: str | None, step: Any) -> str | None:
    """An added token as HF decodes it, after this step of the normalizer; None where only HF can say."""
    if not step or text is None:
        return text
    kind, pattern = step.get("type"), (step.get("pattern") or {}).get("String")
    if kind == "Sequence":
        for one in step.get("normalizers") or []:
            text = _normalized(text, one)
        return text
    if not text.replace(_SPACE, "").isascii():
        return None
    if kind in _KEEP_ASCII:
        return text
    if kind == "Lowercase":
        return text.lower()
    if kind == "Prepend":
        return f"{step['prepend']}{text}"
    return text.replace(pattern, step["content"]) if kind == "Replace" and pattern else None


def _each(spelled: list[str | None], to_bytes: Any) -> list[bytes | None]:
    return [None if text is None else to_bytes(text) for text in spelled]


def _word_piece(spelled: list[str | None], decoder: Mapping[str, Any]) -> DecodeTable | None:
    prefix, cleanup = decoder.get("prefix", "##"), decoder.get("cleanup", True)

    def cleaned(text: str) -> bytes:
        for old, new in _CLEANUP if cleanup else ():
            text = text.replace(old, new)
        return text.encode()

    def later(text: str) -> bytes:
        return cleaned(text[len(prefix) :] if text.startswith(prefix) else f" {text}")

    tokens = _each(spelled, later)
    return None if b"" in tokens else DecodeTable(tokens, _each(spelled, cleaned))


def _metaspace(spelled: list[str | None], decoder: Mapping[str, Any]) -> DecodeTable:
    space = decoder.get("replacement", _SPACE)
    tokens = _each(spelled, lambda text: text.replace(space, " ").encode())
    if decoder.get("prepend_scheme", "always") == "never" or decoder.get("add_prefix_space") is False:
        return DecodeTable(tokens)
    return DecodeTable(tokens, _each(spelled, lambda text: text.replace(space, "").encode()))


def _llama(spelled: list[str | None], steps: list[dict[str, Any]]) -> DecodeTable | None:
    """Replace U+2581, then byte tokens, then perhaps one space taken off the start; as Llama and Mistral have it."""
    kinds = [step.get("type") for step in steps]
    if kinds not in (_LLAMA, [*_LLAMA, "Strip"]):
        return None
    pattern, new = steps[0].get("pattern") or {}, steps[0].get("content")
    if pattern.get("String") != _SPACE or new != " ":
        return None
    strip = steps[3] if len(steps) == 4 else {}
    if (strip.get("content", " "), strip.get("start", 0), strip.get("stop", 0)) not in ((" ", 0, 0), (" ", 1, 0)):
        return None

    def one(text: str) -> bytes:
        text = text.replace(_SPACE, " ")
        byte = _byte(text)
        return text.encode() if byte is None else byte

    tokens = _each(spelled, one)
    first = [None if token is None else token.removeprefix(b" ") for token in tokens] if strip.get("start") else None
    return DecodeTable(tokens, first, errors="home")


def _byte(text: str) -> bytes | None:
    """The byte of a token such as <0x0A>, by HF's rule: six characters, the inner two hexadecimal."""
    if len(text.encode()) != 6 or not (text.startswith("<0x") and text.endswith(">")):
        return None
    try:
        return bytes([int(text[3:5], 16)]) if "_" not in text and " " not in text else None
    except ValueError:
        return None
