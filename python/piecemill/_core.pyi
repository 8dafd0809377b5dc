"""Types of the compiled core; `make lint` compares this file with the module itself."""

from collections.abc import Sequence
from os import PathLike
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Progress",
    "__version__",
    "extract_lines",
    "hash_documents",
    "invalid_documents",
    "read_texts",
    "split_text",
    "walk_folder",
]

__version__: str

@final
class Progress:
    """Counters of a running loop; `stop()` ends it soon after with KeyboardInterrupt."""

    def __new__(cls) -> Progress: ...
    def stop(self) -> None:
        """Ask the loop to end."""
    @property
    def stopped(self) -> bool: ...
    @property
    def merges(self) -> int: ...
    @property
    def occurrences(self) -> int: ...
    @property
    def pair_count(self) -> int: ...
    @property
    def pair(self) -> tuple[int, int]: ...
    @property
    def live_pairs(self) -> int: ...
    @property
    def queue_len(self) -> int: ...

_Listed: TypeAlias = tuple[list[tuple[int, str]], int]
_Documents: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], int, _Listed]

def walk_folder(
    folder: str | PathLike[str],
    *,
    only: str | None,
    include: Sequence[str],
    exclude: Sequence[str],
    gitignore: bool,
    hidden: bool,
) -> tuple[list[str], list[int], dict[str, int], list[tuple[str, str]]]:
    """The wanted files under a folder, in order of their paths: paths, sizes, what was left out, what failed."""

def read_texts(paths: Sequence[str], sizes: Sequence[int], named: bool) -> tuple[_Documents, int]:
    """Whole text files in one buffer: (data, ends, file numbers, empty, problems), and how many were binary."""

def extract_lines(lines: bytes, field: str) -> tuple[_Documents, int]:
    """One field of every JSON line: (data, ends, line starts, empty, problems), and how many line ends there were."""

def split_text(text: bytes, separator: bytes, base: int, last: bool) -> tuple[_Documents, int]:
    """The pieces of a text between separators: (data, ends, piece starts, empty, problems), and how many bytes are
    done."""

def invalid_documents(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Every document that is not UTF-8: its number, and its first bad byte."""

def hash_documents(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The 128-bit xxh3 hash of every document, as rows of (low, high)."""
