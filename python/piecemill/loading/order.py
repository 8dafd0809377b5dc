"""Order: which window comes when, computed and not stored.

An order is a permutation of the numbers below `size`, given by a key, with random access. Its memory does not grow
with `size`; a local order holds three numbers per shard. The plain version: `piecemill.reference.order`.

Start with `order_of`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PlanError
from piecemill.plans import checked

Ints = NDArray[np.int64]
Order = Callable[[Ints], Ints]
Named = Literal["shuffled", "local", "sequential"]

_MASK = (1 << 64) - 1
# Up to here a permutation is a table, made by sorting hashes: truly uniform, and 512 KiB at most.
_TABLE = 1 << 16
# Pairs of rounds. Three pass every test here as well; the fourth is for those that nobody thought of.
_ROUNDS = 4


@checked
@dataclass(frozen=True, slots=True)
class Local:
    """An order that reads a few shards at a time: shards in a random order, and windows shuffled among those few."""

    shards: int = 8
    "Shards whose windows are shuffled together: this many are read at the same time."

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise PlanError(f"Local(shards={self.shards}): expected 1 or more.")


@checked
@dataclass(frozen=True, slots=True)
class Blocks:
    """An order with mostly sequential reads, for disks with slow seeks: blocks of neighbours are shuffled.

    Then the windows in a buffer of blocks are. The blocks of a buffer are from all over the data: better mixed than
    `Local`, but not for an object store.
    """

    block: int = 64
    "Neighbouring windows that stay together."
    blocks: int = 256
    "Blocks in a buffer: this many places of the files are read at a time."

    def __post_init__(self) -> None:
        if self.block < 1 or self.blocks < 1:
            raise PlanError(f"Blocks(block={self.block}, blocks={self.blocks}): expected 1 or more of both.")


OrderPlan = Named | Local | Blocks


def order_of(name: OrderPlan, size: int, *key: int, shard_ends: Ints | None = None) -> Order:
    """The order of `size` things; the same key gives the same order.

    shard_ends: how many of the things are in the shards up to each one; needed for a local order.
    """
    if name == "sequential":
        return lambda places: places
    if name == "shuffled":
        return Permutation(size, *key)
    if name == "local" or isinstance(name, Local):
        ends = np.array([size]) if shard_ends is None else shard_ends
        return LocalPermutation(ends, Local() if name == "local" else name, *key)
    if isinstance(name, Blocks):
        return BlockPermutation(size, name, *key)
    raise PlanError(f"order={name!r}: expected shuffled, local, sequential, Local(shards=...) or Blocks(...).")


class Permutation:
    """A permutation of the numbers below `size`.

    Small ones are tables. Of large ones, a number is two digits, of base about the square root of `size`; in turn
    each digit is moved on by a hash of the other (a Feistel network, with sums instead of exclusive ors, so that the
    bases need not be powers of two). What lands beyond `size` goes round again; that is one in hundreds at most.
    """

    def __init__(self, size: int, *key: int) -> None:
        if not 0 <= size < 1 << 62:
            raise PlanError(f"{size} things to put in order; expected 0 to 2**62.")
        self.size = size
        secret = mix_key(*key)
        if size <= _TABLE:
            hashes = mixed(np.arange(size, dtype=np.uint64) ^ np.uint64(secret))
            self._table: Ints | None = np.argsort(hashes, kind="stable")
            return
        self._table = None
        high = isqrt(size - 1) + 1
        self._bases = np.uint64(high), np.uint64(-(-size // high))
        self._keys = [np.uint64(mix_key(secret, number)) for number in range(2 * _ROUNDS)]

    def __call__(self, places: Ints) -> Ints:
        """What stands at each place."""
        if self._table is not None:
            return self._table[places]
        found = self._once(places.astype(np.uint64))
        while len(beyond := np.flatnonzero(found >= self.size)):
            found[beyond] = self._once(found[beyond])
        return found.astype(np.int64)

    def _once(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        _, low_base = self._bases
        digits = list(np.divmod(numbers, low_base))
        for number, key in enumerate(self._keys):
            moved, other = number & 1, 1 - (number & 1)
            base = self._bases[moved]
            # The upper half of the hash, scaled to the base: no division, and even to one part in 2**32 / base.
            moved_by = ((mixed(digits[other] ^ key) >> np.uint64(32)) * base) >> np.uint64(32)
            summed = digits[moved] + moved_by
            digits[moved] = np.where(summed >= base, summed - base, summed)
        found: NDArray[np.uint64] = digits[0] * low_base + digits[1]
        return found


class LocalPermutation:
    """A permutation that puts shards in a random order, and then shuffles the windows of each few shards.

    The shards in their new order are dealt to buffers of `local.shards` at most and of nearly equal number.
    """

    def __init__(self, shard_ends: Ints, local: Local, *key: int) -> None:
        count = len(shard_ends)
        starts = np.concatenate([np.zeros(1, np.int64), shard_ends])[:count]
        visited = Permutation(count, *key, 0)(np.arange(count))
        # By place in the new order: where a shard's windows begin there, and which windows they are.
        self._ends = np.cumsum((shard_ends - starts)[visited], dtype=np.int64)
        self._begins = np.concatenate([np.zeros(1, np.int64), self._ends])[:count]
        self._first = starts[visited]
        buffers = max(1, -(-count // local.shards))
        last_shards = np.arange(1, buffers + 1) * count // buffers - 1
        self._buffer_ends = self._ends[last_shards] if count else np.zeros(0, np.int64)
        # Feeder threads are in neighbouring buffers.
        self._inside = lru_cache(maxsize=8)(lambda buffer: Permutation(self._held(buffer), *key, 1, buffer))

    def _begin(self, buffer: int) -> int:
        return int(self._buffer_ends[buffer - 1]) if buffer else 0

    def _held(self, buffer: int) -> int:
        return int(self._buffer_ends[buffer]) - self._begin(buffer)

    def __call__(self, places: Ints) -> Ints:
        """What stands at each place."""
        buffers = np.searchsorted(self._buffer_ends, places, side="right")
        numbers = np.empty_like(places)
        for buffer in np.unique(buffers).tolist():
            mine, first = buffers == buffer, self._begin(buffer)
            numbers[mine] = first + self._inside(buffer)(places[mine] - first)
        # `numbers` counts windows in the new order of the shards.
        shard = np.searchsorted(self._ends, numbers, side="right")
        found: Ints = self._first[shard] + numbers - self._begins[shard]
        return found


class BlockPermutation:
    """A permutation that moves whole blocks, and then windows within a buffer of blocks.

    What does not fill a block stands behind the last one, in the last buffer.
    """

    def __init__(self, size: int, plan: Blocks, *key: int) -> None:
        self.size, self._plan = size, plan
        self._full = size // plan.block
        self._blocks = Permutation(self._full, *key, 0)
        self._buffer_windows = plan.block * plan.blocks
        self._buffers = max(1, -(-self._full // plan.blocks))
        # Feeder threads are in neighbouring buffers.
        self._inside = lru_cache(maxsize=8)(lambda buffer: Permutation(self._held(buffer), *key, 1, buffer))

    def _held(self, buffer: int) -> int:
        """Windows in a buffer; the last one has what is left."""
        first = buffer * self._buffer_windows
        return self.size - first if buffer == self._buffers - 1 else self._buffer_windows

    def __call__(self, places: Ints) -> Ints:
        """What stands at each place."""
        buffers = np.minimum(places // self._buffer_windows, self._buffers - 1)
        numbers = np.empty_like(places)
        for buffer in np.unique(buffers).tolist():
            mine = buffers == buffer
            first = buffer * self._buffer_windows
            numbers[mine] = first + self._inside(buffer)(places[mine] - first)
        # `numbers` counts windows in the order of the blocks.
        whole = numbers < self._full * self._plan.block
        blocks, inside = np.divmod(numbers[whole], self._plan.block)
        numbers[whole] = self._blocks(blocks) * self._plan.block + inside
        return numbers


def mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of each number: the finalizer of splitmix64."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def mix_key(*numbers: int) -> int:
    """One key of 64 bits from several numbers; their order matters."""
    key = 0
    for number in numbers:
        key = (key ^ (number & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        key = (key ^ key >> 27) * 0x94D049BB133111EB & _MASK
        key ^= key >> 31
    return key
