"""Rows as JSON lines, without a space in them, streamed.

Ids become text through a table with the digits of every id, a million at a time: the JSON library, one row at a time,
takes many times as long.
"""

from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from piecemill.shards.export import ExportRows


def write_jsonl(file: IO[bytes], batches: Iterator[ExportRows], vocab_size: int, *, compress: bool) -> int:
    """Write one line per row; how many there were."""
    digits, sizes = _digits(vocab_size)
    if not compress:
        return _write(file, batches, digits, sizes)
    import zstandard

    with zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False) as writer:
        return _write(writer, batches, digits, sizes)


def _write(file: Any, batches: Iterator[ExportRows], digits: NDArray[np.uint8], sizes: NDArray[np.int64]) -> int:
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
