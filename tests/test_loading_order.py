"""Order: a permutation, the one that is defined, and one that looks like any other."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from piecemill.errors import PlanError
from piecemill.loading import order as orders
from piecemill.loading.order import BlockPermutation, Blocks, Local, LocalPermutation, Permutation, order_of
from piecemill.reference.order import local_permutation, permutation

LARGE = 100_003


def all_of(order, size):
    return order(np.arange(size))


@pytest.fixture
def no_tables(monkeypatch):
    """Small permutations by the rounds of large ones."""
    monkeypatch.setattr(orders, "_TABLE", 0)


@pytest.mark.parametrize("size", [0, 1, 2, 5, 100, 1000])
def test_small_permutations_are_those_of_the_definition(size):
    assert all_of(Permutation(size, 3, 1), size).tolist() == permutation(size, 3, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 17, 1000, 4097])
def test_rounds_are_those_of_the_definition(no_tables, size):
    assert all_of(Permutation(size, 3, 1), size).tolist() == permutation(size, 3, 1, table=0)


def test_a_large_permutation_is_the_one_of_the_definition():
    assert all_of(Permutation(LARGE, 5), LARGE).tolist() == permutation(LARGE, 5)


@settings(deadline=None, max_examples=60, suppress_health_check=[])
@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(1, 40), st.integers(1, 9))
def test_every_order_has_every_number_once(size, key, block, blocks):
    want = list(range(size))
    for order in (Permutation(size, key), BlockPermutation(size, Blocks(block, blocks), key)):
        assert sorted(all_of(order, size).tolist()) == want
    assert all_of(order_of("sequential", size), size).tolist() == want


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 60), max_size=30), st.integers(1, 9), st.integers(0, 2**63))
def test_a_local_order_is_that_of_the_definition(sizes, shards, key):
    order = LocalPermutation(np.cumsum(sizes, dtype=np.int64), Local(shards), key, 7)
    found = all_of(order, sum(sizes)).tolist()
    assert found == local_permutation(sizes, shards, key, 7)
    assert sorted(found) == list(range(sum(sizes)))


def test_a_local_order_by_rounds_is_that_of_the_definition(no_tables):
    sizes = [100, 0, 1, 300, 7, 80, 200]
    found = all_of(LocalPermutation(np.cumsum(sizes), Local(3), 5), sum(sizes)).tolist()
    assert found == local_permutation(sizes, 3, 5, table=0)


def test_places_of_a_local_order_may_be_asked_for_in_any_order_and_number():
    ends = np.cumsum(np.random.default_rng(1).integers(0, 200_000, 300))
    order = LocalPermutation(ends, Local(), 1)
    places = np.random.default_rng(0).integers(0, ends[-1], 1000)
    found = order(places)
    assert np.concatenate([order(places[n : n + 7]) for n in range(0, 1000, 7)]).tolist() == found.tolist()


def test_places_may_be_asked_for_in_any_order_and_number():
    order = Permutation(10**12, 1)
    places = np.random.default_rng(0).integers(0, 10**12, 1000)
    found = order(places)
    assert found.min() >= 0
    assert found.max() < 10**12
    assert np.concatenate([order(places[n : n + 7]) for n in range(0, 1000, 7)]).tolist() == found.tolist()


def test_another_key_is_another_order():
    found = {tuple(all_of(Permutation(LARGE, *key), 50)) for key in [(0,), (1,), (-1,), (0, 0), (0, 1), (1, 0)]}
    assert len(found) == 6


# Is it uniform enough? Chi-square over cells of equal chance: the mean is `cells - 1`, the deviation sqrt(2 * cells);
# six deviations are exceeded by chance once in a billion times. The keys are fixed, so nothing here is random.


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


def assert_even(counts):
    cells = counts.size
    found = chi_square(counts, counts.sum() / cells)
    assert abs(found - (cells - 1)) < 6 * (2 * cells) ** 0.5, found


def test_every_order_of_five_things_comes_as_often_as_any_other():
    numbers = {order: number for number, order in enumerate(permutations(range(5)))}
    found = [numbers[tuple(all_of(Permutation(5, key), 5).tolist())] for key in range(24_000)]
    assert_even(np.bincount(found, minlength=120))


@pytest.mark.parametrize("key", range(4))
def test_where_a_number_stands_says_nothing_about_it(key):
    order = all_of(Permutation(LARGE, key), LARGE)
    cells = np.histogram2d(np.arange(LARGE), order, bins=32)[0]
    # Rows and columns are filled evenly by any permutation; what is left is (32 - 1)**2 free cells.
    found = chi_square(cells, LARGE / 1024)
    assert abs(found - 31**2) < 6 * (2 * 31**2) ** 0.5, found


@pytest.mark.parametrize("apart", [1, 2, 317])
def test_neighbours_say_nothing_about_each_other(apart):
    order = all_of(Permutation(LARGE, 11), LARGE)
    assert_even(np.histogram2d(order[:-apart], order[apart:], bins=32)[0])
    distance = (order[apart:] - order[:-apart]) % LARGE
    assert_even(np.histogram(distance, bins=100)[0])


def test_large_orders_have_as_many_fixed_points_and_ascents_as_chance_gives():
    fixed, ascents = [], []
    for key in range(100):
        order = all_of(Permutation(LARGE, key), LARGE)
        fixed.append(int((order == np.arange(LARGE)).sum()))
        ascents.append(int((order[1:] > order[:-1]).sum()))
    # One fixed point in the mean, variance 1; half of all steps rise, with variance n / 12.
    assert abs(np.mean(fixed) - 1) < 6 / 10
    assert abs(np.mean(ascents) - (LARGE - 1) / 2) < 6 * (LARGE / 12 / 100) ** 0.5
    assert 0.5 < np.var(ascents) / (LARGE / 12) < 2


def test_two_epochs_have_nothing_in_common():
    first, second = (all_of(Permutation(LARGE, 0, epoch), LARGE) for epoch in (0, 1))
    cells = np.histogram2d(first, second, bins=32)[0]
    assert abs(chi_square(cells, LARGE / 1024) - 31**2) < 6 * (2 * 31**2) ** 0.5


def test_an_order_of_blocks_reads_few_at_a_time_and_all_of_them_in_another_order():
    plan = Blocks(block=16, blocks=32)
    order = all_of(BlockPermutation(10_000, plan, 1), 10_000)
    for first in range(0, 10_000 - 512, 512):
        assert len(set((order[first : first + 512] // 16).tolist())) == 32
    # buffers are neither in order nor near each other
    blocks = order[:512] // 16
    assert blocks.max() - blocks.min() > 400
    assert len(set((np.diff(order) == 1).nonzero()[0].tolist())) < 100


def test_a_local_order_visits_the_shards_in_another_order_and_a_few_at_a_time():
    order = all_of(LocalPermutation(np.arange(100, 10_001, 100), Local(8), 1), 10_000)
    shards = order // 100
    bounds = [buffer * 100 // 13 * 100 for buffer in range(14)]  # 13 buffers of 7 or 8 shards
    buffers = [set(shards[a:b].tolist()) for a, b in pairwise(bounds)]
    assert {len(buffer) for buffer in buffers} == {7, 8}
    assert set.union(*buffers) == set(range(100))
    # shards of a buffer are not neighbours, and windows of a shard do not come together
    assert all(max(buffer) - min(buffer) > 30 for buffer in buffers)
    assert (np.diff(order) == 1).sum() < 100
    assert (np.diff(shards) == 0).sum() < 10_000 / 7 + 6 * (10_000 / 7) ** 0.5


def test_each_epoch_visits_the_shards_in_another_order():
    ends = np.arange(100, 10_001, 100)
    first, second = (all_of(order_of("local", 10_000, 0, epoch, shard_ends=ends), 10_000) for epoch in (0, 1))
    assert set((first[:800] // 100).tolist()) != set((second[:800] // 100).tolist())


def test_orders_that_are_none_are_refused():
    with pytest.raises(PlanError, match="order='random': expected shuffled, local, sequential"):
        order_of("random", 5)
    with pytest.raises(PlanError, match=r"Local\(shards=0"):
        Local(shards=0)
    with pytest.raises(PlanError, match=r"Blocks\(block=0"):
        Blocks(block=0)
