"""Encoding with HF `tokenizers`: every kind of tokenizer.json, and any split that Oniguruma can compile."""

from collections.abc import Callable
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from piecemill._core import resolve_split, split_text
from piecemill.errors import SplitError, TokenizerError
from piecemill.tokenizers.engine import Encoded
from piecemill.tokenizers.nasty import NASTY
from piecemill.tokenizers.splits import NAMED, Pattern
from piecemill.tokenizers.texts import pack, texts_of

if TYPE_CHECKING:
    import tokenizers


class HFEngine:
    """Two `tokenizers.Tokenizer`s, each loaded when first needed: special tokens as plain text, or as tokens.

    `load(parse)` gives the tokenizer.json of each. Texts are encoded whole and bare: truncation, padding and the tokens
    a post-processor would add are left out.
    """

    name = "tokenizers"
    bytes_per_token = 540

    def __init__(self, load: Callable[[bool], str], why: str, *, pattern: Pattern | None = None) -> None:
        self._text = load
        self._pattern = pattern
        self.why = why

    @property
    def version(self) -> str:
        from importlib.metadata import version

        return version("tokenizers")

    def forget(self) -> None:
        """Nothing: the library keeps little."""

    def encode(self, text: str, *, parse: bool) -> NDArray[np.uint32]:
        engine = self.parsing if parse else self.plain
        return np.array(engine.encode(text, add_special_tokens=False).ids, np.uint32)

    def encode_flat(
        self, data: NDArray[np.uint8], ends: NDArray[np.int64], *, parse: bool, parallel: bool | None
    ) -> Encoded:
        engine = self.parsing if parse else self.plain
        texts = texts_of(data, ends)
        # `tokenizers` has no argument for it, but a batch of one gives its threads nothing to share.
        batches = [[text] for text in texts] if parallel is False else [texts]
        encoded = (one for batch in batches for one in engine.encode_batch_fast(batch, add_special_tokens=False))
        return pack(one.ids for one in encoded)

    @cached_property
    def plain(self) -> "tokenizers.Tokenizer":
        """`tokenizers`' own object, told to take special tokens for text."""
        engine = self._load(False)
        engine.encode_special_tokens = True
        return engine

    @cached_property
    def parsing(self) -> "tokenizers.Tokenizer":
        """`tokenizers`' own object, as it comes."""
        return self._load(True)

    def _load(self, parse: bool) -> "tokenizers.Tokenizer":
        import tokenizers

        for pattern in (self._pattern,) if isinstance(self._pattern, str) else self._pattern or ():
            check_pattern(pattern)
        try:
            engine = tokenizers.Tokenizer.from_str(self._text(parse))
        except Exception as error:
            raise TokenizerError(f"HF tokenizers {tokenizers.__version__} refused this tokenizer: {error}.") from error
        engine.no_truncation()
        engine.no_padding()
        return engine


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that Oniguruma cannot compile: no tokenizer.json with it would load anywhere."""
    try:
        _cutter(pattern)
    except Exception as error:
        raise SplitError(
            f"split {pattern!r}: HF tokenizers cannot compile it ({error}), so no tokenizer.json can carry it. "
            "Write it in Oniguruma's syntax; for 'dot matches newline' use [\\s\\S]."
        ) from error


_ALIKE = (
    "To be cut alike everywhere, write it so that both read it alike: no possessive quantifiers, no $, "
    "[\\s\\S] for any character, [\\p{L}\\p{M}\\p{N}_] for \\w."
)


@cache
def cuts_otherwise(split: str) -> str | None:
    """Why texts are cut elsewhere by HF `tokenizers` (Oniguruma) than in training (fancy-regex); None if they are not.

    Asked of a regex of one's own; the named splits mean the same to both. Only the nasty strings are looked at.
    """
    name, patterns = resolve_split(split)  # what training cannot compile is an error, and not of Oniguruma
    if name in NAMED:
        return None
    try:
        cutter = _cutter(patterns[0])
    except Exception as error:  # noqa: BLE001 - it has no other
        return (
            f"split {split!r}: HF tokenizers cannot compile it ({error}), so tokenizer.json cannot be used by "
            "tokenizers, transformers or Piecemill's own encode. ranks.tiktoken can, by tiktoken, which has "
            f"fancy-regex. {_ALIKE}"
        )
    for text in NASTY:
        try:
            ends = split_text(text, split).tolist()
        except SplitError:
            continue  # if a document is like that, training says so
        encoded = text.encode()
        ours = [encoded[start:end].decode() for start, end in pairwise([0, *ends])]
        if (theirs := _pieces(cutter, text)) != ours:
            first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
            cut = f"as {_shown(theirs, first)}" if theirs else "not at all: it gives up"
            return (
                f"split {split!r}: training cuts a text as {_shown(ours, first)}, HF tokenizers {cut}. So "
                "tokenizer.json (tokenizers, transformers, Piecemill's own encode) cuts some texts elsewhere than "
                f"training did; ranks.tiktoken in tiktoken, which has fancy-regex, does not. {_ALIKE}"
            )
    return None


def _cutter(pattern: str) -> "tokenizers.pre_tokenizers.PreTokenizer":
    import tokenizers

    return tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


def _pieces(cutter: "tokenizers.pre_tokenizers.PreTokenizer", text: str) -> list[str]:
    try:
        return [piece for piece, _ in cutter.pre_tokenize_str(text)]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - too much backtracking is a panic there, which is no Exception
        return []


def _shown(pieces: list[str], first: int) -> str:
    """Three pieces from the first that differs on, each short."""
    shown = [ascii(piece if len(piece) <= 8 else f"{piece[:6]}...") for piece in pieces[first : first + 3]]
    return " ".join(shown) + (" ..." if first + 3 < len(pieces) else "")
