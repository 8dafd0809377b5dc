"""Encoding with tiktoken, the home library of a `.tiktoken` file. Optional: `pip install tiktoken`."""

from functools import cached_property
from importlib.util import find_spec
from typing import Any

from piecemill.errors import PretokenizerError
from piecemill.tokenizers.engines import LibraryEngine, Parse
from piecemill.tokenizers.models.ranks import Ranks
from piecemill.tokenizers.pretokenizers import WHOLE_DOCUMENT

name = "tiktoken"
reads = (Ranks,)


def can_encode(model: Ranks) -> str | None:
    """Why it cannot be used: it may not be installed, and it has no sequences of pretokenizers."""
    if isinstance(model.pattern, tuple):
        return "tiktoken has one pattern, and this pretokenizer is a sequence"
    return None if find_spec("tiktoken") is not None else "tiktoken is not installed (pip install tiktoken)"


def exact(model: Ranks) -> bool:
    """Its ids are right by definition."""
    return True


def load(model: Ranks) -> "TiktokenEngine":
    """The engine; the library loads the ranks when it first encodes."""
    return TiktokenEngine(model)


class TiktokenEngine(LibraryEngine):
    """One `tiktoken.Encoding`."""

    name = name

    def __init__(self, model: Ranks) -> None:
        self._model = model

    def rows(self, texts: list[str], special: Parse, threads: int) -> Any:
        if threads == 1:
            return (self._ids(text, special) for text in texts)
        if special == "plain":
            return self._encoding.encode_ordinary_batch(texts, **_threads(threads))
        allowed = _allowed(special)
        return self._encoding.encode_batch(texts, allowed_special=allowed, disallowed_special=(), **_threads(threads))

    def _ids(self, text: str, special: Parse) -> Any:
        if special == "plain":
            return self._encoding.encode_ordinary(text)
        return self._encoding.encode(text, allowed_special=_allowed(special), disallowed_special=())

    @cached_property
    def _encoding(self) -> Any:
        import tiktoken

        pattern = self._model.pattern if isinstance(self._model.pattern, str) else WHOLE_DOCUMENT
        try:
            return tiktoken.Encoding(
                "ranks",
                pat_str=pattern,
                mergeable_ranks=self._model.ranks,
                special_tokens=dict(self._model.special_tokens),
            )
        except ValueError as error:
            raise PretokenizerError(
                f"pretokenizer {pattern!r}: tiktoken cannot compile it ({error}). Write it in fancy-regex's syntax."
            ) from error


def _allowed(special: Parse) -> Any:
    return "all" if special == "parse" else set(special)


def _threads(threads: int) -> dict[str, int]:
    return {"num_threads": threads} if threads else {}
