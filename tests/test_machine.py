"""Cores and memory of this process."""

import os
import subprocess
import sys

from piecemill.machine import cores


def test_cores_are_those_this_process_may_use():
    assert cores() == len(os.sched_getaffinity(0))


def test_memory_grows_with_what_is_held_and_the_peak_stays():
    # In a process of its own: in this one, memory that earlier tests have freed may be used again.
    code = (
        "import numpy as np\n"
        "from piecemill.machine import memory_now, memory_peak\n"
        "before = memory_now()\n"
        "held = np.ones(100 << 20, np.uint8)\n"
        "assert memory_now() >= before + (90 << 20)\n"
        "del held\n"
        "assert memory_peak() >= before + (90 << 20)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


HIDDEN = """
import builtins, io, os, sys

real, isdir = io.open, os.path.isdir

def hidden(file, *args, **more):
    if str(file).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return real(file, *args, **more)

builtins.open = io.open = hidden
os.path.isdir = lambda path: not str(path).startswith("/proc") and isdir(path)
del os.sched_getaffinity, os.posix_fallocate

import piecemill
from piecemill.machine import cores, memory_now, memory_peak
from piecemill.tokenizers import Tokenizer

assert cores() == os.cpu_count(), cores()
held = b"x" * (100 << 20)
assert 100 << 20 <= memory_peak() < 1 << 40, memory_peak()
assert memory_now() > 0
tokenizer = Tokenizer.from_merges([], pretokenizer="gpt2", special_tokens=["<|endoftext|>"])
assert piecemill.prepare(["one two", "three"], tokenizer, out=sys.argv[1]).documents == 2
assert piecemill.train_bpe(["low lower lowest"] * 10, vocab_size=262).vocab_size == 262
"""


def test_without_proc_and_affinity_as_on_macos_everything_works(tmp_path):
    done = subprocess.run([sys.executable, "-c", HIDDEN, tmp_path / "out"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
