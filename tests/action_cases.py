"""Vocabularies and sequences of actions for the tests: random ones, and the golden vectors."""

import json

import numpy as np

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
