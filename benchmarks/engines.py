"""How gigatoken behaves inside a pipeline: per block size, cold and warm, with one thread and with two.

    python benchmarks/engines.py TOKENIZER FOLDER [FOLDER ...]

Processor time leads, as the machine is rarely quiet: it is that of the calling thread, or of the process where a
thread pool works. Prints one JSON line per measurement; nothing is timed inside tests.
"""

import json
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from piecemill.tokenizers import Tokenizer, load_tokenizer

MIB = 1 << 20
RUNS = 5
Block = tuple[np.ndarray, np.ndarray]


def blocks(folders: list[str], size: int) -> Iterator[Block]:
    """Python files one after another, in blocks of about `size` bytes."""
    texts: list[bytes] = []
    held = 0
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            text = path.read_bytes()
            try:
                text.decode()
            except UnicodeDecodeError:
                continue
            texts.append(text)
            held += len(text)
            if held >= size:
                yield flat(texts)
                texts, held = [], 0


def flat(texts: list[bytes]) -> Block:
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([len(text) for text in texts], dtype=np.int64)


def memory(field: str) -> int:
    """Bytes this process holds now (VmRSS), or held at most since the last `forget_peak` (VmHWM). Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def forget_peak() -> int:
    """Count peaks from now on; what is held now."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def said(**record: object) -> None:
    print(json.dumps(record), flush=True)


def timed(call: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start


def one_thread(load: Callable[[], Tokenizer], folders: list[str]) -> None:
    for size in (MIB // 4, MIB, 4 * MIB, 16 * MIB):
        data, ends = next(blocks(folders, size))
        for parallel in (False, True):
            clock = time.process_time if parallel else time.thread_time
            tok = load()
            tok.encode("load it")
            before = forget_peak()

            def call(tok=tok, data=data, ends=ends, parallel=parallel) -> object:
                return tok.encode_flat(data, ends, parallel=parallel)

            cold = timed(call, clock)
            held = memory("VmHWM") - before
            warm = [timed(call, clock) for _ in range(RUNS)]
            wall = [timed(call, time.perf_counter) for _ in range(RUNS)]
            said(
                what="block",
                bytes=len(data),
                documents=len(ends),
                parallel=parallel,
                cold_cpu=round(cold, 4),
                warm_cpu=[round(s, 4) for s in warm],
                warm_mb_per_cpu_second=round(len(data) / statistics.median(warm) / 1e6),
                warm_wall=[round(s, 4) for s in wall],
                peak_grew_bytes=held,
            )


def fresh_text(load: Callable[[], Tokenizer], folders: list[str], size: int = 8 * MIB, count: int = 6) -> None:
    """The caches as a run sees them: every block is new text."""
    tok = load()
    tok.encode("load it")
    for i, (data, ends) in enumerate(blocks(folders, size)):
        if i == count:
            break
        cpu = timed(lambda data=data, ends=ends: tok.encode_flat(data, ends, parallel=False), time.thread_time)
        said(
            what="fresh text",
            block=i,
            bytes=len(data),
            mb_per_cpu_second=round(len(data) / cpu / 1e6),
            held=memory("VmRSS"),
        )


def two_threads(load: Callable[[], Tokenizer], folders: list[str], size: int = 8 * MIB) -> None:
    some = blocks(folders, size)
    pair = [next(some), next(some)]
    one, other = load(), load()
    for tok in (one, other):
        for data, ends in pair:
            tok.encode_flat(data, ends, parallel=False)
    for name, tokenizers in (("in turn", None), ("one tokenizer", (one, one)), ("a tokenizer each", (one, other))):
        walls, waits, cpus = [], [], []
        for _ in range(RUNS):
            waited: list[int] = []
            threads = [
                threading.Thread(target=_encode, args=(tok, block, waited))
                for tok, block in zip(tokenizers or (one, one), pair, strict=True)
            ]
            wall, cpu = time.perf_counter(), time.process_time()
            for thread in threads:
                thread.start()
                if tokenizers is None:
                    thread.join()
            for thread in threads:
                thread.join()
            walls.append(round(time.perf_counter() - wall, 3))
            cpus.append(round(time.process_time() - cpu, 3))
            waits.append(sum(waited))
        said(what="two threads", how=name, wall=walls, median=statistics.median(walls), cpu=cpus, waits=waits)


def _encode(tok: Tokenizer, block: Block, waited: list[int]) -> None:
    # How often a thread gave the processor up by itself: for a lock, not because others wanted it.
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    for _ in range(4):
        tok.encode_flat(*block, parallel=False)
    waited.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)


def longest_stop(load: Callable[[], Tokenizer], folders: list[str], size: int = 16 * MIB) -> None:
    """How long another Python thread stands still while a block is encoded: long if the GIL is held."""
    tok = load()
    data, ends = next(blocks(folders, size))
    tok.encode("load it")
    for parallel in (False, True):
        gaps: list[float] = []
        done = threading.Event()

        def tick(gaps: list[float] = gaps, done: threading.Event = done) -> None:
            last = time.perf_counter()
            while not done.is_set():
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
                time.sleep(0)

        thread = threading.Thread(target=tick)
        thread.start()
        start, cpu = time.perf_counter(), time.thread_time()
        tok.encode_flat(data, ends, parallel=parallel)
        wall, cpu = time.perf_counter() - start, time.thread_time() - cpu
        done.set()
        thread.join()
        said(what="longest stop", parallel=parallel, seconds=max(gaps), of_wall=wall, cpu=cpu, ticks=len(gaps))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    name, folders = sys.argv[1], sys.argv[2:]

    def load() -> Tokenizer:
        return load_tokenizer(name, engine="gigatoken")

    engine = load().engine
    said(what="start", tokenizer=name, engine=engine.name, version=engine.version, folders=folders)
    longest_stop(load, folders)
    two_threads(load, folders)
    one_thread(load, folders)
    fresh_text(load, folders)
