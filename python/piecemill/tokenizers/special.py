"""Special tokens: finding their text in documents, and which of them stand at the start and the end of one."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PlanError, TokenizerError
from piecemill.plans import option

if TYPE_CHECKING:
    from piecemill.tokenizers.tokenizer import Tokenizer


def refuse_special(
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    special_tokens: Mapping[str, int],
    name: Callable[[int], str] = "texts[{}]".format,
    asked: str = "special",
) -> None:
    """A TokenizerError that names the first text with the text of a special token in it, if one has.

    `name` gives the name of a text by its number; `asked` is the option that forbids it.
    """
    whole = data.tobytes()
    first: tuple[int, int, str] | None = None
    # Hundreds of special tokens mostly begin alike ("<|"): if not even that occurs, one search was enough.
    begins: dict[bytes, list[str]] = {}
    for text in special_tokens:
        begins.setdefault(text.encode()[:2], []).append(text)
    for begin, texts in begins.items():
        if begin not in whole:
            continue
        for text in texts:
            at = _inside(whole, ends, text.encode())
            if at is not None and (first is None or at < first[:2]):
                first = (*at, text)
    if first is not None:
        document, byte, text = first
        raise TokenizerError(
            f"{name(document)}: byte {byte:,} begins {text!r}, the text of a special token, and "
            f"{option(asked, 'stop')} forbids it. {option(asked, 'plain')} encodes it as text, "
            f"{option(asked, 'parse')} makes it the token."
        )


def _inside(whole: bytes, ends: NDArray[np.int64], token: bytes) -> tuple[int, int] | None:
    """Which text has `token` first, and where in it; one that lies across two texts does not count."""
    at = whole.find(token)
    while at >= 0:
        document = int(np.searchsorted(ends, at, side="right"))
        if at + len(token) <= ends[document]:
            return document, at - int(ends[document - 1] if document else 0)
        at = whole.find(token, at + 1)
    return None


def resolve_eos(tokenizer: "Tokenizer", eos: str = "auto") -> int | None:
    """The id to put after every document, or None for none.

    "none" is none; the text of a special token is its id. "auto" is what the tokenizer declares: eos_token of
    tokenizer_config.json, the eos of a SentencePiece model, or else a special token `<|endoftext|>`. A tokenizer that
    declares none is a PlanError: documents without a mark between them must be an explicit choice.
    """
    if eos == "none":
        return None
    if eos != "auto":
        return _named(tokenizer, "eos", eos)
    declared = tokenizer.model.declared.eos
    if declared is None:
        _refuse(tokenizer, f"{option('eos', 'auto')}: the tokenizer does not declare an end of text", "eos")
    return _named(tokenizer, "eos", declared)


def resolve_bos(tokenizer: "Tokenizer", bos: str = "auto") -> int | None:
    """The id to put before every document, or None for none.

    "none" is none; the text of a special token is its id. "auto" does what the tokenizer's own library does by
    default: the declared bos if add_bos_token in tokenizer_config.json is true, or, where that is not set, if the
    template of tokenizer.json begins with it; otherwise none. A bare .model declares nothing, so none.
    """
    if bos == "none":
        return None
    if bos != "auto":
        return _named(tokenizer, "bos", bos)
    declared = tokenizer.model.declared
    return _named(tokenizer, "bos", declared.bos) if declared.adds_bos and declared.bos is not None else None


def _named(tokenizer: "Tokenizer", name: str, text: str) -> int:
    found = tokenizer.special_tokens.get(text)
    if found is None:
        _refuse(tokenizer, f"{option(name, text)}: not a special token of this tokenizer", name)
    return found


def _refuse(tokenizer: "Tokenizer", problem: str, name: str) -> NoReturn:
    names = list(tokenizer.special_tokens)
    shown = ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10:,} more" if len(names) > 10 else "")
    raise PlanError(
        f"{problem}. Pass {option(name, 'none')} for none, or one of its special tokens: {shown or 'it has none'}."
    )
