"""Cores and memory of this process."""

import os
import subprocess
import sys

import numpy as np

from piecemill.machine import cores, memory_now, memory_peak, tree_memory

MIB = 2**20


def test_cores_are_those_this_process_may_use():
    assert cores() == len(os.sched_getaffinity(0))


def test_memory_grows_with_what_is_held_and_the_peak_stays():
    before = memory_now()
    held = np.ones(100 * MIB, np.uint8)
    assert memory_now() >= before + 90 * MIB
    del held
    assert memory_peak() >= before + 90 * MIB


def test_the_memory_of_the_tree_has_that_of_children():
    hold = "import sys; held = b'x' * (100 << 20); print('ready', flush=True); sys.stdin.read()"
    before = tree_memory()
    assert before >= memory_now() // 2
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        assert tree_memory() >= before + 90 * MIB
        child.stdin.close()
