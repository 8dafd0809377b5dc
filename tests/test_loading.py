"""Batches: every sample once, over any ranks, threads and interruptions; and nothing left behind."""

import gc
import json
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadable import some_documents, write_rows
from piecemill.errors import LoadError, PlanError
from piecemill.loading import Blocks, Local, Windows, batches
from piecemill.reference.order import local_permutation
from piecemill.shards.windows import Packed

WINDOW = 8


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    """Chunks of a few small batches, so that many are made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("piecemill.loading.batching.CHUNK_TOKENS", 100)
        yield


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Tokens that count up, so that the first id of a window tells its number; 101 windows."""
    documents = np.split(np.arange(101 * WINDOW + 1), np.arange(13, 101 * WINDOW, 13))
    return write_rows(tmp_path_factory.mktemp("rows") / "a", documents, shard_tokens=150, eos=0)


def numbers(batch):
    """Which windows are in a batch; -1 for a row of padding."""
    real = (batch["labels"] != -100).any(axis=1)
    return np.where(real, batch["input_ids"][:, 0] // WINDOW, -1).tolist()


def asked(rows, **more):
    return batches(rows, **{"window": WINDOW, "batch_size": 3, "seed": 5, "epochs": 1, **more})


def drawn(rows, **more):
    """The windows of each batch."""
    with asked(rows, **more) as fed:
        return [numbers(batch) for batch in fed]


def test_a_batch_has_inputs_and_the_tokens_after_them(rows):
    for dtype in ("int64", "int32"):
        batch = next(asked(rows, order="sequential", dtype=dtype))
        assert batch["input_ids"].tolist() == np.arange(24).reshape(3, 8).tolist()
        assert batch["labels"].tolist() == np.arange(1, 25).reshape(3, 8).tolist()
        assert batch["input_ids"].dtype == batch["labels"].dtype == dtype
        assert batch["labels"].flags.c_contiguous


@settings(deadline=None, max_examples=60)
@given(
    windows=st.integers(1, 70),
    world_size=st.integers(1, 16),
    batch_size=st.integers(1, 5),
    epochs=st.integers(1, 3),
    order=st.sampled_from(["shuffled", Local(3), Blocks(4, 3), "sequential"]),
    drop_last=st.booleans(),
)
def test_every_sample_comes_once_in_an_epoch_over_all_ranks(windows, world_size, batch_size, epochs, order, drop_last):
    with tempfile.TemporaryDirectory() as scratch:
        rows = write_rows(Path(scratch) / "a", [list(range(windows * WINDOW + 1))], eos=0)
        options = {"world_size": world_size, "batch_size": batch_size, "epochs": epochs, "order": order, "threads": 0}
        ranks = [drawn(rows, rank=rank, drop_last=drop_last, **options) for rank in range(world_size)]
        steps = {len(batches) for batches in ranks}
        assert len(steps) == 1  # all ranks step alike
        stream = [n for step in range(steps.pop()) for rank in ranks for n in rank[step] if n >= 0]
        total, each = windows * epochs, batch_size * world_size
        assert len(stream) == (total - total % each if drop_last else total)
        # epoch after epoch, whatever the batches
        for epoch in range(epochs):
            part = stream[epoch * windows : (epoch + 1) * windows]
            assert len(set(part)) == len(part)
        # no rank has two rows more than another
        for step in zip(*ranks, strict=True):
            counts = [sum(n >= 0 for n in batch) for batch in step]
            assert max(counts) - min(counts) <= 1


def test_a_rank_with_no_sample_left_gets_a_row_of_padding(tmp_path):
    rows = write_rows(tmp_path / "a", [list(range(WINDOW * 5 + 1))], eos=3)
    last = [list(asked(rows, world_size=4, batch_size=1, rank=rank))[-1] for rank in range(4)]
    assert [numbers(batch) == [-1] for batch in last] == [False, True, True, True]
    assert last[3]["input_ids"].tolist() == [[3] * WINDOW]
    assert last[3]["labels"].tolist() == [[-100] * WINDOW]


def test_epochs_without_end_have_another_order_each(rows):
    fed = asked(rows, epochs=None, batch_size=1)
    epochs = [[numbers(next(fed))[0] for _ in range(101)] for _ in range(3)]
    assert fed.epoch == 3
    assert [sorted(epoch) for epoch in epochs] == [list(range(101))] * 3
    assert len(set(map(tuple, epochs))) == 3
    with pytest.raises(TypeError, match="no length"):
        len(fed)
    fed.close()


def test_threads_chunks_and_gathering_on_demand_give_the_same_batches(rows, monkeypatch):
    want = drawn(rows, threads=0)
    assert len(want) == len(asked(rows)) == 34
    for threads in (1, 2, 5):
        assert drawn(rows, threads=threads) == want
    for tokens in (1, 10**6):
        monkeypatch.setattr("piecemill.loading.batching.CHUNK_TOKENS", tokens)
        assert drawn(rows, threads=2) == want
    assert drawn(rows, seed=6) != want


def test_each_batch_may_be_written_to_and_kept(rows):
    fed = list(asked(rows))
    for batch in fed:
        batch["input_ids"][:] = 1
        batch["labels"][:] = 2
    assert all((batch["input_ids"] == 1).all() and (batch["labels"] == 2).all() for batch in fed)


def test_memory_is_used_again_when_nobody_holds_it_and_only_then(rows):
    fed, kept, places = asked(rows, epochs=None, threads=1), [], set()
    with asked(rows, epochs=None, threads=0) as other:
        for step in range(500):
            batch, want = next(fed), next(other)
            places.add(batch["labels"].ctypes.data)
            if step % 50 == 0:
                kept.append((batch["input_ids"], want["input_ids"].copy()))
    assert len(places) < 150
    assert all(np.array_equal(have, want) for have, want in kept)
    fed.close()


# State


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("order", ["shuffled", "local", "sequential"])
def test_a_state_goes_on_after_the_last_batch_given_out(rows, threads, order):
    want = drawn(rows, order=order, epochs=2)
    for taken in (0, 1, 33, 34, 40, len(want) - 1, len(want)):
        first = asked(rows, order=order, epochs=2, threads=threads)
        for _ in range(taken):
            next(first)
        state = json.loads(json.dumps(first.state_dict()))
        first.close()
        second = asked(rows, order=order, epochs=2, threads=2 - threads)
        second.load_state_dict(state)
        assert second.state_dict() == state == first.state_dict()
        assert [numbers(batch) for batch in second] == want[taken:], taken


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 11), st.sampled_from([1, 2, 3, 4, 6, 12]), st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_another_world_size_goes_on_with_the_same_samples(rows, given, before, after):
    def steps(world_size, state):
        """The windows of each step over all ranks, and the state of each rank after some."""
        fed = [
            asked(rows, world_size=world_size, rank=rank, batch_size=12 // world_size, epochs=None, threads=0)
            for rank in range(world_size)
        ]
        for each in fed:
            if state is not None:
                each.load_state_dict(state)
        count = given if state is None else 12
        seen = [[n for each in fed for n in numbers(next(each))] for _ in range(count)]
        return seen, [each.state_dict() for each in fed]

    first, states = steps(before, None)
    assert all(state == states[0] for state in states)
    second, _ = steps(after, states[0])
    fed = asked(rows, batch_size=12, epochs=None, threads=0)
    assert first + second == [numbers(next(fed)) for _ in range(given + 12)]


def test_a_state_can_be_loaded_at_any_time(rows):
    fed = asked(rows, epochs=None)
    start = fed.state_dict()
    first = [numbers(next(fed)) for _ in range(40)]
    fed.load_state_dict(start)
    assert [numbers(next(fed)) for _ in range(40)] == first
    fed.close()
    fed.load_state_dict(start)
    assert numbers(next(fed)) == first[0]
    fed.close()


def test_a_state_is_a_few_numbers(rows):
    state = asked(rows, seed=9).state_dict()
    assert state == {
        "format": 1,
        "samples": 0,
        "global_batch": 3,
        "seed": 9,
        "order": "shuffled",
        "window": WINDOW,
        "overlap": 0,
        "pack": 1,
        "tokenizer": None,
        "epoch_samples": 101,
        "data": rows.identity,
    }


def test_a_state_of_something_else_says_what_is_different(rows, tmp_path):
    state = asked(rows).state_dict()
    other = write_rows(tmp_path / "other", [list(range(1, 101 * WINDOW + 2))], eos=0, vocab_size=2000)
    with pytest.raises(LoadError, match=rf"taken over the data {rows.identity}.*Open the folder"):
        asked(other).load_state_dict(state)
    with pytest.raises(LoadError, match=r"taken with 3 samples a step.*batch_size=4 \* world_size=1 = 4"):
        asked(rows, batch_size=4).load_state_dict(state)
    for option, value in {"seed": 6, "order": "local", "window": 4, "overlap": 1, "pack": False}.items():
        with pytest.raises(LoadError, match=f"taken with {option}=.*Pass {option}="):
            asked(rows, **{option: value}).load_state_dict(state)
    with pytest.raises(LoadError, match="samples=4; expected a multiple of 3"):
        asked(rows).load_state_dict({**state, "samples": 4})
    with pytest.raises(LoadError, match="303 samples were given out, and epochs=1 has 101"):
        asked(rows).load_state_dict({**state, "samples": 303})
    with pytest.raises(LoadError, match="format None"):
        asked(rows).load_state_dict({})


def test_shards_of_other_tokens_have_another_identity(tmp_path):
    found = {write_rows(tmp_path / str(n), [[n, 2, 3], [4]]).identity for n in (1, 9)}
    found.add(write_rows(tmp_path / "ends", [[1, 2], [3, 4]]).identity)
    assert len(found) == 3
    assert write_rows(tmp_path / "same", [[1, 2, 3], [4]]).identity in found


# Feeding


def test_stats_count_what_was_given_out(rows):
    fed = asked(rows, threads=2)
    for _ in range(5):
        next(fed)
    assert (fed.stats.batches, fed.stats.tokens) == (5, 5 * 3 * WINDOW)
    rest = list(fed)
    assert fed.stats.tokens == 101 * WINDOW
    assert len(rest[-1]["labels"]) == 2
    assert fed.stats.cpu > 0
    assert fed.stats.waited > 0


def test_nothing_is_left_when_a_loop_ends_breaks_or_raises(rows, feeders):
    def take_one(**more):
        for _ in asked(rows, epochs=None, threads=2, **more):
            assert len(feeders()) >= 1
            break

    def fail():
        for _ in asked(rows, epochs=None, threads=2):
            raise KeyboardInterrupt

    take_one()
    assert feeders() == []
    with pytest.raises(KeyboardInterrupt):
        fail()
    gc.collect()
    assert feeders() == []
    list(asked(rows, threads=2))
    assert feeders() == []
    with asked(rows, threads=2) as fed:
        next(fed)
        gone = weakref.ref(fed._feeder)
    assert feeders() == []
    assert gone() is None
    assert list(fed) == []
    assert fed.samples == 3


def test_ctrl_c_while_waiting_ends_the_process_and_its_threads(tmp_path):
    write_rows(tmp_path / "a", some_documents(40))
    code = (
        "import os, signal, sys, threading, piecemill as pm\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background\n"
        "from piecemill.loading import batches\n"
        # Feeders make nothing before the signal has come, so the loop waits.
        "sent = threading.Event()\n"
        "def late(*a, **k):\n"
        "    if not sent.is_set(): sent.set(); os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(*a, **k)\n"
        "import piecemill.loading.text as made; real = made.gather; made.gather = late\n"
        "try:\n"
        f"    for batch in batches(pm.open_shards({str(tmp_path / 'a')!r}), window=8, threads=2): pass\n"
        "except KeyboardInterrupt:\n"
        "    print([t.name for t in threading.enumerate() if 'feeder' in t.name])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_error_in_a_feeder_reaches_the_loop_with_its_cause(rows, monkeypatch, threads, feeders):
    real = Packed.ranges

    def pieces(self, numbers):
        if 70 in numbers:
            try:
                raise OSError(5, "the disk is gone")
            except OSError as error:
                raise ValueError("window 70") from error
        return real(self, numbers)

    monkeypatch.setattr(Packed, "ranges", pieces)
    monkeypatch.setattr("piecemill.loading.batching.CHUNK_TOKENS", 1)
    fed, seen = asked(rows, threads=threads, order="sequential"), []
    with pytest.raises(ValueError, match="window 70") as raised:
        seen.extend(numbers(batch) for batch in fed)
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__notes__[0].startswith("While making batch 23 of rank 0")
    assert seen[-1] == [66, 67, 68]  # everything before it was given out
    assert fed.samples == 69
    assert feeders() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"threads": -1},
        {"world_size": 0},
        {"rank": 1},
        {"epochs": 0},
        {"dtype": "int16"},
        {"order": "x"},
    ],
)
def test_options_that_cannot_work_are_refused(rows, wrong):
    with pytest.raises(PlanError, match=next(iter(wrong))):
        asked(rows, **wrong)


@pytest.mark.parametrize("options", [{}, {"pack": False}, {"overlap": 2}, {"boundaries": True}])
def test_a_local_order_reads_a_few_shards_at_a_time(tmp_path, options):
    rows = write_rows(tmp_path / "rows", some_documents(300, seed=3), shard_tokens=100)
    windows = Windows(rows, window=8, **options)
    # The shard of a window is the file of its first range, and the windows of a shard follow each other.
    numbers = np.arange(len(windows))
    ranges = windows.view.ranges(numbers)
    first = ranges.file[np.searchsorted(ranges.row, numbers)]
    assert windows.view.files(numbers).tolist() == first.tolist()
    assert np.searchsorted(windows.view.shard_ends(), numbers, side="right").tolist() == first.tolist()
    want = local_permutation(np.diff(windows.view.shard_ends(), prepend=0).tolist(), 4, 0, 2, 0, 0)
    with batches(rows, window=8, batch_size=1, order=Local(4), epochs=1, threads=0, **options) as fed:
        found = np.concatenate([batch["input_ids"] for batch in fed])
    np.testing.assert_array_equal(found, [windows[number]["input_ids"] for number in want])


def test_windows_of_a_group_know_their_shards(tmp_path):
    documents = some_documents(200, seed=5)
    groups = [number // 7 % 3 for number in range(200)]
    rows = write_rows(tmp_path / "rows", documents, shard_tokens=60, groups=groups, weights=(1, 2, 0.5))
    for group in range(3):
        for pack in (True, False):
            windows = Windows(rows, group=group, window=8, pack=pack)
            numbers = np.arange(len(windows))
            ranges = windows.view.ranges(numbers)
            first = ranges.file[np.searchsorted(ranges.row, numbers)]
            assert windows.view.files(numbers).tolist() == first.tolist()
            assert np.searchsorted(windows.view.shard_ends(), numbers, side="right").tolist() == first.tolist()
            assert windows.view.shard_ends()[-1] == len(windows)


def test_a_local_order_draws_every_window_too(rows):
    local = [number for batch in drawn(rows, order="local") for number in batch]
    assert Counter(local) == Counter(range(101))
    assert local != list(range(101))
