"""Batches straight from text: the same as of shards that were prepared from the documents in the same order."""

import json
import os
import random
import shutil

import numpy as np
import pytest
import torch

import piecemill as pm
from piecemill.errors import LoadError, PlanError
from piecemill.loading.torch import batches, text_batches


@pytest.fixture(scope="module")
def tokenizer():
    return pm.train_bpe(["the cat sat on the mat, the dog did not"] * 20, vocab_size=300, pretokenizer="cl100k")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Documents of many lengths in several files."""
    rng, place = random.Random(7), tmp_path_factory.mktemp("text")
    words = ["the", "cat", "dog", "sat", "mat", "naïve", "1234", "\n", "did not"]
    for number in range(6):
        lines = [" ".join(rng.choice(words) for _ in range(rng.choice([1, 3, 10, 60]))) for _ in range(20)]
        (place / f"{number}.jsonl").write_text("".join(f'{{"text": {json.dumps(line)}}}\n' for line in lines))
    return place


def texts_of(mine, epoch=0):
    """Every document of an epoch in its order."""
    for _, _, block, order in mine.stream.blocks(epoch):
        yield from (block.text(int(row)) for row in (range(len(block)) if order is None else order))


def shards_of(texts, tokenizer, place):
    pm.prepare(texts, tokenizer, out=place, dedup="none")
    return pm.open_shards(place)


def same(mine, theirs):
    assert set(mine) == set(theirs)
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert mine[name].dtype == value.dtype, name
            assert torch.equal(mine[name], value), name
        else:
            assert mine[name] == value, name


CUTS = [
    {},
    {"boundaries": True},
    {"labels": "unshifted"},
    {"boundaries": True, "labels": "unshifted", "dtype": "int32", "pad_id": 5},
]


@pytest.mark.parametrize("order", ["shuffled", "sequential"])
@pytest.mark.parametrize("options", CUTS)
def test_the_batches_are_those_of_shards_prepared_in_the_same_order(folder, tokenizer, tmp_path, options, order):
    size = {"window": 32, "batch_size": 3, "epochs": 1, **options}
    mine = text_batches(folder, tokenizer, seed=3, order=order, block_bytes=700, threads=0, **size)
    rows = shards_of(list(texts_of(mine)), tokenizer, tmp_path / "out")
    theirs = list(batches(rows, order="sequential", threads=0, **size))
    got = list(mine)
    assert len(got) == len(theirs) > 10
    for one, other in zip(got, theirs, strict=True):
        same(one, other)


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_take_their_rows_of_every_step(folder, tokenizer, tmp_path, world_size, drop_last):
    size = {"window": 64, "batch_size": 4, "epochs": 1, "world_size": world_size, "drop_last": drop_last}
    size |= {"boundaries": True, "threads": 0}
    for rank in range(world_size):
        mine = text_batches(folder, tokenizer, seed=1, rank=rank, block_bytes=900, **size)
        if rank == 0:
            rows = shards_of(list(texts_of(mine)), tokenizer, tmp_path / "out")
        theirs = list(batches(rows, order="sequential", rank=rank, **size))
        got = list(mine)
        assert len(got) == len(theirs)
        for one, other in zip(got, theirs, strict=True):
            same(one, other)


def test_epochs_follow_each_other_and_each_has_an_order_of_its_own(folder, tokenizer):
    make = lambda **more: text_batches(folder, tokenizer, window=32, batch_size=1, seed=2, block_bytes=700, **more)  # noqa: E731
    both = make(epochs=2)
    orders = [list(texts_of(both, epoch)) for epoch in (0, 1)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    first = list(make(epochs=1))
    got = list(both)
    for one, other in zip(got[: len(first)], first, strict=True):
        same(one, other)
    assert len(got) >= 2 * len(first) - 1


@pytest.mark.parametrize("threads", [0, 1])
def test_resuming_anywhere_goes_on_exactly(folder, tokenizer, threads):
    options = {"window": 48, "batch_size": 2, "seed": 9, "epochs": 2, "block_bytes": 800, "boundaries": True}
    whole = text_batches(folder, tokenizer, threads=threads, **options)
    states, got = [whole.state_dict()], []
    for batch in whole:
        got.append(batch)
        states.append(whole.state_dict())
    assert len(got) > 20
    for at in [*range(0, len(states), 7), len(states) - 2, len(states) - 1]:
        state = json.loads(json.dumps(states[at]))
        assert len(state) <= 20
        again = text_batches(folder, tokenizer, threads=threads, **options)
        again.load_state_dict(state)
        rest = list(again)
        assert len(rest) == len(got) - at
        for one, other in zip(rest, got[at:], strict=True):
            same(one, other)


def test_a_state_goes_on_with_another_world_size(folder, tokenizer):
    options = {"window": 32, "seed": 4, "epochs": 1, "block_bytes": 800, "threads": 0}
    one = text_batches(folder, tokenizer, batch_size=4, **options)
    next(one)
    two = text_batches(folder, tokenizer, batch_size=2, rank=1, world_size=2, **options)
    two.load_state_dict(one.state_dict())
    assert torch.equal(next(two)["input_ids"], next(one)["input_ids"][2:])


def test_a_state_goes_on_however_the_same_folder_is_spelled(folder, tokenizer, monkeypatch):
    monkeypatch.chdir(folder.parent)
    options = {"window": 16, "batch_size": 2}
    state = text_batches(folder.name, tokenizer, **options).state_dict()
    for same in (folder, f"./{folder.name}/", f"{folder}/../{folder.name}"):
        text_batches(same, tokenizer, **options).load_state_dict(state)
    monkeypatch.chdir(folder)
    text_batches(".", tokenizer, **options).load_state_dict(state)
    shutil.copytree(folder, folder.parent / "another name")
    with pytest.raises(LoadError, match="taken with source="):
        text_batches(folder.parent / "another name", tokenizer, **options).load_state_dict(state)


def test_the_global_batch_may_change_when_asked_for(folder, tokenizer):
    options = {"window": 16, "seed": 1, "epochs": 2}
    rows = torch.cat([batch["input_ids"] for batch in text_batches(folder, tokenizer, batch_size=4, **options)])
    before = text_batches(folder, tokenizer, batch_size=4, **options)
    for _ in range(3):
        next(before)
    after = text_batches(folder, tokenizer, batch_size=3, **options)
    with pytest.raises(LoadError, match=r"global_batch=4, requested 3\. .*load_state_dict\(state, change_batch=True\)"):
        after.load_state_dict(before.state_dict())
    after.load_state_dict(before.state_dict(), change_batch=True)
    assert after.samples == 12
    assert torch.equal(torch.cat([batch["input_ids"] for batch in after]), rows[12:])


def test_a_file_that_was_written_since_a_state_was_taken_is_told(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("the cat " * 90)
    one = text_batches(tmp_path, tokenizer, window=16, batch_size=2)
    next(one)
    state = one.state_dict()
    text_batches(tmp_path, tokenizer, window=16, batch_size=2).load_state_dict(state)
    (tmp_path / "a.txt").write_text("the dog " * 90)
    os.utime(tmp_path / "a.txt", (1, 1))
    with pytest.warns(UserWarning, match=r"a\.txt: this or another file was written since the state was taken"):
        text_batches(tmp_path, tokenizer, window=16, batch_size=2).load_state_dict(state)
    one.close()


def test_states_of_something_else_are_refused(folder, tokenizer):
    options = {"window": 32, "batch_size": 2, "threads": 0}
    state = text_batches(folder, tokenizer, seed=1, **options).state_dict()
    others = [({"seed": 2}, "seed"), ({"window": 16}, "window"), ({"order": "sequential"}, "order")]
    for changed, what in others:
        with pytest.raises(LoadError, match=what):
            text_batches(folder, tokenizer, **{**options, "seed": 1, **changed}).load_state_dict(state)
    with pytest.raises(LoadError, match="state_dict"):
        text_batches(folder, tokenizer, seed=1, **options).load_state_dict({"format": 1})
    with pytest.raises(LoadError, match="token="):
        text_batches(folder, tokenizer, seed=1, **options).load_state_dict({**state, "token": -1})
    for other, reading in ((folder / "0.jsonl", {}), (folder, {"field": "x"}), (folder, {"separator": "\n"})):
        with pytest.raises(LoadError, match="source"):
            text_batches(other, tokenizer, seed=1, **options, **reading).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        *(({name: 99}, "other documents are there now") for name in ("task", "block")),
        ({"token": 10**6}, "other documents are there now"),
        ({"token": 10**30}, "token=10+; expected a number"),
        ({"epoch": 2}, "in epoch 2, and epochs=2, from 0. Pass more epochs"),
        ({"block_hash": 0}, "other documents are there now"),
    ],
)
def test_a_state_that_was_changed_does_not_go_on_elsewhere(folder, tokenizer, change, says):
    options = {"window": 32, "batch_size": 2, "seed": 1, "epochs": 2, "block_bytes": 800, "threads": 0}
    one = text_batches(folder, tokenizer, **options)
    for _ in range(5):
        next(one)
    two = text_batches(folder, tokenizer, **options)
    with pytest.raises(LoadError, match=says):  # noqa: PT012 - some are found when the block is read
        two.load_state_dict({**one.state_dict(), **change})
        next(two)


def test_a_state_does_not_go_on_with_other_documents_of_the_same_sizes(tokenizer):
    options = {"window": 16, "batch_size": 2, "seed": 1, "epochs": 1, "threads": 0}
    documents = [f"{n} lower and lowest" for n in range(20)]
    one = text_batches(documents, tokenizer, **options)
    next(one)
    two = text_batches([text[::-1] for text in documents], tokenizer, **options)
    two.load_state_dict(one.state_dict())
    with pytest.raises(LoadError, match="other documents are there now, in task 0 of epoch 0, block 0"):
        next(two)


def test_the_state_at_the_end_goes_on_with_more_epochs(folder, tokenizer):
    options = {"window": 64, "batch_size": 3, "seed": 1, "block_bytes": 800, "threads": 0}
    one, two = (text_batches(folder, tokenizer, epochs=epochs, **options) for epochs in (1, 2))
    first = [batch["input_ids"] for batch in one]
    two.load_state_dict(one.state_dict())
    second = [batch["input_ids"] for batch in two]
    assert sum(map(len, first)) == sum(map(len, second))
    assert not torch.equal(first[0], second[0])


def test_wrong_options_are_named(folder, tokenizer):
    with pytest.raises(PlanError, match="batch_size"):
        text_batches(folder, tokenizer, batchsize=3)
    with pytest.raises(PlanError, match="rank=2"):
        text_batches(folder, tokenizer, rank=2, world_size=2)
    with pytest.raises(PlanError, match="window=0"):
        text_batches(folder, tokenizer, window=0)
    with pytest.raises(PlanError, match="order"):
        text_batches(folder, tokenizer, order="random")
    with pytest.raises(PlanError, match="device"):
        text_batches(folder, tokenizer, device="meta")
    for pad_id in (-1, tokenizer.vocab_size):
        with pytest.raises(PlanError, match=f"pad_id={pad_id}: the vocabulary has"):
            text_batches(folder, tokenizer, pad_id=pad_id)


def test_documents_in_memory_and_one_that_is_longer_than_many_windows(tokenizer, tmp_path):
    texts = ["the cat " * 500, "a", "", "dog " * 3]
    size = {"window": 16, "batch_size": 2, "epochs": 1, "boundaries": True, "threads": 0}
    mine = text_batches(texts, tokenizer, order="sequential", block_bytes=100, **size)
    rows = shards_of(list(texts_of(mine)), tokenizer, tmp_path / "out")
    for one, other in zip(list(mine), list(batches(rows, order="sequential", **size)), strict=True):
        same(one, other)


def test_epochs_in_the_order_of_the_source_are_those_of_shards(folder, tokenizer, tmp_path):
    size = {"window": 32, "batch_size": 3, "epochs": 3, "order": "sequential", "boundaries": True, "threads": 0}
    tokenizer.save(tmp_path / "tok")
    mine = text_batches(folder, tmp_path / "tok", block_bytes=700, **size)
    rows = shards_of(list(texts_of(mine)), tokenizer, tmp_path / "out")
    for one, other in zip(list(mine), list(batches(rows, **size)), strict=True):
        same(one, other)


def test_the_cost_is_counted(folder, tokenizer):
    with text_batches(folder, tokenizer, window=32, batch_size=2) as running:
        for _ in range(3):
            next(running)
        assert running.stats.batches == 3
        assert running.stats.tokens == 3 * 2 * 32
        assert running.samples == 6
        assert running.epoch == 0
    assert np.isfinite(running.stats.cpu)


def test_documents_without_two_tokens_are_an_error_and_not_an_endless_loop():
    plain = pm.Tokenizer.from_merges(
        np.zeros((0, 2), np.uint32), pretokenizer="gpt2"
    )  # without a token after documents
    with pytest.raises(LoadError, match="no window"):
        next(text_batches(["a"], plain, window=4, threads=0, eos="none"))


def test_the_tokens_around_documents_are_those_that_prepare_puts_there(folder, tokenizer, tmp_path):
    size = {"window": 16, "batch_size": 2, "epochs": 1, "threads": 0}
    mine = text_batches(folder, tokenizer, order="sequential", eos="none", bos="<|endoftext|>", **size)
    texts = list(texts_of(mine))
    pm.prepare(texts, tokenizer, out=tmp_path / "out", eos="none", bos="<|endoftext|>")
    theirs = batches(pm.open_shards(tmp_path / "out"), order="sequential", **size)
    for one, other in zip(list(mine), list(theirs), strict=True):
        same(one, other)
