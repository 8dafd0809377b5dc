"""The machine and this process: cores and memory.

Memory is read from `/proc`, which Linux has. Elsewhere it is the peak that the system reports, which is never less.
"""

import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def using_cores() -> Iterator[None]:
    """Counts the body as one of the users that share the cores of this process."""
    global _users
    with _counting:
        _users += 1
    try:
        yield
    finally:
        with _counting:
            _users -= 1


def core_share(cores: int) -> int:
    """How many of `cores` each one inside `using_cores` has now, at least 1: the last one left has all."""
    return max(1, cores // max(1, _users))


_users = 0
_counting = threading.Lock()


def memory_now() -> int:
    """Bytes of memory this process holds now."""
    return _status("VmRSS") or _largest()


def memory_peak() -> int:
    """The most bytes of memory this process has held so far."""
    return _status("VmHWM") or _largest()


def _status(key: str) -> int:
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith(key)), 0)
    except OSError:
        return 0


def _largest() -> int:
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
