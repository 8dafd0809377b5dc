"""A tokenizer in a few lines: what it is, which engine encodes and why, and what is put around documents."""

from typing import Any

from piecemill.errors import PlanError
from piecemill.tokenizers.special import resolve_bos, resolve_eos
from piecemill.tokenizers.tokenizer import Tokenizer


def describe(tokenizer: Tokenizer) -> dict[str, Any]:
    """What `piecemill show` prints, as JSON."""
    names = {i: text for text, i in tokenizer.special_tokens.items()}
    try:
        eos = resolve_eos(tokenizer)
    except PlanError:
        eos = None
    bos = resolve_bos(tokenizer)
    return {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": len(names),
        "eos": None if eos is None else names[eos],
        "bos": None if bos is None else names[bos],
        "engine": tokenizer.engine.name,
        "engine_version": tokenizer.engine.version,
        "why": tokenizer.engine.why,
        "home": tokenizer.model.home,
        "identity": tokenizer.identity,
    }


def engine_record(tokenizer: Tokenizer) -> dict[str, Any]:
    """Which engine encodes, and the home library whose ids it gives, with their versions."""
    from importlib.metadata import PackageNotFoundError, version

    engine, home = tokenizer.engine, tokenizer.model.home
    try:
        home_version: str | None = version(home)
    except PackageNotFoundError:
        home_version = None
    used = {"engine": engine.name, "engine_version": engine.version}
    return {**used, "home": home, "home_version": home_version}


def as_text(found: dict[str, Any]) -> str:
    """The same for people."""
    return "\n".join(
        [
            f"{found['kind']}, {found['vocab_size']:,} tokens, {found['special_tokens']:,} of them special",
            f"engine     {found['engine']} {found['engine_version']}: {found['why']}"
            f" (ids are those of {found['home']})",
            f"documents  begin with {found['bos'] or 'nothing'}, end with {found['eos'] or 'nothing it declares'}",
            f"identity   {found['identity']}",
        ]
    )
