"""Documents -> ids, batch by batch; the host encodes what the device cannot. Start with `encode`.

A batch is some whole documents. A document that is larger than a batch is cut where a word surely starts. The host
encodes: words that are too long for the device or that it did not find, documents that contain an added token or that
normalizing may change, large documents that cannot be cut, and batches with too many new words. Meanwhile the device
goes on with other batches. Nothing here knows CUDA: tests run it on a stand-in for the device.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ends = NDArray[np.int64]
AnyIds = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Words:
    """Words of a batch: where they start in it, and their lengths in bytes."""

    at: NDArray[np.uint32]
    length: NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Counts:
    """What a phase reports of a batch."""

    tokens: int
    words: Words | None = None
    "Words that the host has to encode."
    documents: NDArray[np.int64] | None = None
    "Documents of the batch that the host has to encode."
    invalid: bool = False
    "Some of it is not UTF-8."
    overflow: bool = False
    "The host has to encode all of it."


class Device(Protocol):
    """What the pipeline asks of a device. Each slot holds one batch at a time."""

    slots: int
    most_bytes: int
    most_documents: int

    def look_for(self, added: Sequence[bytes]) -> None: ...

    def wants_flush(self) -> bool: ...

    def flush(self) -> None: ...

    def ends_of(self, documents: int) -> Ends:
        """An array that `download` can write ends to."""

    def upload(self, number: int, data: Any, ends: Ends, start: int, bos: int | None, eos: int | None) -> None: ...

    def start(self, number: int) -> None: ...

    def found(self, number: int) -> Counts: ...

    def patch(self, number: int, at: NDArray[np.uint32], ids: NDArray[np.uint32], ends: Ends) -> None: ...

    def finish(self, number: int, *, again: bool = False) -> None: ...

    def give_up(self, number: int) -> None: ...

    def done(self, number: int) -> Counts: ...

    def download(self, number: int, ids: Any, ends: Any) -> None: ...

    def wait(self) -> None: ...


class Host(Protocol):
    """How the host encodes: words as they are, and documents as the tokenizer does."""

    def words(self, data: Bytes, ends: Ends) -> tuple[AnyIds, Ends]: ...

    def documents(self, data: Bytes, ends: Ends, bos: int | None, eos: int | None) -> tuple[AnyIds, Ends]: ...


class Text(Protocol):
    """The bytes of all documents, on the host or on the device."""

    def whole(self) -> Any:
        """As `Device.upload` takes them."""

    def read(self, start: int, end: int) -> Bytes:
        """Some of them, on the host."""


class Sink(Protocol):
    """Where ids go, one batch after another."""

    tokens: int

    def room(self, tokens: int) -> Any:
        """The next `tokens` places, for `Device.download`."""

    def append_ids(self, ids: AnyIds) -> None:
        """Append ids that the host has."""


class Invalid(Exception):
    """Some document is not UTF-8."""


class _NotInParts(Exception):
    """A document that was cut has to be encoded as a whole, by the host."""


def encode(
    device: Device,
    host: Host,
    text: Text,
    ends: Ends,
    sink: Sink,
    *,
    bos: int | None,
    eos: int | None,
    added: Sequence[bytes] = (),
) -> Ends:
    """Encode all documents into `sink`; where each ends there. The host encodes those with an `added` token."""
    device.look_for(added)
    token_ends = np.zeros(len(ends), np.int64)
    sizes = np.diff(ends, prepend=0)
    first = 0
    for giant in [*np.flatnonzero(sizes > device.most_bytes).tolist(), len(ends)]:
        if giant > first:
            run = _Pipeline(device, host, text, sink, bos, eos)
            start = int(ends[first - 1]) if first else 0
            token_ends[first:giant] = run.documents(start, ends[first:giant])
        if giant < len(ends):
            end = int(ends[giant])
            _giant(device, host, text, sink, end - int(sizes[giant]), end, bos, eos, added)
            token_ends[giant] = sink.tokens
        first = giant + 1
    return token_ends


def _giant(
    device: Device,
    host: Host,
    text: Text,
    sink: Sink,
    start: int,
    end: int,
    bos: int | None,
    eos: int | None,
    added: Sequence[bytes],
) -> None:
    """One document that is larger than a batch."""
    before, cuts = sink.tokens, cut_places(text, start, end, device.most_bytes)
    reach = max(map(len, added), default=0)
    try:
        if cuts is None:
            raise _NotInParts
        for cut in cuts[:-1].tolist() if added else ():  # an added token may have a space in it
            around = text.read(max(start, cut - reach), min(end, cut + reach)).tobytes()
            if any(token in around for token in added):
                raise _NotInParts
        if bos is not None:
            sink.append_ids(np.array([bos]))
        _Pipeline(device, host, text, sink, None, None, parts=True).documents(start, cuts)
        if eos is not None:
            sink.append_ids(np.array([eos]))
    except _NotInParts:
        sink.tokens = before
        ids, _ = host.documents(text.read(start, end), np.array([end - start], np.int64), bos, eos)
        sink.append_ids(ids)


def cut_places(text: Text, start: int, end: int, most: int) -> Ends | None:
    """Ends of parts of `text[start:end]` of at most `most` bytes; None if there is no safe place to cut one.

    A named pretokenizer allows a cut before a space after a visible ASCII character, and before a line feed after an
    ASCII letter or digit (`cuts_at_spaces` in src/pretoken/table.rs).
    """
    cuts, step = [], 1 << 16
    while end - start > most:
        high = start + most
        while True:
            low = max(start, high - step)
            window = text.read(low, high + 1)
            before, after = window[:-1], window[1:]
            visible = (before > 0x20) & (before < 0x7F)
            folded = before | 0x20
            plain = ((folded >= ord("a")) & (folded <= ord("z"))) | ((before >= ord("0")) & (before <= ord("9")))
            places = np.flatnonzero((visible & (after == 0x20)) | (plain & (after == 0x0A)))
            if len(places):
                start = low + int(places[-1]) + 1
                cuts.append(start)
                break
            if low == start:
                return None
            high = low
    return np.array([*cuts, end], np.int64)


@dataclass(slots=True)
class _Batch:
    start: int
    first: int
    last: int
    slot: int
    found: Counts | None = None
    by_host: bool = False
    open: bool = True
    "Its first phase has begun, its second has not."


class _Pipeline:
    """Documents in batches: the first phase of batch k, the second of k - 1 and the download of k - 2 overlap."""

    def __init__(
        self,
        device: Device,
        host: Host,
        text: Text,
        sink: Sink,
        bos: int | None,
        eos: int | None,
        *,
        parts: bool = False,
    ) -> None:
        self._device, self._host, self._text, self._sink = device, host, text, sink
        self._bos, self._eos, self._parts = bos, eos, parts
        self._ends = self._token_ends = np.zeros(0, np.int64)
        self._started: deque[_Batch] = deque()
        self._finishing: deque[_Batch] = deque()
        self._bases: list[tuple[_Batch, int]] = []

    def documents(self, start: int, ends: Ends) -> Ends:
        """Encode the documents that end at `ends`, the first from `start` on; where each ends in the sink."""
        device, self._ends = self._device, ends
        self._token_ends = device.ends_of(len(ends))
        try:
            for batch in self._uploaded(start):
                if device.wants_flush():
                    self._drain()  # a second phase that is run again finds its words in the table
                    device.flush()
                device.start(batch.slot)
                self._started.append(batch)
                if len(self._started) > 1:
                    self._second()
                if len(self._finishing) > 1:
                    self._last()
            self._drain()
        finally:
            for batch in (*self._started, *self._finishing):
                if batch.open:
                    device.give_up(batch.slot)
            device.wait()
        for batch, base in self._bases:
            self._token_ends[batch.first : batch.last] += base
        return self._token_ends

    def _uploaded(self, start: int) -> Iterator[_Batch]:
        """The batches, each when the next is on its way to the device too."""
        ready: _Batch | None = None
        for number, (at, first, last) in enumerate(self._batches(start)):
            batch = _Batch(at, first, last, number % self._device.slots)
            ends = self._ends[first:last]
            self._device.upload(batch.slot, self._text.whole(), ends, at, self._bos, self._eos)
            if ready is not None:
                yield ready
            ready = batch
        if ready is not None:
            yield ready

    def _batches(self, start: int) -> Iterator[tuple[int, int, int]]:
        """Start, first and last document of each: small ones first and last, so that little waits for them."""
        ends, first, least = self._ends, 0, self._device.most_bytes // 2
        while first < len(ends):
            left = int(ends[-1]) - start
            want = min(self._device.most_bytes, max(least, min(least + 2 * (start - int(ends[0])), left // 2)))
            top = min(len(ends), first + self._device.most_documents)
            last = first + int(np.searchsorted(ends[first:top], start + want, side="right"))
            last = max(last, first + 1)  # no document is larger than a batch
            yield start, first, last
            start, first = int(ends[last - 1]), last

    def _drain(self) -> None:
        while self._started:
            self._second()
        while self._finishing:
            self._last()

    def _second(self) -> None:
        batch = self._started.popleft()
        found = batch.found = self._device.found(batch.slot)
        self._finishing.append(batch)
        if found.invalid:
            raise Invalid
        if found.documents is not None and self._parts:
            raise _NotInParts
        if not found.overflow and found.words is not None:
            self._patch(batch, found.words)
        batch.open, batch.by_host = False, found.overflow
        if found.overflow:
            self._device.give_up(batch.slot)
        else:
            self._device.finish(batch.slot)

    def _patch(self, batch: _Batch, found: Words) -> None:
        order = np.argsort(-found.length.astype(np.int64), kind="stable")  # threads begin with the longest
        at, length = found.at[order], found.length[order].astype(np.int64)
        first, last = int(at.min()), int((at + length).max())
        text = self._text.read(batch.start + first, batch.start + last)  # one copy: it may be on the device
        starts = at.astype(np.int64) - first
        words = [text[start:end] for start, end in zip(starts.tolist(), (starts + length).tolist(), strict=True)]
        ids, ends = self._host.words(np.concatenate(words), np.cumsum(length))
        self._device.patch(batch.slot, at, ids, ends)

    def _last(self) -> None:
        batch = self._finishing[0]
        self._bases.append((batch, self._sink.tokens))
        self._take(batch)
        self._finishing.popleft()

    def _take(self, batch: _Batch) -> None:
        device, sink = self._device, self._sink
        while not batch.by_host:
            done = device.done(batch.slot)
            if done.words is None:
                break
            batch.by_host = done.overflow
            if not done.overflow:
                self._patch(batch, done.words)
                device.finish(batch.slot, again=True)
        ends = self._token_ends[batch.first : batch.last]
        if batch.by_host:
            ids, ends[:] = self._on_host(batch.first, batch.last, batch.start)
            sink.append_ids(ids)
            return
        tokens = done.tokens + ((self._bos is not None) + (self._eos is not None)) * len(ends)
        by_host = batch.found.documents if batch.found else None
        if by_host is None:
            device.download(batch.slot, sink.room(tokens), ends)
            return
        ids = np.empty(tokens, sink.room(0).dtype)
        device.download(batch.slot, ids, ends)
        device.wait()
        starts, lengths = ends - np.diff(ends, prepend=0), np.diff(ends, prepend=0)
        at = 0
        for d in by_host.tolist():
            document = batch.first + d
            theirs, _ = self._on_host(document, document + 1, int(self._ends[document - 1]) if d else batch.start)
            sink.append_ids(ids[at : starts[d]])
            sink.append_ids(theirs)
            at, lengths[d] = int(ends[d]), len(theirs)
        sink.append_ids(ids[at:])
        ends[:] = np.cumsum(lengths)

    def _on_host(self, first: int, last: int, start: int) -> tuple[AnyIds, Ends]:
        text = self._text.read(start, int(self._ends[last - 1]))
        return self._host.documents(text, self._ends[first:last] - start, self._bos, self._eos)
