"""Batches of text: windows of documents in shards, in an order that is computed. Start with `batches`.

With an object store, shards are prefetched. A local order reads a few shards at a time, a sequential one reads one: so
looking as many windows ahead as these shards have finds the shards that come next. Only some of the samples on the way
are looked at. A shuffled order needs every shard at any time: nothing is prefetched, and a chunk downloads what it
needs when it is gathered.
"""

import threading
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from piecemill.errors import PlanError
from piecemill.files import hash_bytes
from piecemill.loading.batching import Batches, BatchPlan, Chunk, Columns, Destination, Maker, Numpy, Room, Sent
from piecemill.loading.mixing import Draws, Mixture, Parts, Weights, parts_of
from piecemill.loading.order import Ints, Local, OrderPlan
from piecemill.plans import check_names, did_you_mean
from piecemill.shards.format import token_dtype
from piecemill.shards.windows import FetchedRows, Rows, Windows, WindowSpec, check_rows, gather

_LOOKED_AT = 512
_LOOKS_IN_A_STRETCH = 8


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
) -> Batches[Chunk]:
    """Batches of `rows` as numpy arrays: dicts with `input_ids` and `labels`, `batch_size` rows of `window` tokens.

    `labels[t]` is the token after `input_ids[t]`, or -100 where nothing is trained; for a model that shifts labels
    itself, as those of transformers do, pass labels="unshifted". Docs: docs/loading.md.

    window, overlap, pack, boundaries, overlap_labels, labels, pad_id: how documents are cut; see `WindowSpec`.
    batch_size: rows of a batch on one rank.
    seed: together with the epoch it gives the order.
    epochs: number of epochs; None never ends, each epoch in a new order.
    rank, world_size: each sample goes to one rank. All ranks have the same number of batches.
    order: "shuffled"; "local" (or `Local(shards=...)`), which reads a few shards at a time, for object stores;
        `Blocks(...)`, which reads close together, for slow disks; "sequential".
    weights: "stored" samples each group by the weight that prepare stored; or a number for each group; None: all equal.
    drop_last: leave out the last batch of the last epoch if it is short, rather than give fewer rows.
    threads: feeder threads; 0 gathers without prefetching. The batches are the same.
    """
    options = {name: value for name, value in locals().items() if name != "rows"}
    return windows_to(Numpy(), rows, options)


def windows_to(place: Destination[Sent], rows: Rows | Mixture, options: Mapping[str, Any]) -> Batches[Sent]:
    """The batches of `rows` at `place`; `options` are those of `batches`."""
    maker_names = (*WindowSpec.__slots__, "weights", "dtype")
    check_names(options, [*BatchPlan.__slots__, *maker_names])
    if not isinstance(rows, Mixture):
        check_rows(rows)
    plan = BatchPlan(**{name: value for name, value in options.items() if name not in maker_names})
    maker = WindowMaker(rows, plan, **{name: options[name] for name in maker_names if name in options})
    return Batches(maker, plan, place)


class WindowMaker(Maker):
    """A sample is a window of a folder or a mixture."""

    def __init__(
        self, rows: Rows | Mixture, plan: BatchPlan, weights: Weights = "stored", dtype: str = "int64", **cut: Any
    ) -> None:
        if dtype not in ("int64", "int32"):
            raise PlanError(f"dtype={dtype!r}: expected int64 or int32.")
        self.source, self.parts, self._dtype = rows, parts_of(rows, weights, cut), dtype
        windows = self.parts.windows
        self.epoch, self.row_tokens = self.parts.epoch, windows[0].cut.window
        self._sources = None if self.parts.sources is None else np.array(self.parts.sources)
        local = plan.order == "local" or isinstance(plan.order, Local)
        ends = [each.view.shard_ends() for each in windows] if local else None
        self.draws = Draws([len(each) for each in windows], self.parts.shares, plan.order, plan.seed, ends)
        shards = {"local": Local().shards, "sequential": 2}.get(plan.order, 0) if isinstance(plan.order, str) else 0
        shards = plan.order.shards if isinstance(plan.order, Local) else shards
        fetched = shards and any(isinstance(each.rows, FetchedRows) for each in windows)
        self._ahead = LookAhead(self.parts, self.draws, shards) if fetched else None
        left_out = self.parts.left_out
        drawn = f"{rows.identity} {self.parts.shares}" + (f" without {left_out}" if left_out else "")
        data = rows.identity if len(windows) == 1 and not left_out else hash_bytes(drawn.encode())
        self.identity = {
            "window": windows[0].cut.window,
            "overlap": windows[0].cut.overlap,
            "pack": int(windows[0].cut.pack),
            "tokenizer": rows.tokenizer_identity,
            "data": data,
        }

    def make_rows(self, samples: Ints, room: Room) -> tuple[Columns, Ints | None]:
        part, numbers = np.zeros(len(samples), np.int64), np.full(len(samples), -1)
        real = samples >= 0
        part[real], numbers[real] = self.draws(samples[real])
        into = room(len(samples), self.parts.windows[0].cut.window, self._dtype)
        columns, cuts = gather(self.parts.windows, part, numbers, into=into)
        if self._sources is not None:
            columns["part"] = np.where(numbers < 0, -1, self._sources[part])
        return columns, cuts

    def look_ahead(self, sample: int, last: int | None) -> None:
        if self._ahead is not None:
            self._ahead(sample, last)


class LookAhead:
    """Prefetches the files of the samples after a given one; called from feeder threads."""

    def __init__(self, parts: Parts, draws: Draws, shards: int) -> None:
        self._parts, self._draws = parts.windows, draws
        self._stretch, self._limit = 1, 1 << 62
        for windows, share in zip(parts.windows, parts.shares, strict=True):
            if isinstance(windows.rows, FetchedRows):
                drawn = len(windows) * min(1.0, shards / max(1, len(windows.rows.token_ends)))
                self._stretch = max(self._stretch, round(drawn * sum(parts.shares) / share))
                self._limit = min(self._limit, windows.rows.ahead_bytes)
        self._done, self._lock = -1, threading.Lock()

    def __call__(self, sample: int, last: int | None) -> None:
        """Look ahead from `sample`, if that was not done near it; samples end at `last`."""
        step = max(1, self._stretch // _LOOKS_IN_A_STRETCH)
        with self._lock:
            if sample // step == self._done:
                return
            self._done = sample // step
        end = sample + self._stretch if last is None else min(last, sample + self._stretch)
        count = min(_LOOKED_AT, end - sample)
        if count > 0:
            self._fetch(sample + np.arange(count) * (end - sample) // count)

    def _fetch(self, samples: Ints) -> None:
        """Prefetch the files of these samples, in their order, as far as the cache has space for all of them."""
        part, numbers = self._draws(samples)
        files = np.zeros_like(numbers)
        for which, windows in enumerate(self._parts):
            files[part == which] = windows.view.files(numbers[part == which])
        left = self._limit
        for which, file in dict.fromkeys(zip(part.tolist(), files.tolist(), strict=True)):
            windows = self._parts[which]
            count = len(windows.rows.token_ends)
            if not isinstance(windows.rows, FetchedRows):
                continue
            # The last window of a shard goes on in the next one, where windows are packed.
            both = [file, file + 1] if windows.cut.pack and file + 1 < count else [file]
            left -= sum(_token_bytes(windows, number) for number in both)
            if left < 0:
                return
            windows.rows.prefetch(both, windows.kinds)


def _token_bytes(windows: Windows, file: int) -> int:
    ends = windows.rows.token_ends
    count = int(ends[file]) - (int(ends[file - 1]) if file else 0)
    return count * token_dtype(windows.rows.vocab_size).itemsize
