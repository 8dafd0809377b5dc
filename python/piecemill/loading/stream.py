"""Batches straight from text: documents in a computed order, encoded and cut into windows during training.

No shards are needed. Every rank reads and encodes all documents, in an order that depends only on (seed, epoch), and
takes its rows of each step; so the batches are those of shards that were prepared from the documents in that order and
are loaded with order="sequential". Encoding takes little time beside training (docs/gpu.md), and on a device the ids
never leave it.

    tasks of the source, shuffled ─▶ blocks of documents, shuffled inside ─▶ ids ─▶ stretches ─▶ rows of windows

The position is a few numbers: the epoch, a block, and a place in it. Start with `TextBatches`.
"""

import os
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import torch

from piecemill._core import Xxh3, gather_documents
from piecemill.errors import LoadError, PlanError
from piecemill.files import hash_bytes
from piecemill.loading.batching import BatchPlan, Prefetched, share
from piecemill.loading.device import lane_to
from piecemill.loading.feeding import Feeder
from piecemill.loading.order import OrderPlan, Permutation
from piecemill.plans import did_you_mean
from piecemill.shards.windows import IGNORED, Ints, WindowSpec
from piecemill.sources import Documents, Source, open_source
from piecemill.sources.remote import is_url
from piecemill.sources.unchanged import changed_times
from piecemill.tokenizers import Tokenizer, load_tokenizer, resolve_bos, resolve_eos

FORMAT = 1
"Version of the format of states."
_READING = ("field", "separator", "block_bytes", "on_bad_document", "raw", "upper", "alphabet", "integers")
"Options of reading on which the documents and their blocks depend."
_OR_CHANGE = "; to go on with another one, load_state_dict(state, change_batch=True)"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a window begins: at `token` of a block of a task, after `samples` windows of all ranks."""

    samples: int = 0
    epoch: int = 0
    task: int = 0
    "Its place in the order of the epoch."
    block: int = 0
    token: int = 0
    document: int = 0
    "Documents of the epoch before this block."
    block_hash: int = 0
    "Hash of the documents of the block, which must be the same to resume in it; 0 at the beginning of an epoch."


@dataclass(slots=True)
class _Stretch:
    """Tokens that lie next to each other on the device, from a window's start on, and the windows in them."""

    tokens: torch.Tensor
    ends: torch.Tensor
    host_ends: Ints
    first_document: int
    windows: int
    positions: list[tuple[int, Position]]
    "Token of the stretch at which each of its blocks begins, and the block's position."

    def position(self, window: int, size: int, samples: int) -> Position:
        """The position of a window of it."""
        at = window * size
        begin, block = next((begin, block) for begin, block in reversed(self.positions) if begin <= at)
        token = block.token + at - begin
        return replace(block, samples=samples, token=token)


def _hash(block: Documents) -> int:
    """A number below 2**62 that identifies the documents of a block."""
    hash = Xxh3()
    hash.update(block.data)
    hash.update(block.ends.view(np.uint8))
    return int(hash.hexdigest(), 16) >> 2


class TextStream:
    """Documents of a source in the order of an epoch, in blocks."""

    def __init__(self, source: object, seed: int, order: OrderPlan, **options: Any) -> None:
        self.source: Source = open_source(source, **options)
        self._seed, self._order = seed, order
        self.name = self.source.tasks[0].paths[0] if self.source.tasks else "source"
        # Paths relative to the parent of the folder that was named: the same for a relative and an absolute name.
        ends = [
            path if is_url(path) else "/".join(os.path.abspath(path).split(os.sep)[-2 - inside.count("/") :])
            for path, _, _, inside, _ in self.source.files
        ]
        tasks = [
            (
                ends[task.first_file : task.first_file + len(task.paths)] or task.paths,
                task.start,
                task.stop,
                task.nbytes,
            )
            for task in self.source.tasks
        ]
        reading = {name: getattr(self.source.reading, name) for name in _READING}
        self.identity = hash_bytes(repr((tasks, reading)).encode())
        self.times = hash_bytes(changed_times(self.source.files).tobytes())
        "Hash of the times of change of its files. Other times cause a warning only: a copied file has another time."

    def blocks(self, epoch: int, task: int = 0, block: int = 0) -> Iterator[tuple[int, int, Documents, Ints | None]]:
        """Place of the task, number of the block, the block, and the order of its documents; from a place on."""
        tasks = self.source.tasks
        order = self._permutation(len(tasks), epoch)
        for place in range(task, len(tasks)):
            chosen = tasks[place if order is None else int(order[place])]
            for number, documents in enumerate(self.source.read(chosen)):
                if place > task or number >= block:
                    yield place, number, documents, self._permutation(len(documents), epoch, chosen.index, number)

    def _permutation(self, size: int, *key: int) -> Ints | None:
        if self._order == "sequential":
            return None
        return Permutation(size, self._seed, *key)(np.arange(size))


class TextBatches(Prefetched[Any]):
    """An iterator over batches of text that is encoded on the way. Made by `piecemill.loading.torch.text_batches`."""

    def __init__(
        self,
        source: object,
        tokenizer: Tokenizer | str | PathLike[str],
        plan: BatchPlan,
        cut: WindowSpec,
        *,
        device: torch.device,
        dtype: str,
        edges: tuple[str, str],
        **reading: Any,
    ) -> None:
        super().__init__()
        if plan.order not in ("shuffled", "sequential"):
            raise PlanError(f"order={plan.order!r}: expected shuffled or sequential.")
        if dtype not in ("int64", "int32"):
            raise PlanError(f"dtype={dtype!r}: expected int64 or int32.")
        if not isinstance(tokenizer, Tokenizer):
            tokenizer = load_tokenizer(tokenizer, engine="cuda" if device.type == "cuda" else None)
        self.tokenizer, self.plan, self.cut, self.device = tokenizer, plan, cut, device
        self.stream = TextStream(source, plan.seed, plan.order, **reading)
        for note in self.stream.source.notes:
            warnings.warn(note, stacklevel=4)  # at the call of `text_batches`
        self._dtype = getattr(torch, dtype)
        self._bos, self._eos = resolve_bos(tokenizer, edges[0]), resolve_eos(tokenizer, edges[1])
        self._pad = cut.padding(self._eos, tokenizer.vocab_size)
        self._lane = lane_to(device)
        self._kept = {  # what must be the same to resume from a state
            "seed": plan.seed,
            "order": plan.order,
            "tokenizer": tokenizer.identity,
            "source": self.stream.identity,
            "window": cut.window,
            "global_batch": plan.global_batch,
            "boundaries": cut.boundaries,
            "labels": cut.labels,
            "bos": self._bos,
            "eos": self._eos,
        }
        self._position, self._done = Position(), False

    def __next__(self) -> dict[str, Any]:
        if self._done:
            raise StopIteration
        if self._feeder is None:
            made = self._batches(self._position)

            def make(_: int) -> Any:
                with self._lane.beside():
                    return next(made, None)

            # One thread at most: each batch begins where the one before it ends.
            self._feeder = Feeder(make, 0, None, min(self.plan.threads, 1))
        try:
            taken, waited = self._feeder.next_result()
        except BaseException:
            self.close()
            raise
        if taken is None:
            self.close()
            raise StopIteration
        batch: dict[str, Any]
        batch, longest, event, self._position = taken
        self._lane.hand_over(list(batch.values()), event)
        if longest is not None:
            batch["max_seqlen"] = longest
        self._stats.batches += 1
        self._stats.tokens += batch["input_ids"].numel()
        self._stats.waited += waited
        return batch

    @property
    def samples(self) -> int:
        """Windows returned so far, over all ranks."""
        return self._position.samples

    @property
    def epoch(self) -> int:
        """The epoch of the next window, from 0."""
        return self._position.epoch

    def state_dict(self) -> dict[str, Any]:
        """The position of the next batch: after the last one returned, whatever was prefetched."""
        place = {name: getattr(self._position, name) for name in Position.__slots__}
        return {"format": FORMAT, "kind": "text", **place, **self._kept, "times": self.stream.times}

    @did_you_mean
    def load_state_dict(self, state: Mapping[str, Any], *, change_batch: bool = False) -> None:
        """Resume exactly where `state` was taken, on any rank of any world size with the same global batch.

        With `change_batch`, go on from the same window with another global batch.
        """
        if not isinstance(state, Mapping) or state.get("format") != FORMAT or state.get("kind") != "text":
            raise LoadError("state: expected the dict that `state_dict()` of `text_batches` gives.")
        for name, mine in self._kept.items():
            if state.get(name) != mine and not (change_batch and name == "global_batch"):
                raise LoadError(
                    f"state: taken with {name}={state.get(name)!r}, requested {mine!r}. Pass the same, or begin anew "
                    f"without the state{_OR_CHANGE if name == 'global_batch' else ''}."
                )
        numbers = {name: state.get(name) for name in Position.__slots__}
        wrong = (name for name, value in numbers.items() if type(value) is not int or not 0 <= value < 1 << 62)
        if bad := next(wrong, None):
            raise LoadError(f"state: {bad}={numbers[bad]!r}; expected a number from `state_dict()`.")
        if state.get("times") not in (None, self.stream.times):
            warnings.warn(
                f"{self.stream.name}: this or another file was written since the state was taken. If its text is "
                "another now, the batches are not those of a run without a stop.",
                stacklevel=3,
            )
        position, epochs = Position(**numbers), self.plan.epochs  # type: ignore[arg-type]
        if epochs is not None and (position.epoch, position.task, position.block, position.token) > (epochs, 0, 0, 0):
            raise LoadError(f"state: in epoch {position.epoch:,}, and epochs={epochs}, from 0. Pass more epochs.")
        self._drop()
        self._position, self._done = position, False

    def close(self) -> None:
        """End the thread. `state_dict` and `stats` still work."""
        super().close()
        self._done = True

    # In the feeder thread

    def _batches(self, start: Position) -> Iterator[tuple[dict[str, Any], int | None, Any, Position]]:
        """Every batch of this rank with the position after it."""
        plan, window = self.plan, self.cut.window
        waiting: deque[tuple[_Stretch, int]] = deque()
        samples, epoch = start.samples, start.epoch
        for stretch in self._stretches(start):
            waiting += ((stretch, number) for number in range(stretch.windows))
            epoch = stretch.positions[-1][1].epoch
            while len(waiting) > plan.global_batch:  # one more: its position is that of the next batch
                rows = [waiting.popleft() for _ in range(plan.global_batch)]
                samples += plan.global_batch
                follows, number = waiting[0]
                mine = rows[plan.rank * plan.batch_size : (plan.rank + 1) * plan.batch_size]
                yield *self._rows(mine), follows.position(number, window, samples)
        if waiting and not (plan.drop_last and len(waiting) < plan.global_batch):
            first, count = share(len(waiting), plan.rank, plan.world_size)
            mine = list(waiting)[first : first + count]
            yield *self._rows(mine, like=waiting[0][0]), Position(samples + len(waiting), epoch + 1)

    def _stretches(self, start: Position) -> Iterator[_Stretch]:
        """Encoded blocks, each after what is left of those before it."""
        place, window = start, self.cut.window
        while self.plan.epochs is None or place.epoch < self.plan.epochs:
            left: _Stretch | None = None
            documents, given = place.document, place != Position(epoch=place.epoch)
            found = place == Position(place.samples, place.epoch)  # the block in which a state was taken, if any
            for task, number, block, order in self.stream.blocks(place.epoch, place.task, place.block):
                skip = place.token if (task, number) == (place.task, place.block) else 0
                ids, ends = self._encoded(block, order)
                here = Position(0, place.epoch, task, number, skip, documents, _hash(block))
                if not found and (here != replace(place, samples=0) or skip > len(ids)):
                    break
                found = True
                left = self._joined(left, ids[skip:], ends, skip, here)
                documents += len(block)
                left.windows = max(0, (len(left.tokens) - 1) // window)
                if left.windows:
                    given = True
                    yield left
                    left = self._rest(left)
            if not found:
                raise LoadError(
                    f"state: {self.stream.name}: other documents are there now, in task {place.task:,} of epoch "
                    f"{place.epoch:,}, block {place.block:,}. Open the source that the state was taken over, as it "
                    "was, or begin anew without the state."
                )
            if left is not None and len(left.tokens) > 1:
                left.windows, given = 1, True  # padded
                yield left
            if not given:
                raise LoadError(f"{self.stream.name}: not two tokens in all documents, so there is no window.")
            place = Position(epoch=place.epoch + 1)

    def _encoded(self, block: Documents, order: Ints | None) -> tuple[torch.Tensor, Ints]:
        data, ends = (block.data, block.ends) if order is None else gather_documents(block.data, block.ends, order)
        engine = self.tokenizer.engine
        if self.device.type == "cuda" and hasattr(engine, "encode_on_device"):
            ids, id_ends = engine.encode_on_device(data, ends, bos=self._bos, eos=self._eos)
            tokens = torch.from_dlpack(ids).to(self._dtype)
            torch.cuda.current_stream().synchronize()  # until here the memory of `ids` is read
            return tokens, id_ends.get()
        ids, id_ends = self.tokenizer.encode_flat(data, ends, bos=self._bos, eos=self._eos)
        wide = ids.astype(np.int64 if self._dtype == torch.int64 else np.int32)
        return torch.from_numpy(wide).to(self.device), id_ends

    def _joined(self, left: _Stretch | None, ids: torch.Tensor, ends: Ints, skip: int, here: Position) -> _Stretch:
        """What is left of the blocks before, and a new block without its first `skip` tokens."""
        skipped = int(np.searchsorted(ends, skip, side="right"))
        ends = ends[skipped:] - skip
        if left is None:
            return _Stretch(ids, self._placed(ends), ends, here.document + skipped, 0, [(0, here)])
        before = len(left.tokens)
        all_ends = np.concatenate([left.host_ends, ends + before])
        return _Stretch(
            torch.cat([left.tokens, ids]),
            self._placed(all_ends),
            all_ends,
            left.first_document,
            0,
            [*left.positions, (before, here)],
        )

    def _rest(self, stretch: _Stretch) -> _Stretch:
        """What no window of a stretch begins with."""
        at = stretch.windows * self.cut.window
        skipped = int(np.searchsorted(stretch.host_ends, at, side="right"))
        ends = stretch.host_ends[skipped:] - at
        position = stretch.position(stretch.windows, self.cut.window, 0)
        positions = [(0, position), *((begin - at, block) for begin, block in stretch.positions if begin > at)]
        first = stretch.first_document + skipped
        return _Stretch(stretch.tokens[at:], self._placed(ends), ends, first, 0, positions)

    def _placed(self, ends: Ints) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(ends)).to(self.device)

    def _rows(
        self, rows: list[tuple[_Stretch, int]], like: _Stretch | None = None
    ) -> tuple[dict[str, Any], int | None, Any]:
        """The batch of these windows; without any, one row of padding."""
        made: list[dict[str, torch.Tensor]] = []
        cuts: list[Ints] = []
        start = 0
        while start < len(rows):
            stretch, end = rows[start][0], start
            while end < len(rows) and rows[end][0] is stretch:
                end += 1
            numbers = np.array([window for _, window in rows[start:end]], np.int64)
            made.append(self._windows(stretch, numbers))
            cuts.append(self._cuts(stretch, numbers) + start * self.cut.window)
            start = end
        if not made and like is not None:
            made, cuts = [self._windows(like, np.array([-1]))], [np.zeros(1, np.int64)]
        batch = {name: torch.cat([one[name] for one in made]) if len(made) > 1 else made[0][name] for name in made[0]}
        longest = None
        if self.cut.boundaries:
            bounds = np.append(np.concatenate(cuts), batch["input_ids"].numel())
            batch["cu_seqlens"] = torch.from_numpy(bounds.astype(np.int32)).to(self.device)
            longest = int(np.diff(bounds).max(initial=0))
        return batch, longest, self._lane.done()

    def _windows(self, stretch: _Stretch, numbers: Ints) -> dict[str, torch.Tensor]:
        """Windows of a stretch, by number; -1 is a row of padding."""
        window, count = self.cut.window, len(stretch.tokens)
        first = np.where(numbers < 0, count, numbers * window)
        begin = torch.from_numpy(first).to(self.device)
        places = begin[:, None] + torch.arange(window + 1, device=self.device)
        there = places < count
        tokens = stretch.tokens[places.clamp(max=count - 1)]
        inputs = torch.where(there[:, :-1], tokens[:, :-1], self._pad)
        labels = torch.where(there[:, 1:], tokens[:, 1:], IGNORED)
        made: dict[str, torch.Tensor] = {}
        if self.cut.boundaries:
            inside = there[:, :-1]
            document = torch.searchsorted(stretch.ends, places, right=True)
            opens = torch.where(document > 0, stretch.ends[(document - 1).clamp(min=0)], 0)[:, :-1]
            opens = torch.where(inside, torch.maximum(opens, begin[:, None]), torch.clamp(begin[:, None], min=count))
            labels = torch.where(document[:, 1:] == document[:, :-1], labels, IGNORED)
            made["position_ids"] = (places[:, :-1] - opens).to(torch.int64)
            made["document_ids"] = torch.where(inside, document[:, :-1] + stretch.first_document, -1)
        if self.cut.labels == "unshifted":
            labels = torch.cat([torch.full_like(labels[:, :1], IGNORED), labels[:, :-1]], dim=1)
        return {"input_ids": inputs, "labels": labels, **made}

    def _cuts(self, stretch: _Stretch, numbers: Ints) -> Ints:
        """Where documents begin in these windows laid end to end, also where a row or its padding does."""
        if not self.cut.boundaries:
            return np.zeros(0, np.int64)
        ends, found, window = stretch.host_ends, [], self.cut.window
        for row, number in enumerate(numbers.tolist()):
            at, last = number * window, min((number + 1) * window, len(stretch.tokens))
            inner = ends[np.searchsorted(ends, at, "right") : np.searchsorted(ends, last, "left")] - at
            padding = [last - at] if last - at < window else []
            found.append(np.unique([0, *inner, *padding]) + row * window)
        return np.concatenate(found)
