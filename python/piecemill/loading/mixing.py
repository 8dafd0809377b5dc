"""Mixing: which part each sample comes from, and which window of it, as a function of the sample's number alone.

Parts are the windows of several folders, or of the weighted groups of one. They alternate as evenly as their shares
allow: after every 256 samples, each part has had its share to within a few samples. Each part is read in its own
order, every window once before any is repeated. So a position in a mixture is one number, as it is in a single
folder, and nothing is stored.

Start with `mix` and `Draws`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import LoadError, PlanError
from piecemill.files import hash_bytes
from piecemill.loading.order import Ints, Order, OrderPlan, Permutation, mix_key, mixed, order_of
from piecemill.plans import did_you_mean
from piecemill.shards.windows import Rows, Windows, check_rows

Weights = Literal["stored"] | Sequence[float] | None

# Samples are shuffled in stretches of this many before parts are dealt: else every second sample of a half-and-half
# mixture would be of one part, and with two ranks and one row each, a rank would never see the other.
_STRETCH = 256
_LOW = np.uint64(32)


@dataclass(frozen=True)
class Mixture:
    """Several rows and the share of each; made by `mix`."""

    rows: tuple[Rows, ...]
    shares: tuple[float, ...]

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        return self.rows[0].vocab_size

    @property
    def eos(self) -> int | None:
        """The id after each document, if there is one."""
        return self.rows[0].eos

    @property
    def tokenizer_identity(self) -> str | None:
        """`Tokenizer.identity` of what made the ids of all parts; None where no part says."""
        return next((known for rows in self.rows if (known := rows.tokenizer_identity) is not None), None)

    @property
    def tokens(self) -> int:
        """Tokens of all parts."""
        return sum(rows.tokens for rows in self.rows)

    def __len__(self) -> int:
        """Documents of all parts."""
        return sum(map(len, self.rows))

    @property
    def identity(self) -> str:
        """Which tokens these are, and in which shares."""
        told = [f"{rows.identity} {share!r}" for rows, share in zip(self.rows, self.shares, strict=True)]
        return hash_bytes("\n".join(told).encode())


@did_you_mean
def mix(parts: Sequence[tuple[Rows, float]]) -> Mixture:
    """Several folders as one: of each the rows and its share of all windows, which need not add up to 1.

    An epoch is as many windows as all parts have together; a part with a larger share than its size comes round more
    than once in it, one with a smaller share not quite.
    """
    expected = "expected pairs of rows and a share, such as [(code, 0.7), (text, 0.3)]."
    if not isinstance(parts, list | tuple) or not parts:
        raise PlanError(
            f"mix: found {'no parts' if isinstance(parts, list | tuple) else type(parts).__name__}; {expected}"
        )
    for each in parts:
        if not isinstance(each, list | tuple) or len(each) != 2 or not isinstance(each[1], int | float):
            raise PlanError(f"mix: found {each!r:.80} among the parts; {expected}")
        check_rows(each[0])
    for rows, share in parts:
        if not 0 < share < float("inf"):
            raise PlanError(f"mix: {rows} has share {share!r}; expected a number above 0. Leave it out instead of 0.")
    first = parts[0][0]
    told = next((rows for rows, _ in parts if rows.tokenizer_identity is not None), first)
    for rows, _ in parts:
        if rows.tokenizer_identity not in (None, told.tokenizer_identity):
            raise LoadError(
                f"mix: {rows} was made with the tokenizer {rows.tokenizer_identity}, {told} with "
                f"{told.tokenizer_identity}: the same id is another token. Prepare both with the same tokenizer."
            )
        if (rows.vocab_size, rows.eos) != (first.vocab_size, first.eos):
            raise LoadError(
                f"mix: {rows} has {rows.vocab_size:,} ids and eos {rows.eos}, {first} has {first.vocab_size:,} and "
                f"{first.eos}. A model reads one vocabulary: prepare both with the same tokenizer and eos."
            )
    return Mixture(tuple(rows for rows, _ in parts), tuple(float(share) for _, share in parts))


@dataclass(frozen=True, slots=True)
class Parts:
    """Windows to draw from, the share of each, and how many draws are an epoch."""

    windows: tuple[Windows, ...]
    shares: tuple[float, ...]
    epoch: int
    sources: tuple[int, ...] | None = None
    "Of a mixture: which of its parts the windows are from."
    left_out: tuple[Any, ...] = ()
    "Groups of weight 0; of a mixture, such groups of each part."


def parts_of(source: Rows | Mixture, weights: Weights, cut: Mapping[str, Any]) -> Parts:
    """The parts of a folder or a mixture; a folder has several if its groups have weights."""
    if isinstance(source, Mixture):
        if weights not in ("stored", None):
            raise PlanError("weights: a mixture has its shares from `mix`; leave weights out.")
        inner = [parts_of(rows, weights, cut) for rows in source.rows]
        windows = tuple(each for parts in inner for each in parts.windows)
        shares = [s * share / sum(p.shares) for p, share in zip(inner, source.shares, strict=True) for s in p.shares]
        sources = tuple(number for number, parts in enumerate(inner) for _ in parts.windows)
        left_out = tuple(parts.left_out for parts in inner) if any(parts.left_out for parts in inner) else ()
        return Parts(windows, tuple(shares), sum(parts.epoch for parts in inner), sources, left_out)
    wanted = _group_weights(source, weights)
    if wanted is None:
        whole = Windows(source, **cut)
        return Parts((whole,), (1.0,), len(whole))
    groups = [(Windows(source, group=group, **cut), weight) for group, weight in enumerate(wanted) if weight > 0]
    groups = [(windows, weight) for windows, weight in groups if len(windows)]
    if not groups:
        raise LoadError(f"{source}: no group with a weight above 0 has a window. Give other weights=[...], or None.")
    # A window of weight 2 is drawn twice in an epoch.
    shares = [weight * len(windows) for windows, weight in groups]
    unwanted = tuple(group for group, weight in enumerate(wanted) if weight == 0)
    return Parts(tuple(windows for windows, _ in groups), tuple(shares), max(1, round(sum(shares))), left_out=unwanted)


def _group_weights(rows: Rows, weights: Weights) -> Sequence[float] | None:
    """The weight of each group; None where there is nothing to weigh."""
    if weights is None:
        return None
    stored = [float(group["weight"]) for group in getattr(rows, "plan", {}).get("groups", [])]
    if isinstance(weights, str) and weights == "stored":
        return stored if any(weight != 1 for weight in stored) else None
    if isinstance(weights, str) or not isinstance(weights, Sequence | np.ndarray):
        raise PlanError(f"weights={weights!r:.60}: expected 'stored', None, or a list of numbers, one for each group.")
    try:
        given = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        given = []
    if len(given) != len(stored) or any(not 0 <= weight < float("inf") for weight in given):
        raise PlanError(
            f"weights={list(weights)!r}: expected {len(stored)} numbers of 0 or more, one for each group in plan.json "
            f"of {rows}."
        )
    return given


class Draws:
    """Sample number -> part, and window of that part."""

    def __init__(
        self,
        sizes: Sequence[int],
        shares: Sequence[float],
        order: OrderPlan,
        seed: int,
        shard_ends: Sequence[Ints] | None = None,
    ) -> None:
        """`shard_ends`: of each part, how many windows begin in the shards up to each one; for a local order."""
        self._sizes, self._seed = list(sizes), seed
        ends = [None] * len(sizes) if shard_ends is None else shard_ends
        left, self._rates = float(sum(shares)), []
        for share in shares:
            # The share that a part takes of what the parts before it leave, as a number of 2**32.
            self._rates.append(min(1 << 32, round(share / left * (1 << 32))))
            left = max(left - share, share * 1e-12)
        self._rates[-1] = 1 << 32
        self._stretch: Ints = Permutation(_STRETCH, seed, 1)(np.arange(_STRETCH))
        # A few parts, each in this epoch or the next.
        self._order = lru_cache(maxsize=4 * len(sizes))(
            lambda part, epoch: order_of(order, self._sizes[part], seed, 2, part, epoch, shard_ends=ends[part])
        )
        order_of(order, 1)  # an order that is none is refused here, and not in a thread

    def __call__(self, samples: Ints) -> tuple[Ints, Ints]:
        """The part and the window of each sample."""
        if len(self._sizes) == 1:
            return np.zeros(len(samples), np.int64), self._windows(0, samples)
        parts, windows = np.empty_like(samples), np.empty_like(samples)
        turns = self._stretched(samples)
        left = np.arange(len(samples))
        for part, rate in enumerate(self._rates):
            before, after = _taken(turns, rate), _taken(turns + 1, rate)
            mine = after > before
            parts[left[mine]] = part
            windows[left[mine]] = self._windows(part, before[mine])
            left, turns = left[~mine], (turns - before)[~mine]
        return parts, windows

    def _stretched(self, samples: Ints) -> Ints:
        stretch, inside = np.divmod(samples, _STRETCH)
        flips = mixed(stretch.astype(np.uint64) ^ np.uint64(mix_key(self._seed, 3))).astype(np.int64) & (_STRETCH - 1)
        turns: Ints = stretch * _STRETCH + self._stretch[inside ^ flips]
        return turns

    def _windows(self, part: int, draws: Ints) -> Ints:
        """The window at each draw of a part, which goes through all its windows, then through all in another order."""
        epochs, places = np.divmod(draws, self._sizes[part])
        found = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            mine = epochs == epoch
            order: Order = self._order(part, epoch)
            found[mine] = order(places[mine])
        return found


def _taken(turns: Ints, rate: int) -> Ints:
    """How many of the first `turns` a part takes: `floor(turns * rate / 2**32)`, without overflow."""
    numbers = turns.astype(np.uint64)
    high, low = numbers >> _LOW, numbers & np.uint64(0xFFFFFFFF)
    taken: NDArray[np.uint64] = high * np.uint64(rate) + ((low * np.uint64(rate)) >> _LOW)
    return taken.astype(np.int64)
