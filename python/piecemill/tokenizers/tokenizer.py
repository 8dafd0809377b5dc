"""`Tokenizer`: the public face of a model and an engine."""

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from numbers import Integral
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Never

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from piecemill._core import Encoder
from piecemill.errors import TokenizerError
from piecemill.integers import values_of
from piecemill.plans import check_names, did_you_mean, option
from piecemill.sizes import parse_size
from piecemill.tokenizers.decoding import Decoding, row_of_ids
from piecemill.tokenizers.engines import Encoded, Engine, Parse, alphabet_of, choose, load_engine
from piecemill.tokenizers.malformed import malformed
from piecemill.tokenizers.models import Model
from piecemill.tokenizers.models.byte_bpe import ByteBPE
from piecemill.tokenizers.models.config import DEFAULT_CONFIG, TOKENIZER_CONFIG, edited, parse_roles, roles_of
from piecemill.tokenizers.models.integers import IntegerBPE
from piecemill.tokenizers.models.ranks import Ranks
from piecemill.tokenizers.models.sentencepiece import SentencePiece
from piecemill.tokenizers.models.vocabulary import Vocabulary
from piecemill.tokenizers.pretokenizers import Pattern, name_of, pattern_of
from piecemill.tokenizers.special import refuse_special
from piecemill.tokenizers.texts import Flat, check_flat, check_text, digits, flat_arrays, flatten

if TYPE_CHECKING:
    from piecemill.tokenizers.listing import Token

Special = Literal["plain", "parse", "stop"] | Collection[str]
_KEYWORDS = ["bos", "eos", "dtype", "special", "threads"]
"Of `encode_batch` and `encode_flat`."


class Tokenizer:
    """Text to token ids and back; what a byte-level one encodes, it decodes exactly.

    Create one with `train_bpe`, `Tokenizer.from_merges` or `load_tokenizer`. The text of a special token inside a
    text is data and is encoded as such. `special="parse"` turns it into the token, a set of special tokens does so for
    those alone, and `special="stop"` makes it an error that names the text. (One exception to plain, by the numbering
    that all libraries share: a vocabulary that learned exactly that string has one id for both.)

    It can be pickled, and is cheap to copy: the engine is loaded when the first text is encoded.
    """

    @did_you_mean
    def __init__(self, model: Model, *, engine: str | None = None) -> None:
        if not hasattr(model, "parse_refused"):
            raise TokenizerError(
                f"Tokenizer: found {type(model).__name__}, expected a model; load_tokenizer opens files and folders."
            )
        self._model = model
        self._asked = engine
        self._chosen: tuple[str, str] | None = None
        if engine is not None:
            _ = self.engine  # so that an engine that cannot encode it is an error now

    @classmethod
    @did_you_mean
    def from_merges(
        cls,
        merges: NDArray[np.uint32],
        *,
        pretokenizer: str,
        pattern: Pattern | None = None,
        special_tokens: Sequence[str] = (),
        alphabet: bytes | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> "Tokenizer":
        """A tokenizer from `merges`, pairs of final ids: special tokens, 256 bytes, then what each merge makes.

        With `alphabet`, there are ids for those bytes only, and a text with another one is an error.

        `pattern` is the regex of `pretokenizer` where it is not the one this library knows by that name; `training` is
        any JSON record, kept and written as training.json.

        >>> tok = Tokenizer.from_merges(np.array([[64, 65]]), pretokenizer="gpt2")
        >>> tok.vocab_size, tok.bytes_of(256), tok.decode(tok.encode("abba"))
        (257, b'ab', 'abba')
        """
        if not isinstance(special_tokens, Sequence) or not isinstance(alphabet, bytes | None):
            raise TokenizerError(
                f"special_tokens and alphabet: found {type(special_tokens).__name__} and {type(alphabet).__name__}, "
                "expected a list of texts, and bytes."
            )
        if not isinstance(training, Mapping | None):
            raise TokenizerError(f"training: found {type(training).__name__}, expected a dict.")
        vocabulary = Vocabulary.from_merges(merges, special_tokens, alphabet)
        pattern = pattern_of(pretokenizer, pattern)
        return cls(ByteBPE(vocabulary, name_of(pattern), pattern, dict(training or {})))

    @did_you_mean
    def edit(
        self,
        *,
        add_special: Sequence[str] = (),
        roles: Mapping[str, str] | Sequence[str] = (),
        chat_template: str | None = None,
    ) -> "Tokenizer":
        """The same tokenizer with more special tokens, with what they are for, and a chat template (Jinja).

        Every id stays; new special tokens follow after the last (one whose text is a token already becomes special
        with the id it has). Roles are eos, bos, pad, unk, sep, cls and mask, as `transformers` has them; a token with a
        role is added if there is none. A .tiktoken file becomes a tokenizer.json, which can hold all of it.

        >>> tok = Tokenizer.from_merges([], pretokenizer="gpt2", special_tokens=["<|endoftext|>"])
        >>> chat = tok.edit(add_special=["<|im_start|>"], roles={"pad": "<|pad|>"})
        >>> chat.special_tokens, chat.roles["pad"]
        ({'<|endoftext|>': 0, '<|im_start|>': 257, '<|pad|>': 258}, '<|pad|>')
        """
        if isinstance(add_special, str):
            raise TokenizerError(f"add_special={add_special!r}: expected a list, such as [{add_special!r}].")
        if not isinstance(add_special, Collection) or not all(isinstance(text, str) for text in add_special):
            raise TokenizerError(f"add_special={add_special!r}: expected a list of texts, such as ['<|im_start|>'].")
        if not isinstance(chat_template, str | None):
            raise TokenizerError(f"chat_template: found {type(chat_template).__name__}, expected Jinja as text.")
        named = parse_roles(roles)
        asked = dict.fromkeys((*add_special, *named.values()))
        new = [text for text in asked if text not in self._model.special_tokens]
        model = self._model.with_special(new)
        beside = dict(model.beside)
        if not isinstance(model, SentencePiece):  # of which only its own config knows the class
            default = model.config() if isinstance(model, ByteBPE) else json.dumps(DEFAULT_CONFIG).encode()
            beside.setdefault(TOKENIZER_CONFIG, default)
        beside = edited(beside, named, model.special_tokens, new, chat_template)
        return Tokenizer(replace(model, beside=beside), engine=self._asked)

    # `did_you_mean` here and at `decode` would add a third to the time of a short text.
    def encode(
        self, text: str | bytes | ArrayLike, *, special: Special = "plain", **unknown: Never
    ) -> NDArray[np.uint32]:
        """The token ids of one text; `bytes` are read as UTF-8, or as they are if the tokenizer `takes_bytes`.

        A tokenizer of integers takes a list or array of them, or their digits.
        """
        if unknown:
            check_names(unknown, ["text", "special"])
        if type(text) is type(special) is str and special == "plain":
            try:
                return self._encode(text, "plain")
            except UnicodeEncodeError:
                pass  # a lone surrogate: reported below
        parse = self._parse(special)
        if isinstance(self._model, IntegerBPE):
            text = digits([text])[0]
            return self._encode(text.decode("utf-8", "replace"), parse)
        if isinstance(text, bytes) and parse == "plain" and self.takes_bytes:
            ids, _ = self._encode_flat(flatten([text]), None, None, None, special, 1)
            return ids.astype(np.uint32, copy=False)
        given = check_text(text, "text")
        if special == "stop":
            refuse_special(*flatten([given]), self.special_tokens, lambda _: "text")
        return self._encode(given, parse)

    def encode_batch(
        self,
        texts: Any,
        *,
        bos: int | None = None,
        eos: int | None = None,
        dtype: DTypeLike | None = None,
        special: Special = "plain",
        threads: int | None = None,
        **unknown: Never,
    ) -> Encoded:
        """The ids of all texts one after another, and where each text ends.

        `texts` are a list of `str` or `bytes`, an Arrow array or chunked array, or anything with the Arrow PyCapsule
        interface (a polars series). Text i is `ids[ends[i - 1] : ends[i]]`, from 0 for the first; an empty text ends
        where it begins. The keywords are those of `encode_flat`.

        >>> tok = Tokenizer.from_merges(np.array([[64, 65]]), pretokenizer="gpt2")
        >>> ids, ends = tok.encode_batch(["ab", "", "aab"])
        >>> ids.tolist(), ends.tolist()
        ([256, 64, 256], [1, 1, 3])
        """
        check_names(unknown, _KEYWORDS)
        if isinstance(self._model, IntegerBPE):
            texts = digits(texts)
        return self._encode_flat(flatten(texts), bos, eos, dtype, special, threads)

    def encode_flat(
        self,
        data: NDArray[np.uint8],
        ends: NDArray[np.int64],
        *,
        bos: int | None = None,
        eos: int | None = None,
        dtype: DTypeLike | None = None,
        special: Special = "plain",
        threads: int | None = None,
        **unknown: Never,
    ) -> Encoded:
        """As `encode_batch`, of texts in the flat form: their UTF-8 one after another, and where each ends.

        `bos` and `eos` are ids put before and after each text. `dtype` is uint32, or uint16 where all ids fit.
        `threads=1` stays on the calling thread; None is all cores, and one thread in a worker process.
        """
        check_names(unknown, _KEYWORDS)
        return self._encode_flat(flat_arrays(data, ends), bos, eos, dtype, special, threads)

    def decode(self, ids: ArrayLike, **unknown: Never) -> str:
        """The text of `ids`; bytes that are not a complete character become U+FFFD."""
        if unknown:
            check_names(unknown, ["ids"])
        return self._decoding.text(ids)

    @did_you_mean
    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes of `ids`; a TokenizerError if only the home library can decode them, to text."""
        return self._decoding.whole(ids)

    @did_you_mean
    def decode_integers(self, ids: ArrayLike) -> NDArray[np.int64]:
        """The integers of `ids`, of a tokenizer of integers; special tokens have none."""
        if not isinstance(self._model, IntegerBPE):
            raise TokenizerError(f"decode_integers: a {self.kind} has no integers; use decode or decode_bytes.")
        given = row_of_ids(ids)
        values = values_of(self.decode_bytes(given[~np.isin(given, list(self.special_tokens.values()))]))
        return np.empty(0, np.int64) if values is None else values

    @did_you_mean
    def decode_batch(self, ids: ArrayLike, ends: ArrayLike) -> list[str]:
        """The text of each document, as `encode_batch` gives them: ids one after another, and where each ends."""
        return self._decoding.texts(ids, ends)

    @did_you_mean
    def decode_flat(self, ids: ArrayLike, ends: ArrayLike) -> Flat:
        """As `decode_batch`, to bytes in the flat form; a TokenizerError if only the home library can decode."""
        return self._decoding.flat(ids, ends)

    @did_you_mean
    def save(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write the tokenizer as a folder at `path`, atomically; `force` replaces one saved there before.

        A loaded tokenizer is saved as its original files, so `load_tokenizer` returns the same one again.
        """
        from piecemill.tokenizers.saving import save

        save(self, path, force=force)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, special tokens included."""
        return self._model.vocab_size

    @cached_property
    def identity(self) -> str:
        """A SHA-256 of what decides the ids: the same for the same tokenizer on any machine, with any engine."""
        return f"sha256:{self._model.identity()}"

    @property
    def exact(self) -> bool:
        """Whether every text is certain to decode to the same bytes: it is byte-level and normalizes nothing."""
        return self._model.exact

    @did_you_mean
    def id_of(self, token: str | bytes) -> int:
        """The id of a token; a TokenizerError if there is none.

        A `str` names the special token with that text, or else a token spelled so (in a byte-level vocabulary: its
        UTF-8). `bytes` name an ordinary token of a byte-level vocabulary, or else the special token with that UTF-8.
        """
        if not isinstance(token, str | bytes):
            raise TokenizerError(f"token: found {type(token).__name__}, expected the str or bytes of a token.")
        found = self._model.id_of(token)
        if found is None:
            raise TokenizerError(f"{token!r} is not one of the {self.vocab_size:,} tokens; encode() cuts it into some.")
        return found

    @did_you_mean
    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of one id; of a special token, its text in UTF-8, as it is decoded."""
        if not isinstance(token_id, Integral):
            raise TokenizerError(f"token_id: found {type(token_id).__name__}, expected the number of a token.")
        if not 0 <= token_id < self.vocab_size:
            raise TokenizerError(f"id {token_id} does not exist; expected 0 to {self.vocab_size - 1:,}.")
        return self._decoding.bytes_of(token_id)

    @property
    def kind(self) -> str:
        """What it is, in words."""
        return self._model.kind

    @property
    def model(self) -> Model:
        """The vocabulary and its files."""
        return self._model

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text and id of each special token."""
        return dict(self._model.special_tokens)

    @property
    def roles(self) -> dict[str, str]:
        """The special tokens that its files declare to be eos, bos, pad, unk, sep, cls or mask."""
        declared = {role: text for role in ("eos", "bos") if (text := getattr(self._model.declared, role))}
        return declared | roles_of(getattr(self._model, "beside", {}))

    @cached_property
    def engine(self) -> Engine:
        """What encodes: its `name`, `version`, and `why` it was chosen."""
        with malformed(self._where):
            if self._chosen is not None:
                return load_engine(self._model, *self._chosen)
            return choose(self._model, self._asked)

    @property
    def cache_bytes(self) -> int:
        """Size of the word cache of each thread: 24 MiB unless set (a number, or "4MiB").

        Ids do not depend on it. Only the engine `piecemill` has it; caches of other libraries are not limited.
        """
        return self._own_encoder().cache_bytes

    @cache_bytes.setter
    def cache_bytes(self, size: int | str) -> None:
        self._own_encoder().cache_bytes = parse_size(size, "cache_bytes")

    def _own_encoder(self) -> Encoder:
        engine = self.engine
        if not isinstance(encoder := getattr(engine, "encoder", None), Encoder):
            raise TokenizerError(f"cache_bytes: the engine {engine.name} has no such bound; only piecemill has.")
        return encoder

    @property
    def tokens(self) -> "list[Token]":
        """Every token with its id, bytes, and the two that it was merged from, where there are such.

        >>> tok = Tokenizer.from_merges(np.array([[64, 65]]), pretokenizer="gpt2")
        >>> tok.tokens[256]
        Token(id=256, token=b'ab', special=False, merge=0, parts=(64, 65))
        """
        from piecemill.tokenizers.listing import tokens_of

        return tokens_of(self)

    @property
    def alphabet(self) -> bytes | None:
        """The only bytes that texts may have, in the order of their ids; None for a tokenizer without such a limit."""
        return alphabet_of(self._model)

    @property
    def takes_bytes(self) -> bool:
        """Whether it encodes any bytes, not only UTF-8: byte-level BPE without a pretokenizer."""
        return isinstance(self._model, ByteBPE | Ranks) and self._model.pattern is None

    @property
    def integers(self) -> NDArray[np.int64] | None:
        """The integers that documents may have, in ascending order; None for a tokenizer of text."""
        return self._model.values if isinstance(self._model, IntegerBPE) else None

    # What only byte-level BPE has

    @property
    def vocabulary(self) -> Vocabulary:
        """What the ids mean."""
        return self._byte_bpe("vocabulary").vocabulary

    @property
    def merges(self) -> NDArray[np.uint32]:
        """Pairs of ids, best first; read-only."""
        return self._byte_bpe("merges").vocabulary.merges

    @property
    def pretokenizer(self) -> str:
        """What cuts a text before merging: the name of a pretokenizer, a regex, or "sequence" for several regexes."""
        return self._byte_bpe("pretokenizer").pretokenizer

    @property
    def pattern(self) -> Pattern | None:
        """The regex of the pretokenizer, several if it is a sequence, None for "none"."""
        return self._byte_bpe("pattern").pattern

    @property
    def training(self) -> dict[str, Any]:
        """How it was trained, as training.json has it; empty if unknown."""
        return dict(getattr(self._model, "training", {}))

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        kind = f"pretokenizer={self.pretokenizer!r}" if isinstance(self._model, ByteBPE) else self.kind
        special = f", {len(self.special_tokens)} special" if self.special_tokens else ""
        return f"Tokenizer({kind}, {self.vocab_size:,} tokens{special}, engine={self.engine.name})"

    def __getstate__(self) -> dict[str, Any]:
        # A worker process loads the engine chosen here by itself: engines hold tables, threads and caches.
        chosen = (self.engine.name, self.engine.why) if "engine" in self.__dict__ else self._chosen
        dropped = ("engine", "_encode", "_decoding")
        return {name: value for name, value in self.__dict__.items() if name not in dropped} | {"_chosen": chosen}

    @cached_property
    def _encode(self) -> Callable[[str, Parse], NDArray[np.uint32]]:
        return self.engine.encode

    @cached_property
    def _decoding(self) -> Decoding:
        with malformed(self._where):
            return Decoding(self._model)

    @property
    def _where(self) -> object:
        """Its file, for messages."""
        return getattr(self._model, "file", "tokenizer")

    def _encode_flat(
        self,
        texts: Flat,
        bos: int | None,
        eos: int | None,
        dtype: DTypeLike | None,
        special: Special,
        threads: int | None,
    ) -> Encoded:
        data, ends = texts
        parse = self._parse(special)
        if special == "stop":
            refuse_special(data, ends, self.special_tokens)
        if threads is None:
            started_by = sys.modules.get("multiprocessing.process")  # not imported: it takes 3 ms, and a child has it
            threads = 0 if started_by is None or started_by.parent_process() is None else 1
        elif not isinstance(threads, Integral) or not 0 <= threads < 1 << 16:
            raise TokenizerError(f"threads={threads!r}: expected 1 or more, or None for all cores.")
        narrow = self._narrow(dtype, bos, eos)
        engine = self.engine
        try:
            with malformed(self._where, raised=()):  # panics only
                return engine.encode_flat(data, ends, bos=bos, eos=eos, narrow=narrow, special=parse, threads=threads)
        except ValueError:
            check_flat(data, ends)  # says what is wrong with them
            raise

    def _narrow(self, dtype: DTypeLike | None, bos: int | None, eos: int | None) -> bool:
        for name, token in (("bos", bos), ("eos", eos)):
            if not isinstance(token, Integral | None):
                raise TokenizerError(f"{name}={token!r}: expected the id of a token, as tok.id_of gives it.")
        try:
            wanted = np.dtype(np.uint32 if dtype is None else dtype)
        except (TypeError, ValueError):
            raise TokenizerError(f"dtype={dtype!r}: expected uint16 or uint32.") from None
        if wanted not in (np.dtype(np.uint16), np.dtype(np.uint32)):
            raise TokenizerError(f"dtype={wanted.name}: expected uint16 or uint32.")
        # (`vocab_size` looks at every token the first time: milliseconds that a first call need not take.)
        largest = max(self.vocab_size - 1 if wanted.itemsize == 2 else 0, bos or 0, eos or 0)
        if largest > np.iinfo(wanted).max or min(bos or 0, eos or 0) < 0:
            raise TokenizerError(
                f"dtype={wanted.name}: ids go from {min(bos or 0, eos or 0, 0)} to {largest:,}; "
                f"expected 0 to {np.iinfo(wanted).max:,}."
            )
        return wanted.itemsize == 2

    def _parse(self, special: Special) -> Parse:
        if isinstance(special, str) and special in ("plain", "stop"):
            return "plain"
        tokens = self._model.special_tokens
        if not isinstance(special, str) or special != "parse":
            if isinstance(special, str) or not isinstance(special, Collection):
                raise TokenizerError(
                    f"{option('special', special)}: expected 'plain' (special tokens in a text are text), 'parse', "
                    "'stop' or a set of special tokens."
                )
            for text in special:
                if not isinstance(text, str) or text not in tokens:
                    raise TokenizerError(f"special: {text!r} is not one of the {len(tokens)} special tokens.")
            if not special:
                return "plain"
        refused = self._model.parse_refused()
        if refused is not None:
            raise TokenizerError(
                f"{option('special', special)}: not possible with a {self.kind}: {refused}. Expected 'plain' or "
                "'stop'; ids of special tokens can be put between the ids of texts."
            )
        return "parse" if isinstance(special, str) else sorted(special)

    def _byte_bpe(self, what: str) -> ByteBPE:
        if not isinstance(self._model, ByteBPE):
            raise TokenizerError(f"{what}: a {self.kind} has none; only byte-level BPE does.")
        return self._model
