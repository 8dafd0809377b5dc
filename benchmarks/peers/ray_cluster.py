"""A Ray cluster on this machine: prints its address, and ends when its input is closed.

    python peers/ray_cluster.py NODES CORES

One node has all cores; of several each has one, even where they are more than the cores, which they then share.
"""

import os
import sys

from ray.cluster_utils import Cluster

SMALL = 100_000_000  # bytes of the object store of a node: only numbers travel


def main(nodes: int, cores: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    node = {"num_cpus": cores if nodes == 1 else 1, "object_store_memory": SMALL}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(1, nodes):
        cluster.add_node(**node)
    print(cluster.address, flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
