"""The bytes on disk: names, types and headers of the three files of a shard. Nothing here opens a file.

The length of a header depends only on the kind of file, not on the count in it. So a writer reserves the header, writes
the data, and fills in the header when the count is known.
"""

import io
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

VERSION = 2
"Format version that is written; plan.json has the version of its folder."
READABLE = (1, 2)
"Format 1 had shards numbered by split and no entries; everything else is the same."

Kind = Literal["tokens", "ends", "documents"]
KINDS: tuple[Kind, ...] = ("tokens", "ends", "documents")

ENDS = np.dtype("<i8")
RECORD = np.dtype(
    [("hash_low", "<u8"), ("hash_high", "<u8"), ("bytes", "<i8"), ("file", "<i4"), ("place", "<i8"), ("group", "<i4")]
)
"What is kept of a document: xxh3-128 and length of its UTF-8, the file it came from, its place there, its group."

# Six named fields do not fit in 128 bytes. Both are multiples of 64, as numpy's own headers are.
HEADER_BYTES: dict[Kind, int] = {"tokens": 128, "ends": 128, "documents": 256}


MOST_IDS = 1 << 31
"Ids are at most 32 bits wide, and loaders count them in signed ones."

RESERVED = frozenset({"tokenizer", "entries"})
"Subfolders of a prepared folder that are not splits."


def is_split_name(name: str) -> bool:
    """Whether a split can have this name: it becomes a folder, and nothing in it may lead elsewhere.

    >>> is_split_name("val-2"), is_split_name("../val"), is_split_name("tokenizer")
    (True, False, False)
    """
    plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum() and name[0] not in "-_"
    return plain and name not in RESERVED


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest type for the ids of a vocabulary.

    >>> token_dtype(65_536), token_dtype(65_537)
    (dtype('uint16'), dtype('uint32'))
    """
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def dtype_of(kind: Kind, tokens: np.dtype[Any]) -> np.dtype[Any]:
    """The type of one item in a file of this kind, where ids have the type `tokens`."""
    return {"tokens": tokens, "ends": ENDS, "documents": RECORD}[kind]


def file_name(stem: str, kind: Kind) -> str:
    """The name of a file of a shard.

    >>> file_name("000012-0003", "ends")
    '000012-0003.ends.npy'
    """
    return f"{stem}.{kind}.npy"


def header(kind: Kind, dtype: np.dtype[Any], count: int) -> bytes:
    """The `.npy` header (version 1.0) of `count` items in a row, of exactly the length for this kind."""
    descr = np.lib.format.dtype_to_descr(dtype.newbyteorder("<"))
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({count},), }}".encode("latin-1")
    size = HEADER_BYTES[kind]
    return b"\x93NUMPY\x01\x00" + (size - 10).to_bytes(2, "little") + text.ljust(size - 11) + b"\n"


def npy_bytes(array: NDArray[Any]) -> bytes:
    """The content of a `.npy` file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
