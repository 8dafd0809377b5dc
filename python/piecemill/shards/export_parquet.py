"""Rows as Parquet: one list column of ids, where each row is from, and a mask where rows are padded."""

from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from piecemill.shards.export import ExportRows

# int32, not the uint16 of the shards: torch and `datasets` handle it everywhere, and Parquet stores 32 bits anyway.
_IDS = pa.list_(pa.int32())
_MASK = pa.list_(pa.int8())


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
