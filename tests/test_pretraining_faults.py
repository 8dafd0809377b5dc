"""A pretraining run that is killed or fails between any two writes: what is there afterwards, and how it goes on."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from piecemill.errors import PretrainError
from piecemill.pretraining import pretrain
from piecemill.pretraining.curve import PNG, SVG, draw
from pretraining import SMALL, small_shards

PLAN = {"steps": 4, "checkpoint_every": 1, **SMALL}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return small_shards(tmp_path_factory.mktemp("pretraining") / "shards")


@pytest.fixture(scope="module")
def done(shards, tmp_path_factory):
    """A complete run."""
    folder = tmp_path_factory.mktemp("done") / "run"
    pretrain(shards, out=folder, **{**PLAN, "curve": True})
    return folder


@pytest.fixture
def run(done, tmp_path):
    return shutil.copytree(done, tmp_path / "run")


def test_a_run_killed_after_its_last_checkpoint_writes_its_result_when_it_goes_on(run, done, shards):
    (run / "result.json").unlink()
    (run / "sample.txt").unlink()
    assert not pretrain(shards, out=run, **PLAN).complete_before
    assert (run / "sample.txt").read_bytes() == (done / "sample.txt").read_bytes()
    made, want = (json.loads((folder / "result.json").read_text()) for folder in (run, done))
    assert {**made, "out": None, "resumed": None} == {**want, "out": None, "resumed": None}
    assert pretrain(shards, out=run, **PLAN).complete_before


def test_what_a_killed_run_left_goes_when_it_goes_on(run, shards):
    part = run / ".result.json.1-abcdef.part"
    part.write_text("{")
    cut = run / "checkpoints/step-00000002"  # the run was deleting it
    cut.mkdir()
    (cut / "config.json").write_text("{}")
    pretrain(shards, out=run, **PLAN)
    assert not part.exists()
    assert not cut.exists()


def test_records_are_on_the_disk_before_the_checkpoint_that_they_lead_to(shards, tmp_path, monkeypatch):
    done = []
    fsync, rename = os.fsync, os.rename

    def synced(descriptor):
        fsync(descriptor)
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    def renamed(old, new):
        rename(old, new)
        done.append(os.path.basename(new))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    pretrain(shards, out=tmp_path / "run", **{**PLAN, "steps": 2})
    steps = [name for name in done if name.startswith("step-") or name == "metrics.jsonl"]
    assert steps == ["metrics.jsonl", "step-00000001", "metrics.jsonl", "step-00000002"]


def test_a_curve_that_cannot_be_written_leaves_the_one_before(run, monkeypatch):
    before = {name: (run / name).read_bytes() for name in (PNG, SVG)}

    def full(self, file, **options):
        if isinstance(file, str | os.PathLike):
            Path(file).write_bytes(b"half")
        else:
            file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(OSError, match="No space"):
        draw(run)
    assert {name: (run / name).read_bytes() for name in (PNG, SVG)} == before


def test_a_checkpoint_whose_step_is_not_that_of_its_loader_is_refused(run, shards):
    state = run / "checkpoints/step-00000004/state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "step": 3}))
    with pytest.raises(PretrainError, match=r"step-00000004: its state was changed \(3 steps take 12 rows, not 16\)"):
        pretrain(shards, out=run, **PLAN)


def test_a_disk_that_fills_up_while_the_folder_is_made_is_an_error_that_names_it(shards, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "truncate", full)  # of the lock
    with pytest.raises(PretrainError, match=r"run: No space left on device\. There is no checkpoint yet"):
        pretrain(shards, out=tmp_path / "run", **PLAN)
