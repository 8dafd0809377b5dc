"""The unigram entropy in nats: the loss of a model that only knows token frequencies."""

import numpy as np
from numpy.typing import NDArray

from piecemill.shards import Shards

MOST_TOKENS = 1 << 27
"Beyond this, the first part of every shard is counted, in proportion: the third digit no longer changes."


def unigram_entropy(shards: Shards, most: int = MOST_TOKENS) -> float:
    """The loss, in nats per token, of the best model that sees no context."""
    counts = np.zeros(shards.vocab_size, np.int64)
    share = min(1.0, most / max(1, shards.tokens))
    for number, entry in enumerate(shards.entries):
        tokens = shards.shard(number).tokens[: int(np.ceil(entry.tokens * share))]
        counts += np.bincount(tokens, minlength=shards.vocab_size)
    return entropy(counts)


def entropy(counts: NDArray[np.int64]) -> float:
    """Entropy of a distribution given as counts, in nats.

    >>> round(entropy(np.array([1, 1, 0, 2])) / float(np.log(2)), 6)
    1.5
    """
    seen = counts[counts > 0]
    shares = seen / seen.sum()
    return float(-(shares * np.log(shares)).sum()) + 0.0
