"""Documents as Megatron-LM's indexed dataset: NAME.bin and NAME.idx.

The `.bin` file is every token one after another, which is what our shards hold, so it is copied, not encoded. The
`.idx` file, all little-endian: `MMIDIDX\\0\\0`, version (u64, 1), type code (u8), how many sequences (u64) and document
indices (u64), then the length of each sequence (i32), where it begins in the `.bin` in bytes (i64), and the sequence
with which each document begins, with one more for the end (i64). One of our documents is one sequence.
"""

import struct
from pathlib import Path
from typing import IO

import numpy as np

from piecemill.errors import ShardError
from piecemill.files import new_file
from piecemill.shards.format import HEADER_BYTES
from piecemill.shards.reader import Shards

_CHUNK = 1 << 22
# Megatron has no uint32, but ids are far below 2**31, where int32 has the same bytes.
_TYPE_CODES = {np.dtype("<u2"): 8, np.dtype("<u4"): 4}


def write(index: Path, shards: Shards) -> None:
    """Write a split as `index` and the `.bin` beside it. The index gets its name last: where it is, both are whole."""
    data = index.with_suffix(".bin")
    with new_file(data) as file:
        for entry in shards.entries:
            with open(shards.path(entry, "tokens"), "rb") as source:
                source.seek(HEADER_BYTES["tokens"])
                while chunk := source.read(_CHUNK):
                    file.write(chunk)
        if file.tell() != shards.tokens * shards.dtype.itemsize:
            raise ShardError(
                f"{data}: {file.tell():,} bytes for {shards.tokens:,} tokens of {shards.dtype}. The shards are not "
                f"what the manifest says: run `piecemill check {shards.folder}`."
            )
    with new_file(index) as file:
        _write_index(file, shards)


def _write_index(file: IO[bytes], shards: Shards) -> None:
    """Stream the index, one pass over the ends for each column, so that memory does not grow with the split."""
    count = len(shards)
    file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, _TYPE_CODES[shards.dtype], count, count + 1))
    for number in range(len(shards.entries)):
        lengths = np.diff(shards.checked_ends(number), prepend=0)
        if len(lengths) and int(lengths.max()) >= 1 << 31:
            raise ShardError(
                f"{shards.folder / shards.split}, shard {number}: a document of {int(lengths.max()):,} tokens; "
                "Megatron takes fewer than 2**31. Export to parquet or jsonl with a window instead."
            )
        file.write(lengths.astype("<i4").tobytes())
    for number, entry in enumerate(shards.entries):
        ends = np.asarray(shards.shard(number).ends)
        starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1] + int(shards.token_ends[number]) - entry.tokens
        file.write((starts * shards.dtype.itemsize).astype("<i8").tobytes())
    for first in range(0, count + 1, _CHUNK):
        file.write(np.arange(first, min(first + _CHUNK, count + 1), dtype="<i8").tobytes())
