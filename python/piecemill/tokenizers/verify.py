"""Trust but verify: does the engine give the ids of the library the tokenizer comes from?

Asked before a run, on texts made to be nasty and on the first documents of the corpus itself.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import TokenizerError
from piecemill.tokenizers.engine import Engine
from piecemill.tokenizers.nasty import NASTY
from piecemill.tokenizers.texts import Flat, first_difference, flatten, texts_of
from piecemill.tokenizers.tokenizer import Tokenizer

DOCUMENTS = 200
"How many documents are compared at most."

BYTES = 4 << 20
"How many bytes of them, as home libraries take about a second for one or two MB; a longer first document is cut."

_CALL = 1 << 20
"How many bytes in one call, as HF `tokenizers` holds 90 bytes for each; of a longer document the start is compared."


def verify(tokenizer: Tokenizer, documents: Any = ()) -> dict[str, Any]:
    """Compare the engine with the tokenizer's home library on nasty strings and the first of `documents`.

    `documents` are anything `encode_batch` takes; at most 200 of them and 4 MiB are compared. A difference is a
    TokenizerError with the text and both rows of ids. The record it returns is small and JSON.

    >>> tok = Tokenizer.from_merges(np.array([[64, 65]]), split="gpt2")
    >>> record = verify(tok, ["one document", "another"])
    >>> record["engine"], record["home"], record["documents"]
    ('gigatoken', 'tokenizers', 2)
    """
    verifier = Verifier(tokenizer)
    data, ends = first_texts(*_flat(documents), DOCUMENTS, BYTES)
    compared = verifier.compare("document", data, ends)
    documents = len(ends) if compared else 0
    return verifier.record | {"strings": verifier.strings, "documents": documents, "bytes": compared}


class Verifier:
    """Holds the engine and the home library side by side, to compare them more than once. Made, it has compared
    nasty strings.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._engine, self._home = tokenizer.engine, _home(tokenizer)
        self.record: dict[str, Any] = {
            "engine": self._engine.name,
            "engine_version": self._engine.version,
            "home": self._home.name,
            "home_version": self._home.version,
        }
        self.strings = 0
        special = "".join(f" {text} x{text}y" for text in list(tokenizer.special_tokens)[:50])
        strings = flatten([*NASTY, special])
        if self.compare("nasty string", *strings):
            self.strings = len(strings[1])

    def compare(self, name: str, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> int:
        """Raises TokenizerError at the first text that differs; gives how many bytes were compared."""
        if self._engine.name == self._home.name:
            return 0  # the same library twice would agree with itself
        first = compared = 0
        while first < len(ends):
            base = int(ends[first - 1]) if first else 0
            own, own_ends = first_texts(data[base:], ends[first:] - base, len(ends), _CALL)
            _compare(name, first, self._engine, self._home, own, own_ends)
            first, compared = first + len(own_ends), compared + len(own)
        return compared


def _home(tokenizer: Tokenizer) -> Engine:
    name = tokenizer.model.home
    reason = tokenizer.model.why_not(name)
    if reason is not None:
        raise TokenizerError(
            f"verify: the ids of a {tokenizer.kind} are those of {name}, and {reason}. Install it, so that "
            f"{tokenizer.engine.name} can be compared with it once."
        )
    return tokenizer.model.start(name, "compared with")


def _flat(documents: Any) -> Flat:
    if hasattr(documents, "slice"):  # Arrow: without making the rest flat
        documents = documents.slice(0, DOCUMENTS)
    elif isinstance(documents, Iterable) and not isinstance(documents, str | bytes):
        documents = documents if hasattr(documents, "__arrow_c_stream__") else list(islice(documents, DOCUMENTS))
    return flatten(documents)


def first_texts(data: NDArray[np.uint8], ends: NDArray[np.int64], most: int, most_bytes: int) -> Flat:
    """At most so many texts and so many bytes of them; a first one that is longer is cut. Nothing is copied."""
    ends = ends[:most]
    if len(ends) and ends[0] > most_bytes:
        cut = most_bytes
        while cut and data[cut] & 0xC0 == 0x80:  # inside a character
            cut -= 1
        ends = np.array([cut], np.int64)
    else:
        ends = ends[: int(np.searchsorted(ends, most_bytes, side="right"))]
    return data[: ends[-1] if len(ends) else 0], ends


def _compare(
    name: str, first: int, engine: Engine, home: Engine, data: NDArray[np.uint8], ends: NDArray[np.int64]
) -> None:
    ids, id_ends = engine.encode_flat(data, ends, parse=False, parallel=None)
    wanted, wanted_ends = home.encode_flat(data, ends, parse=False, parallel=None)
    i = first_difference((ids, id_ends), (wanted, wanted_ends))
    if i is None:
        return
    got = ids[int(id_ends[i - 1]) if i else 0 : id_ends[i]]
    want = wanted[int(wanted_ends[i - 1]) if i else 0 : wanted_ends[i]]
    text = texts_of(data, ends)[i]
    short = min(len(got), len(want))
    unequal = got[:short] != want[:short]
    at = int(unequal.argmax()) if unequal.any() else short
    raise TokenizerError(
        f"verify: {name} {first + i} gets other ids from {engine.name} {engine.version} than from {home.name} "
        f"{home.version}, the library this tokenizer comes from. It begins {text[:60]!r}. "
        f"From id {at:,} of {len(got):,} and {len(want):,} on: "
        f"{_around(got, at)} and {_around(want, at)}. Use engine={home.name!r} (--engine {home.name})."
    )


def _around(ids: NDArray[np.uint32], at: int) -> str:
    shown = ", ".join(map(str, ids[max(0, at - 3) : at + 8].tolist()))
    return f"[{'..., ' if at > 3 else ''}{shown}{', ...' if at + 8 < len(ids) else ''}]"
