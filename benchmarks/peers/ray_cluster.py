"""A Ray cluster on this machine: prints its address, and ends when its input is closed.

    python peers/ray_cluster.py NODES CORES

One node has all cores; of several each has one, even where they are more than the cores, which they then share. With
RAY_enable_worker_prestart=1, an option of Ray, a worker process for each core belongs to the start of the cluster, and
its address is printed when they are there.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from ray.cluster_utils import Cluster

PRESTART = "RAY_enable_worker_prestart"


def idle_workers() -> int:
    """Worker processes of all Ray clusters on this machine that wait for a task."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found += path.read_bytes().startswith(b"ray::IDLE")
    return found


if __name__ == "__main__":
    nodes, cores = map(int, sys.argv[1:])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    # 100 MB of object store: only numbers travel.
    node = {"num_cpus": cores if nodes == 1 else 1, "object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(1, nodes):
        cluster.add_node(**node)
    while os.environ.get(PRESTART) == "1" and idle_workers() < max(nodes, cores):
        time.sleep(0.1)
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()
