"""Memory of the driver while a Ray cluster does many tasks: `python benchmarks/driver_memory.py 100000`.

It must not grow with their number. Prints the tasks done, the memory of this process (RSS, and the part that is its
own) and the seconds.
"""

import sys
import time

import psutil

from piecemill.executors import open_executor


def stand_in(number: int) -> dict[str, int]:
    """Returns numbers, as preparing a task does."""
    return {"documents": number, "tokens": 3 * number, "source_bytes": number}


if __name__ == "__main__":
    count, started, process = int(sys.argv[1]), time.perf_counter(), psutil.Process()
    marks = {100, *range(count // 10, count + 1, count // 10)}
    for done, _ in enumerate(open_executor("ray").map(stand_in, range(count), lambda _: None), 1):
        if done in marks:
            memory, seconds = process.memory_full_info(), time.perf_counter() - started
            print(f"{done:>9,} tasks  {memory.rss / 2**20:6.0f} MiB  {memory.uss / 2**20:6.0f} MiB  {seconds:6.1f} s")
