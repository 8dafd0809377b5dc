"""The wheel: installed with only what it declares, in a clean environment without cargo, it does what README shows."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pages import HOUSE, block

PROGRAM = """
import sys
from pathlib import Path

import piecemill as pm
from piecemill.loading import batches

sys.exit("installed from the checkout") if Path(pm.__file__).is_relative_to(sys.argv[1]) else None
texts = [f"document {number} is not document {number + 1}" for number in range(200)]
tok = pm.train_bpe(texts, vocab_size=300, pretokenizer="cl100k")
tok.save("tok/")
pm.prepare(texts, "tok/", out="shards/", splits="train=80,val=20")
with batches(pm.open_shards("shards/", split="train"), window=16, batch_size=4, epochs=1) as fed:
    print(sum(batch["input_ids"].size for batch in fed))
pm.report("shards/", out="report.html")
"""


def run(*command, cwd, **variables):
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=variables, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo, to build the wheel")
def test_the_wheel_works_in_a_clean_environment_without_cargo(tmp_path):
    around = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # As `make wheel`; fast where `make build` has filled target/.
    run(sys.executable, "-m", "maturin", "build", "--release", "--out", tmp_path / "dist", cwd=HOUSE, **around)
    (wheel,) = tmp_path.glob("dist/*.whl")
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
    assert {"piecemill/_core.abi3.so", "piecemill/_core.pyi", "piecemill/py.typed"} <= names

    clean = tmp_path / "clean"
    run(sys.executable, "-m", "venv", "--without-pip", clean, cwd=tmp_path)
    # README's lines: the first installs; the second is resolved where torch is installed, so nothing is downloaded.
    plain, with_torch = block("README.md", "pip install").splitlines()
    around["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{around['PATH']}"
    into_clean = {"PIP_PYTHON": str(clean / "bin" / "python"), "PIP_NO_COMPILE": "1"}
    run("bash", "-c", plain, cwd=tmp_path, **around, **into_clean)
    resolved = run("bash", "-c", with_torch, cwd=tmp_path, **around, PIP_DRY_RUN="1")
    assert "Requirement already satisfied: torch" in resolved
    assert resolved.splitlines()[-1].startswith("Would install piecemill-")
    alone = {"PATH": str(clean / "bin"), "HOME": str(tmp_path)}
    assert shutil.which("cargo", path=alone["PATH"]) is None
    assert int(run(clean / "bin" / "python", "-c", PROGRAM, HOUSE, cwd=tmp_path, **alone)) > 1000
    assert "is sound" in run(clean / "bin" / "piecemill", "check", "shards/", cwd=tmp_path, **alone)
