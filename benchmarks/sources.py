"""How fast sources are read by one thread: `python benchmarks/sources.py PATH...`.

Every run reads everything; all runs are printed, in wall time and in processor time. The second is the one to
compare on a machine that others use too.
"""

import platform
import sys
import time
from importlib.metadata import version

import numpy as np

from piecemill import _core
from piecemill.sources import open_source

RUNS = 7


def main(paths: list[str]) -> None:
    made_with = f"piecemill {version('piecemill')}, numpy {np.__version__}, Python {platform.python_version()}"
    print(f"{made_with}, {platform.platform()}")
    for path in paths:
        wall, busy, results = [], [], set()
        for _ in range(RUNS):
            started = time.perf_counter(), time.process_time()
            source = open_source(path)
            blocks = documents = text_bytes = 0
            for block in source.blocks():
                blocks, documents, text_bytes = blocks + 1, documents + len(block), text_bytes + block.nbytes
            wall.append(time.perf_counter() - started[0])
            busy.append(time.process_time() - started[1])
            results.add((blocks, documents, text_bytes, source.total_bytes))
        if len(results) != 1:
            raise SystemExit(f"{path}: runs differ: {results}; no time is reported")
        digest = 0
        for block in open_source(path).blocks():
            digest ^= int(np.bitwise_xor.reduce(_core.hash_documents(block.data, block.ends)[:, 0]))
        blocks, documents, text_bytes, _ = results.pop()
        print(f"{path}: {documents:,} documents, {text_bytes:,} bytes of text, {blocks} blocks, hash {digest:016x}")
        for name, seconds in (("wall", wall), ("processor", busy)):
            runs = " ".join(f"{one:.3f}" for one in seconds)
            print(f"  {name:9} median {text_bytes / np.median(seconds) / 1e6:6.0f} MB/s of text   seconds: {runs}")


if __name__ == "__main__":
    main(sys.argv[1:])
