"""Batches of actions: next-item examples, segmented on the fly.

An example is a history up to some item, and that item to predict: a history of n items has n - 1 of them, or only the
one that predicts its last item, for validation and test. The input are the last `history` items before the label,
segmented with an order of features drawn from (seed, epoch, example): every epoch has other tokens, and every row is
reproducible.

Order, ranks, epochs, threads and states are those of `piecemill.loading.batching`; here is what a row is. Start with
`action_batches`.
"""

from typing import Any, Literal

import numpy as np

from piecemill.actions.shards import ActionShards
from piecemill.actions.tokenizer import Ids, Ints
from piecemill.errors import LoadError, PlanError
from piecemill.loading.batching import Batches, BatchPlan, Chunk, Columns, Maker, Numpy, Room
from piecemill.loading.mixing import Draws
from piecemill.loading.order import OrderPlan
from piecemill.plans import did_you_mean
from piecemill.shards.windows import IGNORED


@did_you_mean
def action_batches(
    shards: ActionShards,
    *,
    examples: Literal["prefixes", "last"] = "prefixes",
    history: int = 20,
    segmentation: Literal["random", "weighed"] = "random",
    ensemble: int = 1,
    pad_to: int | None = None,
    batch_size: int = 256,
    seed: int = 0,
    epochs: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    order: OrderPlan = "shuffled",
    drop_last: bool = False,
    threads: int = 1,
) -> Batches[Chunk]:
    """Batches of `shards` as dicts of numpy arrays; from `batch_size` on, options are those of `loading.batches`.

    `input_ids` has rows of bos, tokens, eos, padded with 0 on the right; `attention_mask` is 1 on all but the padding;
    `labels` are the tokens of the item to predict, eos, and -100; `targets` is that item's number. With torch:
    `{name: torch.from_numpy(array) for name, array in batch.items()}`.

    examples: every item of a history after its first is a label, or only its last item.
    history: items before the label that go in, at most.
    segmentation: "random" by set permutation regularisation, or "weighed" without chance.
    ensemble: random segmentations of each example, as rows that follow each other.
    pad_to: width of every batch; None: that of its longest row.
    """
    plan = BatchPlan(**{name: value for name, value in locals().items() if name in BatchPlan.__slots__})
    return Batches(ExampleMaker(shards, plan, examples, history, segmentation, ensemble, pad_to), plan, Numpy())


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


class ExampleMaker(Maker):
    """A sample is an example: which item, what goes in, segment, lay out."""

    def __init__(
        self,
        shards: ActionShards,
        plan: BatchPlan,
        examples: Literal["prefixes", "last"],
        history: int,
        segmentation: Literal["random", "weighed"],
        ensemble: int,
        pad_to: int | None,
    ) -> None:
        for name, value, known in (
            ("examples", examples, ("prefixes", "last")),
            ("segmentation", segmentation, ("random", "weighed")),
        ):
            if value not in known:
                raise PlanError(f"{name}={value!r}: expected {' or '.join(known)}.")
        for name, count in (("history", history), ("ensemble", ensemble)):
            if not isinstance(count, int) or count < 1:
                raise PlanError(f"{name}={count!r}: expected a whole number of 1 or more.")
        if not isinstance(shards, ActionShards):
            raise LoadError(f"shards: found {type(shards).__name__}, expected what `open_action_shards` gives.")
        if not 0 <= plan.seed < 1 << 63:
            raise PlanError(f"seed={plan.seed}: expected 0 to 2**63 - 1.")
        if ensemble > 1 and segmentation == "weighed":
            raise PlanError(f"ensemble={ensemble}: there is one segmentation without chance; use random ones.")
        enough = history * shards.tokenizer.vocabulary.n_categories + 2
        if pad_to is not None and pad_to < enough:
            raise PlanError(
                f"pad_to={pad_to}: a row of history={history} items can have {enough} tokens with bos and eos. "
                "Expected at least as many, or a shorter history."
            )
        self.source, self.examples = shards, Examples(shards, examples, history)
        self.epoch = len(self.examples)
        if not self.epoch:
            raise LoadError(f"{shards}: no example in it; expected at least one history of 2 items or more.")
        self._labels, self._ensemble, self._pad_to = shards.tokenizer.label_table, ensemble, pad_to
        self._seed = plan.seed if segmentation == "random" else None
        self._draws = Draws([self.epoch], [1.0], plan.order, plan.seed)
        options = {"examples": examples, "history": history, "segmentation": segmentation, "ensemble": ensemble}
        self.identity = {**options, "data": shards.identity}

    def make_rows(self, samples: Ints, room: Room) -> tuple[Columns, Ints | None]:
        """The rows of some examples; those of padding where a rank has no example left in the last batch."""
        real = samples[samples >= 0]
        _, numbers = self._draws(real)
        starts, labels = self.examples.spans(numbers)
        made = self._laid_out(self._segmented(numbers, real // self.epoch, starts, labels))
        targets = np.repeat(self.source.items[labels].astype(np.int64), self._ensemble)
        if len(targets):
            return {**made, "labels": self._labels[targets], "targets": targets}, None
        shape = (self._ensemble, self._pad_to or 2)
        made = {name: np.zeros(shape, np.int64) for name in made}
        nothing = np.full((self._ensemble, self._labels.shape[1]), IGNORED, np.int64)
        return {**made, "labels": nothing, "targets": np.full(self._ensemble, -1)}, None

    def _segmented(self, numbers: Ints, epochs: Ints, starts: Ints, stops: Ints) -> list[tuple[Ids, Ints]]:
        """For each member of the ensemble, the tokens of all examples one after another, and the length of each."""
        shards = self.source
        # Only what this batch needs is read: the shards may be larger than memory.
        lengths = stops - starts
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        items = shards.items[np.arange(total) + np.repeat(starts - (ends - lengths), lengths)].astype(np.int64)
        members = []
        for member in range(self._ensemble):
            parts: list[tuple[Any, Any]] = [(np.empty(0, np.uint32), np.empty(0, np.int64))]
            for epoch in np.unique(epochs).tolist():
                mine = epochs == epoch
                ids, cut = shards.tokenizer.encode_spans(
                    shards.table,
                    items,
                    (ends - lengths)[mine],
                    ends[mine],
                    seed=self._seed,
                    epoch=epoch * self._ensemble + member,
                    rows=numbers[mine],
                    threads=1,
                )
                parts.append((ids, np.diff(cut, prepend=0)))
            members.append((np.concatenate([ids for ids, _ in parts]), np.concatenate([cut for _, cut in parts])))
        return members

    def _laid_out(self, members: list[tuple[Ids, Ints]]) -> Columns:
        """Rows between bos and eos, filled up to one width, and the mask that says which places are real."""
        tokenizer = self.source.tokenizer
        width = self._pad_to or max(int(lengths.max(initial=0)) + 2 for _, lengths in members)
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
