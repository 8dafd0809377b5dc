"""Batches: what a training loop iterates over, and the few numbers from which it can go on.

Samples are numbered through all epochs. A global batch is the next `batch_size * world_size` of them, and a rank takes
its `batch_size` in a row; so the position is one number, the same for every rank, and the samples of a step are the
same for any world size that leaves the global batch as it is. Epochs follow each other without a gap: only the very
last batch of the last epoch can be short.

Batches are gathered a chunk at a time (several small ones, or one large one) by feeder threads. Where they go, to
numpy, torch or a device, is told by a `Place`. Start with `batches`.
"""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Generic, Literal, Protocol, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PlanError
from piecemill.files import hash_bytes
from piecemill.loading.ahead import look_ahead
from piecemill.loading.feeding import Feeder
from piecemill.loading.mixing import Draws, Mixture, Parts, Weights, parts_of
from piecemill.loading.order import Ints, Local, OrderPlan
from piecemill.loading.state import FORMAT, samples_of
from piecemill.loading.windows import Cut, Gathered, Rows, check_rows, gather
from piecemill.plans import check_names, did_you_mean

# A chunk has about so many tokens: enough that handing one over costs nothing beside gathering it, and small enough
# that its inputs and labels (4 MiB) stay in the cache until they are used.
CHUNK_TOKENS = 1 << 18
_KEPT_CHUNKS = 8

Batch = TypeVar("Batch")
Sent = TypeVar("Sent")
Given = TypeVar("Given", covariant=True)


@dataclass(slots=True)
class Stats:
    """What was given out so far, and what it cost."""

    batches: int = 0
    tokens: int = 0
    "Places in all rows, padding too."
    waited: float = 0.0
    "Seconds that the training loop waited for batches."
    cpu: float = 0.0
    "Seconds of processor time of the feeder threads."


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
    dtype: Literal["int64", "int32"] = "int64"

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("world_size", 1), ("threads", 0)):
            if not isinstance(value := getattr(self, name), SupportsIndex) or int(value) < least:
                raise PlanError(f"{name}={value!r}: expected a whole number of {least} or more.")
        if not 0 <= self.rank < self.world_size:
            raise PlanError(f"rank={self.rank}: expected 0 to {self.world_size - 1}, below world_size.")
        if self.epochs is not None and self.epochs < 1:
            raise PlanError(f"epochs={self.epochs}: expected 1 or more, or None to go on for ever.")
        if self.dtype not in ("int64", "int32"):
            raise PlanError(f"dtype={self.dtype!r}: expected int64 or int32.")

    @property
    def global_batch(self) -> int:
        """Samples of one step over all ranks."""
        return self.batch_size * self.world_size


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some batches, gathered: the rows of all, and where each batch ends among them."""

    rows: Gathered
    ends: tuple[int, ...]

    @property
    def columns(self) -> list[tuple[str, NDArray[Any]]]:
        """What has a row for each window."""
        return list(self.rows.columns().items())


class Place(Protocol[Sent, Given]):
    """Where batches go. `room` and `send` are called in feeder threads, `take` in the training loop."""

    single: bool
    "Whether a chunk is always one batch."

    def room(self, rows: int, window: int, dtype: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Arrays for inputs and labels."""

    def send(self, chunk: Chunk) -> Sent:
        """Bring a gathered chunk on its way."""

    def take(self, sent: Sent) -> Iterator[Given]:
        """The batches of a chunk."""

    def close(self) -> None:
        """Let go of everything held."""


def _references(arrays: list[NDArray[Any]], number: int) -> int:
    """How often an array in a list is referred to; every array that shows a part of it counts."""
    return sys.getrefcount(arrays[number])


# What that is where only the list does: asked and not assumed, as interpreters differ in what a call adds.
_UNHELD = _references([np.empty(1)], 0)


class Numpy:
    """Batches as dicts of numpy arrays. Those of a chunk are parts of one array; each may be kept and written to."""

    single = False

    def __init__(self) -> None:
        self._made: list[NDArray[Any]] = []
        self._lock = threading.Lock()

    def room(self, rows: int, window: int, dtype: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Memory of a chunk that nobody holds a part of any more, or new memory.

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

    def take(self, sent: Chunk) -> Iterator[dict[str, Any]]:
        starts = (0, *sent.ends[:-1])
        cut = {name: [array[a:b] for a, b in zip(starts, sent.ends, strict=True)] for name, array in sent.columns}
        return split(cut, sent)

    def close(self) -> None:
        self._made = []


def split(columns: Mapping[str, Sequence[Any]], chunk: Chunk) -> Iterator[dict[str, Any]]:
    """The batches of a chunk, one after another, from the parts that each column was cut into."""
    start = 0
    for end, *parts in zip(chunk.ends, *columns.values(), strict=True):
        batch: dict[str, Any] = dict(zip(columns, parts, strict=True))
        if chunk.rows.cuts is not None:
            bounds, longest = sequences(chunk.rows.cuts, start, end, chunk.rows.input_ids.shape[1])
            batch["cu_seqlens"], batch["max_seqlen"] = bounds, longest
        yield batch
        start = end


def sequences(cuts: Ints, start: int, end: int, window: int) -> tuple[NDArray[np.int32], int]:
    """Where documents begin in rows `start` to `end` laid end to end, and where the last one ends; and the longest."""
    first, last = np.searchsorted(cuts, [start * window, end * window])
    bounds = np.append(cuts[first:last], end * window) - start * window
    return bounds.astype(np.int32), int(np.diff(bounds).max(initial=0))


class Batches(Generic[Sent, Batch]):
    """An endless or ending row of batches, made ahead by feeder threads. Made by `batches`.

    Leaving the loop early is fine; `close()`, the end of a `with`, or letting go of it ends the threads.
    """

    def __init__(self, rows: Rows | Mixture, place: Place[Sent, Batch], weights: Weights, options: Mapping[str, Any]):
        plan_names = set(BatchPlan.__slots__)
        check_names(options, [*BatchPlan.__slots__, *Cut.__slots__, "weights"])
        if not isinstance(rows, Mixture):
            check_rows(rows)
        self.plan = BatchPlan(**{name: value for name, value in options.items() if name in plan_names})
        cut = {name: value for name, value in options.items() if name not in plan_names}
        self.rows, self.parts = rows, parts_of(rows, weights, cut)
        self._job = _Job(self.parts, self.plan, place)
        self._place = place
        # The next batch to give, and how far it is to the one after.
        self._given, self._step = 0, 1
        self._stats = Stats()
        self._failed: BaseException | None = None
        self._feeder: Feeder[Sent] | None = None
        self._chunk: Iterator[Batch] = iter(())
        self._spent = 0.0
        self._closed = False

    def __iter__(self) -> "Batches[Sent, Batch]":
        return self

    def __len__(self) -> int:
        """Batches from the beginning to the end, on each rank."""
        if self._job.batches is None:
            raise TypeError("epochs=None: batches without end have no length")
        return self._job.batches

    def __next__(self) -> Batch:
        batch = next(self._chunk, None)
        if batch is None:
            self._next_chunk()
            batch = next(self._chunk)
        self._stats.batches += 1
        self._given += self._step
        return batch

    def _next_chunk(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._closed or (self._job.batches is not None and self._given >= self._job.batches):
            self.close()
            raise StopIteration
        if self._feeder is None:
            self._feeder = self._job.feeder(self._given, self._step)
        try:
            sent, waited = self._feeder.take()
            self._chunk = self._place.take(sent)
        except BaseException as error:
            if isinstance(error, Exception):
                error.add_note(f"While making batch {self._given:,} of rank {self.plan.rank}, for {self.rows}.")
                self._failed = error
            self.close()
            raise
        self._stats.waited += waited

    @property
    def stats(self) -> Stats:
        """What was given out so far, and what it cost."""
        missing = self._job.missing_rows if self._given == self._job.batches and self._stats.batches else 0
        self._stats.tokens = (self._stats.batches * self.plan.batch_size - missing) * self._job.window
        self._stats.cpu = self._spent + (self._feeder.cpu_seconds if self._feeder is not None else 0.0)
        return self._stats

    @property
    def samples(self) -> int:
        """Samples given out so far, over all ranks."""
        given = self._job.offset + self._given * self.plan.global_batch
        return given if self._job.samples is None else min(given, self._job.samples)

    @property
    def epoch(self) -> int:
        """The epoch of the next sample, from 0."""
        return self.samples // self.parts.epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch begins: after the last one that was given out, whatever is made ahead."""
        offset = {"offset": self._job.offset} if self._job.offset else {}
        return {"format": FORMAT, "samples": self.samples, **offset, **self._identity()}

    def _identity(self) -> dict[str, Any]:
        cut, order = self.parts.windows[0].cut, Local() if self.plan.order == "local" else self.plan.order
        return {
            "global_batch": self.plan.global_batch,
            "seed": self.plan.seed,
            "order": order if isinstance(order, str) else f"local {' '.join(map(str, astuple(order)))}",
            "window": cut.window,
            "overlap": cut.overlap,
            "pack": int(cut.pack),
            "tokenizer": self.rows.tokenizer_identity,
            "epoch_samples": self.parts.epoch,
            "data": self._data(),
        }

    def _data(self) -> str:
        """Which tokens these are; with weights, also in which shares."""
        if len(self.parts.windows) == 1:
            return self.rows.identity
        return hash_bytes(f"{self.rows.identity} {self.parts.shares}".encode())

    def load_state_dict(self, state: Mapping[str, Any], *, change_batch: bool = False) -> None:
        """Go on exactly where `state` was taken, with any number of threads and any rank of any world size.

        Data, seed, order and windows must be the same, and so must the global batch, `batch_size * world_size`.
        """
        other = {
            "data": lambda theirs, mine: (
                f"taken over the data {theirs}, and {self.rows} is {mine}. Open the folder that it was taken over, "
                "with the same weights, or begin anew without the state."
            ),
            "tokenizer": lambda theirs, mine: (
                f"taken over shards of the tokenizer {theirs}, and {self.rows} was made with {mine}: the same id is "
                "another token. Open shards of the same tokenizer, or begin anew without the state."
            ),
            "epoch_samples": lambda theirs, mine: (
                f"an epoch had {theirs} samples and has {mine} now. Pass the same weights and windows."
            ),
        }
        mine = self._identity()
        if mine["tokenizer"] is None or (isinstance(state, Mapping) and state.get("tokenizer") is None):
            del mine["tokenizer"]  # not known, as in states of older versions: `data` still tells other tokens
        samples = samples_of(state, mine, self.plan, self._job.samples, other, change_batch=change_batch)
        self._drop()
        # Batches are counted from the first sample that is not of a step with another global batch.
        offset = samples if change_batch else int(state.get("offset", 0))
        self._job.begin_at(offset % self.plan.global_batch)
        self._given = -(-(samples - self._job.offset) // self.plan.global_batch)
        self._closed, self._failed = False, None

    def every(self, step: int, skip: int) -> None:
        """Leave out `skip` batches, and then give every `step`-th: for one of several workers that take turns."""
        self._drop()
        self._given, self._step = self._given + skip, step

    def _drop(self) -> None:
        """Let go of what was made ahead, and of the threads."""
        self._chunk = iter(())
        if self._feeder is not None:
            self._feeder.close()
            self._spent += self._feeder.cpu_seconds
            self._feeder = None

    def close(self) -> None:
        """End the threads and let go of all buffers. `state_dict` and `stats` still answer."""
        self._drop()
        self._place.close()
        self._closed = True

    def __enter__(self) -> "Batches[Sent, Batch]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Job(Generic[Sent]):
    """Makes chunks of batches of one rank: which samples, which windows, gather, send."""

    def __init__(self, parts: Parts, plan: BatchPlan, place: Place[Sent, Any]) -> None:
        self._parts, self._plan, self._place = parts.windows, plan, place
        self._sources = None if parts.sources is None else np.array(parts.sources)
        local = plan.order == "local" or isinstance(plan.order, Local)
        ends = [windows.shard_ends for windows in parts.windows] if local else None
        self._draws = Draws([len(windows) for windows in parts.windows], parts.shares, plan.order, plan.seed, ends)
        self._ahead = look_ahead(parts, self._draws, plan.order)
        self.window = parts.windows[0].cut.window
        self.chunk = 1 if place.single else max(1, CHUNK_TOKENS // (plan.batch_size * self.window))
        self.samples = None if plan.epochs is None else plan.epochs * parts.epoch
        self.begin_at(0)

    def begin_at(self, offset: int) -> None:
        """Count batches from sample number `offset` on, which is below the global batch."""
        self.offset = offset
        self.batches: int | None = None
        self._whole: int | None = None
        if self.samples is not None:
            self._whole, rest = divmod(max(0, self.samples - offset), self._plan.global_batch)
            self.batches = self._whole + (rest > 0 and not self._plan.drop_last)

    def _share(self, batch: int) -> tuple[int, int]:
        """The samples of this rank in a batch, as first and count.

        A short last batch is dealt evenly, so that counts differ by one at most. A rank for which none is left is given
        a row of padding, so that all ranks step alike.
        """
        plan, first = self._plan, self.offset + batch * self._plan.global_batch
        left = plan.global_batch if self.samples is None else min(plan.global_batch, self.samples - first)
        each, more = divmod(left, plan.world_size)
        return first + plan.rank * each + min(plan.rank, more), each + (plan.rank < more)

    @property
    def missing_rows(self) -> int:
        """How many rows the last batch of this rank is short of."""
        return 0 if not self.batches else self._plan.batch_size - max(1, self._share(self.batches - 1)[1])

    def feeder(self, first: int, step: int) -> Feeder[Sent]:
        """Makes every `step`-th batch from `first` on, ahead."""
        stride = self.chunk * step
        last = None if self.batches is None else -(-(self.batches - first) // stride)
        return Feeder(lambda number: self.make(first + number * stride, step), 0, last, self._plan.threads)

    def make(self, first: int, step: int) -> Sent:
        """One chunk: every `step`-th batch from `first` on."""
        last = first + self.chunk * step
        whole = np.arange(first, last if self._whole is None else min(last, self._whole), step)
        mine = self._plan.rank * self._plan.batch_size + np.arange(self._plan.batch_size)
        wanted = (self.offset + whole[:, None] * self._plan.global_batch + mine).reshape(-1)
        ends = list(range(self._plan.batch_size, len(wanted) + 1, self._plan.batch_size))
        short = first + len(whole) * step
        if self._whole is not None and self._whole == short < min(last, self.batches or 0):
            start, count = self._share(short)
            wanted = np.concatenate([wanted, np.arange(start, start + count) if count else np.full(1, -1)])
            ends.append(len(wanted))
        part, numbers = np.zeros(len(wanted), np.int64), np.full(len(wanted), -1)
        real = slice(None) if wanted[-1] >= 0 else slice(-1)
        part[real], numbers[real] = self._draws(wanted[real])
        if self._ahead is not None:
            self._ahead(self.offset + first * self._plan.global_batch, self.samples)
        into = self._place.room(len(wanted), self.window, self._plan.dtype)
        rows = gather(self._parts, part, numbers, into=into)
        if self._sources is not None:
            rows = replace(rows, part=np.where(numbers < 0, -1, self._sources[part]))
        return self._place.send(Chunk(rows, tuple(ends)))


@did_you_mean
def batches(
    rows: Rows | Mixture,
    *,
    window: int = 2048,
    overlap: int = 0,
    pack: bool = True,
    boundaries: bool = False,
    overlap_labels: bool = False,
    labels: Literal["shifted", "unshifted"] = "shifted",
    pad_id: int | None = None,
    batch_size: int = 8,
    seed: int = 0,
    epochs: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    order: OrderPlan = "shuffled",
    weights: Weights = "stored",
    drop_last: bool = False,
    threads: int = 1,
    dtype: Literal["int64", "int32"] = "int64",
) -> Batches[Chunk, dict[str, Any]]:
    """Batches of `rows` as numpy arrays: dicts with `input_ids` and `labels`, `batch_size` rows of `window` tokens.

    `labels[t]` is the token after `input_ids[t]`, or -100 where nothing is trained; for a model that shifts labels
    itself, as those of transformers do, pass labels="unshifted". Docs: docs/loading.md.

    window, overlap, pack, boundaries, overlap_labels, labels, pad_id: how documents are cut; see `Cut`.
    batch_size: rows of a batch on one rank.
    seed: together with the epoch it gives the order.
    epochs: after so many the batches end; None goes on for ever, each epoch in a new order.
    rank, world_size: each sample goes to one rank. All ranks have the same number of batches.
    order: "shuffled"; "local" (or `Local(shards=...)`), which reads a few shards at a time, for object stores;
        `Blocks(...)`, which reads close together, for slow disks; "sequential".
    weights: "stored" draws each group by the weight that prepare stored; or a number for each group; None: all alike.
    drop_last: leave out the last batch of the last epoch if it is short, rather than give fewer rows.
    threads: feeder threads; 0 gathers when a batch is asked for. The batches are the same.
    """
    options = {name: value for name, value in locals().items() if name not in ("rows", "weights")}
    return Batches(rows, Numpy(), weights, options)
