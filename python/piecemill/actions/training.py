"""Sequences of items -> a vocabulary of actions (ActionPiece).

`train_actions` numbers the features of all items, learns merges from the sequences, and returns an `ActionTokenizer`.
Weighing and merging happen in `_core`; this module runs the stages, reports progress and writes the training record.
The definition of what is learned is `reference/actions.py`.
"""

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Never

import numpy as np
from numpy.typing import NDArray

from piecemill import _core
from piecemill.actions.histories import Histories
from piecemill.actions.items import Items
from piecemill.actions.plan import ActionsPlan
from piecemill.actions.tokenizer import ActionTokenizer, label_texts
from piecemill.actions.vocabulary import ActionVocabulary
from piecemill.errors import PlanError, SourceError, TrainingError
from piecemill.machine import memory_now
from piecemill.plans import FROM_PLAN, by_place, did_you_mean, option, with_keywords
from piecemill.sizes import show_count, show_seconds
from piecemill.training.stages import Moment, Remaining, Stages

# Work is counted in sequences that are looked at. What a merge costs beside them, and what one that changes costs;
# from recorded runs (`tests/recorded_actions.json`).
MERGE_COST = 10.0
_CHANGED_COST = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionsProgress:
    """One progress event."""

    stage: Literal["count", "merge"]
    sequences: int
    "Sequences there are."
    counted: int = 0
    "Sequences whose pairs were weighed, in the first stage."
    merges: int = 0
    merges_wanted: int = 0
    merges_per_second: float = 0.0
    touched: int = 0
    "Sequences rewritten so far, each as often as it was."
    pair_weight: float = 0.0
    "Weight of the pair that was merged last."
    memory: int = 0
    "Bytes this process holds."
    seconds_left: float | None = None

    @property
    def fraction(self) -> float | None:
        """How much of the stage is done, by what can be counted."""
        if self.stage == "count":
            return self.counted / self.sequences if self.sequences else None
        return self.merges / self.merges_wanted if self.merges_wanted else 1.0

    def columns(self) -> tuple[str, ...]:
        """The same columns in every line of a stage; the time left comes last."""
        left = "" if self.seconds_left is None else f"{show_seconds(self.seconds_left)} left"
        memory = f"{self.memory / 2**30:.2f} GiB"
        if self.stage == "count":
            return (f"{self.counted:,}/{self.sequences:,} sequences", memory, left)
        wanted = f"{self.merges_wanted:,}"
        return (
            f"{self.merges:>{len(wanted)},}/{wanted} merges",
            f"{show_count(self.merges_per_second):>7}/s",
            f"{show_count(self.touched):>8} touched",
            f"weight {self.pair_weight:>9,.2f}",
            memory,
            left,
        )


OnProgress = Callable[[ActionsProgress], None]


@did_you_mean
def train_actions(
    sequences: Any,
    item_features: Any,
    *,
    plan: ActionsPlan | None = None,
    on_progress: OnProgress | None = None,
    vocab_size: int = FROM_PLAN,
    counts: Literal["published", "current"] = FROM_PLAN,
    arithmetic: Literal["exact", "float64"] = FROM_PLAN,
    min_pair_weight: float = FROM_PLAN,
    threads: int | None = FROM_PLAN,
    **unknown: Never,
) -> ActionTokenizer:
    """Learn a vocabulary of actions; the same for any order of the sequences and any number of threads.

    `sequences` are lists of item keys, a table or file of interactions or histories, or `Histories`; learn from the
    training part only (`piecemill.actions.leave_out`). `item_features` are a mapping item -> feature values, a table
    or file with a row per item, or `Items`; every item of the table gets its features into the vocabulary, whether a
    sequence has it or not. Keywords from `vocab_size` on are the fields of `ActionsPlan`, which describes each and its
    default; they override those of `plan`. If no pair is left before the vocabulary is full, it is smaller, as `plan`
    of the vocabulary shows.

    >>> features = {"shirt": ["cotton", "blue"], "socks": ["cotton", "red"], "hat": ["wool", "red"]}
    >>> tok = train_actions([["shirt", "socks"], ["shirt", "socks", "hat"]], features, vocab_size=8)
    >>> tok.vocabulary.merges.tolist()
    [[1, 4], [1, 3], [3, 5]]
    """
    plan = with_keywords(plan, ActionsPlan, locals(), unknown)
    items = Items.of(item_features)
    histories = histories_of(sequences)
    initial = ActionVocabulary(
        n_categories=len(items.columns),
        initial=initial_tokens(items.codes),
        merges=np.empty((0, 2), np.uint32),
        priority=[0] * (sum(len(np.unique(column)) for column in items.codes.T) + 1),
        columns=items.columns,
        labels=label_texts(items.labels),
    )
    least = initial.n_init_feats
    if plan.vocab_size < least:
        raise PlanError(
            f"{option('vocab_size', plan.vocab_size)}: padding and the {least - 1:,} features of the {len(items):,} "
            f"items alone need {least}. Ask for more."
        )
    stages = Stages()
    learned = _learn(
        plan, initial.initial_ids(items.codes), rows_of(histories, items), histories, least, stages, on_progress
    )
    if not len(learned.merges) and plan.vocab_size > least and not plan.min_pair_weight:
        raise TrainingError(
            f"no pair to merge: {len(histories):,} sequences of one item each, and items of one feature. Expected at "
            "least two tokens next to each other; give longer sequences, or items with more features."
        )
    weights = [weight / learned.denominator for weight in learned.weights]
    vocabulary = replace(
        initial,
        merges=learned.merges,
        priority=[*initial.priority, *weights],
        plan=_record(plan, items, histories, learned, stages),
    )
    return ActionTokenizer(vocabulary, items)


def histories_of(sequences: Any) -> Histories:
    """The sequences as histories. An empty one is an error, unless it was left out before, on purpose."""
    histories = Histories.of(sequences)
    empty = histories.report.get("read", {}).get("empty_histories", 0)
    if empty and not isinstance(sequences, Histories):
        named = "sequences"
        if isinstance(sequences, list | tuple):
            named = f"sequences[{next(at for at, sequence in enumerate(sequences) if not len(sequence))}]"
        elif isinstance(sequences, str | Path):
            named = str(sequences)
        raise SourceError(
            f"{named}: a sequence without items ({empty:,} in all); expected at least one in each. Leave them out, or "
            "pass `Histories.of(sequences)`, which does so and counts them."
        )
    return histories


def rows_of(histories: Histories, items: Items) -> NDArray[np.uint32]:
    """The row of each action's item in the item table; one that is not there is an error with its place."""
    rows = items.index(histories.keys, unknown="mark")[histories.items]
    lost = np.flatnonzero(rows < 0)
    if len(lost):
        first = int(lost[0])
        at = int(np.searchsorted(histories.ends, first, "right"))
        remedy = by_place(
            "`histories.map_to_items(items, unknown='drop')`", "`actions split --items ... --unknown drop`"
        )
        raise SourceError(
            f"sequence of {histories.users[at].as_py()!r}, position {first - int(histories.starts[at])}: the item "
            f"{histories.keys[int(histories.items[first])].as_py()!r} has no features ({len(lost):,} of {len(rows):,} "
            f"actions are of items that are not among the {len(items):,} given). Add these items to the features, or "
            f"leave the actions out: {remedy}."
        )
    return rows.astype(np.uint32)


def initial_tokens(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows (category, value) of the features of all items, ascending: the tokens 1, 2, ...

    >>> initial_tokens(np.array([[7, 1], [3, 1]])).tolist()
    [[0, 3], [0, 7], [1, 1]]
    """
    found = [(category, np.unique(column)) for category, column in enumerate(codes.T)]
    return np.concatenate([np.stack([np.full_like(values, category), values], 1) for category, values in found])


def _learn(
    plan: ActionsPlan,
    features: NDArray[np.uint32],
    rows: NDArray[np.uint32],
    histories: Histories,
    n_init: int,
    stages: Stages,
    on_progress: OnProgress | None,
) -> _core.LearnedActions:
    progress = _core.Progress()
    wanted = plan.vocab_size - n_init
    remaining = Remaining(wanted, merge_cost=MERGE_COST)
    started = time.perf_counter()

    def work() -> _core.LearnedActions:
        ends = histories.ends.astype(np.uint64)
        limits = (n_init, plan.vocab_size, plan.counts, plan.arithmetic, plan.min_pair_weight, plan.workers)
        return _core.train_actions(features, rows, ends, *limits, progress)

    def tell() -> None:
        if on_progress is None:
            return
        ready = bool(progress.rounds_ready)
        now = moment(time.perf_counter() - started, progress)
        if ready:
            remaining.add_snapshot(now)
        on_progress(
            ActionsProgress(
                stage="merge" if ready else "count",
                sequences=len(histories),
                counted=0 if ready else progress.visited,
                merges=int(now.merges),
                merges_wanted=wanted,
                merges_per_second=remaining.merges_per_second(),
                touched=progress.occurrences,
                pair_weight=progress.pair_weight,
                memory=memory_now(),
                seconds_left=remaining.seconds() if ready else None,
            )
        )

    with stages.stage("learn"):
        learned: _core.LearnedActions = stages.watch(work, progress, tell)
    return learned


def moment(seconds: float, progress: _core.Progress) -> Moment:
    """The progress event `seconds` after counting began: counting is a round, and what comes after is work."""
    counted = progress.round_seconds
    work = progress.visited + _CHANGED_COST * progress.occurrences
    return Moment(seconds, progress.merges, work, 0, 0, progress.rounds_begun, progress.rounds_ready, counted)


def _record(
    plan: ActionsPlan, items: Items, histories: Histories, learned: _core.LearnedActions, stages: Stages
) -> dict[str, Any]:
    """What lies beside the vocabulary: the plan, and how training went."""
    return {
        **asdict(plan),
        "ended": "vocabulary full" if learned.full else "no pair left",
        "corpus": {"sequences": len(histories), "actions": len(histories.items), "items": len(items)},
        "histories": {step: dict(counts) for step, counts in histories.report.items()},
        "merges": len(learned.merges),
        "merging": learned.stats,
        "stages": stages.done,
        "versions": {"piecemill": _core.__version__, "python": platform.python_version(), "numpy": np.__version__},
    }


@dataclass(frozen=True, slots=True)
class TrainedActions:
    """The result of `piecemill actions train`: a tokenizer, and where its vocabulary was saved."""

    tokenizer: ActionTokenizer
    out: Path

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints: where the vocabulary is, its size, and the record of its training."""
        vocabulary = self.tokenizer.vocabulary
        return {"out": str(self.out), "tokens": vocabulary.size, **(vocabulary.plan or {})}

    def __str__(self) -> str:
        """One line, and a note if the vocabulary is smaller than requested."""
        vocabulary, record = self.tokenizer.vocabulary, self.tokenizer.vocabulary.plan or {}
        corpus, stage = record["corpus"], record["stages"][-1]
        lines = [
            f"{vocabulary.size:,} tokens ({vocabulary.n_init_feats:,} padding and features, {record['merges']:,} "
            f"merges) from {corpus['sequences']:,} sequences of {corpus['actions']:,} actions, in "
            f"{show_seconds(stage['seconds'])} with {stage['peak_memory_bytes'] / 2**30:.2f} GiB: {self.out}"
        ]
        if record["ended"] != "vocabulary full":
            lines.append(
                f"note: {record['vocab_size']:,} tokens were requested, but after {vocabulary.size:,} no pair is left "
                "to merge; give more sequences"
                + (f", or a lower {option('min_pair_weight')}" if record["min_pair_weight"] else "")
            )
        return "\n".join(lines)
