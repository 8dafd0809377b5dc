"""Vocabularies and sequences of actions for the tests: random ones, and the golden vectors."""

import json

import numpy as np

from piecemill import _core
from piecemill.actions.vocabulary import ActionVocabulary


def random_vocabulary(rng, categories, values=4, merges=30):
    """A vocabulary whose merges take any two earlier tokens: more kinds of them than training makes."""
    initial = [
        (c, v) for c in range(categories) for v in sorted(rng.choice(50, int(rng.integers(1, values + 1)), False))
    ]
    first = len(initial) + 1
    pairs, weights = [], []
    for token in range(first, first + merges):
        # Some pairs twice, some of a token with itself; early tokens more often, so that rules meet in sequences.
        a, b = sorted(int(token * rng.random() ** 2 * 0.999) for _ in range(2))
        pairs.append((max(a, 1), max(b, 1)))
        weights.append(float(rng.integers(1, 9)) / 4)  # few distinct weights: ties
    priority = [0] * first + weights
    return ActionVocabulary(categories, np.array(initial), np.array(pairs).reshape(-1, 2), priority)


def random_items(rng, vocabulary, count):
    """Rows of initial tokens."""
    columns = []
    for category in range(vocabulary.n_categories):
        tokens = 1 + np.flatnonzero(vocabulary.initial[:, 0] == category)
        columns.append(rng.choice(tokens, count))
    return np.stack(columns, axis=1).astype(np.uint32)


def golden(shared, name):
    """A golden case, and its vocabulary as the published code made it."""
    case = json.loads((shared / "actionpiece" / "golden" / f"{name}.json").read_text())
    initial = sorted({(c, v) for values in case["state2feat"].values() for c, v in enumerate(values)})
    priority = [0] * (len(initial) + 1) + case["official"]["priority"]
    merges = np.array(case["official"]["merges"])
    return case, ActionVocabulary(case["n_categories"], np.array(initial), merges, priority)


def random_corpus(rng, features, values=4, count=None, longest=7, items=6):
    """Sequences of items as lists of tokens, and the first id that is no feature: few items, so that they repeat."""
    table = [[1 + c * values + int(rng.integers(values)) for c in range(features)] for _ in range(items)]
    count = int(rng.integers(1, 9)) if count is None else count
    sequences = [[table[rng.integers(items)] for _ in range(rng.integers(1, longest + 1))] for _ in range(count)]
    return sequences, 1 + features * values


def learn(sequences, n_init, vocab_size, counts="published", arithmetic="exact", *, min_pair_weight=0.0, threads=1):
    """What the core learns from sequences of items as lists of tokens."""
    rows = {}
    items = [rows.setdefault(tuple(item), len(rows)) for sequence in sequences for item in sequence]
    ends = np.cumsum([len(sequence) for sequence in sequences])
    return _core.train_actions(
        np.array(list(rows), np.uint32),
        np.array(items, np.uint32),
        ends.astype(np.uint64),
        n_init,
        vocab_size,
        counts,
        arithmetic,
        min_pair_weight,
        threads,
        _core.Progress(),
    )


def tokens_of(features, corpus):
    """Sequences of item keys as lists of tokens, and the first id that is no feature."""
    initial = sorted({(c, v) for values in features.values() for c, v in enumerate(values)})
    token = {feature: number for number, feature in enumerate(initial, start=1)}
    item = {key: [token[feature] for feature in enumerate(values)] for key, values in features.items()}
    return [[item[key] for key in sequence] for sequence in corpus], len(initial) + 1
