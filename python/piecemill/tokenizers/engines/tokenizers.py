"""Encoding with HF `tokenizers`: every kind of tokenizer.json, and any pretokenizer that Oniguruma can compile.

Both lines of the library work: 0.2x and the inference-only 1.0. What differs between them is in `_load`, `_rows` and
`_cutter`, and nowhere else.
"""

import json
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from tempfile import NamedTemporaryFile
from typing import Any

from numpy.typing import NDArray

from piecemill._core import documents_outside, resolve_split, split_text
from piecemill.errors import PiecemillError, PretokenizerError, TokenizerError
from piecemill.tokenizers.engines import LibraryEngine, Parse, alphabet_of
from piecemill.tokenizers.malformed import malformed
from piecemill.tokenizers.models.byte_bpe import ByteBPE
from piecemill.tokenizers.models.ranks import Ranks
from piecemill.tokenizers.models.tokenizer_json import TokenizerJson
from piecemill.tokenizers.models.writing import DIGITS
from piecemill.tokenizers.nasty import NASTY
from piecemill.tokenizers.pretokenizers import NAMED
from piecemill.tokenizers.texts import flatten

name = "tokenizers"
reads = (ByteBPE, Ranks, TokenizerJson)


def can_encode(model: ByteBPE | Ranks | TokenizerJson) -> str | None:
    """Always None: every model it reads can be written as a tokenizer.json."""
    return None


def exact(model: ByteBPE | Ranks | TokenizerJson) -> bool:
    """For a tokenizer.json its ids are right by definition."""
    return model.home == name


def load(model: ByteBPE | Ranks | TokenizerJson) -> "HFEngine":
    """The engine; the library loads the tokenizer when it first encodes."""
    return HFEngine(model)


class HFEngine(LibraryEngine):
    """One `tokenizers.Tokenizer` for each requested set of special tokens."""

    name = name

    def __init__(self, model: ByteBPE | Ranks | TokenizerJson) -> None:
        self._model = model
        self._loaded: dict[frozenset[str], Any] = {}

    @property
    def _where(self) -> object:
        return getattr(self._model, "file", "tokenizer")

    def _check_alphabet(self, texts: list[str]) -> None:
        """Refuse bytes without a token, which the library would leave out of the ids."""
        alphabet = alphabet_of(self._model)
        if alphabet and (outside := documents_outside(*flatten(texts), alphabet)):
            (number, at), shown = outside[0], alphabet.decode("utf-8", "replace")
            raise TokenizerError(f"texts[{number}]: byte {at:,} is not in the alphabet of this vocabulary ({shown}).")

    def decode(self, ids: NDArray[Any]) -> str:
        """The text that `ids` stand for, special tokens included."""
        tokenizer = self._tokenizer("parse")
        with malformed(self._where):
            text: str = tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return text

    def rows(self, texts: list[str], special: Parse, threads: int) -> list[Any]:
        self._check_alphabet(texts)
        tokenizer = self._tokenizer(special)
        try:
            with malformed(self._where, raised=()):  # panics only
                return list(_rows(tokenizer, texts, threads))
        except ValueError as error:  # 1.0 says only now that it cannot carry out a pretokenizer
            raise PretokenizerError(
                f"HF tokenizers {self.version} cannot encode with this tokenizer: {error}."
            ) from error
        except PiecemillError:
            raise
        except Exception as error:
            raise TokenizerError(
                f"{self._where}: HF tokenizers {self.version} cannot encode with this tokenizer: {error}."
            ) from error

    def _tokenizer(self, special: Parse) -> Any:
        tokens = self._model.special_tokens
        parsed = frozenset(() if special == "plain" else tokens if special == "parse" else special)
        if parsed not in self._loaded:
            pattern = None if isinstance(self._model, TokenizerJson) else self._model.pattern
            for regex in (pattern,) if isinstance(pattern, str) else pattern or ():
                if regex not in DIGITS:
                    check_pattern(regex)
            try:
                with malformed(self._where, raised=()):  # panics only
                    self._loaded[parsed] = _load(self._model.tokenizer_json(parsed))
            except Exception as error:
                where = f"{self._model.file}: " if isinstance(self._model, TokenizerJson) else ""
                raise TokenizerError(f"{where}HF tokenizers {self.version} refused it: {error}.") from error
        return self._loaded[parsed]


def _load(text: str) -> Any:
    import tokenizers

    # Without truncation and padding: texts are encoded whole.
    if hasattr(tokenizers.Tokenizer, "from_str"):
        loaded: Any = tokenizers.Tokenizer.from_str(text)
        loaded.no_truncation()
        loaded.no_padding()
        return loaded
    with NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as file:  # 1.0 loads files only
        file.write(text)
        file.flush()
        loaded = tokenizers.Tokenizer.from_file(file.name)
    loaded.truncation = loaded.padding = None
    return loaded


def _rows(tokenizer: Any, texts: list[str], threads: int) -> Iterable[Any]:
    # There is no argument for threads, but a batch of one leaves nothing to share among them.
    batches = [[text] for text in texts] if threads == 1 else [texts]
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    return (one.ids for batch in batches for one in encode(batch, add_special_tokens=False))


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that HF tokenizers cannot compile: no tokenizer.json with it would load anywhere."""
    try:
        _cutter(pattern, ())("a")
    except Exception as error:
        raise PretokenizerError(
            f"pretokenizer {pattern!r}: HF tokenizers cannot compile it ({error}), so no tokenizer.json can carry it. "
            "Write it in Oniguruma's syntax; for 'dot matches newline' use [\\s\\S]."
        ) from error


_ALIKE = (
    "To be cut alike everywhere, write it so that both read it alike: no possessive quantifiers, no $, "
    "[\\s\\S] for any character, [\\p{L}\\p{M}\\p{N}_] for \\w."
)


@cache
def cuts_otherwise(pretokenizer: str) -> str | None:
    """Why HF `tokenizers` (Oniguruma) cuts texts elsewhere than training (fancy-regex); None if it does not.

    Only a custom regex is compared, on the nasty strings; the named pretokenizers mean the same to both.
    """
    name, patterns = resolve_split(
        pretokenizer
    )  # a regex that training cannot compile raises our error, not Oniguruma's
    if name in NAMED:
        return None
    cut: dict[str, list[str]] = {}
    for text in NASTY:
        try:
            ends = split_text(text, pretokenizer).tolist()
        except PretokenizerError:
            continue  # if a document is like that, training reports it
        encoded = text.encode()
        cut[text] = [encoded[start:end].decode() for start, end in pairwise([0, *ends])]
    try:
        cutter = _cutter(patterns[0], [piece for pieces in cut.values() for piece in pieces])
        cutter("a")
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        return (
            f"pretokenizer {pretokenizer!r}: HF tokenizers cannot compile it ({error}), so tokenizer.json cannot be "
            "used by tokenizers or transformers. ranks.tiktoken can, by tiktoken, which has fancy-regex; so can "
            f"Piecemill's own encode. {_ALIKE}"
        )
    for text, ours in cut.items():
        if (theirs := _pieces(cutter, text)) != ours:
            first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
            elsewhere = f"as {_shown(theirs, first)}" if theirs else "not at all: it gives up"
            return (
                f"pretokenizer {pretokenizer!r}: training cuts a text as {_shown(ours, first)}, HF tokenizers "
                f"{elsewhere}. So tokenizer.json (tokenizers, transformers, Piecemill's own encode) cuts some texts "
                f"elsewhere than training did; ranks.tiktoken in tiktoken, which has fancy-regex, does not. {_ALIKE}"
            )
    return None


def _cutter(pattern: str, pieces: Iterable[str]) -> Callable[[str], list[str]]:
    """A function that cuts a text by `pattern` as the library does."""
    import tokenizers

    if hasattr(tokenizers, "Regex"):
        split: Any = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        return lambda text: [piece for piece, _ in split.pre_tokenize_str(text)]
    # 1.0 shows only tokens. With `pieces` as its words, a text cut elsewhere has an unknown one.
    vocab = {piece: i for i, piece in enumerate({"?": 0} | dict.fromkeys(pieces))}
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    words = {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    whole = _load(json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": step, "model": words}))
    return lambda text: whole.tokenize(text, add_special_tokens=False)


def _pieces(cutter: Callable[[str], list[str]], text: str) -> list[str]:
    try:
        return cutter(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - too much backtracking is a panic, which is not an Exception
        return []


def _shown(pieces: list[str], first: int) -> str:
    """Three pieces from the first that differs on, each short."""
    shown = [ascii(piece if len(piece) <= 8 else f"{piece[:6]}...") for piece in pieces[first : first + 3]]
    return " ".join(shown) + (" ..." if first + 3 < len(pieces) else "")
