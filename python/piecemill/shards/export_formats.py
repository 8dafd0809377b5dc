"""The files that `export` writes: rows as Parquet or JSON lines, and Megatron-LM's indexed dataset.

JSON lines have no space in them. Ids become text through a table with the digits of every id, a million at a time: the
JSON library, one row at a time, takes many times as long.

Megatron's dataset is NAME.bin and NAME.idx. The `.bin` file is every token one after another, which is what our shards
hold, so it is copied, not encoded. The `.idx` file, all little-endian: `MMIDIDX\\0\\0`, version (u64, 1), type code
(u8), how many sequences (u64) and document indices (u64), then the length of each sequence (i32), where it begins in
the `.bin` in bytes (i64), and the sequence with which each document begins, with one more for the end (i64). One of our
documents is one sequence.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from piecemill.errors import ShardError
from piecemill.files import new_file
from piecemill.shards.export import ExportRows
from piecemill.shards.format import HEADER_BYTES
from piecemill.shards.reader import Shards

# int32, not the uint16 of the shards: torch and `datasets` handle it everywhere, and Parquet stores 32 bits anyway.
_IDS = pa.list_(pa.int32())
_MASK = pa.list_(pa.int8())

_CHUNK = 1 << 22
# Megatron has no uint32, but ids are far below 2**31, where int32 has the same bytes.
_TYPE_CODES = {np.dtype("<u2"): 8, np.dtype("<u4"): 4}


def write_parquet(file: IO[bytes], batches: Iterator[ExportRows], *, padded: bool) -> int:
    """Write batches as row groups; how many rows there were."""
    columns = [
        pa.field("input_ids", _IDS),
        pa.field("document", pa.int64()),
        pa.field("start", pa.int64()),
        pa.field("length", pa.int32()),
    ]
    if padded:
        columns.append(pa.field("attention_mask", _MASK))
    schema = pa.schema(columns)
    written = 0
    with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
        for rows in batches:
            writer.write_batch(_batch(rows, schema))
            written += len(rows.length)
    return written


def _batch(rows: ExportRows, schema: pa.Schema) -> pa.RecordBatch:
    sizes = rows.length if rows.width is None else np.full(len(rows.length), rows.width)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    arrays: list[pa.Array[Any]] = [
        pa.ListArray.from_arrays(offsets, pa.array(rows.ids.astype(np.int32))),
        pa.array(rows.document),
        pa.array(rows.start),
        pa.array(rows.length.astype(np.int32)),
    ]
    if rows.width is not None:
        mask = (np.arange(rows.width) < rows.length[:, None]).astype(np.int8).reshape(-1)
        arrays.append(pa.ListArray.from_arrays(offsets, pa.array(mask)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def write_jsonl(file: IO[bytes], batches: Iterator[ExportRows], vocab_size: int, *, compress: bool) -> int:
    """Write one line per row; how many there were."""
    digits, sizes = _digits(vocab_size)
    if not compress:
        return _write_lines(file, batches, digits, sizes)
    import zstandard

    with zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False) as writer:
        return _write_lines(writer, batches, digits, sizes)


def _write_lines(file: Any, batches: Iterator[ExportRows], digits: NDArray[np.uint8], sizes: NDArray[np.int64]) -> int:
    written = 0
    for rows in batches:
        lengths = rows.length if rows.width is None else np.full(len(rows.length), rows.width)
        text = digits[rows.ids]
        text = text[text != 0].tobytes()
        ends = np.concatenate([[0], np.cumsum(sizes[rows.ids])])[np.cumsum(lengths)].tolist()
        starts = [0, *ends[:-1]]
        about = zip(rows.document.tolist(), rows.start.tolist(), rows.length.tolist(), starts, ends, strict=True)
        file.write(
            b"".join(
                b'{"input_ids":[%b],"document":%d,"start":%d,"length":%d}\n'
                % (text[a : b - 1], document, start, length)
                for document, start, length, a, b in about
            )
        )
        written += len(lengths)
    return written


def _digits(vocab_size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """For each id its digits and a comma, filled up with zero bytes; and how many bytes that is."""
    texts = np.array([f"{i}," for i in range(vocab_size)], dtype=bytes)
    width = texts.dtype.itemsize
    return texts.view(np.uint8).reshape(vocab_size, width), np.char.str_len(texts).astype(np.int64)


def write_megatron(index: Path, shards: Shards, check_unchanged: Callable[[], None]) -> None:
    """Write a split as `index` and the `.bin` beside it. The index gets its name last: where it is, both are whole.

    `check_unchanged` raises if what was read may be of other shards.
    """
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
        check_unchanged()


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
