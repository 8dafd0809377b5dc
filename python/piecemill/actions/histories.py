"""Histories: the items of each user in order of time, as one flat array and where each history ends.

`keys` maps numbers to items and is the same before and after every step, so that train, validation and test use the
same numbers. Every step adds counts of what it did to `report`. No history is empty.

Start with `Histories.of`, `k_core` and `leave_out`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from piecemill.actions.items import Items, as_keys
from piecemill.actions.tables import is_row
from piecemill.errors import PlanError, SourceError
from piecemill.files import file_for_user
from piecemill.plans import did_you_mean, option
from piecemill.sizes import plural

META = b"piecemill.histories"
Report = Mapping[str, Mapping[str, int]]
_SETTINGS = ("k", "item_k", "left_out", "max_history", "most")
"What a report says beside its counts: how a step was set."
# Histories at a time: bounded memory, and Ctrl-C is heard in between.
_CHUNK = 20_000


@dataclass(frozen=True, eq=False)
class Histories:
    """`items[ends[u - 1] : ends[u]]` are the items of `users[u]`, as rows of `keys`."""

    users: Any
    "The key of each user, as an Arrow array."
    items: NDArray[np.int64]
    ends: NDArray[np.int64]
    keys: Any
    "The key of each item, as an Arrow array; some may occur in no history."
    report: Report = field(default_factory=dict)
    "What every step so far counted."

    def __post_init__(self) -> None:
        last = int(self.ends[-1]) if len(self.ends) else 0
        if len(self.users) != len(self.ends) or last != len(self.items):
            raise SourceError(
                f"histories: {len(self.users):,} users, {len(self.ends):,} ends, the last {last:,}, and "
                f"{len(self.items):,} items; expected an end per user, the last one after the last item."
            )
        if len(self.ends) and int(self.lengths.min()) < 1:
            user = self.users[int(np.argmin(self.lengths))].as_py()
            raise SourceError(f"histories: that of user {user!r} is empty, expected at least one item in each.")

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Items in each history."""
        return np.diff(self.ends, prepend=0).astype(np.int64)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each history begins."""
        return self.ends - self.lengths

    @property
    def user_of(self) -> NDArray[np.int64]:
        """The number of the user of each action."""
        return np.repeat(np.arange(len(self.ends)), self.lengths)

    @property
    def used(self) -> NDArray[np.int64]:
        """The distinct items that occur, ascending."""
        return np.flatnonzero(np.bincount(self.items, minlength=len(self.keys)))

    @property
    def counts(self) -> dict[str, int]:
        """Users, items that occur, and actions."""
        return {"users": len(self), "items": len(self.used), "actions": len(self.items)}

    @classmethod
    @did_you_mean
    def of(cls, source: Any) -> "Histories":
        """Histories from lists of item keys (users are numbered from 0), a mapping user -> items, a table, or a file.

        Empty histories are left out and counted.

        >>> histories = Histories.of([["b", "a"], [], ["a"]])
        >>> histories.lists(), histories.users.to_pylist(), histories.report["read"]["empty_histories"]
        ([['b', 'a'], ['a']], [0, 2], 1)
        """
        if isinstance(source, Histories):
            return source
        if isinstance(source, str | Path | Mapping | pa.Table | pa.RecordBatch) or hasattr(
            source, "__arrow_c_stream__"
        ):
            from piecemill.actions.interactions import read_interactions

            return read_interactions(source)
        if not isinstance(source, Iterable):
            raise SourceError(
                f"histories: found {type(source).__name__}, expected lists of item keys, a table or a path."
            )
        rows = list(source)
        for number, row in enumerate(rows):
            if not is_row(row):
                raise SourceError(f"histories[{number}]: found {type(row).__name__}, expected a list of item keys.")
        flat = as_keys(list(chain.from_iterable(rows)), "histories", None)
        ends = np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))
        return from_lists(pa.array(np.arange(len(rows))), flat, ends, "histories", {})

    def lists(self) -> list[list[Any]]:
        """The item keys of each history, as lists."""
        listed: Any = self.table().column("items").to_pylist()
        return list(listed)

    @did_you_mean
    def map_to_items(self, items: Items, *, unknown: Literal["stop", "drop"] = "stop") -> "Histories":
        """The same histories as rows of `items`.

        An action whose item is not among them is an error; with `unknown="drop"` it is left out and counted, and so
        is a history of which nothing is left.
        """
        if not isinstance(items, Items):
            raise SourceError(f"items: found {type(items).__name__}, expected Items; `Items.of` reads them.")
        if unknown not in ("stop", "drop"):
            raise PlanError(f"unknown={unknown!r}: expected 'stop' or 'drop'.")
        used = self.used
        row_of = np.full(len(self.keys), -1, np.int64)
        row_of[used] = items.index(self.keys.take(pa.array(used)), unknown="mark")
        rows = row_of[self.items]
        lost = rows < 0
        if lost.any() and unknown == "stop":
            first = int(np.argmax(lost))
            raise SourceError(
                f"histories: user {self.users[int(np.searchsorted(self.ends, first, 'right'))].as_py()!r} has the item "
                f"{self.keys[int(self.items[first])].as_py()!r}, which is not among the {len(items):,} items "
                f"({int(lost.sum()):,} of {len(rows):,} actions, {int((row_of[used] < 0).sum()):,} of {len(used):,} "
                f"items). Add the items; {option('unknown', 'drop')} leaves these actions out."
            )
        kept = self.keep_actions(~lost)
        if len(self) and not len(kept):
            raise SourceError(
                f"histories: none of their {plural(len(used), 'item')} is among the {len(items):,} items. Expected "
                f"keys such as {items.keys[0]!r}, found {self.keys[int(used[0])].as_py()!r}."
            )
        counts = {
            "unknown_items": int((row_of[used] < 0).sum()),
            "actions_dropped": int(lost.sum()),
            "users_dropped": len(self) - len(kept),
        }
        report = {**self.report, "items": {**counts, **kept.counts}} if lost.any() else self.report
        return Histories(kept.users, rows[~lost], kept.ends, items.known, report)

    def chunks(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Some histories at a time: the number of the first, their items, and where each ends among these."""
        for first in range(0, len(self), _CHUNK):
            ends = self.ends[first : first + _CHUNK]
            begin = int(self.starts[first])
            yield first, self.items[begin : int(ends[-1])], ends - begin

    def keep_actions(self, keep: NDArray[np.bool_]) -> "Histories":
        """The histories with the actions of `keep` alone; users with none are gone."""
        keep = np.asarray(keep)
        if keep.shape != self.items.shape or keep.dtype != np.bool_:
            raise SourceError(
                f"keep: found {keep.dtype} of shape {keep.shape}, expected True or False for each of "
                f"{len(self.items):,} actions."
            )
        lengths = np.bincount(self.user_of[keep], minlength=len(self)).astype(np.int64)
        there = lengths > 0
        return replace(
            self, users=self.users.filter(pa.array(there)), items=self.items[keep], ends=np.cumsum(lengths[there])
        )

    def slice_actions(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> "Histories":
        """Of every history the actions from one place to another; users with none are gone."""
        starts, ends = np.asarray(starts), np.asarray(ends)
        if any(place.shape != self.ends.shape or place.dtype.kind not in "iu" for place in (starts, ends)):
            raise SourceError(f"starts and ends: expected two whole numbers for each of {len(self):,} histories.")
        lengths = np.maximum(ends - starts, 0)
        borders = np.cumsum(lengths)
        flat = np.arange(int(borders[-1]) if len(borders) else 0) + np.repeat(starts - (borders - lengths), lengths)
        there = lengths > 0
        return replace(self, users=self.users.filter(pa.array(there)), items=self.items[flat], ends=borders[there])

    def table(self) -> pa.Table:
        """One row per user: `user`, and `items` as a list of keys."""
        offsets = pa.array(np.concatenate([np.zeros(1, np.int64), self.ends]))
        items = pa.LargeListArray.from_arrays(offsets, self.keys.take(pa.array(self.items)))
        return pa.table([self.users, items], names=["user", "items"])

    @did_you_mean
    def save(self, path: str | Path) -> None:
        """Writes a Parquet file with a row per user, which `read_interactions` and any other tool can read."""
        table = self.table().replace_schema_metadata({META: json.dumps({"report": self.report}).encode()})
        with file_for_user(path) as file:
            pq.write_table(table, file, write_page_checksum=True)


@dataclass(frozen=True, eq=False)
class LeaveOutSplit:
    """The parts of a leave-out split. In `val` and `test` the last item of each history is the one to predict."""

    train: Histories
    "To learn the vocabulary and the model from; whole histories, never cut to a maximum."
    val: Histories | None
    test: Histories
    report: Report
    "What every step counted."

    def to_dict(self) -> Report:
        return {step: dict(counts) for step, counts in self.report.items()}

    def __str__(self) -> str:
        return show_report(self.report)


def from_lists(users: Any, flat: Any, ends: NDArray[np.int64], name: str, counts: Mapping[str, int]) -> Histories:
    """Histories from the keys of all actions one after another; empty ones are left out and counted."""
    if not len(flat):
        raise SourceError(f"{name}: no interaction in it, expected at least one.")
    lengths = np.diff(ends, prepend=0)
    there = lengths > 0
    coded = flat.dictionary_encode()
    items = np.asarray(coded.indices).astype(np.int64)
    built = Histories(users.filter(pa.array(there)), items, ends[there].astype(np.int64), coded.dictionary)
    read = {**counts, "empty_histories": int((~there).sum()), **built.counts}
    return replace(built, report={"read": read})


@did_you_mean
def k_core(histories: Histories, k: int, *, item_k: int | None = None) -> Histories:
    """The histories in which every user has at least `k` actions and every item at least `item_k` (default `k`).

    Users and items below are dropped again and again until none is left to drop: the largest such core there is.

    >>> k_core(Histories.of([["a", "b"], ["b", "a"], ["c", "a"]]), 2).lists()
    [['a', 'b'], ['b', 'a']]
    """
    _check_histories(histories)
    item_k = k if item_k is None else item_k
    if not _is_count(k) or not _is_count(item_k):
        raise PlanError(f"{option('k_core', k)}, item_k={item_k}: expected 1 or more.")
    user_of, keep, rounds = histories.user_of, np.ones(len(histories.items), bool), 0
    while True:
        users = np.bincount(user_of[keep], minlength=len(histories))
        items = np.bincount(histories.items[keep], minlength=len(histories.keys))
        left = keep & (users[user_of] >= k) & (items[histories.items] >= item_k)
        if left.sum() == keep.sum():
            break
        keep, rounds = left, rounds + 1
    if not keep.any():
        raise SourceError(
            f"histories: nothing is left of {len(histories):,} users and {len(histories.items):,} actions after "
            f"{rounds} rounds of {option('k_core', k)}. Choose a smaller k."
        )
    core = histories.keep_actions(keep)
    counts = {"k": k, "item_k": item_k, "rounds": rounds, **_dropped(histories, core), **core.counts}
    return replace(core, report={**histories.report, "k_core": counts})


@did_you_mean
def leave_out(histories: Histories, n: Literal[1, 2] = 2, *, max_history: int | None = None) -> LeaveOutSplit:
    """Train, validation and test parts by leaving out the last `n` items of every user.

    With 2: train is all but the last two items, validation predicts the last but one from those before, test the
    last. With 1 there is no validation. Users with `n` items or fewer are in no part, and counted. `max_history`
    cuts what validation and test predict from; train stays whole, because the vocabulary is learned from it.

    >>> split = leave_out(Histories.of([["a", "b", "c", "d"]]), 2, max_history=2)
    >>> split.train.lists(), split.val.lists(), split.test.lists()
    ([['a', 'b']], [['a', 'b', 'c']], [['b', 'c', 'd']])
    """
    _check_histories(histories)
    if not _is_count(n) or n not in (1, 2):
        raise PlanError(f"{option('leave_out', n)}: expected 1 (test) or 2 (validation and test).")
    if max_history is not None and not _is_count(max_history):
        raise PlanError(f"{option('max_history', max_history)}: expected 1 or more.")
    long = histories.lengths > n
    if not long.any():
        raise SourceError(f"histories: no user has more than {n} items, so that leaving out {n} leaves nothing.")
    whole = histories.keep_actions(np.repeat(long, histories.lengths))
    parts = [whole.slice_actions(whole.starts, whole.ends - back) for back in range(n, -1, -1)]
    train = parts[0]
    held = [max_items(part, max_history + 1) if max_history is not None else part for part in parts[1:]]
    seen = np.zeros(len(histories.keys), bool)
    seen[train.used] = True
    counts = {
        "left_out": n,
        "users_too_short": int((~long).sum()),
        "train_users": len(train),
        "train_items": len(train.used),
        "train_actions": len(train.items),
    }
    for name, part in zip(("val", "test")[2 - n :], held, strict=True):
        targets = part.items[part.ends - 1]
        counts[f"{name}_users"] = len(part)
        counts[f"{name}_targets_unseen_in_train"] = int((~seen[targets]).sum())
    if max_history is not None:
        counts["max_history"] = max_history
        counts["test_histories_cut"] = int((whole.lengths > max_history + 1).sum())
    report = {**histories.report, "leave_out": counts}
    train, *held = [replace(part, report=report) for part in (train, *held)]
    return LeaveOutSplit(train, held[0] if n == 2 else None, held[-1], report)


@did_you_mean
def max_items(histories: Histories, most: int) -> Histories:
    """The last `most` items of every history, and how many were cut.

    >>> max_items(Histories.of([["a", "b", "c"], ["b"]]), 2).lists()
    [['b', 'c'], ['b']]
    """
    _check_histories(histories)
    if not _is_count(most):
        raise PlanError(f"max_items={most}: expected 1 or more.")
    short = histories.slice_actions(np.maximum(histories.starts, histories.ends - most), histories.ends)
    counts = {"most": most, "histories_cut": int((histories.lengths > most).sum()), **_dropped(histories, short)}
    return replace(short, report={**histories.report, "max_items": {**counts, **short.counts}})


def _check_histories(histories: Any) -> None:
    if not isinstance(histories, Histories):
        raise SourceError(
            f"histories: found {type(histories).__name__}, expected Histories; `read_interactions` and "
            "`Histories.of` make them."
        )


def _is_count(number: Any) -> bool:
    """Whether it is a whole number of 1 or more."""
    return isinstance(number, Integral) and 1 <= int(number) < 1 << 62


def show_report(report: Report) -> str:
    """What every step counted, a line for each.

    >>> print(show_report({"read": {"rows": 1200, "bad_rows": 0, "ties": 1}, "k_core": {"k": 5, "users_dropped": 3}}))
    read       1,200 rows, 1 tie
    k_core     k=5, 3 users dropped
    """
    lines = []
    for step, counts in report.items():
        told = [
            f"{what}={count}" if what in _SETTINGS else f"{count:,} {_noun(what, count)}"
            for what, count in counts.items()
            if count
        ]
        lines.append(f"{step:<10} {', '.join(told)}")
    return "\n".join(lines)


def _noun(what: str, count: int) -> str:
    """What was counted, in words; of one thing in the singular."""
    words = what.replace("_", " ")
    if count != 1:
        return words
    nouns = r"(row|duplicate|tie|round|user|item|action|target)s\b"
    return re.sub(nouns, r"\1", words.replace("histories", "history"))


def _dropped(before: Histories, after: Histories) -> dict[str, int]:
    dropped = {f"{what}_dropped": count - after.counts[what] for what, count in before.counts.items()}
    return {what: count for what, count in dropped.items() if count}
