"""Measuring a command, and keeping what was measured: shared by every benchmark.

A measurement is one process from its start to its end: wall time, CPU time and peak memory. A record is every
measurement of one tool on one input, with the machine, the versions and the hash of the input; records are
only ever appended.

Nothing here knows what is being compared. Start with `measure` and `append`.
"""

import contextlib
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
    outcome: str
    "ok, over time, over memory, or failed"
    message: str = ""
    "The last lines it wrote, when it failed."


def measure(
    command: Sequence[str], *, threads: int, log: Path, time_limit: float = 600, memory_limit: int | None = None
) -> Run:
    """Run `command` on `threads` cores and say what it took. Stopped past `time_limit` seconds or `memory_limit` bytes.

    CPU time and peak memory are what the kernel charged to the process and the children it waited for (wait4),
    so nothing is missed between samples and nothing is sampled while it works. Peak memory is that of the
    largest process, not a sum; every tool here is one process.
    """
    cores = len(os.sched_getaffinity(0))
    if threads > cores:
        raise SystemExit(f"{threads} threads were asked for, this machine gives {cores} cores")
    memory_limit = memory_limit or total_memory() * 8 // 10
    # A child inherits the peak memory of the process that starts it, and cannot read lower. So a small process
    # (16 MB) starts it, and not this one, which may have held a corpus.
    asked = json.dumps([list(command), threads, str(log), time_limit, memory_limit])
    done = subprocess.run([sys.executable, "-I", __file__, asked], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return Run(**json.loads(done.stdout))


def _measure_here(command: list[str], threads: int, log: str, time_limit: float, memory_limit: int) -> Run:
    environment = os.environ | {
        "RAYON_NUM_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
    }
    # One core for one thread, for everybody: some tools have no option for it, or start helpers beside it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        start = time.perf_counter()
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise SystemExit(f"{command[0]}: not there; `make build` installs it") from None
        watch = _Watch(process.pid, start + time_limit, memory_limit)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            seconds = time.perf_counter() - start
            watch.stop()
    process.returncode = os.waitstatus_to_exitcode(status)
    outcome = watch.stopped_for or ("ok" if process.returncode == 0 else "failed")
    message = "" if outcome == "ok" else Path(log).read_text(errors="replace")[-500:]
    if outcome == "failed":
        message = f"exit status {process.returncode}: {message}"
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Run(round(seconds, 4), round(cpu_seconds, 4), usage.ru_maxrss * 1024, outcome, message.strip())


class _Watch:
    """Ends a process group that goes over its limits; it looks four times a second."""

    def __init__(self, pid: int, deadline: float, memory_limit: int) -> None:
        self.stopped_for = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(pid, deadline, memory_limit), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self, pid: int, deadline: float, memory_limit: int) -> None:
        page = resource.getpagesize()
        while not self._ended.wait(0.25):
            try:
                resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
            except (OSError, IndexError):
                continue  # ending: wait4 is about to return
            if time.perf_counter() > deadline or resident > memory_limit:
                self.stopped_for = "over memory" if resident > memory_limit else "over time"
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
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = models[0] if models else processor
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(total_memory() / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def record(runs: Sequence[Run], **facts: object) -> dict:
    """One line for the results file: the facts, then every run, the slow ones too."""
    return {**facts, "runs": [asdict(run) for run in runs]}


def append(path: Path, line: dict) -> None:
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line, ensure_ascii=False) + "\n")


def read(path: Path) -> list[dict]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


if __name__ == "__main__":
    print(json.dumps(asdict(_measure_here(*json.loads(sys.argv[1])))))
