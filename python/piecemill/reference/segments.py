"""Segmentation of action sequences, as plainly as it can be written.

An item is a list of tokens, one per category, whose order means nothing; a sequence is a list of items, whose order
does. `merges[k]` is the pair of tokens that token `first + k` stands for. There are two ways to tokens:

- set permutation regularisation (SPR): put the tokens of every item in a random order, write them one after another,
  and merge neighbours, the oldest rule first (`permuted`, `merge_neighbours`);
- without chance: merge inside items and across neighbouring ones wherever a rule weighs most (`segment`).

This is the definition; `_core.ActionSegmenter` must give the same tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from piecemill.reference.order import mixed

Pair = tuple[int, int]
Item = Sequence[int]

_64 = (1 << 64) - 1


def rules(merges: Sequence[Sequence[int]], first: int) -> dict[Pair, int]:
    """The token of each pair; a pair that was merged twice gives the later one."""
    return {(a, b): first + k for k, (a, b) in enumerate(merges)}


def merge_neighbours(tokens: Sequence[int], rules: Mapping[Pair, int]) -> list[int]:
    """Merge the pair of neighbours with the smallest rule, the leftmost on ties, until there is none.

    A pair has no order: {a, b} is looked up as (smaller, larger).

    >>> merge_neighbours([3, 1, 2, 1], {(1, 2): 7, (1, 3): 8})
    [3, 7, 1]
    """
    tokens = list(tokens)
    while True:
        found = [
            (rules[pair], at)
            for at in range(len(tokens) - 1)
            if (pair := (min(tokens[at : at + 2]), max(tokens[at : at + 2]))) in rules
        ]
        if not found:
            return tokens
        token, at = min(found)
        tokens[at : at + 2] = [token]


def random_words(seed: int, epoch: int, row: int) -> Iterator[int]:
    """The 64-bit numbers that belong to one row of one epoch: splitmix64, from a state that all three go into.

    Any row can be made alone, and on any thread.
    """
    step = 0x9E3779B97F4A7C15
    state = 0
    for part in (seed, epoch, row):
        state = mixed((state + step + part) & _64)
    while True:
        state = (state + step) & _64
        yield mixed(state)


def permuted(sequence: Sequence[Item], seed: int, epoch: int, row: int) -> list[list[int]]:
    """Each item in a random order: for i from the last place down to 1, swap i with one of the places 0 to i."""
    words = random_words(seed, epoch, row)
    items = [list(item) for item in sequence]
    for item in items:
        for i in range(len(item) - 1, 0, -1):
            j = (next(words) * (i + 1)) >> 64
            item[i], item[j] = item[j], item[i]
    return items


def spr(sequence: Sequence[Item], rules: Mapping[Pair, int], seed: int, epoch: int, row: int) -> list[int]:
    """The tokens of a sequence with set permutation regularisation."""
    return merge_neighbours([token for item in permuted(sequence, seed, epoch, row) for token in item], rules)


@dataclass
class Node:
    """A set of tokens, and the token (if any) that was merged across to the next set."""

    tokens: list[int]
    context: list[int] = field(default_factory=list)


def segment(sequence: Sequence[Item], rules: Mapping[Pair, int], priority: Sequence[float]) -> list[list[int]]:
    """The nodes of a sequence, sets and contexts in turn, once no rule applies; the tokens are all of them in a row.

    Each step looks at every pair that could be merged: inside a set of n tokens it scores 2 * priority / n, between two
    sets of n and k tokens (a context is a set of one) priority / (n * k). The highest score is merged, the first found
    on ties.
    """
    nodes = [Node(list(item)) for item in sequence]
    while True:
        best: tuple[float, int, str, Pair, int] | None = None
        for candidate in _candidates(nodes, rules, priority):
            if best is None or candidate[0] > best[0]:
                best = candidate
        if best is None:
            return [part for node in nodes for part in (node.tokens, node.context)][:-1]
        _, at, where, (x, y), token = best
        here, after = nodes[at], nodes[min(at + 1, len(nodes) - 1)]
        if where == "inside":
            here.tokens = [token, *(t for t in here.tokens if t not in (x, y))]
        else:
            if where in ("before", "across"):
                here.tokens.remove(x)
            if where in ("behind", "across"):
                after.tokens.remove(y)
            here.context = [token]
        _clean(nodes)


def _candidates(
    nodes: Sequence[Node], rules: Mapping[Pair, int], priority: Sequence[float]
) -> Iterator[tuple[float, int, str, Pair, int]]:
    """Everything that could be merged, in the order in which it is looked at: (score, node, where, pair, token)."""
    for at, node in enumerate(nodes):
        blocks = [("inside", pair, len(node.tokens)) for pair in _pairs_inside(node.tokens)]
        if at + 1 < len(nodes):
            following = nodes[at + 1].tokens
            if node.context:
                c = node.context[0]
                blocks += [("before", (x, c), len(node.tokens)) for x in node.tokens]
                blocks += [("behind", (c, y), len(following)) for y in following]
            else:
                size = len(node.tokens) * len(following)
                blocks += [("across", (x, y), size) for x in node.tokens for y in following]
        for where, pair, size in blocks:
            token = rules.get((min(pair), max(pair)))
            if token is not None:
                weight = priority[token]
                yield (weight * 2 if where == "inside" else weight) / size, at, where, pair, token


def _pairs_inside(tokens: Sequence[int]) -> list[Pair]:
    return [(tokens[p], tokens[q]) for p in range(len(tokens)) for q in range(p + 1, len(tokens))]


def _clean(nodes: list[Node]) -> None:
    """An empty set takes the context before it; a node with neither set nor context goes, unless it is the last."""
    while True:
        before = [(list(node.tokens), list(node.context)) for node in nodes]
        for at in range(1, len(nodes)):
            if not nodes[at].tokens and nodes[at - 1].context:
                nodes[at].tokens, nodes[at - 1].context = nodes[at - 1].context, []
        nodes[:] = [n for n in nodes[:-1] if n.tokens or n.context] + nodes[-1:]
        if before == [(node.tokens, node.context) for node in nodes]:
            return


def expanded(token: int, initial: Sequence[Sequence[int]], merges: Sequence[Sequence[int]]) -> list[Pair]:
    """The features (category, value) a token stands for."""
    if token <= len(initial):
        category, value = initial[token - 1]
        return [(category, value)]
    a, b = merges[token - len(initial) - 1]
    return expanded(a, initial, merges) + expanded(b, initial, merges)


def decode(
    tokens: Sequence[int], initial: Sequence[Sequence[int]], merges: Sequence[Sequence[int]], n_categories: int
) -> list[int] | None:
    """The feature values of the item that `tokens` stand for; None unless every category occurs exactly once."""
    if any(not 0 < token <= len(initial) + len(merges) for token in tokens):
        return None
    features = sorted(feature for token in tokens for feature in expanded(token, initial, merges))
    if [category for category, _ in features] != list(range(n_categories)):
        return None
    return [value for _, value in features]
