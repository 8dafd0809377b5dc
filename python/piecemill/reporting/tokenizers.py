"""The facts of a tokenizer of any kind, and the page of `show`."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from piecemill.errors import PlanError, TokenizerError
from piecemill.tokenizers import Tokenizer, load_tokenizer, resolve_bos, resolve_eos

_SAMPLE = 16
"Tokens that are spelled, spread evenly over the ids."


def describe_tokenizer(
    path: str | PathLike[str], *, engine: str | None = None, pretokenizer: str | None = None
) -> dict[str, Any]:
    """The facts of the tokenizer at `path`, as `load_tokenizer` reads it."""
    if Path(path).name in ("tokenizer.json", "integers.json") and Path(path).is_file():
        path = Path(path).parent  # the same file, and training.json beside it
    return facts(load_tokenizer(path, engine=engine, pretokenizer=pretokenizer))


def facts(tokenizer: Tokenizer) -> dict[str, Any]:
    """What it is, which engine encodes and why, and what is put around documents."""
    names = {i: text for text, i in tokenizer.special_tokens.items()}
    try:
        eos = resolve_eos(tokenizer)
    except PlanError:
        eos = None
    bos, size = resolve_bos(tokenizer), tokenizer.vocab_size
    step = max(1, (size - 1) // (_SAMPLE - 1))
    return {
        "model": tokenizer.kind,
        "vocab_size": size,
        "pretokenizer": pretokenizer_of(tokenizer),
        "special_tokens": tokenizer.special_tokens,
        "roles": tokenizer.roles,
        "eos": None if eos is None else names.get(eos),
        "bos": None if bos is None else names.get(bos),
        "engine": tokenizer.engine.name,
        "engine_version": tokenizer.engine.version,
        "why": tokenizer.engine.why,
        "home": tokenizer.model.home,
        "identity": tokenizer.identity,
        "sample": {str(i): spelling(tokenizer, i) for i in reversed(range(size - 1, -1, -step))},
        "training": tokenizer.training,
    }


def pretokenizer_of(tokenizer: Tokenizer) -> str | None:
    """The pretokenizer of a tokenizer that has one with a name or a regex; None for all others."""
    return getattr(tokenizer.model, "pretokenizer", None)


def spelling(tokenizer: Tokenizer, token: int) -> str:
    """A token for people: its text, with bytes that are not UTF-8 escaped; empty where the id has no token."""
    try:
        return tokenizer.bytes_of(token).decode("utf-8", "backslashreplace")
    except TokenizerError:  # its tokens are not bytes
        try:
            return tokenizer.decode([token])
        except TokenizerError:  # an id that no token has
            return ""


def lines(path: str, found: Mapping[str, Any]) -> list[str]:
    """The page for people."""
    special = [f"{text} = {i}" for text, i in found["special_tokens"].items()]
    more = f", ... ({len(special):,} in all)" if len(special) > _SAMPLE else ""
    return [
        f"{path}: a tokenizer of {found['vocab_size']:,} tokens, {found['model']}",
        *([f"pretokenizer  {found['pretokenizer']}"] if found["pretokenizer"] is not None else []),
        f"engine        {found['engine']} {found['engine_version']}: {found['why']} (ids are those of {found['home']})",
        f"special       {', '.join(special[:_SAMPLE]) or 'none'}{more}",
        *(
            [f"roles         {', '.join(f'{role} {text}' for role, text in found['roles'].items())}"]
            if found["roles"]
            else []
        ),
        f"documents     begin with {found['bos'] or 'nothing'}, end with {found['eos'] or 'nothing it declares'}",
        "tokens        " + "  ".join(f"{i} {text!r}" for i, text in found["sample"].items()),
        f"identity      {found['identity']}",
    ]
