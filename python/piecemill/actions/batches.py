"""Batches of actions: next-item examples, segmented on the fly.

An example is a history up to some item, and that item to predict: a history of n items has n - 1 of them, or only the
one that predicts its last item, for validation and test. What goes in are the last `history` items before the label,
segmented with an order of features drawn for (seed, epoch, example): every epoch sees other tokens, and any of it can
be made again. The order of examples is a permutation for (seed, epoch), computed and not stored.

Samples are numbered through all epochs, as in `piecemill.loading`: the state is one of these numbers and what must be
the same to go on from it. Start with `action_batches`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from piecemill.actions.shards import ActionShards
from piecemill.actions.tokenizer import IGNORED, Ids, Ints
from piecemill.errors import LoadError, PlanError
from piecemill.loading.feeding import Feeder
from piecemill.loading.order import order_of
from piecemill.loading.state import FORMAT, samples_of

Batch = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionBatchPlan:
    """Which examples, how they are segmented, in which order, for which rank."""

    batch_size: int = 256
    "Examples of a batch on one rank."
    examples: Literal["prefixes", "last"] = "prefixes"
    "Every item of a history after its first is a label, or only its last item."
    history: int = 20
    "Items before the label that go in, at most."
    segmentation: Literal["random", "weighed"] = "random"
    "By set permutation regularisation, or without chance."
    ensemble: int = 1
    "Random segmentations of each example, as rows that follow each other."
    pad_to: int | None = None
    "Width of every batch; None: that of its longest row."
    seed: int = 0
    "With the epoch, it gives the order and the segmentations."
    epochs: int | None = None
    "After so many the batches end; None goes on for ever."
    rank: int = 0
    world_size: int = 1
    "Each example goes to one rank. All ranks have the same number of batches."
    order: Literal["shuffled", "sequential"] = "shuffled"
    drop_last: bool = False
    "Leave out the last batch of the last epoch if it is short."
    threads: int = 1
    "Feeder threads; 0 makes a batch when it is asked for. The batches are the same."

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("history", 1), ("ensemble", 1), ("world_size", 1), ("threads", 0)):
            if getattr(self, name) < least:
                raise PlanError(f"{name}={getattr(self, name)}: expected {least} or more.")
        if not 0 <= self.rank < self.world_size:
            raise PlanError(f"rank={self.rank}: expected 0 to {self.world_size - 1}, below world_size.")
        if not 0 <= self.seed < 1 << 63:
            raise PlanError(f"seed={self.seed}: expected 0 to 2**63 - 1.")
        if self.epochs is not None and self.epochs < 1:
            raise PlanError(f"epochs={self.epochs}: expected 1 or more, or None to go on for ever.")
        for name, known in (
            ("examples", ("prefixes", "last")),
            ("segmentation", ("random", "weighed")),
            ("order", ("shuffled", "sequential")),
        ):
            if getattr(self, name) not in known:
                raise PlanError(f"{name}={getattr(self, name)!r}: expected {' or '.join(known)}.")
        if self.ensemble > 1 and self.segmentation == "weighed":
            raise PlanError(f"ensemble={self.ensemble}: there is one segmentation without chance; use random ones.")

    @property
    def global_batch(self) -> int:
        """Examples of one step over all ranks."""
        return self.batch_size * self.world_size


class Examples:
    """The next-item examples of shards, numbered from 0 in the order of the histories."""

    def __init__(self, shards: ActionShards, kind: Literal["prefixes", "last"], history: int) -> None:
        lengths = np.diff(shards.ends, prepend=0)
        self._starts = shards.ends - lengths
        # Histories of one item have nothing to predict from.
        self._counts = lengths - 1 if kind == "prefixes" else (lengths > 1).astype(np.int64)
        self._last, self._before = kind == "last", np.cumsum(self._counts)
        self._ends, self._history = shards.ends, history

    def __len__(self) -> int:
        return int(self._before[-1]) if len(self._before) else 0

    def spans(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Where the input of each example starts among all items, and where its label is: right behind the input."""
        user = np.searchsorted(self._before, numbers, side="right")
        if self._last:
            label = self._ends[user] - 1
        else:
            label = self._starts[user] + numbers - (self._before[user] - self._counts[user]) + 1
        return np.maximum(self._starts[user], label - self._history), label


class ActionBatches:
    """An endless or ending row of batches, made ahead by feeder threads. Made by `action_batches`.

    Leaving the loop early is fine; `close()`, the end of a `with`, or letting go of it ends the threads.
    """

    def __init__(self, shards: ActionShards, plan: ActionBatchPlan) -> None:
        self.shards, self.plan = shards, plan
        self._maker = _Maker(shards, plan)
        self._feeder: Feeder[Batch] | None = None
        self._given = 0
        self.waited = 0.0
        "Seconds that the training loop waited for batches."

    def __len__(self) -> int:
        """Batches from the beginning to the end, on each rank."""
        if self._maker.batches is None:
            raise TypeError("epochs=None: batches without end have no length")
        return self._maker.batches

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._maker.batches is not None and self._given >= self._maker.batches:
            self.close()
            raise StopIteration
        if self._feeder is None:
            self._feeder = Feeder(self._maker.make, self._given, self._maker.batches, self.plan.threads)
        try:
            batch, waited = self._feeder.take()
        except BaseException:
            self.close()
            raise
        self.waited += waited
        self._given += 1
        return batch

    @property
    def samples(self) -> int:
        """Examples given out so far, over all ranks."""
        given = self._given * self.plan.global_batch
        return given if self._maker.samples is None else min(given, self._maker.samples)

    @property
    def epoch(self) -> int:
        """The epoch of the next example, from 0."""
        return self.samples // len(self._maker.examples)

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch begins: after the last one that was given out, whatever is made ahead."""
        return {"format": FORMAT, "samples": self.samples, **self._identity()}

    def _identity(self) -> dict[str, Any]:
        names = ("global_batch", "seed", "order", "examples", "history", "segmentation", "ensemble")
        return {**{name: getattr(self.plan, name) for name in names}, "data": self.shards.identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state` was taken, with any number of threads and any rank of any world size.

        Shards, seed, order and examples must be the same, and so must the global batch, `batch_size * world_size`.
        """
        other = {
            "data": lambda theirs, mine: (
                f"taken over the shards {theirs}, and {self.shards.folder} is {mine}. Open the folder that it was "
                "taken over, or begin anew without the state."
            )
        }
        samples = samples_of(state, self._identity(), self.plan, self._maker.samples, other)
        self.close()
        self._given = -(-samples // self.plan.global_batch)

    def close(self) -> None:
        """End the threads and let go of what was made ahead."""
        if self._feeder is not None:
            self._feeder.close()
            self._feeder = None

    def __enter__(self) -> "ActionBatches":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def action_batches(shards: ActionShards, **options: Any) -> ActionBatches:
    """Batches of `shards` as dicts of numpy arrays; options are the fields of `ActionBatchPlan`.

    `input_ids` has rows of bos, tokens, eos, padded with 0 on the right; `attention_mask` is 1 on all but the padding;
    `labels` are the tokens of the item to predict, eos, and -100; `targets` is that item's number. With torch:
    `{name: torch.from_numpy(array) for name, array in batch.items()}`.
    """
    return ActionBatches(shards, ActionBatchPlan(**options))


class _Maker:
    """Makes the batches of one rank. Knows nothing of which was made before."""

    def __init__(self, shards: ActionShards, plan: ActionBatchPlan) -> None:
        self.examples = Examples(shards, plan.examples, plan.history)
        if not len(self.examples):
            raise LoadError(f"{shards}: no example in it; expected at least one history of 2 items or more.")
        enough = plan.history * shards.tokenizer.vocabulary.n_categories + 2
        if plan.pad_to is not None and plan.pad_to < enough:
            raise PlanError(
                f"pad_to={plan.pad_to}: a row of history={plan.history} items can have {enough} tokens with bos and "
                "eos. Expected at least so many, or a shorter history."
            )
        self._shards, self._plan = shards, plan
        self._labels = shards.tokenizer.label_table
        self._order: tuple[int, Any] | None = None
        self.samples = None if plan.epochs is None else plan.epochs * len(self.examples)
        self.batches: int | None = None
        if self.samples is not None:
            whole, rest = divmod(self.samples, plan.global_batch)
            self.batches = whole + (rest > 0 and not plan.drop_last)

    def make(self, batch: int) -> Batch:
        """One batch: which examples, where they are, segment, lay out."""
        numbers, epochs = self._numbers(batch)
        starts, labels = self.examples.spans(numbers)
        made = self._laid_out(self._segmented(numbers, epochs, starts, labels))
        targets = np.repeat(self._shards.items[labels].astype(np.int64), self._plan.ensemble)
        if not len(targets):  # a rank that has no example left in the last batch: all ranks step alike
            rows = self._plan.ensemble
            made = {name: np.zeros((rows, array.shape[1]), np.int64) for name, array in made.items()}
            nothing = np.full((rows, self._labels.shape[1]), IGNORED, np.int64)
            return {**made, "labels": nothing, "targets": np.full(rows, -1)}
        return {**made, "labels": self._labels[targets], "targets": targets}

    def _numbers(self, batch: int) -> tuple[Ints, Ints]:
        """The examples of this rank in a batch, and the epoch of each, which never falls.

        A short last batch is dealt evenly, so that counts differ by one at most.
        """
        plan, first = self._plan, batch * self._plan.global_batch
        left = plan.global_batch if self.samples is None else min(plan.global_batch, self.samples - first)
        each, more = divmod(left, plan.world_size)
        start = first + plan.rank * each + min(plan.rank, more)
        samples = np.arange(start, start + each + (plan.rank < more))
        epochs, places = np.divmod(samples, len(self.examples))
        parts = [self._ordered(epoch)(places[epochs == epoch]) for epoch in np.unique(epochs).tolist()]
        return (np.concatenate(parts) if parts else samples), epochs

    def _ordered(self, epoch: int) -> Any:
        known = self._order  # one name for both halves: threads may replace it in between
        if known is None or known[0] != epoch:
            known = epoch, order_of(self._plan.order, len(self.examples), self._plan.seed, epoch)
            self._order = known
        return known[1]

    def _segmented(self, numbers: Ints, epochs: Ints, starts: Ints, stops: Ints) -> list[tuple[Ids, Ints]]:
        """For each member of the ensemble, the tokens of all examples one after another, and the length of each."""
        plan, shards = self._plan, self._shards
        # Only what this batch needs is read: the shards may be larger than memory.
        lengths = stops - starts
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        items = shards.items[np.arange(total) + np.repeat(starts - (ends - lengths), lengths)].astype(np.int64)
        members = []
        for member in range(plan.ensemble):
            parts = []
            for epoch in np.unique(epochs).tolist():
                mine = epochs == epoch
                ids, cut = shards.tokenizer.encode_spans(
                    shards.table,
                    items,
                    (ends - lengths)[mine],
                    ends[mine],
                    seed=plan.seed if plan.segmentation == "random" else None,
                    epoch=epoch * plan.ensemble + member,
                    rows=numbers[mine],
                    threads=1,
                )
                parts.append((ids, np.diff(cut, prepend=0)))
            members.append(parts[0] if len(parts) == 1 else (_joined(parts, 0), _joined(parts, 1)))
        return members

    def _laid_out(self, members: list[tuple[Ids, Ints]]) -> Batch:
        """Rows between bos and eos, filled up to one width, and the mask that says which places are real."""
        tokenizer, plan = self._shards.tokenizer, self._plan
        width = plan.pad_to or max(int(lengths.max(initial=0)) + 2 for _, lengths in members)
        shape = (len(members[0][1]), len(members), width)
        input_ids, mask = np.full(shape, tokenizer.padding, np.int64), np.zeros(shape, np.int64)
        places = np.arange(width)
        for member, (ids, lengths) in enumerate(members):
            real = places < (lengths + 2)[:, np.newaxis]
            mask[:, member] = real
            real[:, 0] = False
            rows = input_ids[:, member]
            rows[np.arange(len(lengths)), lengths + 1] = tokenizer.eos
            real[np.arange(len(lengths)), lengths + 1] = False
            rows[real] = ids
            rows[:, 0] = tokenizer.bos
        flat = (shape[0] * shape[1], width)
        return {"input_ids": input_ids.reshape(flat), "attention_mask": mask.reshape(flat)}


def _joined(parts: list[tuple[Any, Any]], which: Literal[0, 1]) -> Any:
    return np.concatenate([part[which] for part in parts]) if parts else np.empty(0, np.int64)
