"""Pretraining runs: they learn, are guarded against chance, and go on exactly where they were."""

import itertools
import json
import math
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from command import start
from pages import block
from piecemill import check, cli, describe
from piecemill.errors import Diverged, PlanError, PretrainError
from piecemill.pretraining import model, pretrain, trainer
from piecemill.pretraining.plan import DEFAULTS, Defaults
from piecemill.pretraining.step import Step
from piecemill.shards import open_shards
from pretraining import ONE_THREAD, SMALL, flags, losses, records, small_shards, validations


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return small_shards(tmp_path_factory.mktemp("pretraining") / "shards")


@pytest.fixture(scope="module")
def unbroken(shards, tmp_path_factory):
    """A run that nothing interrupted: others must have its losses."""
    out = tmp_path_factory.mktemp("unbroken") / "run"
    summary = pretrain(shards, out=out, steps=60, eval_every=20, checkpoint_every=15, **{**SMALL, "curve": True})
    return out, summary


# Learning


def test_a_tiny_model_learns_more_than_how_frequent_each_token_is(unbroken):
    out, summary = unbroken
    assert summary.chance == pytest.approx(math.log(300))
    assert summary.validation[0][1] == pytest.approx(summary.chance, abs=0.3)
    assert summary.validation[-1][1] < summary.unigram_entropy < summary.chance
    assert summary.complete
    assert (summary.steps, summary.tokens) == (60, 60 * 64)
    assert [step for step, _ in validations(out)] == [0, 20, 40, 60]
    assert [step for step, *_ in losses(out)] == list(range(1, 61))


def test_what_is_written_down_says_what_was_trained_and_how(unbroken):
    out, summary = unbroken
    plan = json.loads((out / "plan.json").read_text())
    assert plan["options"]["lr"] == 3e-3
    assert plan["options"]["warmup"] == 10
    assert plan["data"]["vocab_size"] == 300
    assert plan["chance"] == pytest.approx(math.log(300))
    assert plan["model"]["parameters"] == summary.parameters
    result = json.loads((out / "result.json").read_text())
    assert result["validation"][-1] == [60, summary.validation[-1][1]]
    assert result["utilisation"] is None
    assert "not known: no figure for 'cpu'" in str(summary)
    paces = records(out, "pace")
    assert sum(pace["tokens"] for pace in paces) == summary.tokens
    assert [pace["first"] for pace in paces] == [True] + [False] * (len(paces) - 1)
    assert summary.tokens_per_second > 0
    assert 0 <= summary.waited_share <= 1


def test_the_curve_has_the_lines_that_say_what_a_loss_is_worth(unbroken):
    out, summary = unbroken
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    svg = (out / "curve.svg").read_text()
    assert f"ln(V) = {summary.chance:.2f}" in svg
    assert f"entropy of unigrams = {summary.unigram_entropy:.2f}" in svg
    assert f"validation, last {summary.validation[-1][1]:.3f}" in svg
    drawn = (out / "curve.svg").read_bytes(), (out / "curve.png").read_bytes()
    subprocess.run([sys.executable, "-m", "piecemill.pretraining.curve", str(out)], check=True, capture_output=True)
    assert ((out / "curve.svg").read_bytes(), (out / "curve.png").read_bytes()) == drawn


def test_a_sample_goes_on_from_a_document_that_was_held_out(unbroken, shards):
    out, summary = unbroken
    prompt, made = summary.sample
    val = open_shards(shards, "val")
    assert any(val.tokenizer().decode(val.document(i)).startswith(prompt) for i in range(len(val)))
    assert made
    assert (out / "sample.txt").read_text() == f"{prompt}\n--- and the model goes on:\n{made}\n"


def test_transformers_opens_a_checkpoint_and_finds_the_validation_loss(unbroken, shards):
    from transformers import AutoModelForCausalLM

    from piecemill.loading.torch import batches

    out, summary = unbroken
    assert [path.name for path in sorted((out / "checkpoints").iterdir())] == ["step-00000045", "step-00000060"]
    model = AutoModelForCausalLM.from_pretrained(out / "checkpoints/step-00000060").eval()
    total = count = 0
    for batch in islice(batches(open_shards(shards, "val"), window=16, batch_size=4, seed=0, epochs=1), 16):
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"]).logits[..., :300].float()
        labels = batch["labels"]
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        total, count = total + float(each), count + int((labels != -100).sum())
    assert total / count == pytest.approx(summary.validation[-1][1], abs=1e-4)


def test_accumulating_over_small_batches_is_one_large_batch(shards, tmp_path, unbroken):
    several = {**SMALL, "batch_size": 2, "grad_accumulation": 2}
    pretrain(shards, out=tmp_path / "run", steps=60, minutes=1e-9, **several)  # one step
    (_, loss, norm), (_, wanted, wanted_norm) = losses(tmp_path / "run")[0], losses(unbroken[0])[0]
    assert loss == pytest.approx(wanted, rel=1e-5)
    assert norm == pytest.approx(wanted_norm, rel=1e-4)


@pytest.mark.filterwarnings("ignore")  # torch warns of itself while it compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs g++")
def test_compiled_layers_have_the_same_losses(shards, tmp_path, unbroken):
    pretrain(shards, out=tmp_path / "run", steps=60, minutes=1e-9, compile=True, **SMALL)  # one step
    assert losses(tmp_path / "run")[0][1:] == pytest.approx(losses(unbroken[0])[0][1:], rel=1e-4)


# The guard


def test_a_model_that_does_not_learn_is_not_ended(shards, tmp_path):
    summary = pretrain(shards, out=tmp_path / "run", steps=40, lr=1e-12, warmup=0, eval_every=10, **SMALL)
    assert summary.complete
    assert summary.validation[-1][1] == pytest.approx(summary.chance, abs=0.3)


def test_a_learning_rate_of_10_is_caught_within_a_few_dozen_steps(shards, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Diverged, match="lower lr") as ended:
        pretrain(shards, out=out, steps=1000, lr=10.0, checkpoint_every=100, **{**SMALL, "curve": True})
    assert losses(out)[-1][0] <= 36
    assert not (out / "checkpoints").exists()
    assert (out / "curve.png").exists()
    assert "step" in str(ended.value)
    result = json.loads((out / "result.json").read_text())
    assert (result["guard"], result["complete"]) == (str(ended.value), False)
    assert result["tokens_per_second"] > 0
    pretrain(shards, out=out, steps=1000, lr=10.0, minutes=1e-9, **SMALL)  # from the start: nothing is known of it yet
    assert json.loads((out / "result.json").read_text())["guard"] is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_run_with_a_result(shards, tmp_path, monkeypatch, value):
    validate = Step.validate
    monkeypatch.setattr(Step, "validate", lambda step, batches: validate(step, batches) * value)
    with pytest.raises(Diverged, match="step 0: validation loss"):
        pretrain(shards, out=tmp_path / "run", steps=10, **SMALL)
    result = json.loads((tmp_path / "run" / "result.json").read_text(), parse_constant=pytest.fail)
    assert result["guard"].startswith("step 0: validation loss")
    assert result["validation"] == []


# Going on


STEERED = """
import os, sys
from piecemill.__main__ import main

number, checkpoint, *sys.argv[1:] = sys.argv[1:]
rename = os.rename

def renamed(old, new):
    rename(old, new)
    if os.path.basename(new) == checkpoint:  # it has its name: the moment has come
        os.kill(os.getpid(), int(number))

os.rename = renamed
main()
"""


def test_killed_and_stopped_and_taken_up_it_has_the_same_losses_as_unbroken(shards, tmp_path, unbroken):
    out = tmp_path / "run"
    plan = {"steps": 60, "eval_every": 20, "checkpoint_every": 15, **SMALL}
    command = ["pretrain", shards, "--out", out, "--quiet", *flags(plan)]

    running = start(sys.executable, "-c", STEERED, int(signal.SIGKILL), "step-00000015", *command, **ONE_THREAD)
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    assert len(losses(out)) == 15

    running = start(sys.executable, "-c", STEERED, int(signal.SIGINT), "step-00000030", *command, **ONE_THREAD)
    _, says = running.communicate()
    assert running.returncode == 130, says
    assert "Traceback" not in says
    assert says.splitlines()[-1].startswith("piecemill: stopped after step 31 of 60, with a checkpoint; ")
    assert "run the same command again" in says
    assert len(losses(out)) == 31
    result = json.loads((out / "result.json").read_text())
    assert (result["steps"], result["complete"], result["guard"]) == (31, False, None)
    assert (out / "checkpoints/step-00000031").exists()

    summary = pretrain(shards, out=out, **plan)
    assert summary.complete
    assert losses(out) == losses(unbroken[0])
    assert validations(out) == validations(unbroken[0])
    assert [path.name for path in sorted((out / "checkpoints").iterdir())] == ["step-00000045", "step-00000060"]


def test_a_limit_of_time_ends_a_call_and_not_the_run(shards, tmp_path, unbroken):
    plan = {"steps": 60, "eval_every": 20, "checkpoint_every": 15, **SMALL}
    first = pretrain(shards, out=tmp_path / "run", minutes=1e-9, **plan)
    assert (first.steps, first.complete, first.sample) == (1, False, None)
    assert "1 step, " in str(first)
    assert "run the same command again to go on" in str(first)
    second = pretrain(shards, out=tmp_path / "run", minutes=1e-9, **plan)
    assert (second.steps, second.resumed) == (2, True)
    assert losses(tmp_path / "run") == losses(unbroken[0])[:2]


def test_the_command_of_the_page_stops_after_its_minutes_and_resumes(shards, tmp_path, monkeypatch, capsys):
    # A small model in place of 370 M parameters, and a clock that is ten minutes further at every look.
    small = Defaults(window=16, batch_size=4, tokens=1, lr=3e-4)
    monkeypatch.setitem(model.SHAPES, "370m", model.SHAPES["tiny"])
    monkeypatch.setitem(DEFAULTS, "370m", small)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=itertools.count(step=600).__next__))
    monkeypatch.chdir(tmp_path)
    Path("shards").symlink_to(shards)
    command = shlex.split(block("docs/pretraining.md", "piecemill pretrain shards/ --size 370m"), comments=True)
    monkeypatch.setattr(sys, "argv", command)
    for step in (1, 2):
        with suppress(SystemExit):
            cli.run()
        assert [number for number, *_ in losses(Path("large"))] == list(range(1, step + 1))
        assert "run the same command again to go on" in capsys.readouterr().out


def test_a_complete_run_is_left_as_it_is(shards, unbroken):
    out, summary = unbroken
    before = (out / "metrics.jsonl").read_bytes()
    again = pretrain(shards, out=out, steps=60, eval_every=20, checkpoint_every=15, **SMALL)
    assert again.complete_before
    assert "is complete" in str(again)
    assert again.validation == summary.validation
    assert (out / "metrics.jsonl").read_bytes() == before


def test_a_checkpoint_cut_short_is_never_taken_for_one(shards, tmp_path, unbroken):
    out = tmp_path / "run"
    plan = {"steps": 60, "eval_every": 20, "checkpoint_every": 15, **SMALL}
    pretrain(shards, out=out, minutes=1e-9, **plan)
    torn = out / "checkpoints/.step-00000015.part"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"half")
    pretrain(shards, out=out, **plan)
    assert losses(out) == losses(unbroken[0])
    assert not torn.exists()


# Fine-tuning


def test_fine_tuning_begins_where_the_other_run_ended(shards, tmp_path, unbroken):
    out, scratch = unbroken
    plan = {name: value for name, value in SMALL.items() if name != "size"}
    tuned = pretrain(shards, out=tmp_path / "run", mode="finetune", init=out, steps=10, **plan)
    assert tuned.validation[0][1] == pytest.approx(scratch.validation[-1][1], abs=1e-4)
    assert json.loads((tmp_path / "run/plan.json").read_text())["options"]["lr"] == 5e-5


def test_weights_that_do_not_fit_are_refused(shards, tmp_path, unbroken):
    plan = {name: value for name, value in SMALL.items() if name != "size"}
    with pytest.raises(PretrainError, match=r"there is no config.json"):
        pretrain(shards, out=tmp_path / "a", mode="finetune", init=tmp_path, **plan)
    with pytest.raises(PlanError, match="was made for 16 positions"):
        pretrain(shards, out=tmp_path / "b", mode="finetune", init=unbroken[0], **{**plan, "window": 32})
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "other/model.safetensors").write_bytes(b"")
    with pytest.raises(PretrainError, match="only 'llama'"):
        pretrain(shards, out=tmp_path / "c", mode="finetune", init=tmp_path / "other", **plan)


# What is refused


def test_another_plan_or_other_shards_are_refused_with_what_differs(shards, tmp_path, unbroken):
    out, _ = unbroken
    plan = {"eval_every": 20, **SMALL}
    with pytest.raises(
        PlanError, match=r"made with steps=60, requested steps=61.*use the same steps, or choose another out"
    ):
        pretrain(shards, out=out, steps=61, **plan)
    with pytest.raises(PlanError, match=r"made with seed=0, requested seed=1"):
        pretrain(shards, out=out, steps=60, seed=1, **plan)
    other = small_shards(tmp_path / "other", seed=9)
    with pytest.raises(PretrainError, match="begun on shards with "):
        pretrain(other, out=out, steps=60, **plan)


def test_a_folder_that_is_not_ours_or_in_use_is_refused(shards, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("precious")
    with pytest.raises(PretrainError, match=r"holds other things \(thesis.txt"):
        pretrain(shards, out=tmp_path / "mine", **SMALL)

    def again(_):
        with pytest.raises(PretrainError, match="another run is writing to it"):
            pretrain(shards, out=tmp_path / "run", steps=2, **SMALL)

    assert pretrain(shards, out=tmp_path / "run", steps=2, on_progress=again, **SMALL).complete


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"val_split": "test"}, "there is no split 'test', only train, val"),
        ({"window": 100_000}, "too few for a row of window=100000"),
        ({"device": "tpu"}, "expected auto, cpu, cuda"),
        ({"learning_rate": 1.0}, "unknown option 'learning_rate'"),
        ({"batchsize": 1}, "did you mean 'batch_size'"),
    ],
)
def test_what_cannot_work_says_so_before_anything_is_written(shards, tmp_path, options, says):
    with pytest.raises(PlanError, match=says):
        pretrain(shards, out=tmp_path / "run", **{**SMALL, **options})
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said_to_be_missing(shards, tmp_path):
    with pytest.raises(PlanError, match="torch sees no CUDA device"):
        pretrain(shards, out=tmp_path / "run", **{**SMALL, "device": "cuda"})


def test_without_matplotlib_it_is_said_before_the_training(shards, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlanError, match="curve=False"):
        pretrain(shards, out=tmp_path / "run", **{**SMALL, "curve": True})


def test_without_validation_there_is_none(shards, tmp_path):
    summary = pretrain(shards, out=tmp_path / "run", steps=2, val_split="none", **SMALL)
    assert summary.validation == ()
    assert "validation (first" not in str(summary)


# What is imported


def test_the_command_line_costs_no_torch_and_training_no_arrow():
    code = (
        "import sys, piecemill.pretraining\n"
        "assert 'cyclopts' not in sys.modules\n"
        "import piecemill.cli\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import piecemill.pretraining.trainer\n"
        "heavy = {'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


CHANGES = {
    "plan.json": ["", "[]", '{"options": 1}', "\x80"],
    "result.json": ["", "[1]", *(f'{{"validation": {one}}}' for one in ("[1]", '"x"', "1", "[[1]]", '[[1, "x"]]'))],
    "metrics.jsonl": [
        *("{\n", "[]\n", '{"kind": "train", "step": 1}\n', '{"step": 1}\n'),
        '{"kind": "val", "step": 1, "tokens": "x", "loss": 2.0}\n',
        '{"kind": "val", "step": 1, "tokens": 8, "loss": Infinity}\n',
        '{"kind": "pace", "step": 1, "tokens": 8, "seconds": []}\n',
        '{"kind": "pace", "step": 1, "tokens": 8, "seconds": 1.0}\n',
    ],
    "checkpoints/step-00000001/state.json": ["", "{}", '{"loader": {}, "guard": {}}', '{"loader": 1}'],
    "checkpoints/step-00000001/config.json": ["", "[]", '{"model_type": "llama", "initializer_range": "x"}'],
}


@pytest.mark.parametrize(("name", "content"), [(name, content) for name in CHANGES for content in CHANGES[name]])
def test_a_file_of_a_run_that_was_changed_is_named(begun, tmp_path, shards, name, content):
    run = tmp_path / "run"
    shutil.copytree(begun, run)
    (run / name).write_bytes(content.encode("latin-1"))
    reads = [lambda: describe(run)] if name in ("result.json", "metrics.jsonl") else []
    goes_on = [] if name == "result.json" else [lambda: pretrain(shards, out=run, steps=4, **SMALL)]
    for read in (*reads, *goes_on):
        with pytest.raises(PretrainError, match=str(run / name) if "state" not in name else "step-00000001"):
            read()


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_flipped_bit_among_the_tensors_of_a_checkpoint_is_found(begun, tmp_path, shards, name):
    run = tmp_path / "run"
    shutil.copytree(begun, run)
    path = run / "checkpoints/step-00000001" / name
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    says = f"{path}: was changed after it was written. Delete that checkpoint"
    with pytest.raises(PretrainError, match=re.escape(says)):
        pretrain(shards, out=run, steps=4, **SMALL)
    assert [one.what for one in check(run).problems] == [f"{says} to go on from the one before it."]
    state = path.with_name("state.json")
    state.write_text(json.dumps({**json.loads(state.read_text()), "checksums": {}}))  # of an earlier version
    assert pretrain(shards, out=run, steps=4, **SMALL).resumed
    assert check(run).sound


def test_a_run_that_lost_its_records_does_not_go_on_as_if_they_had_never_been(begun, tmp_path, shards):
    run = tmp_path / "run"
    shutil.copytree(begun, run)
    (run / "metrics.jsonl").unlink()
    says = r"metrics\.jsonl is missing: the curve and the times of the first 1 step\. Restore it, or make an empty file"
    with pytest.raises(PretrainError, match=says):
        pretrain(shards, out=run, steps=4, **SMALL)
    (run / "metrics.jsonl").touch()
    assert pretrain(shards, out=run, steps=4, **SMALL).steps == 4


@pytest.fixture(scope="module")
def begun(shards, tmp_path_factory):
    """A run that ended after the first of its four steps."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    pretrain(shards, out=folder, steps=4, minutes=1e-9, **SMALL)
    return folder
