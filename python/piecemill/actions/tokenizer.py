"""The tokenizer of actions: sequences of items to tokens and back.

Without randomness, a sequence has one segmentation: the merge with the highest weight is applied first. With set
permutation regularisation (SPR) every draw gives a new one: the features of each item are put in a random order, and
neighbours merge, the oldest merge first. A draw depends only on (seed, epoch, row), so any row of any epoch can be
reproduced alone and on any thread. The definition is `reference/segments.py`.

Start with `ActionTokenizer.load`.
"""

import math
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from numbers import Integral
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from piecemill._core import ActionSegmenter
from piecemill.actions.coding import Rules, code_like
from piecemill.actions.items import Items
from piecemill.actions.vocabulary import ActionVocabulary, file_at, sealed
from piecemill.errors import PlanError, SourceError, TokenizerError
from piecemill.files import hash_file
from piecemill.machine import cores
from piecemill.plans import did_you_mean
from piecemill.shards.windows import IGNORED

Ids = NDArray[np.uint32]
Ints = NDArray[np.int64]
Rng = np.random.Generator | np.random.RandomState | int
Permutation = Literal["seeded", "numpy-legacy"]
Ranked = TypeVar("Ranked", bound=Hashable)


class ActionTokenizer:
    """A vocabulary of actions, the items it is for (where they are known), and what can be done with both."""

    @did_you_mean
    def __init__(self, vocabulary: ActionVocabulary, items: Items | None = None) -> None:
        if not isinstance(vocabulary, ActionVocabulary) or not isinstance(items, Items | None):
            raise TokenizerError(
                f"ActionTokenizer: found {type(vocabulary).__name__} and {type(items).__name__}, expected an "
                "ActionVocabulary and Items; ActionTokenizer.load opens a vocabulary that was saved."
            )
        if items is not None and vocabulary.columns is None and len(items.columns) == vocabulary.n_categories:
            vocabulary = replace(vocabulary, columns=items.columns, labels=items.labels)
        if items is not None and vocabulary.columns != items.columns:
            raise TokenizerError(
                f"the vocabulary has the columns {vocabulary.columns or vocabulary.n_categories}, the items "
                f"{items.columns}. Expected items with the columns that the vocabulary was made for."
            )
        if (
            items is not None
            and vocabulary.labels is not None
            and label_texts(vocabulary.labels) != label_texts(items.labels)
        ):
            items = code_like(items, _by_labels(vocabulary, items))  # codes stand for other values than here
        self.vocabulary = vocabulary
        self.items = items
        if items is not None:
            self.table  # noqa: B018 - raises if there is an item that the vocabulary does not know

    def __repr__(self) -> str:
        known = "no items" if self.items is None else f"{len(self.items):,} items"
        return f"ActionTokenizer({self.vocabulary.size:,} tokens, {known})"

    @property
    def bos(self) -> int:
        """The id before a sequence."""
        return self.vocabulary.bos

    @property
    def eos(self) -> int:
        """The id behind a sequence and behind a label."""
        return self.vocabulary.eos

    @property
    def padding(self) -> int:
        """The id that fills a batch up, and the one a decoder starts from."""
        return 0

    @property
    def model_size(self) -> int:
        """Ids that a model must know: all tokens, bos and eos."""
        return self.vocabulary.size + 2

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary, padding counted and bos and eos not; `model_size` counts them too."""
        return self.vocabulary.size

    @property
    def known_items(self) -> Items:
        """The items; an error where there are none."""
        if self.items is None:
            raise TokenizerError(
                "this tokenizer has no items: load it from a file that was saved with them, pass items=..., or give "
                "sequences as initial tokens, one row per item."
            )
        return self.items

    @cached_property
    def table(self) -> Ids:
        """The initial tokens of every item, a row each."""
        return self.vocabulary.initial_ids(self.known_items.codes)

    @did_you_mean
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the published vocabulary file at `path`, and beside it names, plan and items.

        The items are a Parquet file, `NAME.items.parquet`, that any tool can read.
        """
        beside = items_beside(path)
        files: dict[str, str] = {}
        try:
            if self.items is not None:
                self.items.save(beside)
                files[beside.name] = hash_file(beside)
            else:
                beside.unlink(missing_ok=True)  # those of a tokenizer that is replaced
        except OSError as error:
            raise TokenizerError(
                f"{beside}: could not be saved ({error}). Make room or choose another place, and save again."
            ) from error
        self.vocabulary.save(path, files=files)

    @classmethod
    @did_you_mean
    def load(
        cls,
        path: str | os.PathLike[str],
        vocab_size: int | None = None,
        *,
        items: Any = None,
        unknown_value: Rules = None,
    ) -> "ActionTokenizer":
        """The tokenizer that `save` wrote, or one of a published file, for which `items` may be given.

        `items`, as `Items.of` takes them, replace those that were saved. Where the tokenizer has items or names of
        values, they get its codes, by the names of their values; `unknown_value` says what becomes of a value that it
        does not know, as in `piecemill.actions.coding.code_like`. With `vocab_size`, the tokenizer that training to
        this size would have made.
        """
        vocabulary = ActionVocabulary.load(path, vocab_size)
        beside = items_beside(path)
        saved = None
        if beside.exists():
            seal = sealed(file_at(path)).get(beside.name)
            if seal is not None and seal != hash_file(beside):
                raise TokenizerError(
                    f"{beside}: not the items this vocabulary was saved with. Restore them, or save the "
                    "tokenizer again."
                )
            saved = Items.load(beside)
        if items is None:
            try:
                return cls(vocabulary, saved)
            except (TokenizerError, SourceError) as error:
                raise TokenizerError(f"{beside}: {error}") from error
        if saved is not None:
            return cls(vocabulary, code_like(items, saved, unknown_value=unknown_value))
        given = Items.of(items)
        if vocabulary.labels is not None and vocabulary.columns == given.columns:
            given = code_like(given, _by_labels(vocabulary, given), unknown_value=unknown_value)
        return cls(vocabulary, given)

    @did_you_mean
    def encode(self, sequence: Any, *, rng: Rng | None = None) -> Ids:
        """The tokens of one sequence: item keys, or one row of initial tokens per item.

        Without `rng`, the one segmentation by weight. With it, a random one: a Generator or a number as its seed;
        a RandomState gives the very draws of the published code.
        """
        items, ends = self._one(sequence)
        if rng is None:
            return self.encode_batch(items, ends)[0]
        if isinstance(rng, np.random.RandomState):
            return self._given(rng, *self._sequences(items, ends), threads=1)[0]
        seed = int(rng.integers(0, 2**64, dtype=np.uint64)) if isinstance(rng, np.random.Generator) else rng
        if not isinstance(seed, Integral):
            raise PlanError(f"rng: found {type(rng).__name__}, expected a Generator, a RandomState, or a seed.")
        return self.encode_batch(items, ends, seed=seed)[0]

    @did_you_mean
    def encode_batch(
        self,
        items: NDArray[Any],
        ends: Ints,
        *,
        seed: int | None = None,
        epoch: int = 0,
        rows: Ints | None = None,
        permutation: Permutation = "seeded",
        threads: int | None = None,
    ) -> tuple[Ids, Ints]:
        """The tokens of many sequences one after another, and where each ends; on all cores, the interpreter let go.

        `items` has numbers of items one after another (see `Items.index`), or rows of initial tokens; `ends` says where
        each sequence ends among them. Without `seed`, each has its one segmentation by weight. With it, a random one,
        drawn for (seed, epoch, row): `rows` numbers the sequences, from 0 if not given. `permutation="numpy-legacy"`
        draws as the published code does after `np.random.seed(seed)`, one sequence after another.
        """
        table, numbers, starts, stops = self._sequences(items, ends)
        return self.encode_spans(
            table, numbers, starts, stops, seed=seed, epoch=epoch, rows=rows, permutation=permutation, threads=threads
        )

    @did_you_mean
    def encode_spans(
        self,
        table: Ids,
        items: Ints,
        starts: Ints,
        stops: Ints,
        *,
        seed: int | None = None,
        epoch: int = 0,
        rows: Ints | None = None,
        permutation: Permutation = "seeded",
        threads: int | None = None,
    ) -> tuple[Ids, Ints]:
        """As `encode_batch`, of the sequences `items[start:stop]`, which may overlap; items are rows of `table`."""
        threads = cores() if threads is None else threads
        for name, number in (("seed", 0 if seed is None else seed), ("epoch", epoch), ("threads", threads)):
            if not isinstance(number, Integral) or not 0 <= number < 1 << 64:
                raise PlanError(f"{name}={number!r}: expected a whole number, 0 to 2**64 - 1.")
        if seed is None:
            return self._segmenter.encode(table, items, starts, stops, way="weighed", threads=threads)
        if permutation == "numpy-legacy":
            if epoch or rows is not None:
                raise PlanError(
                    "permutation='numpy-legacy' draws one sequence after another, so epoch and rows cannot be given. "
                    "Leave them out, or use permutation='seeded'."
                )
            return self._given(np.random.RandomState(seed), table, items, starts, stops, threads=threads)
        if permutation != "seeded":
            raise PlanError(f"permutation={permutation!r}: expected 'seeded' or 'numpy-legacy'.")
        rows = np.arange(len(starts)) if rows is None else _array(rows, "rows")
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise PlanError(f"rows of shape {rows.shape} and type {rows.dtype}: expected a whole number for each.")
        rows = np.ascontiguousarray(rows, np.int64)
        if len(rows) != len(starts):
            raise PlanError(f"{len(rows)} rows for {len(starts)} sequences: expected one for each.")
        return self._segmenter.encode(table, items, starts, stops, way=(seed, epoch, rows), threads=threads)

    @did_you_mean
    def ensemble(self, sequence: Any, q: int = 5, *, seed: int = 0, row: int = 0) -> list[Ids]:
        """`q` random segmentations of one sequence: those of the epochs 0 to q - 1."""
        items, ends = self._one(sequence)
        ids, cut = self.ensemble_batch(items, ends, q, seed=seed, rows=np.array([row]), threads=1)
        return np.split(ids, cut[:-1])

    def ensemble_batch(
        self, items: NDArray[Any], ends: Ints, q: int = 5, *, seed: int = 0, rows: Ints | None = None, **options: Any
    ) -> tuple[Ids, Ints]:
        """`q` random segmentations of each sequence, one after another, and where each ends; as `encode_batch`."""
        if not isinstance(q, Integral) or q < 1:
            raise PlanError(f"q={q!r}: an ensemble needs at least 1 segmentation.")
        drawn = [self.encode_batch(items, ends, seed=seed, epoch=k, rows=rows, **options) for k in range(q)]
        lengths = np.stack([np.diff(cut, prepend=0) for _, cut in drawn], axis=1)
        parts = [np.split(ids, cut[:-1]) for ids, cut in drawn]
        together = [parts[k][n] for n in range(len(lengths)) for k in range(q)]
        ids = np.concatenate(together) if together else np.empty(0, np.uint32)
        return ids, np.cumsum(lengths.reshape(-1)).astype(np.int64)

    @did_you_mean
    def labels(self, item: Any) -> Ints:
        """What a model must say for an item, by its key or initial tokens: its tokens, eos, and -100 up to m + 1."""
        row = np.asarray(item)
        labels: Ints
        if row.ndim == 1:
            labels = self.labels_of(row[np.newaxis])[0]
        else:
            labels = self.label_table[self.known_items.index([item])[0]]
        return labels

    @did_you_mean
    def labels_of(self, ids: NDArray[Any]) -> Ints:
        """The labels of items given as rows of initial tokens: a row of m + 1 each."""
        ids = _rows_of_tokens(ids)
        count, width = ids.shape
        tokens, ends = self.encode_batch(ids, np.arange(1, count + 1))
        lengths = np.diff(ends, prepend=0)
        labels = np.full((count, width + 1), IGNORED, np.int64)
        labels[np.arange(width + 1) < lengths[:, np.newaxis]] = tokens
        labels[np.arange(count), lengths] = self.eos
        return labels

    @cached_property
    def label_table(self) -> Ints:
        """The labels of every item, a row each."""
        return self.labels_of(self.table)

    @did_you_mean
    def decode(self, ids: Iterable[int]) -> tuple[int, ...] | None:
        """The feature values of the item that `ids` say, up to eos; None unless they name each category exactly once.

        An id that is no token of the vocabulary, padding too, makes it None.
        """
        listed = ids if isinstance(ids, np.ndarray) else list(ids) if isinstance(ids, Iterable) else ids
        if np.ndim(listed) != 1:
            raise TokenizerError(f"ids: found {type(ids).__name__} {ids!r:.60}, expected a list of token ids.")
        values, valid = self.decode_batch(np.asarray(listed)[np.newaxis])
        return tuple(values[0].tolist()) if valid[0] else None

    @did_you_mean
    def names(self, features: Sequence[int] | None) -> dict[str, str] | None:
        """What `decode` gave, by name: the value of every column; None of None, which is no item."""
        if features is None:
            return None
        vocabulary = self.vocabulary
        row = _rows_of_tokens([features])[0].tolist()
        return {vocabulary.column_name(c): vocabulary.value_name(c, code) for c, code in enumerate(row)}

    @did_you_mean
    def decode_batch(self, ids: NDArray[Any]) -> tuple[Ints, NDArray[np.bool_]]:
        """The feature values of many rows of ids, each up to its eos, and which of them are valid items."""
        ids = _rows_of_tokens(ids)
        said = np.cumsum(ids == self.eos, axis=1) == 0
        known = (ids > 0) & (ids < self.vocabulary.size)
        counts, values = self._features
        tokens = np.where(said & known, ids, 0)
        valid = (counts[tokens].sum(axis=1, dtype=np.int64) == 1).all(axis=1) & (known | ~said).all(axis=1)
        return np.where(valid[:, np.newaxis], values[tokens].sum(axis=1), -1), valid

    @did_you_mean
    def items_of(self, features: Sequence[int]) -> list[Any]:
        """The keys of the items with these feature values; several, if items have equal features."""
        if self.items is None:
            return []
        return [self.items.keys[row] for row in self._rows_of.get(tuple(_rows_of_tokens([features])[0].tolist()), [])]

    @cached_property
    def _rows_of(self) -> Mapping[tuple[int, ...], list[int]]:
        rows: dict[tuple[int, ...], list[int]] = {}
        for row, features in enumerate([] if self.items is None else self.items.codes.tolist()):
            rows.setdefault(tuple(features), []).append(row)
        return rows

    @cached_property
    def _features(self) -> tuple[NDArray[np.uint8], Ints]:
        """For every token, how often it has each category (2 stands for more), and the sum of the values there.

        A token with a category twice can be part of no item, so its sums mean nothing and are left at 0.
        """
        vocabulary = self.vocabulary
        counts = np.zeros((vocabulary.size, vocabulary.n_categories), np.uint8)
        values = np.zeros((vocabulary.size, vocabulary.n_categories), np.int64)
        tokens = np.arange(1, vocabulary.n_init_feats)
        counts[tokens, vocabulary.initial[:, 0]] = 1
        values[tokens, vocabulary.initial[:, 0]] = vocabulary.initial[:, 1]
        for token, (a, b) in enumerate(vocabulary.merges.tolist(), start=vocabulary.n_init_feats):
            both = counts[a] + counts[b]
            counts[token] = np.minimum(both, 2)
            if both.max() == 1:
                values[token] = values[a] + values[b]
        return counts, values

    @cached_property
    def _segmenter(self) -> ActionSegmenter:
        vocabulary = self.vocabulary
        return ActionSegmenter(vocabulary.n_init_feats, vocabulary.merges, np.array(vocabulary.priority, np.float64))

    def _given(
        self, rng: np.random.RandomState, table: Ids, items: Ints, starts: Ints, stops: Ints, *, threads: int
    ) -> tuple[Ids, Ints]:
        """Encode with permutations drawn by NumPy itself, whose RandomState is promised never to change."""
        order = [table[items[start:stop]] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        drawn = [rng.permutation(row) for rows in order for row in rows]
        permuted = np.array(drawn, np.uint32).reshape(-1, table.shape[1])
        cut = np.cumsum(stops - starts)
        items = np.arange(len(permuted))
        return self._segmenter.encode(permuted, items, cut - (stops - starts), cut, way="given", threads=threads)

    def _one(self, sequence: Any) -> tuple[NDArray[Any], Ints]:
        if isinstance(sequence, str | bytes):
            raise TokenizerError(
                f"sequence: found the text {sequence!r}, expected a list of item keys. Put a single key in a list."
            )
        if not isinstance(sequence, Iterable) or isinstance(sequence, Set | Mapping):
            raise TokenizerError(f"sequence: found {type(sequence).__name__}, expected a list of item keys.")
        sequence = sequence if isinstance(sequence, np.ndarray) else list(sequence)
        ids = _array(sequence, "sequence")
        items = ids if ids.ndim == 2 else self.known_items.index(list(sequence))
        return items, np.array([len(items)])

    def _sequences(self, items: NDArray[Any], ends: Ints) -> tuple[Ids, Ints, Ints, Ints]:
        """`items` and `ends` as the core takes them, once they are known to fit together."""
        items, ends = _array(items, "items"), _array(ends, "ends")
        if items.ndim not in (1, 2) or ends.ndim != 1 or (ends.dtype.kind not in "iu" and ends.size):
            raise TokenizerError(
                f"items of shape {items.shape}, ends of shape {ends.shape} and type {ends.dtype}; expected rows of "
                "whole numbers."
            )
        ends = np.ascontiguousarray(ends, np.int64)
        lengths = np.diff(ends, prepend=0)
        if (lengths < 0).any() or (int(ends[-1]) if len(ends) else 0) != len(items):
            raise TokenizerError(
                f"ends: {ends[:5]}... for {len(items)} items; expected rising numbers, the last one that of all items."
            )
        if items.dtype.kind not in "iu" and items.size:
            raise TokenizerError(
                f"items: {items.dtype}; expected whole numbers: numbers of items (`items.index(keys)`) or rows of "
                "initial tokens."
            )
        if items.ndim == 2:
            table, numbers = self._initial(items), np.arange(len(items))
        else:
            table, numbers = self.table, np.ascontiguousarray(items, np.int64)
            if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(table):
                raise TokenizerError(
                    f"items: numbers from {numbers.min()} to {numbers.max()}; expected those of {len(table)} items."
                )
        return table, numbers, ends - lengths, ends

    def _initial(self, ids: NDArray[Any]) -> Ids:
        """Rows of initial tokens, once each is known to be one of its category."""
        vocabulary = self.vocabulary
        if ids.shape[1] != vocabulary.n_categories:
            raise TokenizerError(
                f"items of {ids.shape[1]} tokens; expected {vocabulary.n_categories}, one per category."
            )
        within = (ids > 0) & (ids < vocabulary.n_init_feats)
        category = vocabulary.initial[np.where(within, ids, 1) - 1, 0]
        fits = within & (category == np.arange(vocabulary.n_categories))
        if not fits.all():
            row, column = np.argwhere(~fits)[0].tolist()
            raise TokenizerError(
                f"item {row}: {ids[row, column]} is no token of {vocabulary.column_name(column)}; expected initial "
                "tokens in the order of the columns, as `ActionVocabulary.initial_ids` gives them."
            )
        return np.ascontiguousarray(ids, np.uint32)


def _array(given: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except (ValueError, TypeError) as error:  # rows of several lengths
        raise TokenizerError(f"{name}: no array: {error}") from None


def _rows_of_tokens(given: Any) -> NDArray[Any]:
    """Whole numbers in rows of one length, such as ids of tokens or values of features."""
    rows = _array(given, "ids")
    if rows.ndim != 2 or (rows.dtype.kind not in "iu" and rows.size):
        raise TokenizerError(
            f"found an array of shape {rows.shape} and type {rows.dtype}; expected rows of whole numbers."
        )
    return rows if rows.size else rows.astype(np.int64)


def label_texts(labels: Iterable[Sequence[Any] | None]) -> tuple[tuple[str, ...] | None, ...]:
    """Labels of columns as a vocabulary has them: as text."""
    return tuple(None if names is None else tuple(map(str, names)) for names in labels)


def _by_labels(vocabulary: ActionVocabulary, items: Items) -> Items:
    """The coding of the items by the value names of the vocabulary, for a vocabulary without items."""
    labels = tuple(None if names is None else list(names) for names in vocabulary.labels or ())
    values = [vocabulary.initial[vocabulary.initial[:, 0] == c, 1] for c in range(vocabulary.n_categories)]
    longest = max(map(len, values))
    codes = np.stack([np.resize(known, longest) for known in values], axis=1)
    return Items(list(range(longest)), codes, items.columns, labels)


def items_beside(path: str | os.PathLike[str]) -> Any:
    """The file of the items that belong to the vocabulary at `path`."""
    target = file_at(path)
    return target.with_name(f"{target.stem}.items.parquet")


def aggregate(rankings: Iterable[Sequence[Ranked | None]]) -> list[tuple[Ranked, float]]:
    """One ranking from those of an ensemble: an item at rank r (from 0) scores 1 / log2(r + 2) in each; best first.

    None stands for a beam that said no item: it has a rank and no score. Ties keep the order of first sight.

    >>> aggregate([["a", None, "b"], ["b", "a"]])
    [('a', 1.6309297535714575), ('b', 1.5)]
    """
    scores: dict[Ranked, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking):
            if item is not None:
                scores[item] = scores.get(item, 0.0) + 1 / math.log2(rank + 2)
    return sorted(scores.items(), key=lambda entry: -entry[1])
