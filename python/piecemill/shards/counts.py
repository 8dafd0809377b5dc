"""How often each token occurs in a split: exact counts, taken while the shards are written.

    entries/000012-0003.train.counts   of one piece: a .npy of uint32 (uint64 if a count needs it), one number per id,
                                       as a file of sections; deleted when the folder is complete
    train/counts.npy                   of the whole split: uint64, one number per id; stats.json has its checksum

Folders of format 1, and those that an earlier version wrote, have no counts.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import count_ids
from piecemill.cancelling import threads
from piecemill.errors import ShardError
from piecemill.files import Place, read_npy
from piecemill.plans import prepared_again
from piecemill.shards.format import HEADER_BYTES, file_name, npy_bytes, token_dtype
from piecemill.shards.sections import changed, read_sections, write_sections

NAME = "counts.npy"
Counts = NDArray[np.uint64]

_AT_ONCE = 32
"Concurrent reads: an object store takes tens of milliseconds to answer each."
_CHUNK = 1 << 22


def piece_counts_name(stem: str, split: str) -> str:
    """The file with the counts of one piece and split."""
    return f"entries/{stem}.{split}.counts"


def save_piece_counts(place: Place, stem: str, split: str, counts: Counts) -> None:
    """Write the counts of one piece. Call it before its entry is written."""
    small = counts.astype(np.uint32) if counts.max(initial=0) < 1 << 32 else counts
    data = np.frombuffer(npy_bytes(small), np.uint8)
    write_sections(place, piece_counts_name(stem, split), data, np.array([len(data)], np.int64))


def _recounted(place: Place, name: str, vocab_size: int) -> Counts:
    """Count the tokens of a shard that is written already."""
    counts, start, item = np.zeros(vocab_size, np.uint64), HEADER_BYTES["tokens"], token_dtype(vocab_size)
    try:
        while content := place.read(name, start, start + _CHUNK):
            count_ids(np.frombuffer(content, item), counts)
            start += len(content)
    except ValueError as error:
        raise changed(place, name, f"was changed after it was written ({error}).") from None
    return counts


def write_counts(place: Place, split: str, stems: Sequence[str], vocab_size: int) -> None:
    """Sum the counts of the pieces of a split, by the stems of their shards, and write them."""
    counts = np.zeros(vocab_size, np.uint64)

    def read(stem: str) -> NDArray[Any]:
        try:
            content = read_sections(place, piece_counts_name(stem, split), 0, 1)
            return read_npy(bytes(content.data))
        except (FileNotFoundError, ShardError, ValueError):
            # Damaged, of a run of an earlier version, or of a complete folder that lost its stats.json: count again.
            return _recounted(place, f"{split}/{file_name(stem, 'tokens')}", vocab_size)

    with threads(_AT_ONCE) as pool_map:
        for start in range(0, len(stems), _AT_ONCE):  # some at a time: each takes 4 bytes per id
            for more in pool_map(read, stems[start : start + _AT_ONCE]):
                counts += more
    place.write(f"{split}/{NAME}", npy_bytes(counts))


def parse_counts(content: bytes, where: str, vocab_size: int) -> Counts:
    """The counts in the content of a `counts.npy`; ShardError if they are not those of the vocabulary."""
    try:
        counts: Counts = read_npy(content)
    except (OSError, ValueError) as error:
        raise ShardError(f"{where}: cannot be read ({error}). {prepared_again()}") from None
    if counts.dtype != np.uint64 or counts.shape != (vocab_size,):
        found = f"{counts.shape} of {counts.dtype}"
        raise ShardError(f"{where}: {found}; expected {vocab_size:,} of uint64. {prepared_again()}")
    return counts
