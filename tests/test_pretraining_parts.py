"""The parts of a pretraining run, each against its definition: rate, guard, entropy, plan, loss, model, readings."""

import math
import random

import numpy as np
import pytest
import torch

from corpora import small_tokenizer
from piecemill.errors import Diverged, PlanError
from piecemill.pretraining.guard import PATIENCE, Guard
from piecemill.pretraining.loss import IGNORED, chunked_loss, plain_loss
from piecemill.pretraining.model import SHAPES, build, config, flops_per_token, hidden, padded, peak_flops
from piecemill.pretraining.plan import HOW, PretrainPlan
from piecemill.pretraining.readings import Readings
from piecemill.pretraining.result import pace_of
from piecemill.pretraining.run import entropy, unigram_entropy
from piecemill.pretraining.step import build_optimizer, learning_rate, load_optimizer, optimizer_tensors
from prepared import prepare_folder

V = 50_257


# The rate


def test_the_rate_climbs_in_a_line_and_falls_along_a_cosine():
    rates = [learning_rate(step, steps=101, warmup=20, peak=1.0, floor=0.1) for step in range(101)]
    assert rates[0] == pytest.approx(1 / 21)
    assert rates[19] == pytest.approx(20 / 21)
    assert (rates[20], rates[60], rates[100]) == pytest.approx((1.0, 0.55, 0.1))
    assert rates[:21] == sorted(rates[:21])
    assert rates[20:] == sorted(rates[20:], reverse=True)


def test_a_run_of_one_step_has_a_rate():
    assert learning_rate(0, steps=1, warmup=0, peak=2.0, floor=0.2) == 2.0


# The guard


def noisy(level, spread, count, seed=1):
    draw = random.Random(seed)
    return [draw.gauss(level, spread) for _ in range(count)]


def feed(guard, losses, first=1):
    """The step at which the guard ends it; None if it does not."""
    for step, loss in enumerate(losses, first):
        try:
            guard.train(step, loss, 1.0)
        except Diverged:
            return step
    return None


def test_a_model_that_knows_nothing_passes_and_chance_is_above_ten_here():
    guard = Guard(V, warmup=10)
    assert guard.chance == pytest.approx(10.825, abs=1e-3)
    assert feed(guard, noisy(guard.chance + 0.05, 0.1, 500)) is None
    guard.validation(500, guard.chance + 0.05)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_ends_a_run_at_once(bad):
    with pytest.raises(Diverged, match=r"step 7: loss (nan|inf|-inf)"):
        Guard(V, warmup=10).train(7, bad, 1.0)
    with pytest.raises(Diverged, match="a gradient of norm"):
        Guard(V, warmup=10).train(7, 3.0, bad)
    with pytest.raises(Diverged, match="validation loss"):
        Guard(V, warmup=10).validation(0, bad)


def test_validation_worse_than_chance_ends_a_run_after_the_warm_up_only():
    guard = Guard(V, warmup=100)
    guard.validation(99, guard.chance + 0.6)
    guard.validation(100, guard.chance + 0.49)
    with pytest.raises(Diverged, match=r"ln\(V\) \+ 0.5 = 11.32"):
        guard.validation(100, guard.chance + 0.51)


def test_a_few_bad_batches_pass_and_a_new_level_does_not():
    guard = Guard(V, warmup=10)
    healthy = [10.8 - 7.0 * min(1, step / 200) for step in range(400)]
    assert feed(guard, healthy) is None
    for _ in range(5):  # spikes, one shorter than the patience, with health between
        assert feed(guard, [9.0] * (PATIENCE - 1) + [3.8] * 3) is None
    assert feed(guard, [5.5] * 100, first=1) == PATIENCE


def test_noise_explains_what_is_as_large_as_the_noise():
    assert feed(Guard(V, warmup=10), noisy(5.0, 0.6, 3000)) is None


def test_a_slow_rise_is_seen_too():
    guard = Guard(V, warmup=10)
    feed(guard, [3.0] * 200)
    ended = feed(guard, [3.0 + step / 100 for step in range(1000)])
    assert ended is not None
    assert ended < 200


def test_a_resumed_guard_judges_as_the_one_before():
    losses = [*noisy(6.0, 0.3, 150), *[9.0] * 4]
    guard, other = Guard(V, warmup=10), Guard(V, warmup=10)
    feed(guard, losses)
    other.load_state_dict(guard.state_dict())
    assert (other.limit(), other.above) == (guard.limit(), 4)
    assert feed(other, [9.0] * 20) == feed(guard, [9.0] * 20) == PATIENCE - 4


# What it is worth


def test_the_entropy_of_unigrams_is_that_of_the_counts(tmp_path):
    from piecemill.shards import open_shards

    tok = small_tokenizer()
    texts = [f"def f{n}(x): return {n * 7}" for n in range(300)]
    rows = open_shards(prepare_folder(tmp_path / "s", {"train": texts}, tok))
    ids = np.concatenate([rows.document(i) for i in range(len(rows))])
    _, counts = np.unique(ids, return_counts=True)
    shares = counts / counts.sum()
    assert unigram_entropy(rows) == pytest.approx(-sum(p * math.log(p) for p in shares))
    assert entropy(np.array([5, 0, 0])) == 0


def test_the_pace_leaves_out_the_first_group_of_each_start():
    group = {"kind": "pace", "waited": 0.1, "process_cpu": 2.0, "main_cpu": 1.5, "feeder_cpu": 0.01}
    records = [
        {**group, "first": True, "tokens": 100, "seconds": 60.0},
        {**group, "first": False, "tokens": 100, "seconds": 1.0},
        {"kind": "train", "loss": 1.0},
        {**group, "first": True, "tokens": 100, "seconds": 60.0},
        {**group, "first": False, "tokens": 200, "seconds": 2.0},
    ]
    pace = pace_of(records)
    assert pace.tokens_per_second == 100
    assert pace.waited_share == pytest.approx(0.2 / 3)
    assert pace.cores("process") == pytest.approx(4 / 3)
    assert pace.utilisation(5.0, 1000.0) == 0.5
    assert pace.utilisation(5.0, None) is None
    assert pace_of(records[:1]).tokens_per_second == pytest.approx(100 / 60)


# The plan


def test_each_mode_has_its_rate_and_warm_up():
    scratch = PretrainPlan(size="370m").resolved()
    assert (scratch.lr, scratch.step_tokens) == (3e-4, 65_536)
    assert (scratch.steps, scratch.warmup) == (1526, 152)
    tuned = PretrainPlan(mode="finetune", init="somewhere", steps=1000).resolved()
    assert (tuned.lr, tuned.warmup) == (5e-5, 30)
    assert "5e-05 after 30 steps of warm-up" in "\n".join(tuned.lines())
    given = PretrainPlan(lr=1e-2, warmup=0, steps=5).resolved()
    assert (given.lr, given.warmup, given.eval_every) == (1e-2, 0, 1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "finetune"}, "without init"),
        ({"init": "x"}, "random weights or those"),
        ({"mode": "finetune", "init": "x", "size": "tiny"}, "the checkpoint has its own size"),
        ({"steps": 1, "tokens": 5}, "both set the length"),
        ({"size": "7b"}, "expected tiny, 124m, 370m"),
        ({"steps": 0}, "steps=0: expected a whole number of 1 or more"),
        ({"window": 1}, "window=1"),
        ({"lr": 0.0}, "lr=0.0: expected a number above 0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"min_lr": 2.0}, "from 0 to 1"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"minutes": -1.0}, "minutes"),
    ],
)
def test_a_plan_that_cannot_work_says_why(options, says):
    with pytest.raises(PlanError, match=says):
        PretrainPlan(**options)


@pytest.mark.parametrize(
    ("splits", "options", "chosen"),
    [
        (["all"], {}, ("all", "none")),
        (["train", "val"], {}, ("train", "val")),
        (["all"], {"split": "trian"}, ("trian", "val")),  # which the shards then refuse, with the names they have
        (["train", "val"], {"val_split": "none"}, ("train", "none")),
    ],
)
def test_the_only_split_is_taken_by_itself(splits, options, chosen):
    plan = PretrainPlan(**options).with_splits(splits)
    assert (plan.split, plan.val_split) == chosen


def test_what_is_stored_holds_all_that_the_training_depends_on():
    stored = PretrainPlan(tokens=10_000).resolved().output()
    assert set(HOW).isdisjoint(stored)
    assert (stored["steps"], stored["window"], stored["lr"]) == (10, 128, 3e-3)


# The loss


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
@pytest.mark.parametrize("ignored", [0, 5, 64])
def test_the_chunked_loss_is_the_plain_one_with_its_gradients(chunk, ignored):
    draw = torch.Generator().manual_seed(3)
    states = torch.randn(64, 12, generator=draw, dtype=torch.float64)
    weight = torch.randn(48, 12, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, 41, (64,), generator=draw)
    labels[torch.randperm(64, generator=draw)[:ignored]] = IGNORED
    results = []
    for loss in (plain_loss, lambda *given: chunked_loss(*given, chunk=chunk)):
        given = [states.clone().requires_grad_(), weight.clone().requires_grad_()]
        value = loss(*given, labels, 41)
        if ignored < 64:
            (3 * value).backward()
            results.append((value.detach().double(), *(each.grad for each in given)))
        elif loss is not plain_loss:
            # Nothing to learn is a loss of 0, not 0/0, which would end up in every weight.
            assert value == 0
            value.backward()
            assert all(bool((each.grad == 0).all()) for each in given)
    for plain, chunked in zip(*results, strict=True) if results else ():
        torch.testing.assert_close(chunked, plain, rtol=1e-5, atol=1e-6)


def test_without_gradients_the_loss_is_the_same():
    states, weight, labels = torch.randn(20, 8), torch.randn(16, 8), torch.randint(0, 16, (20,))
    with torch.no_grad():
        torch.testing.assert_close(
            chunked_loss(states, weight, labels, 16, chunk=6), plain_loss(states, weight, labels, 16)
        )


# The model


def tiny(seed=0):
    return build(config("tiny", vocab_size=300, eos=0, window=32), seed=seed)


def test_our_way_through_the_layers_is_the_library_s():
    model = tiny()
    assert model.config._attn_implementation == "sdpa"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    ids = torch.randint(0, 300, (3, 32))
    with torch.no_grad():
        theirs = model(input_ids=ids).logits
        ours = hidden(model, ids, torch.float32) @ model.lm_head.weight.T
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_no_token_sees_one_that_comes_later():
    model = tiny()
    ids = torch.randint(0, 300, (1, 32))
    changed = ids.clone()
    changed[0, 20:] = (changed[0, 20:] + 1) % 300
    with torch.no_grad():
        first, second = hidden(model, ids, torch.float32), hidden(model, changed, torch.float32)
    torch.testing.assert_close(first[:, :20], second[:, :20])
    assert not torch.allclose(first[:, 20:], second[:, 20:])


def test_the_same_seed_gives_the_same_weights_and_leaves_others_dice_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two, other = tiny(1), tiny(1), tiny(2)
    assert torch.equal(torch.get_rng_state(), before)
    weight = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(one.state_dict()[weight], two.state_dict()[weight])
    assert not torch.equal(one.state_dict()[weight], other.state_dict()[weight])


@pytest.mark.parametrize(("size", "least", "most"), [("124m", 120e6, 128e6), ("370m", 365e6, 375e6)])
def test_sizes_are_what_they_are_called_with_a_vocabulary_of_50257(size, least, most):
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(config(size, vocab_size=V, eos=0, window=2048))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert least < count < most
    assert padded(V) == 50_304
    shape = SHAPES[size]
    assert flops_per_token(model, 2048) == 6 * count + 6 * shape.layers * shape.width * 2048


def test_the_peak_of_a_device_is_known_or_said_to_be_unknown():
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("A Toaster") is None


def test_only_matrices_decay_and_moments_go_round_by_name():
    model = tiny()
    optimizer = build_optimizer(model, weight_decay=0.1, fused=False)
    decay, none = (group["params"] for group in optimizer.param_groups)
    assert {p.dim() for p in decay} == {2}
    assert {p.dim() for p in none} == {1}
    assert len(decay) + len(none) == len(list(model.parameters()))
    hidden(model, torch.randint(0, 300, (2, 8)), torch.float32).sum().backward()
    optimizer.step()
    other_model = tiny()
    other = build_optimizer(other_model, weight_decay=0.1, fused=False)
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(model, optimizer).items()}
    load_optimizer(other_model, other, saved, step=1)
    again = optimizer_tensors(other_model, other)
    assert saved.keys() == again.keys()
    assert all(torch.equal(saved[name], again[name]) for name in saved)
    assert {float(state["step"]) for state in other.state.values()} == {1.0}


# Readings


def test_readings_give_every_step_once_and_in_order():
    readings = Readings(torch.device("cpu"), every=3)
    readings.start(1)
    found = []
    for step in range(1, 9):
        batch = readings.waiting(lambda step=step: step)
        assert batch == step
        if readings.add_step(torch.tensor(float(step)), torch.tensor(step / 2)):
            found += readings.close()
    found += readings.drain()
    assert [(reading.first, reading.losses) for reading in found] == [(1, [1, 2, 3]), (4, [4, 5, 6]), (7, [7, 8])]
    assert [norm for reading in found for norm in reading.norms] == [step / 2 for step in range(1, 9)]
    assert all(reading.seconds >= reading.waited >= 0 for reading in found)
    readings.start(9)
    assert readings.drain() == []
