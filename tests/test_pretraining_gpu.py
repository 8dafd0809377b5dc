"""Pretraining on a GPU: no step waits for it, and it computes what the processor does. Skipped where there is none."""

import pytest
import torch

from piecemill.pretraining import pretrain
from piecemill.pretraining.loss import IGNORED, chunked_loss, plain_loss
from piecemill.pretraining.readings import Readings
from pretraining import SMALL, id_shards, losses

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # torch warns of itself while it compiles
]

SMALL = {**SMALL, "sample_tokens": 0}
GPU = {**SMALL, "device": "cuda"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return id_shards(tmp_path_factory.mktemp("pretraining") / "shards")


@pytest.mark.parametrize("compiled", [False, True])
def test_no_step_waits_for_the_gpu(shards, tmp_path, monkeypatch, compiled):
    # In this mode torch raises at every operation that makes the host wait. It is on from the second validation to the
    # next, and so on: the loop with its feeder, readings and guard; kernels are compiled before.
    began = []
    guarded = []

    def begin(self, step, start=Readings.start):
        start(self, step)
        began.append(step)
        if len(began) > 1:
            torch.cuda.set_sync_debug_mode("error")

    def end(self, drain=Readings.drain):
        if torch.cuda.get_sync_debug_mode():
            guarded.append(True)
        torch.cuda.set_sync_debug_mode("default")
        return drain(self)

    monkeypatch.setattr(Readings, "start", begin)
    monkeypatch.setattr(Readings, "drain", end)
    plan = {**GPU, "compile": compiled, "read_every": 4}
    try:
        summary = pretrain(shards, out=tmp_path / "run", steps=100, eval_every=25, grad_accumulation=2, **plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(guarded) == 3
    assert [step for step, *_ in losses(tmp_path / "run")] == list(range(1, 101))
    assert summary.validation[-1][1] < summary.unigram_entropy


def test_the_mode_of_that_test_does_raise():
    value = torch.ones((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            value.item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_gpu_has_the_losses_of_the_processor(shards, tmp_path):
    plan = {"steps": 30, "eval_every": 30}
    pretrain(shards, out=tmp_path / "cpu", **plan, **SMALL)
    for name, compiled in (("eager", False), ("compiled", True)):
        pretrain(shards, out=tmp_path / name, compile=compiled, **plan, **GPU)
        for (step, mine, _), (_, theirs, _) in zip(losses(tmp_path / name), losses(tmp_path / "cpu"), strict=True):
            assert mine == pytest.approx(theirs, abs=0.1), step  # bf16 against fp32


@pytest.mark.parametrize("compiled", [False, True])
def test_the_chunked_loss_in_bf16_is_the_plain_one_in_fp32(compiled):
    draw = torch.Generator("cuda").manual_seed(1)
    states = torch.randn(2048, 256, generator=draw, device="cuda") / 4
    weight = torch.randn(5120, 256, generator=draw, device="cuda") / 8
    labels = torch.randint(0, 5000, (2048,), generator=draw, device="cuda")
    labels[::17] = IGNORED
    found = []
    for dtype, loss in ((torch.float32, plain_loss), (torch.bfloat16, chunked_loss)):
        rows, matrix = states.to(dtype).requires_grad_(), weight.clone().requires_grad_()
        options = {"compiled": compiled, "chunk": 512} if loss is chunked_loss else {}
        value = loss(rows, matrix, labels, 5000, **options)
        value.backward()
        found.append((value.detach(), rows.grad.float(), matrix.grad))
    for plain, chunked in zip(*found, strict=True):
        assert float((chunked - plain).norm() / plain.norm()) < 1e-2


def test_killed_and_taken_up_on_a_gpu_it_goes_on_from_its_checkpoint(shards, tmp_path):
    plan = {"steps": 30, "eval_every": 10, **GPU, "compile": False}
    pretrain(shards, out=tmp_path / "whole", **plan)
    pretrain(shards, out=tmp_path / "two", minutes=1e-9, **plan)
    summary = pretrain(shards, out=tmp_path / "two", **plan)
    assert summary.resumed
    for (step, mine, _), (_, theirs, _) in zip(losses(tmp_path / "two"), losses(tmp_path / "whole"), strict=True):
        assert mine == pytest.approx(theirs, abs=0.05), step
