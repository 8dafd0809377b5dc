"""Ids to text: by a table built once, or by the home library where no table gives its text exactly."""

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from piecemill._core import Decoder
from piecemill.errors import TokenizerError
from piecemill.tokenizers.engines import load_engine
from piecemill.tokenizers.models import DecodeTable, Model
from piecemill.tokenizers.texts import Flat, flat_tokens, texts_of


class Decoding:
    """The decoder of one model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._table = table = model.decode_table()
        self._decoder = _decoder(table) if table is not None and table.rows else None
        # Bound once: a short row takes less than a microsecond.
        self._text: Callable[[ArrayLike], str] = self._by_home
        if self._decoder is not None:
            self._text = self._decoder.decode_text if self._errors == "replace" else self._with_errors

    def text(self, ids: ArrayLike) -> str:
        """The text that `ids` stand for."""
        try:
            return self._text(ids)
        except TypeError:
            return self._text(row_of_ids(ids).astype(np.int64))

    def whole(self, ids: ArrayLike) -> bytes:
        """The bytes that `ids` stand for."""
        return self._need_table("decode_bytes", "decode").decode(row_of_ids(ids))

    def texts(self, ids: ArrayLike, ends: ArrayLike) -> list[str]:
        """The text of each row of `ids`."""
        if self._decoder is None or self._errors == "home":
            rows, row_ends = row_of_ids(ids), _ends(ends)
            borders = np.concatenate([np.zeros(1, np.int64), row_ends])
            if borders[-1] != len(rows) or (np.diff(borders) < 0).any():
                raise TokenizerError("decode: ends: expected rising ends that finish where ids do.")
            return [self.text(rows[start:end]) for start, end in pairwise(borders.tolist())]
        return texts_of(*self.flat(ids, ends), errors=self._errors)

    def flat(self, ids: ArrayLike, ends: ArrayLike) -> Flat:
        """The bytes of each row of `ids`, in the flat form."""
        decoder = self._need_table("decode_flat", "decode_batch")
        try:
            return decoder.decode_flat(row_of_ids(ids), _ends(ends))
        except ValueError as error:
            raise TokenizerError(f"decode: {error}.") from None

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of one id, at any position."""
        if self._table is None:
            self._need_table("bytes_of", "decode")
        found = None if self._table is None else self._table.tokens[token_id]
        if found is None:
            raise TokenizerError(f"id {token_id} has no token; this vocabulary has gaps.")
        return found

    @property
    def _errors(self) -> str:
        return "replace" if self._table is None else self._table.errors

    def _with_errors(self, ids: ArrayLike) -> str:
        found = self._need_table("decode", "decode").decode(ids)
        try:
            return found.decode()
        except UnicodeDecodeError:
            return self._by_home(ids) if self._errors == "home" else found.decode("utf-8", self._errors)

    @cached_property
    def _home(self) -> Any:
        return load_engine(self._model, self._model.home, "decodes")

    def _by_home(self, ids: ArrayLike) -> str:
        given = row_of_ids(ids)
        outside = (given < 0) | (given >= self._model.vocab_size)
        if outside.any():
            at = int(outside.argmax())
            raise TokenizerError(f"decode: ids[{at}] is {given[at]}; expected 0 to {self._model.vocab_size - 1:,}.")
        text: str = self._home.decode(given)
        return text

    def _need_table(self, what: str, instead: str) -> Decoder:
        if self._decoder is None:
            raise TokenizerError(
                f"{what}: a token of a {self._model.kind} with this decoder has no bytes; use {instead}."
            )
        return self._decoder


def _decoder(table: DecodeTable) -> Decoder:
    missing = [i for i, token in enumerate(table.tokens) if token is None]
    first = None if table.first is None else flat_tokens(token or b"" for token in table.first)
    return Decoder(*flat_tokens(token or b"" for token in table.tokens), first=first, missing=missing)


def row_of_ids(ids: ArrayLike) -> NDArray[Any]:
    """Token ids as an array of one dimension; an error if they are anything else."""
    given = _array(ids, "ids")
    if given.size == 0:
        return np.empty(0, np.uint32)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise TokenizerError(
            f"decode: got an array of shape {given.shape} and type {given.dtype}; expected one row of token ids."
        )
    return given if given.dtype.str[1:] in ("u4", "u2", "i4", "i8") else given.astype(np.int64)


def _ends(ends: ArrayLike) -> NDArray[np.int64]:
    given = _array(ends, "ends")
    if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
        raise TokenizerError(
            f"decode: ends of shape {given.shape} and type {given.dtype}; expected one row of whole numbers, where "
            "each text ends."
        )
    return np.ascontiguousarray(given, np.int64)


def _array(given: ArrayLike, name: str) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except (ValueError, TypeError) as error:  # rows of several lengths
        raise TokenizerError(f"decode: {name} are no array: {error}") from None
