"""`Tokenizer`: the public face of a model and an engine."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from piecemill.errors import TokenizerError
from piecemill.tokenizers.byte_bpe import ByteBPE
from piecemill.tokenizers.engine import Encoded, Engine, Model, checked_ids, choose
from piecemill.tokenizers.special import refuse_special
from piecemill.tokenizers.splits import Pattern, cuts_at_spaces, name_of, pattern_of
from piecemill.tokenizers.texts import check_flat, check_text, flatten
from piecemill.tokenizers.vocabulary import Vocabulary

Special = Literal["plain", "parse", "stop"]


class Tokenizer:
    """Text to token ids and back; what a byte-level one encodes, it decodes exactly.

    Make one with `train_bpe`, `Tokenizer.from_merges` or `load_tokenizer`. The text of a special token inside a
    text is data and is encoded as such; `special="parse"` turns it into the token, `special="stop"` is an error that
    names the text. (One exception to plain, by the numbering that all libraries share: a vocabulary that learned
    exactly that string has one id for both.)

    It can be pickled, and is cheap to copy: an engine is loaded where the first text is encoded.
    """

    def __init__(self, model: Model, *, engine: str | None = None) -> None:
        self._model = model
        self._asked = engine
        self._chosen: tuple[str, str] | None = None
        if engine is not None:
            _ = self.engine  # so that one which cannot be is an error now

    @classmethod
    def from_merges(
        cls,
        merges: NDArray[np.uint32],
        *,
        split: str,
        pattern: Pattern | None = None,
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
        pattern = pattern_of(split, pattern)
        return cls(ByteBPE(vocabulary, name_of(pattern), pattern, dict(training or {})))

    def encode(self, text: str | bytes, *, special: Special = "plain") -> NDArray[np.uint32]:
        """The token ids of one text; `bytes` are taken as UTF-8."""
        given = check_text(text, "text")
        parse = self._parse(special)
        if special == "stop":
            refuse_special(*flatten([given]), self.special_tokens, "text")
        return self.engine.encode(given, parse=parse)

    def encode_batch(self, texts: Any, *, special: Special = "plain", parallel: bool | None = None) -> Encoded:
        """The ids of all texts one after another, and where each text ends.

        `texts` are a list of `str` or `bytes`, an Arrow array or chunked array, or anything with the Arrow PyCapsule
        interface (a polars series). Text i is `ids[ends[i - 1] : ends[i]]`, from 0 for the first; an empty text ends
        where it begins. `parallel=False` stays on the calling thread; None is parallel except in a worker process.

        >>> tok = Tokenizer.from_merges(np.array([[64, 65]]), split="gpt2")
        >>> ids, ends = tok.encode_batch(["ab", "", "aab"])
        >>> ids.tolist(), ends.tolist()
        ([256, 64, 256], [1, 1, 3])
        """
        data, ends = flatten(texts)
        return self._encode_flat(data, ends, special, parallel)

    def encode_flat(
        self,
        data: NDArray[np.uint8],
        ends: NDArray[np.int64],
        *,
        special: Special = "plain",
        parallel: bool | None = None,
    ) -> Encoded:
        """As `encode_batch`, of texts in the flat form: their UTF-8 one after another, and where each ends."""
        return self._encode_flat(*check_flat(data, ends), special, parallel)

    def decode(self, ids: ArrayLike) -> str:
        """The text that `ids` stand for; where they cut a character in two, U+FFFD stands for the pieces."""
        return self._model.decode(checked_ids(ids, self.vocab_size))

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes that `ids` stand for; a TokenizerError where tokens are not made of bytes."""
        return self._model.decode_bytes(checked_ids(ids, self.vocab_size))

    def save(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write the tokenizer as a folder at `path`, whole or not at all; `force` replaces one saved there before.

        One that was loaded is saved as the files it came in, so `load_tokenizer` gives the same one again.
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

    def id_of(self, token: str | bytes) -> int:
        """The id of a token; a TokenizerError if there is none.

        A `str` names the special token with that text, or else a token spelled so (in a byte-level vocabulary: its
        UTF-8). `bytes` are only ever ordinary bytes of a byte-level vocabulary.
        """
        found = self._model.id_of(token)
        if found is None:
            raise TokenizerError(
                f"{token!r} is not one of the {self.vocab_size:,} tokens; encode() splits it into some."
            )
        return found

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of one id; of a special token, its text in UTF-8."""
        if not 0 <= token_id < self.vocab_size:
            raise TokenizerError(f"id {token_id} does not exist; expected 0 to {self.vocab_size - 1:,}.")
        return self._model.decode_bytes(np.array([token_id]))

    @property
    def kind(self) -> str:
        """What it is, in words."""
        return self._model.kind

    @property
    def cuts_at_spaces(self) -> bool:
        """Whether a text may be cut before a space that follows a visible ASCII character, and before a line feed that
        follows an ASCII letter or digit: the ids are the same.

        True of the named splits other than `none`. None of their pretokens goes on from the one to the other, so one
        always ends there; none looks back, and what looks ahead looks from white space.
        """
        return cuts_at_spaces(getattr(self._model, "pattern", None))

    @property
    def model(self) -> Model:
        """The vocabulary and its files."""
        return self._model

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text and id of each special token."""
        return dict(self._model.special_tokens)

    @cached_property
    def engine(self) -> Engine:
        """The library that encodes: its `name`, and `why` it was chosen."""
        if self._chosen is not None:
            return self._model.start(*self._chosen)
        return choose(self._model, self._asked)

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
    def split(self) -> str:
        """What cuts a text before merging: the name of a split, a regex, or "sequence" for several regexes."""
        return self._byte_bpe("split").split

    @property
    def pattern(self) -> Pattern | None:
        """The regex of the split, several if it is a sequence, None for "none"."""
        return self._byte_bpe("pattern").pattern

    @property
    def training(self) -> dict[str, Any]:
        """How it was trained, as training.json has it; empty if unknown."""
        return dict(self._model.training) if isinstance(self._model, ByteBPE) else {}

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        split = f"split={self.split!r}, " if isinstance(self._model, ByteBPE) else f"{self.kind}, "
        special = f", {len(self.special_tokens)} special" if self.special_tokens else ""
        return f"Tokenizer({split}{self.vocab_size:,} tokens{special}, engine={self.engine.name})"

    def __getstate__(self) -> dict[str, Any]:
        # A worker process loads its own engine (gigatoken's and HF's hold threads and caches), but the one chosen here.
        chosen = (self.engine.name, self.engine.why) if "engine" in self.__dict__ else self._chosen
        return {name: value for name, value in self.__dict__.items() if name != "engine"} | {"_chosen": chosen}

    def _encode_flat(
        self, data: NDArray[np.uint8], ends: NDArray[np.int64], special: Special, parallel: bool | None
    ) -> Encoded:
        parse = self._parse(special)
        if special == "stop":
            refuse_special(data, ends, self.special_tokens)
        if len(ends) == 0:
            return np.empty(0, np.uint32), np.empty(0, np.int64)
        return self.engine.encode_flat(data, ends, parse=parse, parallel=parallel)

    def _parse(self, special: Special) -> bool:
        if special not in ("plain", "parse", "stop"):
            raise TokenizerError(
                f"special={special!r}: expected 'plain' (special tokens in a text are text), 'parse' or 'stop'."
            )
        refused = self._model.parse_refused() if special == "parse" else None
        if refused is not None:
            raise TokenizerError(
                f"special='parse': not possible with a {self.kind}: {refused}. Expected 'plain' or 'stop'; ids of "
                "special tokens can be put between the ids of texts."
            )
        return special == "parse"

    def _byte_bpe(self, what: str) -> ByteBPE:
        if not isinstance(self._model, ByteBPE):
            raise TokenizerError(f"{what}: a {self.kind} has none that could be given; only byte-level BPE does.")
        return self._model
