"""A permutation, one number at a time: the definition that `piecemill.loading.order` must equal."""

from math import isqrt

_MASK = (1 << 64) - 1


def permutation(size: int, *key: int, table: int = 1 << 16) -> list[int]:
    """All numbers below `size`, in the order of `key`.

    Up to `table` numbers are sorted by their hashes. More are taken as two digits each; four times, the first is moved
    on by a hash of the second, and the second by one of the first. What is not below `size` then goes through it again.
    """
    secret = mix_key(*key)
    if size <= table:
        return sorted(range(size), key=lambda number: mixed(number ^ secret))
    high = isqrt(size - 1) + 1
    low = -(-size // high)
    keys = [mix_key(secret, number) for number in range(8)]

    def once(number: int) -> int:
        first, second = divmod(number, low)
        for to_first, to_second in zip(keys[::2], keys[1::2], strict=True):
            first = (first + ((mixed(second ^ to_first) >> 32) * high >> 32)) % high
            second = (second + ((mixed(first ^ to_second) >> 32) * low >> 32)) % low
        return first * low + second

    found = []
    for place in range(size):
        number = once(place)
        while number >= size:
            number = once(number)
        found.append(number)
    return found


def local_permutation(shard_sizes: list[int], shards: int, *key: int, table: int = 1 << 16) -> list[int]:
    """All windows, where shard i has the next `shard_sizes[i]` of them: a few shards at a time.

    The shards are permuted and cut into the fewest buffers of at most `shards` each, of nearly equal number. Then the
    windows of each buffer are permuted.
    """
    windows, before = [], 0
    for size in shard_sizes:
        windows.append(list(range(before, before + size)))
        before += size
    visited = permutation(len(windows), *key, 0, table=table)
    buffers = max(1, -(-len(windows) // shards))
    found = []
    for buffer in range(buffers):
        inside = visited[buffer * len(windows) // buffers : (buffer + 1) * len(windows) // buffers]
        held = [window for shard in inside for window in windows[shard]]
        found += [held[place] for place in permutation(len(held), *key, 1, buffer, table=table)]
    return found


def mixed(number: int) -> int:
    """A hash of a number: the finalizer of splitmix64."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31


def mix_key(*numbers: int) -> int:
    """One key from several numbers."""
    key = 0
    for number in numbers:
        key = mixed((key ^ number & _MASK) + 0x9E3779B97F4A7C15 & _MASK)
    return key
