"""Measures a command: one process from its start to its end, with those it starts: wall time, CPU time, peak memory.

Nothing here knows what is being compared, and only the standard library is needed. Start with `measure`.
"""

import contextlib
import ctypes
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Run:
    """One process, start to end."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    outcome: str  # ok, over time, over memory, or failed
    message: str = ""  # the last lines it wrote, when it failed


def measure(
    command: Sequence[str],
    *,
    threads: int,
    log: Path,
    time_limit: float = 600,
    memory_limit: int | None = None,
    tree: bool = False,
) -> Run:
    """Run `command` on `threads` cores and say what it took. Stopped past `time_limit` seconds or `memory_limit` bytes.

    CPU time and peak memory are what the kernel charged to the process and the children it waited for (wait4): nothing
    is missed between samples, and peak memory is that of the largest process. For tools that work in several processes,
    `tree` asks for the resident memory of the process and all its descendants instead, added up and sampled 20 times a
    second: what they share counts in each of them, and it is never given as less than the largest process.
    """
    cores = len(os.sched_getaffinity(0))
    if threads > cores:
        raise SystemExit(f"{threads} threads were requested, this machine gives {cores} cores")
    # A child inherits the peak memory of the process that starts it, and cannot read lower. So a small process
    # (16 MB) starts it, and not this one, which may have held a corpus.
    asked = json.dumps([list(command), threads, str(log), time_limit, memory_limit or total_memory() * 8 // 10, tree])
    done = subprocess.run([sys.executable, "-I", __file__, asked], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return Run(**json.loads(done.stdout))


def _measure_here(command: list[str], threads: int, log: str, time_limit: float, memory_limit: int, tree: bool) -> Run:
    seen, ended = {"peak": 0, "stopped for": "", "signal": 0}, threading.Event()
    # Ended from outside, it must take the tool with it: that one is in a separate session and would go on. The handler
    # raises nothing, as it may run after the tool has begun and before its number is known here.
    signal.signal(signal.SIGTERM, lambda number, _: seen.update(signal=number))
    # Workers that outlive the process that started them become ours (PR_SET_CHILD_SUBREAPER), so all are counted.
    if tree and ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0):
        raise SystemExit(f"prctl: {os.strerror(ctypes.get_errno())}; processes left behind could not be counted")
    # As users have it: a package is compiled once, not at every start. Only one that is not installed would be.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    environment |= {"TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false"}
    # One core for one thread, for everybody: some tools have no option for it, or start helpers beside it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        start = time.perf_counter()
        try:
            process = subprocess.Popen(command, **streams, env=environment, start_new_session=True)
        except FileNotFoundError:
            raise SystemExit(f"{command[0]}: not there; `make build` installs it") from None
        limits = (start + time_limit, memory_limit, tree)
        watch = threading.Thread(target=_watch, args=(process.pid, ended, seen, *limits), daemon=True)
        watch.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            seconds = time.perf_counter() - start
            ended.set()
            watch.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    outcome = seen["stopped for"] or ("ok" if process.returncode == 0 else "failed")
    message = "" if outcome == "ok" else Path(log).read_text(errors="replace")[-500:]
    if outcome == "failed":
        message = f"exit status {process.returncode}: {message}"
    message = message.replace(f"{Path(__file__).parents[1]}{os.sep}", "")  # records name no path of a machine
    if tree:
        _end_orphans(process.pid)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    if seen["signal"]:
        raise SystemExit(128 + seen["signal"])
    peak = max(usage.ru_maxrss * 1024, seen["peak"] if tree else 0)
    return Run(round(seconds, 4), round(usage.ru_utime + usage.ru_stime, 4), peak, outcome, message.strip())


def _end_orphans(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, as they are now."""
    found = []
    with contextlib.suppress(OSError):  # it ended while we looked
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def resident_bytes(pid: int) -> int:
    """0 of a process that has ended."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def _watch(pid: int, ended: threading.Event, seen: dict, deadline: float, memory_limit: int, tree: bool) -> None:
    """Ends a process group that goes over its limits, or because this process got a signal.

    It looks four times a second, for a `tree` 20 times.
    """
    while not ended.wait(0.05 if tree else 0.25):
        # Below this process and not below `pid`: orphans of the tool are ours then.
        resident = sum(map(resident_bytes, descendants(os.getpid()) if tree else [pid]))
        seen["peak"] = max(seen["peak"], resident)
        if seen["signal"] or time.perf_counter() > deadline or resident > memory_limit:
            seen["stopped for"] = "over memory" if resident > memory_limit else "over time"
            with contextlib.suppress(ProcessLookupError):  # it ended between the look and the kill
                os.killpg(pid, signal.SIGKILL)
            return


def median_and_spread(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, lowest, highest): the spread is all of it, never the best alone."""
    return statistics.median(values), min(values), max(values)


def total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine() -> dict:
    """Where a record was made, in the few words that explain a time."""
    information = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in information.splitlines() if "model name" in line]
    return {
        "processor": models[0] if models else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(total_memory() / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


if __name__ == "__main__":
    print(json.dumps(asdict(_measure_here(*json.loads(sys.argv[1])))))
