"""The scripts for schedulers, run as the scheduler would run them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from command import PIECEMILL, environment
from corpora import content, small_tokenizer, texts, write_jsonl
from piecemill import prepare

yaml = pytest.importorskip("yaml")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SLURM = EXAMPLES / "slurm_prepare.sh"
OPTIONS = {"splits": "train=85,val=10,test=5", "dedup": "exact"}


@pytest.fixture
def where(tmp_path):
    """A corpus of two tasks, the folder that one machine makes of it, and the environment of a job."""
    for number in range(2):
        write_jsonl(tmp_path / f"corpus/{number}.jsonl", texts(30, seed=number))
    small_tokenizer().save(tmp_path / "tok")
    prepare(tmp_path / "corpus", tmp_path / "tok", out=tmp_path / "wanted", **OPTIONS)
    names = {"CORPUS": "corpus", "TOKENIZER": "tok", "OUT": "out"}
    folders = {name: str(tmp_path / folder) for name, folder in names.items()}
    path = f"{Path(PIECEMILL).parent}{os.pathsep}{os.environ['PATH']}"
    return tmp_path, environment(PATH=path, **folders)


def run(command, env, **more):
    done = subprocess.run(command, env={**env, **more}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_slurm_script_does_parts_and_joins_them(where):
    folder, env = where
    for number in (2, 1, 64, 0):  # 0 joins; of 64 parts, those from the third on have no task here
        run(["bash", SLURM], env, SLURM_ARRAY_TASK_ID=str(number))
    assert content(folder / "out") == content(folder / "wanted")


def test_the_slurm_script_has_as_many_parts_as_array_tasks():
    script = SLURM.read_text()
    first, last = re.search(r"^#SBATCH --array=(\d+)-(\d+)$", script, re.M).groups()
    assert first == "1"
    assert re.search(r"^PARTS=(\d+)", script, re.M)[1] == last


def jobs():
    loaded = list(yaml.safe_load_all((EXAMPLES / "kubernetes_prepare.yaml").read_text()))
    return {job["metadata"]["labels"]["step"]: job for job in loaded}


def test_the_kubernetes_jobs_do_parts_and_join_them(where):
    folder, env = where
    for step, indexes in (("parts", ["1", "0", "63"]), ("join", ["unused"])):
        (container,) = jobs()[step]["spec"]["template"]["spec"]["containers"]
        own = {each["name"]: each["value"] for each in container.get("env", [])}
        for index in indexes:
            run([*container["command"], *container["args"]], env, **own, JOB_COMPLETION_INDEX=index)
    assert content(folder / "out") == content(folder / "wanted")


def test_the_kubernetes_job_is_indexed_and_has_as_many_parts_as_completions():
    spec = jobs()["parts"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["completionMode"] == "Indexed"
    assert {"name": "PARTS", "value": str(spec["completions"])} in container["env"]
    assert {job["apiVersion"] + job["kind"] for job in jobs().values()} == {"batch/v1Job"}
