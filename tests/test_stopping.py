"""Ctrl-C ends a run at any moment, soon and in one line, and leaves nothing half-written behind.

The promise is a second. Tests count the time on a core after the signal, which other processes do not change; it is
shown with `pytest -s`. A run sends itself the signal, at a line of progress or at a mark on disk, so the moment depends
on no clock.
"""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command import environment, interrupted
from piecemill.machine import cores

SLACK = 2.0 * cores()
SLOW_REGEX = r"(?=\w)\w+?(?!\w)|(?!\w)."  # lookarounds: the slow way through fancy-regex


@pytest.fixture
def place(tmp_path):
    """Where a run works: its own TMPDIR and current folder, so that whatever it leaves can be seen."""
    for name in ("cwd", "tmp", "out"):
        (tmp_path / name).mkdir()
    return tmp_path


def spent(process):
    """Seconds on a core of a process that runs."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def spent_by_ended():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def train(place, line, *arguments, **more):
    """The exit code of a run that is stopped at a line of progress, as `interrupted` says, and its stderr."""
    return interrupted(line, "train", *arguments, cwd=place / "cwd", TMPDIR=str(place / "tmp"), **more)


def stopped(place, line, *arguments, **more):
    """The exit code; the run must end soon after the signal and say so in one line, with no traceback."""
    before = spent_by_ended()
    code, stderr = train(place, line, *arguments, **more)
    seconds = spent_by_ended() - before - float(re.search(r"^(\S+) s on a core before", stderr, re.M)[1])
    print(f"{seconds:.2f} s on a core after the signal, exit code {code}")
    assert seconds < SLACK
    assert "Traceback" not in stderr
    assert stderr.splitlines()[-1] == "piecemill: stopped; nothing is left half-written"
    return code


def left(place):
    return sorted(str(path.relative_to(place)) for name in ("cwd", "tmp", "out") for path in (place / name).rglob("*"))


def text(megabytes):
    return b"a word, another w0rd; words of 17 kinds\n" * (megabytes * 25_000)


def hex_text(megabytes):
    """Text with something to merge to the end."""
    return os.urandom(megabytes * 500_000).hex().encode()


def interrupted_at_each_mark(place, arguments, before=None):
    """[exit code, stderr, what is in out/] of runs that were interrupted at their first, second, ... mark on disk."""
    spec = {"out": str(place / "out"), "says": str(place / "says"), "arguments": arguments, "before": before}
    (place / "spec.json").write_text(json.dumps({**spec, "arguments": [str(word) for word in arguments]}, default=str))
    script = Path(__file__).with_name("interrupter.py")
    done = subprocess.run(
        [sys.executable, script, place / "spec.json"],
        cwd=place / "cwd",
        env=environment(TMPDIR=str(place / "tmp")),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)
    for code, says, _ in runs:
        assert code in (0, 130)
        assert says == ("" if code == 0 else "piecemill: stopped; nothing is left half-written\n")
    assert (os.listdir(place / "cwd"), os.listdir(place / "tmp")) == ([], [])
    assert runs[-1][0] == 0  # beyond its last mark a run is done
    assert [code for code, *_ in runs].count(130) >= 10
    return runs


def test_at_any_moment_it_is_stopped_with_nothing_or_done_with_everything(place):
    (place / "corpus.txt").write_bytes(hex_text(1)[:50_000])
    arguments = ["train", place / "corpus.txt", "--pretokenizer", "[0-9a-f]{1,40}", "--vocab-size", 400, "--quiet"]
    arguments += ["--out", place / "out/tok", "--save-counts", place / "out/counts.parquet"]
    runs = interrupted_at_each_mark(place, arguments)
    complete = runs[-1][2]
    assert complete[:2] == ["counts.parquet", "tok"]
    for code, _, there in runs:
        # Counts are whole before merging begins.
        assert there == complete if code == 0 else there in ([], complete[:1], complete)
    assert runs[0][2] == []
    assert complete[:1] in [there for *_, there in runs]


def test_while_replacing_a_tokenizer(place):
    (place / "corpus.txt").write_bytes(hex_text(1)[:50_000])
    arguments = ["train", place / "corpus.txt", "--pretokenizer", "none", "--out", place / "out/tok", "--quiet"]
    before = [str(word) for word in (*arguments, "--vocab-size", 300)]
    runs = interrupted_at_each_mark(place, [*arguments, "--vocab-size", 400, "--force"], before)
    for _, _, there in runs:
        assert there == runs[-1][2]  # the old one or the new one, and nothing beside it


@pytest.mark.parametrize("replaces", [False, True])
def test_while_the_parts_of_a_split_are_written(place, replaces):
    (place / "h.csv").write_text("".join(f"u{n % 9},i{n % 5},{n}\n" for n in range(90)))
    arguments = ["actions", "split", place / "h.csv", "--header", "user,item,time", "--out", place / "out/parts"]
    before = [str(word) for word in (*arguments, "--max-history", 4)]
    runs = interrupted_at_each_mark(place, [*arguments, "--force"], before if replaces else None)
    complete = runs[-1][2]
    assert len(complete) == 5
    for _, _, there in runs:
        assert there == complete if replaces else there in ([], ["parts"], complete)


LOSE_AN_INTERRUPT = """
import sys, time, weakref
import piecemill.cli
from piecemill.__main__ import main

class Thing:
    pass

def interrupted(_):
    raise KeyboardInterrupt(*map(int, sys.argv[1:]))

def run():
    thing = Thing()
    reference = weakref.ref(thing, interrupted)
    del thing  # calls `interrupted`, where an exception goes nowhere
    time.sleep(600)

piecemill.cli.run = run
main()
"""


@pytest.mark.parametrize(("arguments", "code"), [((), 130), (("15",), 143)])
def test_an_interrupt_that_python_would_lose_comes_again(arguments, code):
    command = [sys.executable, "-c", LOSE_AN_INTERRUPT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (code, "piecemill: stopped; nothing is left half-written\n")


def test_while_counting_many_files(place):
    (place / "corpus").mkdir()
    (place / "corpus/0.txt").write_bytes(text(4))
    for number in range(1, 60):
        os.link(place / "corpus/0.txt", place / f"corpus/{number}.txt")
    arguments = (place / "corpus", "--pretokenizer", SLOW_REGEX, "--out", place / "out/tok")
    assert stopped(place, "count +[1-9]", *arguments) == 130
    assert left(place) == []


def test_while_counting_one_huge_document(place):
    (place / "huge.txt").write_bytes(text(60))
    arguments = (place / "huge.txt", "--pretokenizer", SLOW_REGEX, "--out", place / "out/tok")
    assert stopped(place, "count +0 documents", *arguments, times=3) == 130  # nothing is done of it before all is
    assert left(place) == []


@pytest.mark.parametrize("line", ["read", "merge +[1-9]"])
def test_while_merging_whole_documents(place, line):
    (place / "flat.txt").write_bytes(hex_text(10))
    arguments = ("--pretokenizer", "none", "--vocab-size", 5_000_000, "--out", place / "out/tok")
    assert stopped(place, line, place / "flat.txt", *arguments) == 130
    assert left(place) == []


def test_counts_that_went_over_disk_leave_nothing(place):
    (place / "flat.txt").write_bytes(b"\n".join(hex_text(1) for _ in range(60)))
    arguments = ("--pretokenizer", ".{9}", "--memory", "64MiB", "--separator", "\n", "--out", place / "out/tok")
    # Four times as much as there is memory for. Nothing can be tidied up then, and nothing needs to be.
    line = r"count .* [2-9]\d\.\d MB read"
    code, stderr = train(place, line, place / "flat.txt", *arguments, number=signal.SIGKILL)
    assert code == -signal.SIGKILL, stderr
    assert left(place) == []


def test_sigterm_stops_as_ctrl_c_does_but_is_told_apart(place):
    (place / "flat.txt").write_bytes(hex_text(10))
    arguments = ("--pretokenizer", "none", "--vocab-size", 5_000_000, "--out", place / "out/tok")
    assert stopped(place, "merge", place / "flat.txt", *arguments, number=signal.SIGTERM) == 128 + signal.SIGTERM
    assert left(place) == []


SLOW_ITERATOR = """
import sys, time
import piecemill

def documents():
    yield "a document"
    print("reading", flush=True)
    time.sleep(600)

try:
    piecemill.train_bpe(documents(), vocab_size=300)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_while_python_waits_for_a_slow_iterator():
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_ITERATOR],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as running:
        assert running.stdout.readline() == b"reading\n"
        before = spent(running) + spent_by_ended()
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=300) == 130
    assert spent_by_ended() - before < SLACK
