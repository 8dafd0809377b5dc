"""The one place where preparing meets a tokenizer: bos, eos, special tokens in documents, and verified trust.

A large document is encoded a piece at a time where its tokenizer allows it, so that little more than its text and its
tokens as they are written is ever in memory.
"""

from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import gather_tokens
from piecemill.preparing.budget import Caches
from piecemill.sources import LARGE
from piecemill.tokenizers import Tokenizer, resolve_bos, resolve_eos
from piecemill.tokenizers.tokenizer import Special
from piecemill.tokenizers.verify import BYTES, DOCUMENTS, Verifier, first_texts
from piecemill.training.stages import give_back_memory

Ids = tuple[NDArray[np.uint32], NDArray[np.int64]]

_PIECE = 8 << 20
"Bytes of a large document that are encoded and narrowed at a time."
_CALL = 320 << 20
"What a call of the engine may take for a document, at a token for each byte; longer ones are cut."
USUAL = 64 << 20
"What encoding a document may take before anybody asks whether there is room."
_SAMPLES, _SAMPLE_BYTES = 16, 1 << 16
_WINDOW = 1 << 16
_ALONE = np.zeros(1, np.int64)


class Encoder:
    """A tokenizer as a run needs it: flat buffers in and out, from many threads at once."""

    def __init__(self, tokenizer: Tokenizer, *, eos: str, bos: str, special: Special) -> None:
        self.tokenizer = tokenizer
        self.special = special
        self.eos = resolve_eos(tokenizer, eos)
        self.bos = resolve_bos(tokenizer, bos)
        self.verified: dict[str, Any] = {}
        self._caches: Caches | None = None
        self._compared = False
        self._left = (DOCUMENTS, BYTES)
        self._first: SimpleQueue[tuple[NDArray[np.uint8], NDArray[np.int64], Event] | None] = SimpleQueue()

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return self.tokenizer.vocab_size

    def identity(self) -> dict[str, Any]:
        """What makes the tokenizer this one: the same for the same ids."""
        return {
            "vocab_size": self.vocab_size,
            "eos": self.eos,
            "bos": self.bos,
            "kind": self.tokenizer.kind,
            "identity": self.tokenizer.identity,
        }

    def warm_up(self) -> None:
        """Load the engine now, so that its time and memory are not those of the first block."""
        self.encode(np.frombuffer(b"warm", np.uint8), np.array([4], np.int64))

    def bound(self, caches: Caches) -> None:
        """From now on the engine forgets what it has seen when that is too much."""
        self._caches = caches

    def forget(self) -> None:
        """Give back what the engine keeps of texts it has seen; what it encodes next takes longer."""
        self.tokenizer.engine.forget()
        give_back_memory()

    def encode(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> Ids:
        """The ids of every document, and where each document ends among them."""
        # Not while the home library is there, which takes as much as caches do at first.
        if self._caches is not None and self._compared and self._caches.too_much():
            self.forget()
            self._caches.forgotten()
        finer = self._cut(data, ends) if self._in_pieces else ends
        # On this thread: the run has as many threads as it wants, and they read and write beside it.
        ids, id_ends = self.tokenizer.encode_flat(data, finer, special=self.special, parallel=False)
        return ids, (id_ends if finer is ends else id_ends[np.searchsorted(finer, ends)])

    def _cut(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each document ends, and where long ones are cut, so that no call of the engine takes much."""
        most = _CALL // self.tokenizer.engine.bytes_per_token
        sizes = np.diff(ends, prepend=0)
        if not len(sizes) or sizes.max() <= most:
            return ends
        cuts = [ends]
        for number in np.flatnonzero(sizes > most).tolist():
            start = int(ends[number] - sizes[number])
            pieces = pieces_of(data[start : int(ends[number])], most)
            cuts.append(start + np.cumsum([len(piece) for piece in pieces])[:-1])
        return np.sort(np.concatenate(cuts))

    def encode_alone(self, data: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The ids of one large document as they are written, bos and eos included."""
        pieces = pieces_of(data, _PIECE) if self._in_pieces else iter([data])
        # A token is a byte at least where a text may be cut. What is not touched of it is not in memory.
        out = np.empty(len(data) + 2, dtype) if self._in_pieces else None
        end, piece = 0, next(pieces)
        while True:
            following = next(pieces, None)
            ids, ends = self.encode(piece, np.array([len(piece)], np.int64))
            marks = {"bos": None if end else self.bos, "eos": self.eos if following is None else None}
            own, _ = gather_tokens(ids, ends, _ALONE, **marks, narrow=dtype.itemsize == 2)
            if out is None:
                return own
            out[end : end + len(own)] = own
            end += len(own)
            if following is None:
                return out[:end]
            piece = following

    def heavy(self, data: NDArray[np.uint8], ends: NDArray[np.int64], token_bytes: int) -> int:
        """Bytes that encoding the largest document takes, where that is more than a block usually does; else 0."""
        sizes = np.diff(ends, prepend=0)
        if not len(sizes):
            return 0
        number = int(sizes.argmax())
        size = int(sizes[number])
        document = data[int(ends[number]) - size : int(ends[number])]
        at_once, each = self._at_once(document), self.tokenizer.engine.bytes_per_token
        if size < LARGE and size * token_bytes + at_once * each < USUAL:
            return 0
        return int(self._tokens(document) * (token_bytes + each * at_once / size))

    def _at_once(self, document: NDArray[np.uint8]) -> int:
        """Bytes that the engine must take in one call; 0 if no more than is in the reserve of every run."""
        if not self._in_pieces:
            return len(document)
        most = min(_PIECE, _CALL // self.tokenizer.engine.bytes_per_token)
        if len(document) <= most:
            return 0
        longest = max(map(len, pieces_of(document, most)))
        return longest if longest > 2 * most else 0

    def _tokens(self, data: NDArray[np.uint8]) -> float:
        """How many tokens a document will have, going by some samples of it."""
        step = max(len(data) // _SAMPLES, _SAMPLE_BYTES)
        tokens = size = 0
        for start in range(0, len(data), step):
            sample = data[_character(data, start) : _character(data, min(start + _SAMPLE_BYTES, len(data)))]
            tokens += len(self.encode(sample, np.array([len(sample)], np.int64))[0])
            size += len(sample)
        return len(data) * tokens / max(size, 1) * 1.05

    @property
    def _in_pieces(self) -> bool:
        # The text of a special token may have a space in it.
        return self.tokenizer.cuts_at_spaces and self.special != "parse"

    # Trust but verify: the first documents go to another thread, where the tokenizer's home library encodes them too.

    def trust(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> Event | None:
        """Have the first documents that a run reads compared; to be called with each block, in order.

        Gives what is set when those of this block were; None for a block of which none is.
        """
        documents, size = self._left
        if not documents or not size or not len(ends):
            return None
        first, first_ends = first_texts(data, ends, documents, size)
        self._left = (documents - len(first_ends), size - len(first))
        compared = Event()
        self._first.put((first.copy(), first_ends, compared))
        if len(first_ends) < len(ends) or not all(self._left):
            self.trust_no_more()
        return compared

    def trust_no_more(self) -> None:
        """There are no more documents to compare."""
        self._left = (0, 0)
        self._first.put(None)

    def verify(self, over: Callable[[], bool], tell: Callable[[], None]) -> None:
        """Compare nasty strings, then what `trust` was given, and `tell` of each; a difference is a TokenizerError."""
        verifier = Verifier(self.tokenizer)
        # Who was compared with whom: the same for every run, where the documents of a resumed one are others.
        self.verified = verifier.record
        while not over():
            try:
                first = self._first.get(timeout=0.1)
            except Empty:
                continue
            if first is None:
                break
            data, ends, compared = first
            verifier.compare("document", data, ends)
            compared.set()
            tell()
        # A home library may hold a hundred megabytes, and leave as much behind.
        del verifier
        give_back_memory()
        self._compared = True


def pieces_of(data: NDArray[np.uint8], size: int) -> Iterator[NDArray[np.uint8]]:
    """A text in pieces of about `size` bytes, cut before spaces and line ends; see `Tokenizer.cuts_at_spaces`.

    >>> [bytes(piece) for piece in pieces_of(np.frombuffer(b"one two  three four", np.uint8), 5)]
    [b'one', b' two', b'  three', b' four']
    """
    start = 0
    while len(data) - start > size and (cut := _cut(data, start, start + size)):
        yield data[start:cut]
        start = cut
    yield data[start:]


def _cut(data: NDArray[np.uint8], start: int, wanted: int) -> int:
    """The last place to cut up to `wanted`, else the first after it; 0 if there is none."""
    low = wanted
    while low > start:
        low, high = max(start, low - _WINDOW), low
        if len(found := _places(data, low, high)):
            return int(found[-1])
    high = wanted
    while high < len(data):
        low, high = high, min(high + _WINDOW, len(data))
        if len(found := _places(data, low, high)):
            return int(found[0])
    return 0


def _places(data: NDArray[np.uint8], low: int, high: int) -> NDArray[np.int64]:
    """Where from `low` + 1 to `high` a space follows a visible ASCII character, or a line feed a letter or digit."""
    here = data[low : high + 1]
    before, after = here[:-1], here[1:]
    places = (after == 0x20) & (before > 0x20) & (before < 0x7F)
    if not places.any():
        lower = before | 0x20
        word = ((lower >= 0x61) & (lower <= 0x7A)) | ((before >= 0x30) & (before <= 0x39))
        places = (after == 0x0A) & word
    return np.flatnonzero(places) + low + 1


def _character(data: NDArray[np.uint8], at: int) -> int:
    """The start of the character that byte `at` belongs to."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at -= 1
    return at
