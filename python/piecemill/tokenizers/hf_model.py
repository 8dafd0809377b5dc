"""A tokenizer.json of any kind: WordPiece, Unigram, BPE with a normalizer, byte fallback or a pre-tokenizer of its own.

The file is kept as it is. Where special tokens are text, both engines get a copy without them. Taking them out of
`added_tokens` is not enough: Unigram, WordPiece and WordLevel find any entry of the vocabulary in a text, `<s>` too, so
there they get a name that no text contains.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from piecemill.errors import TokenizerError
from piecemill.tokenizers.byte_level import bytes_of
from piecemill.tokenizers.config import declared
from piecemill.tokenizers.engine import Declared, Engine
from piecemill.tokenizers.gigatoken import GigatokenEngine, refusal
from piecemill.tokenizers.hf import HFEngine
from piecemill.tokenizers.nasty import NASTY
from piecemill.tokenizers.texts import first_difference, flatten


@dataclass(frozen=True, eq=False)
class HFModel:
    """A tokenizer.json, and the files beside it."""

    content: bytes
    file: Path
    "Where it came from, for messages."
    beside: Mapping[str, bytes] = field(default_factory=dict)

    home = "tokenizers"
    engines = ("gigatoken", "tokenizers")

    def __post_init__(self) -> None:
        model = self._data.get("model")
        if not isinstance(model, dict):
            raise TokenizerError(f"{self.file}: it has no model; expected a tokenizer.json of HF tokenizers.")
        if model.get("dropout"):
            raise TokenizerError(
                f"{self.file}: model.dropout is {model['dropout']!r}, so its ids are drawn by chance; expected null. "
                "Set it to null in a copy of the file: dropout belongs to a training loop."
            )
        # Now, so that a file which HF refuses is an error where its path is known.
        try:
            _ = self._hf.parsing
        except TokenizerError as error:
            raise TokenizerError(f"{self.file}: {error}") from error

    @cached_property
    def _data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.content)
        return data

    @cached_property
    def _hf(self) -> HFEngine:
        return HFEngine(self._text, "the library it comes from")

    @property
    def kind(self) -> str:
        model = self._data["model"]
        # Files of before 2020 leave the type out; HF tells it by the fields, and so it is not said here.
        return f"tokenizer.json ({model.get('type', 'model without a type')})"

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        # By HF's own count: it does not always keep the id that the file gives an added token.
        ids = {added["content"]: self._hf.parsing.token_to_id(added["content"]) for added in self._special}
        return {text: i for text, i in ids.items() if i is not None}

    @cached_property
    def vocab_size(self) -> int:
        return max(self._hf.parsing.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def declared(self) -> Declared:
        return declared(self.beside, self.special_tokens, self._data.get("post_processor"))

    def why_not(self, engine: str) -> str | None:
        if engine == "tokenizers":
            return None
        kind = self._data["model"].get("type")
        if kind != "BPE":
            return f"gigatoken has no {kind}"
        return refusal(lambda: self._plain) or self._difference()

    def start(self, engine: str, why: str) -> Engine:
        if engine == "tokenizers":
            return HFEngine(self._text, why)
        return GigatokenEngine(self._gigatoken, why)

    def parse_refused(self) -> str | None:
        return None

    def identity(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def files(self) -> dict[str, bytes]:
        return {"tokenizer.json": self.content, **self.beside}

    def id_of(self, token: str | bytes) -> int | None:
        if isinstance(token, bytes):
            return None
        found: int | None = self._hf.parsing.token_to_id(token)
        return found

    def decode(self, ids: NDArray[Any]) -> str:
        text: str = self._hf.parsing.decode(ids.tolist(), skip_special_tokens=False)
        return text

    def decode_bytes(self, ids: NDArray[Any]) -> bytes:
        if not _has(self._data.get("decoder"), "ByteLevel"):
            raise TokenizerError(
                f"{self.file}: decode_bytes: its tokens are not bytes (the decoder is not ByteLevel); use decode."
            )
        added = {one["content"] for one in self._added}
        tokens = []
        for i in ids.tolist():
            text = self._hf.parsing.id_to_token(i)
            if text is None:
                raise TokenizerError(f"decode: id {i} has no token; this vocabulary has gaps.")
            made = None if text in added else bytes_of(text)
            tokens.append(text.encode() if made is None else made)
        return b"".join(tokens)

    def _difference(self) -> str | None:
        """Where gigatoken and HF differ on nasty strings, if they do.

        gigatoken 0.10 loads a file without reading all of it: use_regex, add_prefix_space, a Digits step, the behaviour
        of a Split, single_word and end_of_word_suffix are passed over without a word. So it is asked, not trusted.
        """
        added = [one["content"] for one in self._added[:500]]
        texts = [*NASTY, *(f"{text} {text}\n{text}s x{text}y  {text}  .{text}." for text in added)]
        data, ends = flatten(texts)
        ours = GigatokenEngine(lambda _: self._plain, "").encode_flat(data, ends, parse=False, parallel=False)
        theirs = self._hf.encode_flat(data, ends, parse=False, parallel=False)
        at = first_difference(ours, theirs)
        return None if at is None else f"gigatoken gives other ids, for example for {texts[at][:40]!r}"

    def __getstate__(self) -> dict[str, Any]:
        return {"content": self.content, "file": self.file, "beside": self.beside}

    @property
    def _added(self) -> list[dict[str, Any]]:
        return self._data.get("added_tokens") or []

    def _gigatoken(self, parse: bool) -> Any:
        # The one that was loaded to see whether it loads goes to who asks first.
        spare = None if parse else self.__dict__.pop("_plain", None)
        return self._load_gigatoken(parse) if spare is None else spare

    @cached_property
    def _plain(self) -> Any:
        return self._load_gigatoken(False)

    def _load_gigatoken(self, parse: bool) -> Any:
        import gigatoken

        return gigatoken.Tokenizer.from_json(self._text(parse))

    @property
    def _special(self) -> list[dict[str, Any]]:
        return [one for one in self._added if one.get("special")]

    def _text(self, parse: bool) -> str:
        """The file as an engine gets it."""
        given = {**self._data, "truncation": None, "padding": None, "post_processor": None}
        if not parse:
            given["added_tokens"] = [one for one in self._added if not one.get("special")]
            given["model"] = _hidden(self._data["model"], [one["content"] for one in self._special])
        return json.dumps(given, ensure_ascii=False)


def _hidden(model: dict[str, Any], special: list[str]) -> dict[str, Any]:
    """`model` with the special tokens in its vocabulary renamed to what no text contains."""
    vocab = model.get("vocab")
    if model.get("type") == "BPE":
        # Merges make words here, not entries, unless whole words are looked up first.
        if not model.get("ignore_merges"):
            return model
        made = {"".join(merge.split(" ") if isinstance(merge, str) else merge) for merge in model.get("merges") or []}
        special = [text for text in special if text not in made]
    # Byte 0xFF as ByteLevel spells it, which no UTF-8 has, and two noncharacters for models that read characters.
    names = {text: f"ÿ\uffff{i}\ufffe" for i, text in enumerate(special)}
    if isinstance(vocab, dict):
        changed: Any = {names.get(text, text): i for text, i in vocab.items()}
    else:
        changed = [[names.get(text, text), score] for text, score in vocab or []]
    unknown = model.get("unk_token")
    return {**model, "vocab": changed} | ({} if unknown is None else {"unk_token": names.get(unknown, unknown)})


def _has(step: Any, kind: str) -> bool:
    if not isinstance(step, dict):
        return False
    return step.get("type") == kind or any(_has(one, kind) for one in step.get("decoders") or [])
