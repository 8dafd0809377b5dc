"""Sequences of actions to tokens and back: the core against the definition, and both against the published code."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from action_cases import golden, random_items, random_vocabulary
from piecemill.actions import ActionTokenizer, ActionVocabulary, Items
from piecemill.actions.tokenizer import aggregate
from piecemill.errors import PlanError, SourceError, TokenizerError
from piecemill.reference import segments

GOLDEN = ("beauty_opq_600", "cds_hgn_60")


def flat(parts):
    return [token for part in parts for token in part]


def rules_of(vocabulary):
    return segments.rules(vocabulary.merges.tolist(), vocabulary.n_init_feats)


@pytest.fixture
def small():
    """Two colours, two sizes; {red, small} is token 5, {blue, large} 6, {large, red} 7."""
    items = Items.of({"a": ["blue", 0], "b": ["red", 0], "c": ["red", 1], "d": ["blue", 1]}, columns=["colour", "size"])
    initial = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    merges = np.array([[2, 3], [1, 4], [2, 4]])
    return ActionTokenizer(ActionVocabulary(2, initial, merges, [0] * 5 + [4.0, 2.0, 1.0]), items)


# --- The core gives what the definition gives.


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 60))
def test_the_core_encodes_as_the_definition_does(number, categories, merges):
    rng = np.random.default_rng(number)
    vocabulary = random_vocabulary(rng, categories, merges=merges)
    tokenizer, rules = ActionTokenizer(vocabulary), rules_of(vocabulary)
    lengths = rng.integers(0, 9, 6)
    ids, ends = random_items(rng, vocabulary, int(lengths.sum())), np.cumsum(lengths)
    sequences = [part.tolist() for part in np.split(ids, ends[:-1])]

    weighed = tokenizer.encode_batch(ids, ends)
    assert [part.tolist() for part in np.split(weighed[0], weighed[1][:-1])] == [
        flat(segments.segment(sequence, rules, vocabulary.priority)) for sequence in sequences
    ]
    seed, epoch, rows = number * 2**31, int(rng.integers(0, 5)), rng.integers(0, 2**40, 6)
    drawn = tokenizer.encode_batch(ids, ends, seed=seed, epoch=epoch, rows=rows)
    assert [part.tolist() for part in np.split(drawn[0], drawn[1][:-1])] == [
        segments.spr(sequence, rules, seed, epoch, row) for sequence, row in zip(sequences, rows.tolist(), strict=True)
    ]


def test_long_sequences_encode_as_the_definition_does():
    rng = np.random.default_rng(5)
    vocabulary = random_vocabulary(rng, 3, values=3, merges=40)
    ids = random_items(rng, vocabulary, 300)
    got = ActionTokenizer(vocabulary).encode(ids, rng=7).tolist()
    assert got == segments.spr(ids.tolist(), rules_of(vocabulary), 7, 0, 0)
    assert len(got) < 850  # of 900: rules did apply


def test_the_number_of_threads_does_not_show():
    rng = np.random.default_rng(6)
    vocabulary = random_vocabulary(rng, 4)
    ids, ends = random_items(rng, vocabulary, 30_000), np.arange(10, 30_001, 10)
    tokenizer = ActionTokenizer(vocabulary)
    for options in ({}, {"seed": 3, "epoch": 1}, {"seed": 3, "permutation": "numpy-legacy"}):
        one, many = (tokenizer.encode_batch(ids, ends, threads=threads, **options) for threads in (1, 5))
        assert all(np.array_equal(a, b) for a, b in zip(one, many, strict=True))


def test_any_row_of_any_epoch_can_be_made_alone():
    rng = np.random.default_rng(8)
    vocabulary = random_vocabulary(rng, 4)
    ids, ends = random_items(rng, vocabulary, 50), np.arange(5, 51, 5)
    tokenizer = ActionTokenizer(vocabulary)
    all_ids, all_ends = tokenizer.encode_batch(ids, ends, seed=1, epoch=2)
    alone, _ = tokenizer.encode_batch(ids[15:20], np.array([5]), seed=1, epoch=2, rows=np.array([3]))
    assert alone.tolist() == all_ids[all_ends[2] : all_ends[3]].tolist()


def test_every_order_of_an_item_is_drawn_about_as_often():
    # No rules: the tokens are the permutation itself. 24 orders, 24,000 draws: each 1,000 give or take 5 deviations.
    vocabulary = ActionVocabulary(4, np.array([[c, 0] for c in range(4)]), np.empty((0, 2)), [0] * 5)
    ids = np.tile(np.arange(1, 5), (24_000, 1))
    drawn, _ = ActionTokenizer(vocabulary).encode_batch(ids, np.arange(1, 24_001), seed=11)
    _, counts = np.unique(drawn.reshape(-1, 4), axis=0, return_counts=True)
    assert len(counts) == 24
    assert abs(counts - 1000).max() < 160


# --- The published code's own vectors.


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_sequences_encode_as_published(shared, name):
    case, vocabulary = golden(shared, name)
    tokenizer, rules = ActionTokenizer(vocabulary), rules_of(vocabulary)
    for held in case["held"]:
        items = np.array(held["state_seq"])
        nodes = segments.segment(held["state_seq"], rules, vocabulary.priority)
        assert flat(nodes) == held["none"] == tokenizer.encode(items).tolist()
        random.seed(held["py_seed"])
        for node in nodes:
            random.shuffle(node)
        assert flat(nodes) == held["token"]
        assert segments.merge_neighbours(held["flat"], rules) == held["bpe"]
        assert segments.merge_neighbours(flat(held["state_seq"]), rules) == held["identity_bpe"]
        legacy = {"seed": held["np_seed"], "permutation": "numpy-legacy"}
        assert tokenizer.encode_batch(items, np.array([len(items)]), **legacy)[0].tolist() == held["bpe"]
        assert tokenizer.encode(items, rng=np.random.RandomState(held["np_seed"])).tolist() == held["bpe"]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_labels_and_decoded_items_are_as_published(shared, name):
    case, vocabulary = golden(shared, name)
    tokenizer = ActionTokenizer(vocabulary, Items.of(case["state2feat"]))
    initial, merges = vocabulary.initial.tolist(), vocabulary.merges.tolist()
    for asked in case["decode"]:
        tokens = asked.get("tokens", asked.get("label_tokens"))
        want = None if asked["decoded"] is None else tuple(value for _, value in asked["decoded"])
        assert tokenizer.decode(tokens) == want
        plain = segments.decode(tokens, initial, merges, 5)
        assert (None if plain is None else tuple(plain)) == want
        if "item" in asked:
            rest = [-100] * (5 - len(tokens))
            assert tokenizer.labels(asked["item"]).tolist() == [*tokens, tokenizer.eos, *rest]
            assert asked["item"] in tokenizer.items_of(want)


def test_a_legacy_batch_draws_one_sequence_after_another(shared):
    case, vocabulary = golden(shared, "beauty_opq_600")
    sequences = [np.array(held["state_seq"]) for held in case["held"][:5]]
    tokenizer = ActionTokenizer(vocabulary)
    rng = np.random.RandomState(4)
    want = [tokenizer.encode(sequence, rng=rng).tolist() for sequence in sequences]
    ends = np.cumsum([len(sequence) for sequence in sequences])
    ids, cut = tokenizer.encode_batch(np.concatenate(sequences), ends, seed=4, permutation="numpy-legacy")
    assert [part.tolist() for part in np.split(ids, cut[:-1])] == want


# --- Decoding.


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_an_item_decodes_however_it_was_segmented(number, categories):
    rng = np.random.default_rng(number)
    vocabulary = random_vocabulary(rng, categories)
    tokenizer = ActionTokenizer(vocabulary)
    for item in random_items(rng, vocabulary, 5):
        values = tuple(vocabulary.initial[item - 1, 1].tolist())
        for ids in (tokenizer.encode(item[np.newaxis]), tokenizer.encode(item[np.newaxis], rng=rng)):
            assert tokenizer.decode(ids) == values
            assert tokenizer.decode([*ids, tokenizer.eos, 0, 0]) == values


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_random_tokens_decode_as_the_definition_says(number, categories):
    rng = np.random.default_rng(number)
    vocabulary = random_vocabulary(rng, categories, values=2, merges=12)
    tokenizer = ActionTokenizer(vocabulary)
    initial, merges = vocabulary.initial.tolist(), vocabulary.merges.tolist()
    rows = rng.integers(0, vocabulary.size + 1, (50, categories))
    values, valid = tokenizer.decode_batch(rows)
    for row, found, sound in zip(rows.tolist(), values.tolist(), valid.tolist(), strict=True):
        want = segments.decode(row, initial, merges, categories)
        assert (found if sound else None) == want
        assert tokenizer.decode(row) == (None if want is None else tuple(want))


def test_nothing_and_what_is_no_token_decode_to_nothing(small):
    assert small.decode([5]) == (1, 0)
    for ids in ([], [small.eos], [small.eos, 5], [0, 5], [5, 5], [2], [small.bos], [-3], [10**9]):
        assert small.decode(ids) is None


# --- Items, labels, ensembles.


def test_keys_encode_as_the_items_they_stand_for(small):
    assert small.encode(["b", "d"]).tolist() == [5, 6]
    assert small.encode(small.table[[1, 3]]).tolist() == [5, 6]
    ids, ends = small.encode_batch(np.array([1, 3, 0]), np.array([0, 2, 3]))
    assert (ids.tolist(), ends.tolist()) == ([5, 6, 1, 3], [0, 2, 4])
    assert small.encode([]).tolist() == []
    assert small.items_of(small.decode([5])) == ["b"]


def test_labels_end_with_eos_and_are_filled_up(small):
    assert small.labels("b").tolist() == [5, small.eos, -100]
    assert small.labels("a").tolist() == [1, 3, small.eos]
    assert small.labels(small.table[1]).tolist() == [5, small.eos, -100]
    assert (small.bos, small.eos, small.padding, small.model_size) == (8, 9, 0, 10)


def test_an_ensemble_is_one_segmentation_of_each_epoch(small):
    keys = ["a", "b", "c", "d"] * 5
    members = small.ensemble(keys, 3, seed=2, row=9)
    rows, numbers = np.array([9]), small.items.index(keys)
    for epoch, member in enumerate(members):
        alone, _ = small.encode_batch(numbers, np.array([20]), seed=2, epoch=epoch, rows=rows)
        assert member.tolist() == alone.tolist()
    assert len({tuple(member.tolist()) for member in members}) == 3
    ids, ends = small.ensemble_batch(
        np.concatenate([numbers, numbers]), np.array([20, 40]), 3, seed=2, rows=np.array([9, 10])
    )
    assert np.split(ids, ends[:-1])[1].tolist() == members[1].tolist()
    assert len(ends) == 6


def test_ranks_of_an_ensemble_add_up():
    assert aggregate([["x", "y"], ["y", "x"], [None, "z"]])[2][0] == "z"
    assert [item for item, _ in aggregate([["x", "y"], ["y", "x"]])] == ["x", "y"]  # a tie: first seen first
    assert aggregate([[None, None]]) == []


def test_a_generator_gives_another_segmentation_each_time(small):
    rng = np.random.default_rng(0)
    keys = ["a", "b", "c", "d"] * 5
    drawn = {tuple(small.encode(keys, rng=rng).tolist()) for _ in range(5)}
    assert len(drawn) == 5
    assert small.encode(keys, rng=3).tolist() == small.encode(keys, rng=3).tolist()


# --- What is refused.


def test_what_cannot_be_encoded_is_an_error_that_says_why(small):
    bare = ActionTokenizer(small.vocabulary)
    with pytest.raises(TokenizerError, match="no items"):
        bare.encode(["a"])
    with pytest.raises(SourceError, match="'nobody'"):
        small.encode(["a", "nobody"])
    with pytest.raises(TokenizerError, match="item 1: 3 is no token of colour"):
        small.encode(np.array([[1, 3], [3, 1]]))
    with pytest.raises(TokenizerError, match="items of 3 tokens; expected 2"):
        small.encode(np.array([[1, 3, 3]]))
    with pytest.raises(TokenizerError, match="rising"):
        small.encode_batch(np.array([0, 1]), np.array([2, 1]))
    with pytest.raises(TokenizerError, match="from 0 to 9; expected those of 4 items"):
        small.encode_batch(np.array([0, 9]), np.array([2]))
    with pytest.raises(TokenizerError, match="expected whole numbers"):
        small.encode_batch(np.array([0.5]), np.array([1]))
    with pytest.raises(PlanError, match="seed=-1"):
        small.encode_batch(np.array([0]), np.array([1]), seed=-1)
    with pytest.raises(PlanError, match="2 rows for 1 sequences"):
        small.encode_batch(np.array([0]), np.array([1]), seed=1, rows=np.array([1, 2]))
    with pytest.raises(PlanError, match="numpy-legacy"):
        small.encode_batch(np.array([0]), np.array([1]), seed=1, epoch=1, permutation="numpy-legacy")
    with pytest.raises(PlanError, match="expected 'seeded'"):
        small.encode_batch(np.array([0]), np.array([1]), seed=1, permutation="numpy")
    with pytest.raises(PlanError, match="q=0"):
        small.ensemble(["a"], 0)


def test_items_must_have_the_columns_and_values_of_the_vocabulary(small):
    with pytest.raises(TokenizerError, match="item row 0: size has the value 7"):
        ActionTokenizer(small.vocabulary, Items.of({"a": ["red", 7], "b": ["blue", 0]}, columns=["colour", "size"]))
    with pytest.raises(TokenizerError, match="columns"):
        ActionTokenizer(small.vocabulary, Items.of({"a": ["red", 0]}, columns=["hue", "size"]))
