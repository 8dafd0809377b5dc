"""`prepare` on every executor: the same folder, byte by byte, whatever is lost on the way."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from multiprocessing import get_context
from unittest import mock

import pytest
import zstandard

from command import environment, piecemill, start
from corpora import OUTSIDE, content, small_tokenizer, texts, write_jsonl
from piecemill import prepare
from piecemill.errors import PlanError, ShardError, SourceError, Stopped
from piecemill.executors import open_executor
from piecemill.objects import ObjectPlace
from piecemill.sources import Task
from piecemill.tokenizers import Tokenizer, load_tokenizer

OPTIONS = {"block_bytes": "4KiB", "piece_bytes": "8KiB", "splits": "train=80,val=20", "dedup": "exact"}


@pytest.fixture(scope="module")
def tok(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tok")
    small_tokenizer().save(folder, force=True)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Eleven files, one of them a packed stream of many pieces; some documents are in several files."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(10):
        write_jsonl(folder / f"{number}.jsonl", texts(20, seed=number) + texts(10, seed=number // 3))
    plain = write_jsonl(folder / "plain", texts(300, seed=99) + texts(10, seed=4))
    (folder / "stream.jsonl.zst").write_bytes(zstandard.compress(plain.read_bytes()))
    plain.unlink()
    return folder


@pytest.fixture(scope="module")
def wanted(corpus, tok, tmp_path_factory):
    """The folder that one thread on this machine makes."""
    out = tmp_path_factory.mktemp("wanted") / "out"
    prepare(corpus, tok, out=out, threads=1, **OPTIONS)
    found = content(out)
    assert sum(name.startswith("entries/") for name in found) > 25
    assert any(".unique." in name for name in found)  # copies in different tasks
    return found


def processes():
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


@pytest.mark.parametrize("pool", [lambda: ThreadPoolExecutor(3), processes], ids=["threads", "processes"])
def test_any_futures_executor_makes_the_same_folder(corpus, tok, wanted, tmp_path, pool):
    with pool() as executor:
        prepare(corpus, tok, out=tmp_path / "out", executor=executor, **OPTIONS)
    assert content(tmp_path / "out") == wanted


def test_ray_makes_the_same_folder(corpus, tok, wanted, tmp_path, ray_cluster):
    seen = []
    prepare(corpus, tok, out=tmp_path / "out", executor="ray", on_progress=seen.append, **OPTIONS)
    assert content(tmp_path / "out") == wanted
    assert seen[-2].fraction == 1.0  # before the duplicates were dropped
    assert seen[-2].files == seen[-2].files_total == 11


# Parts


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_parts_that_are_joined_make_the_same_folder(corpus, tok, wanted, tmp_path, parts):
    out = tmp_path / "out"
    numbers = list(range(1, parts + 1))
    for number in reversed(numbers):
        summary = prepare(corpus, tok, out=out, part=f"{number}/{parts}", **OPTIONS)
        assert not (out / "stats.json").exists()
        assert f"{number}/{parts}" in str(summary)
    assert prepare(corpus, tok, out=out, join=True, **OPTIONS).documents > 400
    assert content(out) == wanted


def test_a_part_on_ray_does_its_share(corpus, tok, wanted, tmp_path, ray_cluster):
    prepare(corpus, tok, out=tmp_path / "out", part="1/2", executor="ray", **OPTIONS)
    prepare(corpus, tok, out=tmp_path / "out", part="2/2", executor="local", **OPTIONS)
    prepare(corpus, tok, out=tmp_path / "out", join=True, executor="ray", **OPTIONS)
    assert content(tmp_path / "out") == wanted


def test_joining_before_all_parts_are_done_is_refused(corpus, tok, tmp_path):
    prepare(corpus, tok, out=tmp_path / "out", part="2/3", **OPTIONS)
    with pytest.raises(ShardError, match=r"7 of 11 tasks are not done; the first is number 0\. Run all parts"):
        prepare(corpus, tok, out=tmp_path / "out", join=True, **OPTIONS)
    assert not (tmp_path / "out/stats.json").exists()


def test_a_part_with_another_plan_is_refused(corpus, tok, tmp_path):
    prepare(corpus, tok, out=tmp_path / "out", part="1/3", **OPTIONS)
    with pytest.raises(PlanError, match="seed"):
        prepare(corpus, tok, out=tmp_path / "out", part="2/3", seed=7, **OPTIONS)


@pytest.mark.parametrize("bad", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3", "1/3/5", ""])
def test_a_part_that_is_none_is_refused(corpus, tok, tmp_path, bad):
    with pytest.raises(PlanError, match=r"part=.*expected NUMBER/PARTS"):
        prepare(corpus, tok, out=tmp_path / "out", part=bad, **OPTIONS)


def flags():
    return [item for name, value in OPTIONS.items() for item in (f"--{name.replace('_', '-')}", value)]


def test_parts_of_the_command_may_run_at_the_same_time(corpus, tok, wanted, tmp_path):
    command = ["prepare", corpus, "--tokenizer", tok, "--out", tmp_path / "out", *flags()]
    runs = [start(sys.executable, "-m", "piecemill", *command, "--part", f"{number}/2") for number in (1, 2, 2)]
    for run in runs:
        _, said = run.communicate(timeout=600)
        assert run.returncode == 0, said
    joined = piecemill(*command, "--join")
    assert joined.returncode == 0, joined.stderr
    assert content(tmp_path / "out") == wanted


def test_a_part_and_join_together_are_wrong_use(corpus, tok, tmp_path):
    run = piecemill("prepare", corpus, "--tokenizer", tok, "--out", tmp_path / "out", "--part", "1/2", "--join")
    assert run.returncode == 2
    assert "first run all parts, then join once" in run.stderr
    with pytest.raises(PlanError, match="first run all parts, then join once"):
        prepare(corpus, tok, out=tmp_path / "out", part="1/2", join=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "wrong", [{"executor": "dask"}, {"part": "4/3"}, {"ray_address": "auto"}, {"part": "1/2", "join": True}]
)
def test_wrong_use_is_an_error_before_anything_is_written(corpus, tok, tmp_path, wrong):
    with pytest.raises(PlanError):
        prepare(corpus, tok, out=tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_a_part_uses_all_cores_whether_it_has_many_tasks_or_one(corpus, tok, tmp_path, monkeypatch):
    seen, real = [], Tokenizer.encode_flat
    monkeypatch.setattr(
        Tokenizer, "encode_flat", lambda *args, **options: seen.append(options["threads"]) or real(*args, **options)
    )
    summary = prepare(corpus, tok, out=tmp_path / "many", part="1/2", threads=3, **OPTIONS)
    assert summary.timing["workers"] == 3
    seen.clear()
    prepare(corpus, tok, out=tmp_path / "one", part="11/11", threads=3, **OPTIONS)  # the packed stream
    assert set(seen) == {3}


# Two runs at once, where there are no locks


def stored(url):
    place = ObjectPlace(url)
    folders = ("", "tokenizer", "entries", "train", "val")
    names = [f"{folder}/{name}".lstrip("/") for folder in folders for name in place.sizes(folder)]
    return {name: place.read(name) for name in names if name not in OUTSIDE}


def test_a_second_run_that_completes_the_folder_at_any_moment_of_the_first_changes_nothing(corpus, tok, wanted):
    """The second run is done, from its beginning to its end, inside one request of the first."""
    numbers, loaded = count(), load_tokenizer(tok)
    corpus = [corpus / f"{number}.jsonl" for number in (0, 1, 2)]

    def run(at):
        url = f"memory://two-runs/{next(numbers)}"
        seen, lock, inside = count(), threading.Lock(), threading.Event()

        def intruded(real):
            def request(self, *arguments):
                with lock:
                    now = not inside.is_set() and next(seen) == at
                    if now:
                        inside.set()
                if now:
                    prepare(corpus, loaded, out=url, **OPTIONS)
                return real(self, *arguments)

            return request

        names = ("read", "write", "create", "publish", "sizes", "delete")
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(mock.patch.object(ObjectPlace, name, intruded(getattr(ObjectPlace, name))))
            summary = prepare(corpus, loaded, out=url, threads=1, **OPTIONS)
        return summary, stored(url), next(seen)

    summary, unbroken, requests = run(-1)
    assert summary.dropped
    assert requests > 150
    for at in range(0, requests, 5):
        again, found, _ = run(at)
        assert found == unbroken, at
        assert (again.documents, again.tokens, again.shards) == (summary.documents, summary.tokens, summary.shards)


def test_two_runs_side_by_side_in_a_bucket_make_the_same_folder(corpus, tok, wanted):
    loaded = load_tokenizer(tok)
    for number in range(5):
        url = f"memory://side-by-side/{number}"
        with ThreadPoolExecutor(2) as both:
            runs = [both.submit(prepare, corpus, loaded, out=url, threads=2, **OPTIONS) for _ in range(2)]
        assert runs[0].result().tokens == runs[1].result().tokens
        prepare(corpus, loaded, out=url, **OPTIONS)  # deletes what the slower of the two may have left
        assert {**stored(url), "plan.json": b""} == {**wanted, "plan.json": b""}


# What is lost on the way


class Steered:
    """The Ray executor, with something around the function in the worker."""

    name = "ray"

    def __init__(self, around, on_tick=None):
        self._around, self._on_tick = around, on_tick

    def map(self, function, tasks, on_tick=None):
        def tick(running):
            if self._on_tick is not None:
                self._on_tick()
            if on_tick is not None:
                on_tick(running)

        return open_executor("ray").map(partial(self._around, function), tasks, tick)


def die_before_changes(function, task, *, at, marks):
    """Run `function`; the worker is killed before each change on disk of this task that `at` has, once for each."""
    kind = function.func.__name__
    index = task.index if isinstance(task, Task) else task if isinstance(task, int) else task[0]  # of a range of hashes
    changes = count()

    def counted(real, *args, **more):
        number = next(changes)
        mark = marks / f"{kind}-{index}-{number}"
        if (kind, index, number) in at and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)

    patches = [mock.patch.object(os, each, partial(counted, getattr(os, each))) for each in ("fsync", "replace")]
    with patches[0], patches[1]:
        return function(task)


def test_killed_workers_leave_no_trace(corpus, tok, wanted, tmp_path, ray_cluster):
    marks = tmp_path / "marks"
    marks.mkdir()
    # One of each kind of moment; a new worker takes Ray seconds, so no more. `test_prepare_faults.py` has all moments.
    at = {
        ("prepare_task", 0, 4),  # between two files of a shard
        ("prepare_task", 3, 20),  # after some entries of the task
        ("prepare_task", 10, 4),  # in the packed stream, which is read from its beginning again
        ("prepare_task", 10, 20),  # and once more
        ("find_copies", 0, 0),  # before the list of copies
        ("drop_copies", 4, 4),  # between two rewritten files
    }
    steered = Steered(partial(die_before_changes, at=at, marks=marks))
    prepare(corpus, tok, out=tmp_path / "out", executor=steered, **OPTIONS)
    assert {path.name for path in marks.iterdir()} == {"-".join(map(str, moment)) for moment in at}
    assert content(tmp_path / "out") == wanted


def wait_for_go(function, task, *, marks):
    (marks / f"runs-{task}".replace("/", "_")[:100]).touch()
    open(marks / "go").close()  # a pipe: waits until the driver has opened it too
    return function(task)


def test_a_node_removed_in_the_middle_leaves_no_trace(corpus, tok, wanted, tmp_path, ray_cluster):
    node = ray_cluster.add_node(num_cpus=2)
    ray_cluster.wait_for_nodes()
    marks = tmp_path / "marks"
    marks.mkdir()
    os.mkfifo(marks / "go")
    opened = []

    def remove_when_all_run():
        if not opened and len(list(marks.glob("runs-*"))) == 4:  # two of them on the new node
            ray_cluster.remove_node(node, allow_graceful=False)
            opened.append(os.open(marks / "go", os.O_RDWR))  # from now on, no task waits

    prepare(
        corpus,
        tok,
        out=tmp_path / "out",
        executor=Steered(partial(wait_for_go, marks=marks), remove_when_all_run),
        **OPTIONS,
    )
    assert opened
    os.close(opened[0])
    assert content(tmp_path / "out") == wanted


KILLED_DRIVER = """
import os, signal, sys
from piecemill import prepare

def die(progress):
    if progress.documents > 100:
        os.kill(os.getpid(), signal.SIGKILL)

corpus, tok, out, address, options = sys.argv[1:]
prepare(corpus, tok, out=out, executor="ray", ray_address=address, on_progress=die, **eval(options))
"""


def test_a_driver_that_is_killed_and_started_again_makes_the_same_folder(corpus, tok, wanted, tmp_path, ray_cluster):
    arguments = [corpus, tok, tmp_path / "out", ray_cluster.address, OPTIONS]
    command = [sys.executable, "-c", KILLED_DRIVER, *map(str, arguments)]
    killed = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "out/stats.json").exists()
    summary = prepare(corpus, tok, out=tmp_path / "out", executor="ray", **OPTIONS)
    assert summary.resumed
    assert content(tmp_path / "out") == wanted


def test_a_second_driver_on_one_folder_is_refused_and_harms_nothing(corpus, tok, wanted, tmp_path, ray_cluster):
    refused = []

    def second():
        if not refused:
            with pytest.raises(ShardError) as raised:
                prepare(corpus, tok, out=tmp_path / "out", **OPTIONS)
            refused.append(str(raised.value))

    prepare(corpus, tok, out=tmp_path / "out", executor=Steered(run_as_it_is, second), **OPTIONS)
    assert "another" in refused[0]
    assert content(tmp_path / "out") == wanted


def run_as_it_is(function, task):
    return function(task)


def test_ctrl_c_on_ray_stops_and_the_next_run_goes_on(corpus, tok, wanted, tmp_path, ray_cluster):
    def interrupt(progress):
        if progress.documents > 100:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped, match=f"run the same command again to go on with {tmp_path / 'out'}"):
        prepare(corpus, tok, out=tmp_path / "out", executor="ray", on_progress=interrupt, **OPTIONS)
    assert not (tmp_path / "out/stats.json").exists()
    assert prepare(corpus, tok, out=tmp_path / "out", executor="ray", **OPTIONS).resumed
    assert content(tmp_path / "out") == wanted


def test_ray_and_an_object_store_make_the_same_folder(corpus, tok, wanted, tmp_path, ray_cluster, s3):
    place = s3.place()
    prepare(corpus, tok, out=place, executor="ray", **OPTIONS)
    found = {}
    for folder in ("", "entries", "tokenizer", "train", "val"):
        for name in place.sizes(folder):
            path = f"{folder}/{name}" if folder else name
            found[path] = place.read(path)
    for name in OUTSIDE:
        found.pop(name, None)
    assert found == wanted


def test_an_error_of_a_task_comes_as_it_is(corpus, tok, tmp_path, ray_cluster):
    (tmp_path / "bad.jsonl").write_text('{"text": "good"}\n{bad\n')
    with pytest.raises(SourceError, match=r"bad\.jsonl:2: broken JSON"):
        prepare([corpus, tmp_path / "bad.jsonl"], tok, out=tmp_path / "out", executor="ray", **OPTIONS)


def test_the_command_on_ray_takes_paths_from_where_it_was_started(tok, tmp_path, ray_cluster):
    write_jsonl(tmp_path / "corpus/a.jsonl", texts(20))
    command = ["prepare", "corpus", "--tokenizer", tok, "--out"]
    ray = piecemill(*command, "ray", "--executor", "ray", "--ray-address", ray_cluster.address, cwd=tmp_path)
    assert ray.returncode == 0, ray.stderr
    assert piecemill(*command, "local", cwd=tmp_path).returncode == 0
    assert content(tmp_path / "ray") == content(tmp_path / "local")


def test_a_source_in_memory_stays_on_this_machine(tok, tmp_path):
    with pytest.raises(PlanError, match="memory"):
        prepare(["some text"], tok, out=tmp_path / "out", executor="ray")
