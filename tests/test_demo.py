"""The demo: from the standard library to shards and batches; and it replaces nothing that it did not make."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from command import PIECEMILL, environment, piecemill
from pages import HOUSE, block
from piecemill import demo, pretraining
from piecemill.shards.check import check_shards
from piecemill.tokenizers import load_tokenizer


@pytest.fixture
def checkout(tmp_path):
    """A folder in which `make` finds everything installed: the demo is a small one, tools write their calls down."""
    for name in ("Makefile", "pyproject.toml", "Cargo.toml", "Cargo.lock"):
        shutil.copy(HOUSE / name, tmp_path)
    tools = [".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/stubtest", ".venv/bin/pytest", "bin/cargo", "bin/chromium"]
    for name in ("src", ".venv/bin", "bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in tools:
        (tmp_path / name).write_text(f'#!/bin/sh\necho {Path(name).name} "$@" >> {tmp_path}/calls\n')
    demo = tmp_path / ".venv/bin/piecemill"
    demo.write_text(f'#!/bin/sh\nexec {PIECEMILL} "$@" --no-pretrain --vocab-size 1024\n')
    for name in (*tools, demo):
        (tmp_path / name).chmod(0o755)
    for name in (".installed", ".tools"):
        (tmp_path / ".venv" / name).touch()
    return tmp_path


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_the_two_commands_of_the_readme(checkout):
    def run(line):
        path = f"{checkout}/bin{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", line], cwd=checkout, env=environment(PATH=path), capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    make_demo, make_test = block("README.md", "make demo").splitlines()
    printed = run(make_demo)
    run(make_test)
    called = [line.split()[0] for line in (checkout / "calls").read_text().splitlines()]
    assert called == ["ruff", "ruff", "mypy", "stubtest", "cargo", "cargo", "cargo", "pytest"]

    out = checkout / "demo"
    tok = load_tokenizer(out / "tokenizer")
    assert tok.vocab_size == 1024
    assert tok.decode(tok.encode("def main():")) == "def main():"
    assert check_shards(out / "shards").sound
    ours, gpt2_like, plain = (float(line) for line in re.findall(r"^ +(\d\.\d\d)  ", printed, re.M))
    assert plain == 1.0
    assert min(ours, gpt2_like) > 2  # bytes per token of files it has not seen
    assert int(re.search(r"^([\d,]+) batches of 8 x 512", printed, re.M)[1].replace(",", "")) > 1000
    assert "<html" in (out / "report.html").read_text()
    assert (out / ".piecemill-demo").exists()


def test_without_torch_the_demo_says_how_to_get_the_rest(monkeypatch, capsys, tmp_path):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else there(name))
    demo._pretrain(tmp_path / "shards", tmp_path / "run")
    assert capsys.readouterr().out == (
        "\n== Not run: training a small model, which needs torch\n"
        f"$ {sys.executable} -m pip install torch\n"
        f"$ piecemill pretrain {tmp_path / 'shards'} --size tiny --out {tmp_path / 'run'}\n"
    )


@pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in demo._PRETRAIN_NEEDS), reason="needs torch")
def test_with_torch_a_small_model_learns_from_the_shards(monkeypatch, capsys, tmp_path):
    from pretraining import SMALL, small_shards

    short = {name: SMALL[name] for name in ("window", "batch_size", "sample_tokens")}
    monkeypatch.setattr(pretraining, "PretrainPlan", partial(pretraining.PretrainPlan, steps=60, **short))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").write_text("of an earlier demo")
    demo._pretrain(small_shards(tmp_path / "shards"), tmp_path / "run")
    said = capsys.readouterr().out
    assert f"$ piecemill pretrain {tmp_path / 'shards'} --size tiny --out {tmp_path / 'run'}\n" in said
    assert re.search(r"^Validation ended at \d\.\d\d nats per token, below the \d\.\d\d of the best model", said, re.M)
    assert (tmp_path / "run" / "curve.png").exists()


@pytest.mark.parametrize("mine", ["shards/weights.bin", "run/notes.txt", "tokenizer.json"])
def test_a_folder_that_the_demo_did_not_make_is_refused(tmp_path, mine):
    (tmp_path / mine).parent.mkdir(exist_ok=True)
    (tmp_path / mine).write_text("mine")
    done = piecemill("demo", "--out", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"piecemill: {tmp_path}: was not made by the demo, which would replace it. Delete it")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / mine]
    assert (tmp_path / mine).read_text() == "mine"
    assert piecemill("demo", "--out", tmp_path / mine).returncode == 2  # nor is a file


def make(*arguments):
    return subprocess.run(["make", *arguments], capture_output=True, text=True, timeout=600)


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_make_demo_installs_no_tools_and_make_test_does():
    needed = {goal: make("--dry-run", "--always-make", "-C", str(HOUSE), goal).stdout for goal in ("demo", "test")}
    assert all("maturin develop --profile" in commands for commands in needed.values())
    assert ["--group tools" in needed["demo"], "--group tools" in needed["test"]] == [False, True]
    assert "\ndev = [" not in (HOUSE / "pyproject.toml").read_text()  # `maturin develop` would install it


@pytest.mark.skipif(not shutil.which("make") or not shutil.which("cargo"), reason="needs make and cargo")
def test_an_installer_that_fails_shows_its_output(tmp_path):
    for name in ("Makefile", "pyproject.toml", "Cargo.toml", "Cargo.lock"):
        shutil.copy(HOUSE / name, tmp_path)
    (tmp_path / "src").mkdir()
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || { echo chatter; echo "no ensurepip" >&2; exit 1; }\n')
    python.chmod(0o755)
    done = make("-C", str(tmp_path), f"PYTHON={python}", "demo")
    assert done.returncode == 2
    assert done.stdout.splitlines()[1:4] == [
        "Setting up .venv and building the core: one to two minutes",
        "chatter",
        "no ensurepip",
    ]
