"""What reading holds in memory: a few blocks, and a large document as often as docs/sources.md says."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

MIB = 2**20
SIZE = 96 * MIB
# A few blocks of 8 MiB, and what allocators keep.
BLOCKS = 72 * MIB

READ = """
import sys, numpy
import pyarrow, pyarrow.compute, pyarrow.ipc, pyarrow.parquet
from piecemill.machine import memory_now, memory_peak
from piecemill.sources import open_source, tasks
before = memory_now()
source = open_source(sys.argv[1], separator=sys.argv[2] or None, on_bad_document="skip")
documents = largest = held = 0
for task in source.tasks:
    for block in source.read(task):
        documents, largest = documents + len(block), max(largest, block.nbytes)
        if block.nbytes > 2**25:
            held = max(held, memory_now() - before)
        block = None
print(documents, largest, held, memory_peak() - before)
"""


def peaks(path: Path, separator: str = "") -> tuple[int, int, int, int]:
    """Documents, the largest block, memory while a large block was out, and at most, of a process that reads it."""
    done = subprocess.run([sys.executable, "-c", READ, path, separator], capture_output=True, text=True, check=True)
    documents, largest, held, peak = map(int, done.stdout.split())
    return documents, largest, held, peak


def large_text(line_ends: bool) -> str:
    """Text that hardly packs, so that packed pages count too."""
    letters = np.random.default_rng(0).integers(0x30, 0x7B, SIZE, np.uint8)
    letters[letters == ord("\\")] = ord("x")
    letters[::80] = 0x0A if line_ends else 0x20
    return letters.tobytes().decode()


def table() -> pa.Table:
    small = ["some text " * 20] * 2000
    return pa.table({"text": pa.array([*small, large_text(True), *small], pa.large_string()), "n": range(4001)})


def write(folder: Path, kind: str) -> Path:
    path = folder / f"large.{kind}"
    if kind.startswith("txt"):
        path.write_bytes(large_text(False).encode())
    elif kind == "zst":
        path = folder / "large.txt.zst"
        path.write_bytes(zstandard.compress(large_text(False).encode()))
    elif kind.endswith("jsonl"):
        texts = ["some text"] * 2000
        texts[1000:1000] = [large_text(kind == "escapes.jsonl")]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    elif kind == "dictionary.parquet":
        pq.write_table(table(), path)
    elif kind == "plain.parquet":
        pq.write_table(table(), path, use_dictionary=False)
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd" if kind == "zstd.arrow" else None)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table().schema, options=options) as writer:
            writer.write_table(table(), max_chunksize=100)
    return path


@pytest.mark.parametrize(
    ("kind", "separator", "held", "peak"),
    [
        ("txt", "", 1, 1),
        ("txt", "|none|", 1, 2),
        ("zst", "", 1, 1),
        ("jsonl", "", 1, 2),
        ("escapes.jsonl", "", 1, 3),
        ("plain.parquet", "", 2, 3),
        ("dictionary.parquet", "", 3, 4),
        ("arrow", "", 1, 1),
        ("zstd.arrow", "", 1, 2),
    ],
)
def test_a_large_document_is_held_as_often_as_the_docs_say(kind, separator, held, peak, tmp_path):
    documents, largest, held_bytes, peak_bytes = peaks(write(tmp_path, kind), separator)
    assert documents == {"txt": 1, "zst": 1, "jsonl": 2001, "escapes.jsonl": 2001}.get(kind, 4001)
    assert largest == SIZE
    assert held_bytes < held * SIZE + BLOCKS
    assert peak_bytes < peak * SIZE + BLOCKS


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "repeated.parquet", "sorted.parquet", "arrow", "txt"])
def test_many_small_documents_take_a_few_blocks(kind, tmp_path):
    path = tmp_path / f"a.{kind}"
    texts = [f"{n:08} " * 500 for n in range(30_000)]  # 135 MB
    if kind == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    elif kind == "txt":
        path.mkdir()
        for number in range(0, len(texts), 10):
            (path / f"{number:06}.txt").write_text("".join(texts[number : number + 10]))
    elif kind == "arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, pa.schema({"text": pa.string()})) as writer:
            writer.write_table(pa.table({"text": texts}), max_chunksize=1000)
    else:
        column = pa.array(["short"] * 270_000 + texts if kind == "sorted.parquet" else texts)
        if kind == "repeated.parquet":  # 2.7 GB, of which the file holds 1 MB
            long = pa.array([text * 20 for text in texts[:10]])
            column = pa.DictionaryArray.from_arrays(np.arange(30_000, dtype=np.int32) % 10, long)
        pq.write_table(pa.table({"text": column}), path, row_group_size=1_000_000, store_schema=False)
    documents, largest, _, peak = peaks(path)
    assert documents == {"txt": 3_000, "sorted.parquet": 300_000}.get(kind, 30_000)
    assert largest <= 8 * MIB
    assert peak < 160 * MIB
