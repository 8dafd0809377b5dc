"""Ctrl-C ends a run at any moment, soon and in one line, and leaves nothing half-written behind.

The promise is a second. Tests allow `SLACK`, for machines where they share a core; seconds are shown with `pytest -s`.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

from command import PIECEMILL, start

SLACK = 2.0
SLOW_SPLIT = r"(?=\w)\w+?(?!\w)|(?!\w)."  # lookarounds: the slow way through fancy-regex


@pytest.fixture
def place(tmp_path):
    """Where a run works: its own TMPDIR and current folder, so that whatever it leaves can be seen."""
    for name in ("cwd", "tmp", "out"):
        (tmp_path / name).mkdir()
    return tmp_path


def train(place, *arguments):
    return start(PIECEMILL, "train", *arguments, cwd=place / "cwd", TMPDIR=str(place / "tmp"))


def wait_for(condition, running):
    until = time.monotonic() + 60
    while not condition():
        assert running.poll() is None, running.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.002)


def listening(running):
    """Whether the command has come as far as its own first line: from there on it answers for itself."""
    with open(f"/proc/{running.pid}/status") as status:
        caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def first_line(running, stage):
    """Waits for a line of `stage`."""
    for line in running.stderr:
        if line.startswith(stage):
            return
    raise AssertionError(f"no line of {stage}")


def stop(running, number=signal.SIGINT):
    """Sends the signal and gives the exit code; the run must end in time and say so in one line, with no traceback."""
    running.send_signal(number)
    started = time.monotonic()
    _, stderr = running.communicate(timeout=30)
    seconds = time.monotonic() - started
    print(f"{seconds:.2f} s after signal {number}, exit code {running.returncode}")
    assert seconds < SLACK
    assert "Traceback" not in stderr
    if running.returncode:
        assert stderr.splitlines()[-1] == "piecemill: stopped; nothing is left half-written"
    return running.returncode


def left(place):
    return sorted(str(path.relative_to(place)) for name in ("cwd", "tmp", "out") for path in (place / name).rglob("*"))


def text(megabytes):
    return b"a word, another w0rd; words of 17 kinds\n" * (megabytes * 25_000)


def hex_text(megabytes):
    """Text with something to merge to the end."""
    return os.urandom(megabytes * 500_000).hex().encode()


def test_at_any_moment_it_is_stopped_with_nothing_or_done_with_everything(place):
    (place / "corpus.txt").write_bytes(hex_text(2))
    arguments = [place / "corpus.txt", "--split", r"\w{1,40}", "--vocab-size", 20_000, "--out", place / "out/tok"]
    arguments += ["--save-counts", place / "out/counts.parquet", "--quiet"]
    running = train(place, *arguments)
    wait_for(lambda: listening(running), running)
    started = time.monotonic()
    running.communicate()
    assert running.returncode == 0
    whole = time.monotonic() - started
    tokenizer = sorted(f"out/tok/{name}" for name in os.listdir(place / "out/tok"))
    complete = ["out/counts.parquet", "out/tok", *tokenizer]
    codes = []
    for moment in range(16):
        for path in sorted((place / "out").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        running = train(place, *arguments)
        wait_for(lambda running=running: listening(running), running)
        time.sleep(whole * moment / 15)
        codes.append(stop(running))
        if codes[-1] == 0:
            assert left(place) == complete
        else:
            assert codes[-1] == 130
            assert left(place) in ([], complete[:1], complete)  # counts are whole before merging begins
    assert codes[:8] == [130] * 8


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
    time.sleep(60)

piecemill.cli.run = run
main()
"""


@pytest.mark.parametrize(("arguments", "code"), [((), 130), (("15",), 143)])
def test_an_interrupt_that_python_would_lose_comes_again(arguments, code):
    command = [sys.executable, "-c", LOSE_AN_INTERRUPT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (code, "piecemill: stopped; nothing is left half-written\n")


def test_while_counting_many_files(place):
    (place / "corpus").mkdir()
    (place / "corpus/0.txt").write_bytes(text(4))
    for number in range(1, 60):
        os.link(place / "corpus/0.txt", place / f"corpus/{number}.txt")
    running = train(place, place / "corpus", "--split", SLOW_SPLIT, "--out", place / "out/tok")
    first_line(running, "count")
    assert stop(running) == 130
    assert left(place) == []


def test_while_counting_one_huge_document(place):
    (place / "huge.txt").write_bytes(text(200))
    running = train(place, place / "huge.txt", "--split", SLOW_SPLIT, "--out", place / "out/tok")
    first_line(running, "count")
    assert stop(running) == 130
    assert left(place) == []


@pytest.mark.parametrize("delay", [0.0, 0.3, 1.5])
def test_while_merging_whole_documents(place, delay):
    (place / "flat.txt").write_bytes(hex_text(30))
    arguments = ("--split", "none", "--vocab-size", 5_000_000, "--out", place / "out/tok")
    running = train(place, place / "flat.txt", *arguments)
    first_line(running, "read")  # said when merging begins
    time.sleep(delay)
    assert stop(running) == 130
    assert left(place) == []


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("force", [False, True])
def test_while_saving(place, delay, force):
    (place / "flat.txt").write_bytes(hex_text(1))
    arguments = [place / "flat.txt", "--split", "none", "--out", place / "out/tok", "--quiet"]
    if force:
        first = train(place, *arguments, "--vocab-size", 300)
        first.communicate()
        assert first.returncode == 0
    before = left(place)
    running = train(place, *arguments, "--vocab-size", 100_000, "--force")
    wait_for(lambda: any(name.startswith(".tok") for name in os.listdir(place / "out")), running)
    time.sleep(delay)
    code = stop(running)
    after = left(place)
    assert not any("/." in name for name in after)
    assert after == before or len(after) == 5
    assert code in (0, 130)


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2])
def test_while_saving_counts(place, delay):
    (place / "flat.txt").write_bytes(hex_text(8))
    running = train(place, place / "flat.txt", "--split", ".{9}", "--save-counts", place / "out/c.parquet", "--quiet")
    wait_for(lambda: os.listdir(place / "out"), running)
    time.sleep(delay)
    assert stop(running) in (0, 130)
    assert left(place) in ([], ["out/c.parquet"])


def test_counts_that_went_over_disk_leave_nothing(place):
    (place / "flat.txt").write_bytes(b"\n".join(hex_text(1) for _ in range(100)))
    arguments = ("--split", ".{9}", "--memory", "64MiB", "--separator", "\n", "--out", place / "out/tok")
    running = train(place, place / "flat.txt", *arguments)
    first_line(running, "count")
    assert left(place) == []
    running.kill()  # nothing can be tidied up, and nothing needs to be
    running.communicate()
    assert left(place) == []


def test_sigterm_stops_as_ctrl_c_does_but_is_told_apart(place):
    (place / "flat.txt").write_bytes(hex_text(30))
    arguments = ("--split", "none", "--vocab-size", 5_000_000, "--out", place / "out/tok")
    running = train(place, place / "flat.txt", *arguments)
    first_line(running, "read")
    assert stop(running, signal.SIGTERM) == 128 + signal.SIGTERM
    assert left(place) == []


SLOW_ITERATOR = """
import sys, time
import piecemill

def documents():
    yield "a document"
    print("reading", flush=True)
    time.sleep(60)

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
        running.send_signal(signal.SIGINT)
        started = time.monotonic()
        assert running.wait(timeout=30) == 130
        seconds = time.monotonic() - started
    print(f"{seconds:.2f} s")
    assert seconds < SLACK
