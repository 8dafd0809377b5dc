"""The kernels: `encode.cu`, and `splits.h`, which tests also compile for the host; and the records of `encode.cu`."""

from pathlib import Path

import numpy as np

from piecemill.tokenizers.engines.cuda.tables import SPLITS

TILE = 1024
LONGEST = 1024
"As in encode.cu, like the records below; a test compares them."

COUNTS = np.dtype(
    [
        *((name, "u4") for name in ("misses", "missed_bytes")),
        ("winners", "u4", 4),
        *((name, "u4") for name in ("longs", "unresolved", "invalid", "found", "tokens", "used", "pool_used")),
        ("admitted", "u4"),
    ]
)
BATCH = np.dtype([("n", "u4"), ("documents", "u4"), ("bos", "u4"), ("eos", "u4"), ("from", "i8")])
POINTERS = (
    *("batch", "text", "ends", "kinds", "documents", "sure", "words", "class_index", "class_blocks", "table", "pool"),
    *("pairs", "byte_pairs", "symbol_of_byte", "id_of_symbol", "misses"),
    *("winners0", "winners1", "winners2", "winners3"),
    *("longs", "unresolved", "tile_missed", "tile_first", "tile_count", "tile_base", "document_offset", "staged"),
    *("out", "direct_count", "direct", "raw_ends", "token_ends", "counts", "reported", "life", "added", "added_ends"),
    "found",
)
NUMBERS = (
    *("table_mask", "pool_words", "pair_shift", "pair_mask", "added_count", "most_misses", "most_unresolved"),
    "padding",
)
SLOT = np.dtype([(name, "u8") for name in POINTERS] + [(name, "u4") for name in NUMBERS] + [("added_first", "u8", 4)])


def source() -> str:
    """The kernels as one text, as NVRTC compiles them."""
    here = Path(__file__).parent
    header = (here / "splits.h").read_text().replace("#pragma once\n", "")
    return (here / "encode.cu").read_text().replace('#include "splits.h"\n', header)


def options(split: str, *, narrow: bool, weak_hash: bool = False) -> tuple[str, ...]:
    """Compiler options for a split and a width of ids; `weak_hash` makes keys collide, for tests."""
    weak = ("-DPM_WEAK_HASH",) if weak_hash else ()
    return ("-std=c++17", f"-DPM_SPLIT={SPLITS.index(split)}", f"-DPM_ID={'u16' if narrow else 'u32'}", *weak)
