"""ActionPiece training, as plainly as it can be written.

A sequence is a list of nodes `[set, context]`: the tokens of an item, and a slot behind it for one token that was
merged across to the next item (None while it is empty). Every step weighs all pairs of all sequences anew, takes the
heaviest, and rewrites every sequence. This is the definition; `_core.train_actions` must give the same merges and
weights, and the same float64 to the last bit.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from math import lcm
from typing import Any, Literal, NamedTuple

Pair = tuple[int, int]
Node = list[Any]  # [list of tokens, token or None]
Weigh = Callable[[int, int], Any]  # numerator, denominator -> weight


class LearnedMerges(NamedTuple):
    """What was learned."""

    merges: list[Pair]
    weights: list[Any]
    "Of each pair when it was merged: numerators over lcm(1..m)^2, or floats."
    states: list[list[list[Node]]]
    "All sequences after each merge."


def pair_of(x: int, y: int) -> Pair:
    """The unordered pair of two tokens."""
    return (x, y) if x <= y else (y, x)


def count_pairs(sequence: Sequence[Node], weigh: Weigh) -> dict[Pair, Any]:
    """How likely each pair of tokens is to be neighbours once every set is written out in a random order.

    A float sum depends on its order: blocks from left to right (a set, then it and what comes next), each block
    summed by itself first.
    """
    weights: dict[Pair, Any] = {}

    def add_block(pairs: Iterable[Pair], weight: Any) -> None:
        block: dict[Pair, Any] = {}
        for pair in pairs:
            block[pair] = block[pair] + weight if pair in block else weight
        for pair, total in block.items():
            weights[pair] = weights[pair] + total if pair in weights else total

    for at, (here, context) in enumerate(sequence):
        if len(here) >= 2:
            add_block((pair_of(x, y) for x, y in combinations(here, 2)), weigh(2, len(here)))
        if at + 1 == len(sequence):
            break
        after = sequence[at + 1][0]
        if context is None:
            if here and after:
                add_block((pair_of(x, y) for x in here for y in after), weigh(1, len(here) * len(after)))
        else:
            if here:
                add_block((pair_of(x, context) for x in here), weigh(1, len(here)))
            if after:
                add_block((pair_of(context, y) for y in after), weigh(1, len(after)))
    return weights


def merge_sequence(sequence: Sequence[Node], pair: Pair, token: int) -> list[Node]:
    """`sequence` with `token` for every `pair`, left to right; what one merge does, the next one sees."""
    a, b = pair
    nodes: list[Node] = [[list(here), context] for here, context in sequence]
    for at, node in enumerate(nodes):
        if a != b and a in node[0] and b in node[0]:
            node[0] = [token] + [other for other in node[0] if other not in pair]
        if at + 1 == len(nodes):
            break
        after = nodes[at + 1]
        if node[1] is not None:
            for neighbour in (node, after):
                wanted = {a: b, b: a}.get(node[1])
                if wanted is not None and wanted in neighbour[0]:
                    neighbour[0].remove(wanted)
                    node[1] = token
        else:
            for left, right in ((a, b), (b, a)):
                if node[1] is None and left in node[0] and right in after[0]:
                    node[0].remove(left)
                    after[0].remove(right)
                    node[1] = token
    return tidied(nodes)


def tidied(nodes: list[Node]) -> list[Node]:
    """An empty set takes the context before it, and a node with nothing in it goes, until nothing changes."""
    while True:
        before = [[list(here), context] for here, context in nodes]
        for left, node in pairwise(nodes):
            if not node[0] and left[1] is not None:
                node[0], left[1] = [left[1]], None
        last = len(nodes) - 1
        nodes = [node for at, node in enumerate(nodes) if node[0] or node[1] is not None or at == last]
        if nodes == before:
            return nodes


def train(
    sequences: Iterable[Sequence[Sequence[int]]],
    n_init: int,
    n_merges: int,
    *,
    counts: Literal["published", "current"] = "published",
    arithmetic: Literal["exact", "float64"] = "exact",
    min_pair_weight: float = 0.0,
) -> LearnedMerges:
    """At most `n_merges` merges learned from `sequences` of items, each a list of feature tokens below `n_init`.

    >>> train([[[1, 3], [2, 3]], [[1, 3]]], n_init=4, n_merges=1)[:2]
    ([(1, 3)], [9])
    """
    state: list[list[Node]] = [[[list(item), None] for item in sequence] for sequence in sequences]
    m = max((len(node[0]) for sequence in state for node in sequence), default=1)
    common = lcm(*range(1, m + 1)) ** 2
    exact = arithmetic == "exact"

    def weigh(numerator: int, denominator: int) -> Any:
        return int(Fraction(numerator * common, denominator)) if exact else numerator / denominator

    choose = _Current if counts == "current" else _PublishedCounts
    queue = choose([count_pairs(sequence, weigh) for sequence in state], 0 if exact else 1e-12)
    learned = LearnedMerges([], [], [])
    for token in range(n_init, n_init + n_merges):
        best = queue.heaviest()
        if best is None or best[0] / (common if exact else 1) < min_pair_weight:
            break
        weight, pair = best
        state = [merge_sequence(sequence, pair, token) for sequence in state]
        queue.merged(pair, [count_pairs(sequence, weigh) for sequence in state])
        learned.merges.append(pair)
        learned.weights.append(weight)
        learned.states.append(state)
    return learned


class _Current:
    """A pair weighs what it weighs in the sequences as they are."""

    def __init__(self, weights: list[dict[Pair, Any]], tolerance: float) -> None:
        self._weights = weights

    def heaviest(self) -> tuple[Any, Pair] | None:
        totals: dict[Pair, Any] = defaultdict(int)
        for weights in self._weights:
            for pair, weight in weights.items():
                totals[pair] += weight
        best = min(totals, key=lambda pair: (-totals[pair], pair), default=None)
        return None if best is None else (totals[best], best)

    def merged(self, pair: Pair, weights: list[dict[Pair, Any]]) -> None:
        self._weights = weights


class _PublishedCounts:
    """A pair that vanishes from a sequence keeps the weight it had there, as in the published implementation.

    Every new total is one entry more in the queue. An entry counts if its pair weighs as much when it comes up, so
    a total that is reached twice is merged twice.
    """

    def __init__(self, weights: list[dict[Pair, Any]], tolerance: float) -> None:
        self._weights = weights
        self._tolerance = tolerance
        self._totals: dict[Pair, Any] = defaultdict(int)
        self._places: dict[Pair, set[int]] = defaultdict(set)  # a real set: float sums are made in its order
        for place, here in enumerate(weights):
            for pair, weight in here.items():
                self._totals[pair] += weight
                self._places[pair].add(place)
        self._queue = [(-total, pair) for pair, total in self._totals.items()]
        heapq.heapify(self._queue)

    def heaviest(self) -> tuple[Any, Pair] | None:
        while self._queue:
            total, pair = heapq.heappop(self._queue)
            if abs(-total - self._totals[pair]) <= self._tolerance:
                return -total, pair
        return None

    def merged(self, pair: Pair, weights: list[dict[Pair, Any]]) -> None:
        changes: dict[Pair, Any] = defaultdict(int)
        for place in self._places[pair].copy():
            old, new = self._weights[place], weights[place]
            for other, weight in new.items():
                changes[other] += weight - old.get(other, 0)
                self._places[other].add(place)
        self._weights = weights
        for other, change in changes.items():
            if abs(change) > self._tolerance:
                self._totals[other] += change
                heapq.heappush(self._queue, (-self._totals[other], other))
