"""The unigram entropy in nats: the loss of a model that only knows token frequencies."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.shards import Shards
from piecemill.shards.reader import counted


def unigram_entropy(shards: Shards) -> float:
    """The loss, in nats per token, of the best model that sees no context."""
    return entropy(counted(shards))


def entropy(counts: NDArray[np.integer[Any]]) -> float:
    """Entropy of a distribution given as counts, in nats.

    >>> round(entropy(np.array([1, 1, 0, 2])) / float(np.log(2)), 6)
    1.5
    """
    seen = counts[counts > 0]
    shares = seen / seen.sum()
    return float(-(shares * np.log(shares)).sum()) + 0.0
