"""Mixing: shares that are kept at any time, parts that are gone through, and the same state."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadable import write_rows
from piecemill.errors import LoadError, PlanError
from piecemill.files import hash_bytes
from piecemill.loading import Windows, batches, mix
from piecemill.loading.mixing import Draws

WINDOW = 4


def part(folder, number, windows):
    """Rows of which every id tells the part, by thousands, and the window's first id its number."""
    ids = number * 1000 + np.minimum(np.arange(windows * WINDOW + 1) // WINDOW, 999)
    return write_rows(folder / str(number), [ids.tolist()], vocab_size=9000, eos=0)


def firsts(fed, count):
    return [first for _ in range(count) for first in next(fed)["input_ids"][:, 0].tolist()]


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(20, 500), st.floats(1e-6, 1e6)), min_size=2, max_size=6), st.integers(0, 9))
def test_shares_are_kept_at_any_time_to_within_a_few_draws(parts, seed):
    sizes, shares = zip(*parts, strict=True)
    drawn, windows = Draws(sizes, shares, "shuffled", seed)(np.arange(5000))
    wanted = np.array(shares) / sum(shares)
    for count in (256, 1024, 2560, 4864):  # whole stretches: inside one, samples are shuffled
        found = np.bincount(drawn[:count], minlength=len(sizes))
        assert np.abs(found - count * wanted).max() <= len(sizes) + 1
    for number, size in enumerate(sizes):
        mine = windows[:4864][drawn[:4864] == number]
        # over all, every window comes as often as any other, to within one
        counts = np.bincount(mine, minlength=size)
        assert len(counts) == size
        assert counts.max() - counts.min() <= 1


def test_draws_are_a_function_of_the_sample_alone():
    draws = Draws([300_000, 40, 7000], [1, 2, 3], "shuffled", 4)
    samples = np.random.default_rng(0).integers(0, 10**6, 3000)
    parts, windows = draws(samples)
    pieces = [draws(samples[n : n + 11]) for n in range(0, 3000, 11)]
    assert np.concatenate([p for p, _ in pieces]).tolist() == parts.tolist()
    assert np.concatenate([w for _, w in pieces]).tolist() == windows.tolist()


def test_ranks_of_one_row_see_every_part():
    # half and half, two ranks: without shuffling, one rank would have one part only
    parts, _ = Draws([1000, 1000], [1, 1], "shuffled", 0)(np.arange(0, 2000, 2))
    assert 400 < int((parts == 0).sum()) < 600


def test_folders_are_mixed_in_their_shares(tmp_path):
    rows = mix([(part(tmp_path, 1, 500), 0.7), (part(tmp_path, 2, 400), 0.29), (part(tmp_path, 3, 100), 0.01)])
    fed = batches(rows, window=WINDOW, batch_size=5, epochs=1)
    assert len(fed) == 200  # an epoch is as many windows as all parts have
    found = Counter(first // 1000 for first in firsts(fed, 200))
    assert [abs(found[n] - want) <= 4 for n, want in ((1, 700), (2, 290), (3, 10))] == [True] * 3
    assert (rows.vocab_size, rows.eos, len(rows), rows.tokens) == (9000, 0, 3, 4003)


def test_an_epoch_of_a_mixture_has_its_shares_to_within_a_hundredth(tmp_path):
    shares = {1: 0.55, 2: 0.3, 3: 0.15}
    rows = mix([(part(tmp_path, number, 900), share) for number, share in shares.items()])
    fed = batches(rows, window=WINDOW, batch_size=9, epochs=1)
    found = Counter(first // 1000 for first in firsts(fed, len(fed)))
    for number, share in shares.items():
        assert abs(found[number] / 2700 / share - 1) < 0.01


def test_a_mixture_goes_on_from_its_state_with_another_world_size(tmp_path):
    rows = mix([(part(tmp_path, 1, 50), 2), (part(tmp_path, 2, 70), 1)])
    options = {"window": WINDOW, "seed": 3}
    want = firsts(batches(rows, batch_size=6, **options), 60)
    fed = batches(rows, batch_size=6, **options)
    assert firsts(fed, 20) == want[:120]
    state = json.loads(json.dumps(fed.state_dict()))
    ranks = [batches(rows, batch_size=2, rank=rank, world_size=3, **options) for rank in range(3)]
    for rank in ranks:
        rank.load_state_dict(state)
    assert [first for _ in range(40) for rank in ranks for first in firsts(rank, 1)] == want[120:]
    other = mix([(rows.rows[0], 2), (rows.rows[1], 1.5)])
    with pytest.raises(LoadError, match="taken over the data"):
        batches(other, batch_size=6, **options).load_state_dict(state)


def grouped(folder, weights):
    """Three groups whose documents alternate, 30, 60 and 30 of 8 tokens; ids tell the group, by thousands."""
    groups = [0, 1, 2, 1] * 30
    documents = [[group * 1000 + n * 8 + k for k in range(8)] for n, group in enumerate(groups)]
    return write_rows(folder, documents, groups=groups, weights=weights, vocab_size=9000, eos=0, shard_tokens=100)


@pytest.mark.parametrize("pack", [True, False])
def test_windows_of_a_group_hold_its_documents_and_no_others(tmp_path, pack):
    rows = grouped(tmp_path / "a", [1, 1, 1])
    seen = []
    for group in range(3):
        view = Windows(rows, group=group, window=7, pack=pack, boundaries=True)
        labels = [n for w in range(len(view)) for n in view[w]["labels"].tolist() if n != -100]
        documents = {n for w in range(len(view)) for n in view[w]["document_ids"].tolist() if n >= 0}
        assert {int(rows[n][0]) // 1000 for n in documents} == {group}
        assert {label // 1000 for label in labels} == {group}
        seen += labels
    want = [token for document in rows for token in document.tolist()[1:]]
    assert sorted(seen) == sorted(want)


def test_stored_weights_say_how_often_a_group_is_drawn(tmp_path):
    rows = grouped(tmp_path / "a", [1, 2, 0.5])
    options = {"window": 7, "pack": False, "batch_size": 5, "epochs": 1}  # a document is a window
    fed = batches(rows, **options)
    assert len(fed) == (30 + 120 + 15) // 5
    groups = rows.shard(0).documents["group"]
    assert set(groups.tolist()) == {0, 1, 2}
    starts = {int(document[0]): number for number, document in enumerate(rows)}
    drawn = [starts[first] for first in firsts(fed, len(fed))]
    found = Counter([0, 1, 2, 1][number % 4] for number in drawn)
    assert [abs(found[group] - want) <= 3 for group, want in ((0, 30), (1, 120), (2, 15))] == [True] * 3
    # and without them every document once
    assert sorted(starts[first] for first in firsts(batches(rows, weights=None, **options), 24)) == list(range(120))
    given = batches(rows, weights=[0, 0, 1], **options)
    assert {[0, 1, 2, 1][starts[first] % 4] for first in firsts(given, len(given))} == {2}


def test_a_state_knows_the_weights_it_was_taken_with(tmp_path):
    rows = grouped(tmp_path / "a", [1, 2, 1])
    options = {"window": 7, "pack": False}
    state = batches(rows, **options).state_dict()
    batches(rows, weights=[1, 2, 1], **options).load_state_dict(state)
    with pytest.raises(LoadError, match="with the same weights"):
        batches(rows, weights=[2, 1.5, 1], **options).load_state_dict(state)  # as many draws in an epoch


def test_a_state_knows_which_groups_it_was_taken_over(tmp_path):
    documents = [[number] * 10 for number in range(60)]
    groups = [number % 3 for number in range(60)]  # of one size
    rows = write_rows(tmp_path / "rows", documents, groups=groups, weights=(1, 2, 1))
    options = {"window": 7, "epochs": 1}
    for weights, others in (([1, 0, 0], [0, 1, 0]), ([1, 1, 0], [1, 0, 1]), ([0, 0, 1], None)):
        state = batches(rows, weights=weights, **options).state_dict()
        batches(rows, weights=weights, **options).load_state_dict(state)
        with pytest.raises(LoadError, match="with the same weights"):
            batches(rows, weights=others, **options).load_state_dict(state)
    whole = batches(rows, weights=[1, 2, 3], **options).maker  # as earlier versions had it: nothing is left out
    assert whole.identity["data"] == hash_bytes(f"{rows.identity} {whole.parts.shares}".encode())


def test_a_state_of_a_mixture_knows_which_groups_it_was_taken_over(tmp_path):
    def rows_of(name, weights):
        documents = [[number] * 10 for number in range(40)]
        return write_rows(tmp_path / name, documents, groups=[n % 2 for n in range(40)], weights=weights)

    for name, other in (("plain", (1, 1)), ("last", (1, 0))):
        both = mix([(rows_of(name, other), 1), (rows_of(f"{name}-first", (0, 1)), 1)])
        state = batches(both, window=7).state_dict()
        batches(both, window=7).load_state_dict(state)
        with pytest.raises(LoadError, match="with the same weights"):
            batches(both, window=7, weights=None).load_state_dict(state)


def test_weights_of_one_leave_a_folder_in_one_piece(tmp_path):
    rows = grouped(tmp_path / "a", [1, 1, 1])
    assert len(batches(rows, window=7).maker.parts.windows) == 1
    assert len(batches(rows, window=7, weights=[1, 1, 2]).maker.parts.windows) == 3


def test_mixtures_that_cannot_be_are_refused(tmp_path):
    one, two = part(tmp_path, 1, 10), write_rows(tmp_path / "b", [list(range(50))], eos=1)
    with pytest.raises(PlanError, match="no parts"):
        mix([])
    with pytest.raises(PlanError, match="share 0"):
        mix([(one, 0)])
    with pytest.raises(LoadError, match="same tokenizer"):
        mix([(one, 1), (two, 1)])
    with pytest.raises(PlanError, match="leave weights out"):
        batches(mix([(one, 1)]), weights=[1])
    with pytest.raises(PlanError, match="expected 1 numbers of 0 or more"):
        batches(one, weights=[1, 2], window=4)
    with pytest.raises(LoadError, match="no group with a weight above 0"):
        batches(one, weights=[0], window=4)
