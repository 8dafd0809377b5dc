"""Rows of Parquet files as if they were shards: from `piecemill export --to parquet`, or any other program.

A row is a document here, its ids in a list column. Files are read whole at the first access, and the last few are
kept; so `order="local"` or `"sequential"` suits many files better than a shuffle over all of them.

Start with `open_parquet`.
"""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from piecemill.errors import LoadError
from piecemill.files import hash_bytes
from piecemill.plans import did_you_mean
from piecemill.shards.format import ENDS, RECORD, Kind
from piecemill.shards.reader import FileRows

_OPEN_FILES = 8


@did_you_mean
def open_parquet(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    vocab_size: int,
    eos: int | None = None,
    column: str = "input_ids",
    tokenizer: str | None = None,
    open_files: int = _OPEN_FILES,
) -> "ParquetRows":
    """The rows of Parquet files (a folder, a file, or a list of them), for `batches` and `Windows`.

    Parquet does not contain the vocabulary size, so it must be given. `tokenizer` is the `identity` of the one that
    made the ids: with it, `mix` refuses rows of another. Rows that were padded count up to their
    `length`, where there is such a column. Opening reads how long rows are, from that column if it is there.
    """
    given = [paths] if isinstance(paths, str | PathLike) else list(paths)
    files = [
        found for path in map(Path, given) for found in (sorted(path.glob("*.parquet")) if path.is_dir() else [path])
    ]
    if not files:
        raise LoadError(f"{paths}: no .parquet file. Name a folder that has some, or files.")
    return ParquetRows(files, vocab_size, eos, column, open_files, tokenizer)


class ParquetRows(FileRows):
    """Documents in Parquet files. Made by `open_parquet`."""

    def __init__(
        self,
        files: Sequence[Path],
        vocab_size: int,
        eos: int | None,
        column: str,
        open_files: int,
        tokenizer: str | None = None,
    ) -> None:
        self.files, self.column = list(files), column
        self._ends = [self._read_ends(path) for path in self.files]
        super().__init__(
            [len(ends) for ends in self._ends], [int(ends[-1]) if len(ends) else 0 for ends in self._ends], open_files
        )
        self.vocab_size = vocab_size
        "Ids are below this."
        self.eos = eos
        "The id that pads rows, if it was given."
        self.tokenizer_identity = tokenizer
        "`Tokenizer.identity` of the tokenizer that made the ids, if it was given."

    @property
    def identity(self) -> str:
        """Which rows these are: a hash of the names, sizes and row lengths of all files."""
        lengths = hash_bytes(np.concatenate(self._ends).tobytes())
        told = [f"{path.name} {path.stat().st_size}" for path in self.files]
        return hash_bytes("\n".join([str(self.vocab_size), lengths, *told]).encode())

    def __getitem__(self, index: int) -> NDArray[Any]:
        """The ids of one row."""
        index += len(self) if index < 0 else 0
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {self}, which has {len(self):,}")
        return self._ids(index)

    def checked_ends(self, number: int, /) -> NDArray[np.int64]:
        """Where the rows of a file end, padding not counted."""
        return self._ends[number]

    def array(self, number: int, kind: Kind, /) -> NDArray[Any]:
        """One array of one file, as `Shards` has them; from any thread."""
        if kind == "ends":
            return self._ends[number]
        if kind == "documents":
            return np.zeros(len(self._ends[number]), RECORD)
        return self._opened(number, kind, lambda: self._read_ids(number))

    def _read_ends(self, path: Path) -> NDArray[np.int64]:
        try:
            names = pq.read_schema(path).names
        except FileNotFoundError:
            raise LoadError(f"{path} is missing. Name a folder of .parquet files, or files.") from None
        except pa.ArrowInvalid as error:
            raise LoadError(f"{path}: not Parquet ({error}).") from None
        if self.column not in names:
            raise LoadError(
                f"{path}: no column {self.column!r}; it has {', '.join(names)}. Name one: column={names[0]!r}."
            )
        if "length" in names:
            lengths = pq.read_table(path, columns=["length"]).column(0).to_numpy()
        else:
            lengths = pc.list_value_length(pq.read_table(path, columns=[self.column]).column(0)).to_numpy()
        return np.cumsum(lengths, dtype=ENDS)

    def _read_ids(self, number: int) -> NDArray[Any]:
        path, ends = self.files[number], self._ends[number]
        lists = pq.read_table(path, columns=[self.column]).column(0).combine_chunks()
        values = pc.list_flatten(lists).to_numpy(zero_copy_only=False)
        lengths = np.diff(ends, prepend=0)
        kept = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        if len(kept) != len(lengths) or bool((kept < lengths).any()):
            raise LoadError(f"{path}: its rows are not those it had when it was opened. Open the files again.")
        if bool((kept > lengths).any()):  # what is behind the length is padding
            first = np.cumsum(kept) - kept
            values = values[np.arange(int(ends[-1])) + np.repeat(first - ends + lengths, lengths)]
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < self.vocab_size:
            raise LoadError(
                f"{path}: ids from {values.min()} to {values.max()}; expected 0 to {self.vocab_size - 1}. "
                "Pass the vocab_size of the tokenizer that made them."
            )
        return np.ascontiguousarray(values, np.uint32)

    def __repr__(self) -> str:
        return f"ParquetRows({str(self.files[0])!r} and {len(self.files) - 1} more: {len(self):,} rows)"
