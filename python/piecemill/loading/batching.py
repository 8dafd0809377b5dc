"""Batches: what a training loop iterates over, and the state (a few integers) from which it resumes.

Samples are numbered through all epochs. A global batch is the next `batch_size * world_size` of them, and a rank takes
its `batch_size` in a row; so the position is one number, the same for every rank, and the samples of a step are the
same for any world size that leaves the global batch as it is. Epochs follow each other without a gap: only the very
last batch of the last epoch can be short.

A `Maker` defines what a sample is: a window of text, or a next item to predict. A `Destination` defines where batches
go: numpy, torch or a device. Chunks (several small batches, or one large one) are prefetched by feeder threads. Start
with `Batches`; `piecemill.loading.text` and `piecemill.actions.batches` have the makers.
"""

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Generic, Protocol, Self, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import LoadError, PlanError
from piecemill.loading.feeding import Feeder
from piecemill.loading.order import Ints, Local, OrderPlan
from piecemill.plans import checked, did_you_mean

# Tokens of a chunk, about: enough that handing one over costs nothing beside gathering it, and small enough
# that its inputs and labels (4 MiB) stay in the cache until they are used.
CHUNK_TOKENS = 1 << 18
FORMAT = 1
"Of states."
_KEPT_CHUNKS = 8

Columns = dict[str, NDArray[Any]]
Room = Callable[[int, int, str], tuple[NDArray[Any], NDArray[Any]]]
Sent = TypeVar("Sent")


@dataclass(slots=True)
class Stats:
    """Counters of the batches returned so far, and their cost."""

    batches: int = 0
    tokens: int = 0
    "Places in all rows, padding too."
    waited: float = 0.0
    "Seconds that the training loop waited for batches."
    cpu: float = 0.0
    "Seconds of processor time of the feeder threads."


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Which batches, in which order, for which rank."""

    batch_size: int = 8
    seed: int = 0
    epochs: int | None = None
    rank: int = 0
    world_size: int = 1
    order: OrderPlan = "shuffled"
    drop_last: bool = False
    threads: int = 1

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("world_size", 1), ("threads", 0)):
            if not isinstance(value := getattr(self, name), SupportsIndex) or int(value) < least:
                raise PlanError(f"{name}={value!r}: expected a whole number of {least} or more.")
        if not 0 <= self.rank < self.world_size:
            raise PlanError(f"rank={self.rank}: expected 0 to {self.world_size - 1}, below world_size.")
        if self.epochs is not None and self.epochs < 1:
            raise PlanError(f"epochs={self.epochs}: expected 1 or more, or None to go on for ever.")

    @property
    def global_batch(self) -> int:
        """Samples of one step over all ranks."""
        return self.batch_size * self.world_size


class Maker(ABC):
    """Makes the rows of samples. Knows nothing of batches, ranks and threads; called in feeder threads."""

    source: Any
    "What samples are made from, for messages."
    epoch: int
    "Samples in an epoch."
    row_tokens: int | None = None
    "Tokens in the one row of a sample; None where that differs: then a chunk is always one batch."
    identity: Mapping[str, Any]
    "What must be the same to go on from a state: `data`, options, and `tokenizer` where it is known."

    @abstractmethod
    def make_rows(self, samples: Ints, room: Room) -> "tuple[Columns, Ints | None]":
        """The columns of the rows of these samples, and their `cuts` if any; -1 stands for padding in a row's place."""

    def look_ahead(self, sample: int, last: int | None) -> None:  # noqa: B027 - not every maker needs it
        """Called before the samples from `sample` on are made, which end at `last`."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some batches: the rows of all as columns, and where each batch ends among them."""

    columns: Columns
    ends: tuple[int, ...]
    cuts: Ints | None = None
    "Where each document begins among all places of all rows; with boundaries only."


class Destination(Protocol[Sent]):
    """Where batches go. `room` and `send` are called in feeder threads, `take_batches` in the training loop."""

    single: bool
    "Whether a chunk is always one batch."

    def room(self, rows: int, window: int, dtype: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Arrays for inputs and labels."""

    def send(self, chunk: Chunk) -> Sent:
        """Start to copy a gathered chunk to its destination."""

    def take_batches(self, sent: Sent) -> Iterator[dict[str, Any]]:
        """The batches of a chunk."""

    def close(self) -> None:
        """Release all buffers."""


def _references(arrays: list[NDArray[Any]], number: int) -> int:
    """How often an array in a list is referred to; every array that shows a part of it counts."""
    return sys.getrefcount(arrays[number])


# The count if only the list refers to it: measured, not assumed, as interpreters differ in what a call adds.
_UNHELD = _references([np.empty(1)], 0)


class Numpy:
    """Batches as dicts of numpy arrays. Those of a chunk are parts of one array; each may be kept and written to."""

    single = False

    def __init__(self) -> None:
        self._made: list[NDArray[Any]] = []
        self._lock = threading.Lock()

    def room(self, rows: int, window: int, dtype: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """The buffer of a chunk that is not referenced any more, or a new one.

        New memory costs more than gathering into it, as the kernel hands it out page by page: 8 ns a token against
        0.4, where the allocator gives large arrays back each time.
        """
        shape = (2, rows, window)
        with self._lock:
            for number in range(len(self._made)):
                if _references(self._made, number) == _UNHELD and self._made[number].shape == shape:
                    return self._made[number][0], self._made[number][1]
            made = np.empty(shape, dtype)
            # Whoever keeps batches keeps their memory; then this is no place to look for free ones.
            self._made = [*self._made[-_KEPT_CHUNKS + 1 :], made]
        return made[0], made[1]

    def send(self, chunk: Chunk) -> Chunk:
        return chunk

    def take_batches(self, sent: Chunk) -> Iterator[dict[str, Any]]:
        starts = (0, *sent.ends[:-1])
        cut = {
            name: [array[a:b] for a, b in zip(starts, sent.ends, strict=True)] for name, array in sent.columns.items()
        }
        return split_batches(cut, sent)

    def close(self) -> None:
        self._made = []


def split_batches(columns: Mapping[str, Sequence[Any]], chunk: Chunk) -> Iterator[dict[str, Any]]:
    """The batches of a chunk, one after another, from the parts that each column was cut into."""
    start = 0
    for end, *parts in zip(chunk.ends, *columns.values(), strict=True):
        batch: dict[str, Any] = dict(zip(columns, parts, strict=True))
        if chunk.cuts is not None:
            bounds, longest = sequences(chunk.cuts, start, end, chunk.columns["input_ids"].shape[1])
            batch["cu_seqlens"], batch["max_seqlen"] = bounds, longest
        yield batch
        start = end


def sequences(cuts: Ints, start: int, end: int, window: int) -> tuple[NDArray[np.int32], int]:
    """Where documents begin in rows `start` to `end` laid end to end, and where the last one ends; and the longest."""
    first, last = np.searchsorted(cuts, [start * window, end * window])
    bounds = np.append(cuts[first:last], end * window) - start * window
    return bounds.astype(np.int32), int(np.diff(bounds).max(initial=0))


class Prefetched(Generic[Sent]):
    """What iterators over batches share: counters, and the threads that make batches ahead.

    The loop may be left early; `close()`, the end of a `with`, or garbage collection ends the threads.
    """

    def __init__(self) -> None:
        self._stats, self._spent = Stats(), 0.0
        self._feeder: Feeder[Sent] | None = None

    def __iter__(self) -> Self:
        return self

    @property
    def stats(self) -> Stats:
        """Counters of the batches returned so far, and their cost."""
        self._stats.cpu = self._spent + (self._feeder.cpu_seconds if self._feeder is not None else 0.0)
        return self._stats

    def _drop(self) -> None:
        """Discard what was made ahead and end the threads."""
        if self._feeder is not None:
            self._feeder.close()
            self._spent += self._feeder.cpu_seconds
            self._feeder = None

    def close(self) -> None:
        """End the threads. `state_dict` and `stats` still work."""
        self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Batches(Prefetched[Sent]):
    """An iterator over batches, finite or endless, prefetched by threads. Made by `batches` and `action_batches`."""

    def __init__(self, maker: Maker, plan: BatchPlan, place: Destination[Sent]) -> None:
        super().__init__()
        self.maker, self.plan, self._place = maker, plan, place
        self._chunks = _ChunkMaker(maker, plan, place)
        # The next batch to give, and how far it is to the one after.
        self._given, self._step = 0, 1
        self._failed: BaseException | None = None
        self._chunk: Iterator[dict[str, Any]] = iter(())
        self._closed = False

    def __len__(self) -> int:
        """Batches from the beginning to the end, on each rank."""
        if self._chunks.batches is None:
            raise TypeError("epochs=None: batches without end have no length")
        return self._chunks.batches

    def __next__(self) -> dict[str, Any]:
        batch = next(self._chunk, None)
        if batch is None:
            self._next_chunk()
            batch = next(self._chunk)
        rows, width = batch["input_ids"].shape
        self._stats.batches += 1
        self._stats.tokens += rows * width
        self._given += self._step
        return batch

    def _next_chunk(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._closed or (self._chunks.batches is not None and self._given >= self._chunks.batches):
            self.close()
            raise StopIteration
        if self._feeder is None:
            self._feeder = self._chunks.feeder(self._given, self._step)
        try:
            sent, waited = self._feeder.next_result()
            self._chunk = self._place.take_batches(sent)
        except BaseException as error:
            if isinstance(error, Exception):
                error.add_note(f"While making batch {self._given:,} of rank {self.plan.rank}, for {self.maker.source}.")
                self._failed = error
            self.close()
            raise
        self._stats.waited += waited

    @property
    def samples(self) -> int:
        """Samples returned so far, over all ranks."""
        given = self._chunks.offset + self._given * self.plan.global_batch
        return given if self._chunks.samples is None else min(given, self._chunks.samples)

    @property
    def epoch(self) -> int:
        """The epoch of the next sample, from 0."""
        return self.samples // self.maker.epoch

    def state_dict(self) -> dict[str, Any]:
        """The position of the next batch: after the last one returned, whatever was prefetched."""
        offset = {"offset": self._chunks.offset} if self._chunks.offset else {}
        return {"format": FORMAT, "samples": self.samples, **offset, **self._identity()}

    def _identity(self) -> dict[str, Any]:
        order = Local() if self.plan.order == "local" else self.plan.order
        return {
            "global_batch": self.plan.global_batch,
            "seed": self.plan.seed,
            "order": order if isinstance(order, str) else f"local {' '.join(map(str, astuple(order)))}",
            **self.maker.identity,
            "epoch_samples": self.maker.epoch,
        }

    @did_you_mean
    def load_state_dict(self, state: Mapping[str, Any], *, change_batch: bool = False) -> None:
        """Resume exactly where `state` was taken, with any number of threads and any rank of any world size.

        Data, seed, order and options must be the same, and so must the global batch, `batch_size * world_size`.
        """
        samples = self._samples_of(state, change_batch)
        self._drop()
        # Batches are counted from the first sample that is not of a step with another global batch.
        offset = samples if change_batch else int(state.get("offset", 0))
        self._chunks.begin_at(offset % self.plan.global_batch)
        self._given = -(-(samples - self._chunks.offset) // self.plan.global_batch)
        self._closed, self._failed = False, None

    def _samples_of(self, state: Mapping[str, Any], change_batch: bool) -> int:
        """Number of samples returned when `state` was taken; LoadError if it does not fit."""
        if not isinstance(state, Mapping):
            raise LoadError(
                f"state: found {type(state).__name__}, expected the dict that `state_dict()` of a loader gives."
            )
        if state.get("format") != FORMAT:
            raise LoadError(
                f"state: format {state.get('format')!r}; expected {FORMAT}, from `state_dict()` of a loader."
            )
        for name, mine in self._identity().items():
            theirs = state.get(name)
            # A tokenizer may not be known, as in states of older versions: `data` still detects other tokens.
            unknown = name == "tokenizer" and None in (mine, theirs)
            if theirs != mine and not unknown and not (change_batch and name == "global_batch"):
                raise LoadError(f"state: {self._differs(name, theirs, mine)}")
        samples, offset, last = state.get("samples"), state.get("offset", 0), self._chunks.samples
        if type(samples) is not int or type(offset) is not int or not 0 <= offset <= samples < 1 << 62:
            raise LoadError(f"state: samples={samples!r}, offset={offset!r}; expected numbers from `state_dict()`.")
        if not change_batch and (samples - offset) % self.plan.global_batch and samples != last:
            raise LoadError(f"state: samples={samples!r}; expected a multiple of {self.plan.global_batch}.")
        if last is not None and samples > last:
            raise LoadError(
                f"state: {samples:,} samples were given out, and epochs={self.plan.epochs} has {last:,}. "
                "Pass more epochs."
            )
        return samples

    def _differs(self, name: str, theirs: Any, mine: Any) -> str:
        plan, source = self.plan, self.maker.source
        known = {
            "data": f"taken over the data {theirs}, and {source} is {mine}. Open the folder that it was taken over, "
            "with the same weights, or begin anew without the state.",
            "tokenizer": f"taken over shards of the tokenizer {theirs}, and {source} was made with {mine}: the same id "
            "is another token. Open shards of the same tokenizer, or begin anew without the state.",
            "epoch_samples": f"an epoch had {theirs} samples and has {mine} now. Pass the same weights and windows.",
            "global_batch": f"taken with {theirs} samples a step over all ranks, requested batch_size={plan.batch_size}"
            f" * world_size={plan.world_size} = {mine}. Choose batch_size so that it is {theirs} again; "
            "to go on with another one, load_state_dict(state, change_batch=True).",
        }
        return known.get(name, f"taken with {name}={theirs!r}, requested {mine!r}. Pass {name}={theirs!r}.")

    def every(self, step: int, skip: int) -> None:
        """Skip `skip` batches, then return every `step`-th: for one of several workers that alternate."""
        if not isinstance(step, int) or not isinstance(skip, int) or step < 1 or skip < 0:
            raise LoadError(f"step={step!r}, skip={skip!r}: expected whole numbers of 1 or more, and of 0 or more.")
        self._drop()
        self._given, self._step = self._given + skip, step

    def _drop(self) -> None:
        self._chunk = iter(())
        super()._drop()

    def close(self) -> None:
        """End the threads and release all buffers. `state_dict` and `stats` still work."""
        super().close()
        self._place.close()
        self._closed = True


def share(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """The part of one rank, as first and count, if `count` things are divided so that parts differ by one at most."""
    each, more = divmod(count, world_size)
    return rank * each + min(rank, more), each + (rank < more)


class _ChunkMaker(Generic[Sent]):
    """Makes chunks of batches of one rank: which samples, their rows, send."""

    def __init__(self, maker: Maker, plan: BatchPlan, place: Destination[Sent]) -> None:
        self._maker, self._plan, self._place = maker, plan, place
        single = place.single or maker.row_tokens is None
        self.chunk = 1 if single else max(1, CHUNK_TOKENS // (plan.batch_size * (maker.row_tokens or 1)))
        self.samples = None if plan.epochs is None else plan.epochs * maker.epoch
        self.begin_at(0)

    def begin_at(self, offset: int) -> None:
        """Count batches from sample number `offset` on, which is below the global batch."""
        self.offset = offset
        self.batches: int | None = None
        if self.samples is not None:
            whole, rest = divmod(max(0, self.samples - offset), self._plan.global_batch)
            self.batches = whole + (rest > 0 and not self._plan.drop_last)

    def _share(self, batch: int) -> tuple[int, int]:
        """The samples of this rank in a batch, as first and count.

        A short last batch is divided evenly, so that counts differ by one at most. A rank without samples gets a row
        of padding, so that all ranks take the same number of steps.
        """
        plan, first = self._plan, self.offset + batch * self._plan.global_batch
        left = plan.global_batch if self.samples is None else min(plan.global_batch, self.samples - first)
        start, count = share(left, plan.rank, plan.world_size)
        return first + start, count

    def feeder(self, first: int, step: int) -> Feeder[Sent]:
        """Makes every `step`-th batch from `first` on, ahead."""
        stride = self.chunk * step
        last = None if self.batches is None else -(-(self.batches - first) // stride)
        return Feeder(lambda number: self.make_chunk(first + number * stride, step), 0, last, self._plan.threads)

    def make_chunk(self, first: int, step: int) -> Sent:
        """One chunk: every `step`-th batch from `first` on."""
        last = first + self.chunk * step
        shares = [self._share(batch) for batch in range(first, min(last, self.batches or last), step)]
        starts, counts = np.array(shares).T
        ends = np.cumsum(np.maximum(counts, 1))
        samples = np.arange(ends[-1]) + np.repeat(starts - ends + counts, np.maximum(counts, 1))
        samples[ends[counts == 0] - 1] = -1
        self._maker.look_ahead(self.offset + first * self._plan.global_batch, self.samples)
        columns, cuts = self._maker.make_rows(samples, self._place.room)
        # A sample may have several rows, where a chunk is one batch.
        return self._place.send(Chunk(columns, (*ends[:-1].tolist(), len(columns["input_ids"])), cuts))
