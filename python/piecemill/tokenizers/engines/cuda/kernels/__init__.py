"""The kernels: `encode.cu`, and `splits.h`, which tests also compile for the host."""

from pathlib import Path

from piecemill.tokenizers.engines.cuda.tables import SPLITS


def source() -> str:
    """The kernels as one text, as NVRTC compiles them."""
    here = Path(__file__).parent
    header = (here / "splits.h").read_text().replace("#pragma once\n", "")
    return (here / "encode.cu").read_text().replace('#include "splits.h"\n', header)


def options(split: str, *, narrow: bool, weak_hash: bool = False) -> tuple[str, ...]:
    """Compiler options for a split and a width of ids; `weak_hash` makes keys collide, for tests."""
    weak = ("-DPM_WEAK_HASH",) if weak_hash else ()
    return ("-std=c++17", f"-DPM_SPLIT={SPLITS.index(split)}", f"-DPM_ID={'u16' if narrow else 'u32'}", *weak)
