"""The Ray executor: lost workers and nodes are retried, errors of the function are not, memory stays flat."""

import json
import os
import signal
import subprocess
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from command import PIECEMILL, environment
from corpora import small_tokenizer, texts, write_jsonl
from pages import block
from piecemill import prepare
from piecemill.cancelling import check
from piecemill.errors import ExecutorError, SourceError
from piecemill.executors import open_executor

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("ray_cluster")


def once(folder: Path, name: str) -> bool:
    """True for the first caller on any machine: a marker file is made, or was there."""
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def doubled(number):
    return 2 * number


def die_once(number, folder):
    if number % 7 == 3 and once(folder, f"died-{number}"):
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def always_die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(number, folder):
    with open(folder / f"{number}", "a") as calls:
        calls.write("called\n")
    if number == 3:
        raise SourceError("line 7 is bad")


def process(number):
    return os.getpid(), id(_keep(number))


_kept = []


def _keep(number):
    if not _kept:
        _kept.append(object())
    return _kept[0]


def wait_for(number, folder):
    (folder / f"runs-{number}").touch()
    try:
        while not (folder / "go").exists():
            check({"task": number})
            time.sleep(0.01)
    finally:
        (folder / f"ended-{number}").touch()
    return number


def test_every_task_is_done_once():
    assert sorted(open_executor("ray").map(doubled, range(200))) == [(n, 2 * n) for n in range(200)]


def test_no_tasks_is_no_work():
    assert list(open_executor("ray").map(doubled, [])) == []


def test_workers_are_few_and_keep_what_they_loaded():
    found = {result for _, result in open_executor("ray").map(process, range(60))}
    assert len(found) == len({pid for pid, _ in found})  # one object in each process
    assert len(found) < 10


def test_lost_workers_are_replaced_and_their_tasks_done_again(tmp_path):
    results = sorted(open_executor("ray").map(partial(die_once, folder=tmp_path), range(40)))
    assert results == [(n, 2 * n) for n in range(40)]
    assert len(list(tmp_path.iterdir())) == 6  # workers that were killed


def test_a_task_that_always_kills_its_worker_ends_the_run(monkeypatch):
    monkeypatch.setattr("piecemill.executors.ray.RETRIES", 1)
    with pytest.raises(ExecutorError, match=r"task 0: Ray gave up on it after 2 attempts: .*Run it again to go on"):
        list(open_executor("ray").map(always_die, [0]))


def test_an_error_of_the_function_is_raised_as_it_is_and_not_retried(tmp_path):
    with pytest.raises(SourceError) as raised:
        list(open_executor("ray").map(partial(fail, folder=tmp_path), range(50)))
    assert str(raised.value) == "line 7 is bad"
    assert (tmp_path / "3").read_text() == "called\n"


def ignore_interrupts(number):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return number


def test_an_interrupted_driver_cancels_what_runs(tmp_path, monkeypatch):
    list(open_executor("ray").map(ignore_interrupts, range(20)))  # as in a cluster that a script started with `&`
    cancel = ray.cancel

    def slow(reference):  # as of a driver that gets no core: what it cancels has ended before it cancels the next
        cancel(reference)
        while not ray.wait([reference], timeout=1)[0]:
            cancel(reference)

    monkeypatch.setattr("piecemill.executors.ray.ray.cancel", slow)

    def interrupt(_):
        if list(tmp_path.glob("runs-*")):
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        closing(open_executor("ray").map(partial(wait_for, folder=tmp_path), range(9), interrupt)) as results,
    ):
        list(results)
    # The two CPUs are free again, and no other task was begun.
    assert sorted(open_executor("ray").map(doubled, range(2))) == [(0, 0), (1, 2)]
    assert len(list(tmp_path.glob("runs-*"))) <= 2


def test_a_cancel_that_is_lost_is_repeated(tmp_path, monkeypatch):
    # As in a worker that still ignores SIGINT.
    cancel, lost = ray.cancel, []
    monkeypatch.setattr("piecemill.executors.ray.STOP_SECONDS", 600.0)

    def lossy(reference):
        if reference in lost:
            cancel(reference)
        else:
            lost.append(reference)

    monkeypatch.setattr("piecemill.executors.ray.ray.cancel", lossy)

    def interrupt(_):
        if len(list(tmp_path.glob("runs-*"))) == 2:
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        closing(open_executor("ray").map(partial(wait_for, folder=tmp_path), range(2), interrupt)) as results,
    ):
        list(results)
    assert len(lost) == 2
    assert sorted(path.name for path in tmp_path.glob("ended-*")) == ["ended-0", "ended-1"]


def test_the_progress_of_running_tasks_comes_to_the_driver(tmp_path, monkeypatch):
    monkeypatch.setattr("piecemill.executors.ray.QUIET_SECONDS", 0.0)
    seen = []

    def on_tick(running):
        seen.append(sorted(each["task"] for each in running))
        if seen[-1] == [0, 1]:
            (tmp_path / "go").touch()

    list(open_executor("ray").map(partial(wait_for, folder=tmp_path), range(2), on_tick))
    assert [0, 1] in seen
    assert seen[-1] == []


def test_the_driver_holds_few_tasks_at_a_time():
    # The references that are alive are counted; memory itself is measured in docs/executors.md.
    from piecemill.executors.ray import RayExecutor

    class Tasks(list):
        """Counts how many were taken before the first result was."""

        taken = 0

        def __getitem__(self, number):
            Tasks.taken = max(Tasks.taken, number)
            return super().__getitem__(number)

    done = 0
    for done, _ in enumerate(RayExecutor(in_flight=8).map(doubled, Tasks(range(300))), 1):
        assert Tasks.taken < done + 8
    assert done == 300


def test_a_node_that_is_removed_takes_no_result_with_it(tmp_path, ray_cluster):
    node = ray_cluster.add_node(num_cpus=2)
    ray_cluster.wait_for_nodes()
    removed = False

    def remove_when_all_run(_):
        nonlocal removed
        if not removed and len(list(tmp_path.glob("runs-*"))) == 4:  # two of them on the new node
            ray_cluster.remove_node(node, allow_graceful=False)
            (tmp_path / "go").touch()
            removed = True

    results = open_executor("ray").map(partial(wait_for, folder=tmp_path), range(12), remove_when_all_run)
    assert sorted(results) == [(n, n) for n in range(12)]
    assert removed


def test_no_cluster_at_the_address_is_an_error(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ExecutorError, match=r"Ray at 127\.0\.0\.1:1: cannot connect: .*ray start --head"):
        list(open_executor("ray", ray_address="127.0.0.1:1").map(doubled, [1]))


def test_the_command_of_the_howto_reads_from_a_bucket_and_writes_to_it(ray_cluster, s3, tmp_path):
    from obstore.store import S3Store

    bucket = S3Store(s3.bucket("bucket"), **s3.options())
    for number in range(3):
        file = write_jsonl(tmp_path / f"corpus/{number}.jsonl", texts(30, seed=number))
        bucket.put(f"corpus/{file.name}", file.read_bytes())
    small_tokenizer().save(tmp_path / "tok")
    # obstore reads in place of s3fs, which needs another botocore than moto.
    (tmp_path / "modules").mkdir()
    driver = "from obstore.fsspec import FsspecStore\nclass S3FileSystem(FsspecStore):\n    protocol = 's3'\n"
    (tmp_path / "modules/s3fs.py").write_text(f"{driver}__version__ = '2026'\n")
    variables = {
        "AWS_ENDPOINT_URL": s3.options()["endpoint"],
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "PYTHONPATH": f"{tmp_path}/modules{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    on_nodes = json.dumps({"runtime_env": {"env_vars": variables}})
    path = f"{Path(PIECEMILL).parent}{os.pathsep}{os.environ['PATH']}"
    env = environment(**variables, PATH=path, RAY_ADDRESS=ray_cluster.address, RAY_JOB_CONFIG_JSON_ENV_VAR=on_nodes)
    command = ["bash", "-c", block("docs/howto/cluster.md", "piecemill prepare s3://")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    prepare(tmp_path / "corpus", tmp_path / "tok", out=tmp_path / "shards", splits="train=98,val=2", dedup="exact")
    made = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.glob("shards/train/*.npy")}
    assert made
    assert made == {name: bucket.get(name).bytes() for name in made}
