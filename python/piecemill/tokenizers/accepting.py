"""Which documents a tokenizer takes: text, bytes of an alphabet, any bytes, or integers."""

from typing import Any

from piecemill.errors import PlanError
from piecemill.plans import option
from piecemill.tokenizers.tokenizer import Tokenizer


def documents_of(tokenizer: Tokenizer, *, bytes: bool, integers: bool, special: str) -> dict[str, Any]:
    """What a source must refuse, as `open_source` takes it; PlanError if the tokenizer takes other documents.

    With `special="parse"`, documents may have the text of special tokens, which need not be in the alphabet: then the
    tokenizer refuses the rest.
    """
    if bytes and not tokenizer.takes_bytes:
        raise PlanError(
            f"{option('bytes')}: a {tokenizer.kind} with a pretokenizer encodes text. Expected byte-level BPE without "
            "one, as `piecemill train --bytes` makes it."
        )
    if integers and tokenizer.integers is None:
        raise PlanError(
            f"{option('integers')}: the tokenizer is a {tokenizer.kind}, expected one that was trained on integers."
        )
    if tokenizer.integers is not None and not integers:
        raise PlanError(f"{option('integers')}: the tokenizer is a {tokenizer.kind}: say that documents are integers.")
    return {"alphabet": None if special == "parse" else tokenizer.alphabet, "known": tokenizer.integers}
