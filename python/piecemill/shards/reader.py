"""Reading the shards of one split: documents by number, memory-mapped when first asked for.

Opening reads plan.json and the manifest and nothing else, so it costs the same for any number of tokens. Nothing is
imported but numpy: a training loop pays for neither pyarrow nor a tokenizer.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import ShardError
from piecemill.shards import folder as prepared
from piecemill.shards.format import KINDS, Kind, dtype_of, token_dtype
from piecemill.shards.manifest import ShardEntry, read_manifest

if TYPE_CHECKING:
    from piecemill.tokenizers import Tokenizer

# A map is three entries of the process's table, which holds 65,530 on Linux; views keep their map alive beyond this.
_OPEN_SHARDS = 256


@dataclass(frozen=True, slots=True)
class Shard:
    """The three arrays of a shard, memory-mapped and read-only."""

    tokens: NDArray[Any]
    ends: NDArray[np.int64]
    documents: NDArray[np.void]


def open_shards(folder: str | PathLike[str], split: str | None = None, *, unfinished: bool = False) -> "Shards":
    """The documents of one split of a prepared folder; `split` may be left out where there is only one.

    A folder that `prepare` has not completed is refused, as its documents are not all there; with `unfinished` the
    shards that are finished are opened.
    """
    path = Path(folder)
    plan = prepared.read_plan(path)
    names = list(plan["splits"])
    if split is None and len(names) == 1:
        split = names[0]
    if split is None or split not in names:
        raise ShardError(
            f"{path}: split={split!r}; this folder has {', '.join(names)}. Name one of them: split={names[0]!r}."
        )
    if not unfinished and not (path / prepared.STATS).exists():
        raise ShardError(
            f"{path} is not complete: there is no {prepared.STATS}. Run the same `piecemill prepare` again, which goes "
            "on where it stopped, or pass unfinished=True for the shards that are done."
        )
    return Shards(path, split, plan, read_manifest(path / split))


class Shards:
    """The documents of one split, in corpus order. Made by `open_shards`; may be pickled to other processes."""

    def __init__(self, folder: Path, split: str, plan: dict[str, Any], entries: list[ShardEntry]) -> None:
        self.folder, self.split, self.plan, self.entries = folder, split, plan, entries
        self.document_ends = np.cumsum([0] + [entry.documents for entry in entries], dtype=np.int64)[1:]
        self.token_ends = np.cumsum([0] + [entry.tokens for entry in entries], dtype=np.int64)[1:]
        self._open: OrderedDict[int, Shard] = OrderedDict()

    def __len__(self) -> int:
        """Documents."""
        return int(self.document_ends[-1]) if self.entries else 0

    @property
    def tokens(self) -> int:
        """Token ids in all documents, bos and eos included."""
        return int(self.token_ends[-1]) if self.entries else 0

    @property
    def text_bytes(self) -> int:
        """Bytes of UTF-8 that the documents were made from."""
        return sum(entry.text_bytes for entry in self.entries)

    @property
    def splits(self) -> tuple[str, ...]:
        """Every split of the folder, in the plan's order."""
        return tuple(self.plan["splits"])

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        return int(self.plan["vocab_size"])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the ids."""
        return token_dtype(self.vocab_size)

    def tokenizer(self) -> "Tokenizer":
        """The tokenizer that made the ids, from the folder itself."""
        from piecemill.tokenizers import load_tokenizer

        return load_tokenizer(self.folder / prepared.TOKENIZER)

    def document(self, index: int) -> NDArray[Any]:
        """The ids of one document: a read-only view of the file."""
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {self.folder / self.split}, which has {len(self):,}")
        number = int(np.searchsorted(self.document_ends, index, side="right"))
        shard = self.shard(number)
        at = index - int(self.document_ends[number - 1] if number else 0)
        return shard.tokens[int(shard.ends[at - 1]) if at else 0 : int(shard.ends[at])]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """The ids of every document, in order."""
        for number in range(len(self.entries)):
            shard = self.shard(number)
            start = 0
            for end in shard.ends.tolist():
                yield shard.tokens[start:end]
                start = end

    def shard(self, number: int) -> Shard:
        """The arrays of one shard, mapped when first asked for."""
        shard = self._open.get(number)
        if shard is None:
            shard = Shard(*(self._map(self.entries[number], kind) for kind in KINDS))
            self._open[number] = shard
            if len(self._open) > _OPEN_SHARDS:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(number)
        return shard

    def _map(self, entry: ShardEntry, kind: Kind) -> NDArray[Any]:
        file = entry.files[kind]
        path = self.folder / self.split / file.name
        way_out = f"Run `piecemill check {self.folder}`; then restore the file, or prepare the folder again."
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise ShardError(f"{path} is missing, but the manifest lists it. {way_out}") from None
        if size != file.bytes:
            raise ShardError(f"{path} has {size:,} bytes; the manifest says {file.bytes:,}. {way_out}")
        try:
            array: NDArray[Any] = np.load(path, mmap_mode="r")
        except ValueError as error:
            raise ShardError(f"{path}: its header is damaged ({error}). {way_out}") from None
        count = entry.tokens if kind == "tokens" else entry.documents
        want = dtype_of(kind, self.dtype)
        if array.shape != (count,) or array.dtype != want:
            raise ShardError(f"{path} holds {array.shape} of {array.dtype}; expected {count:,} of {want}. {way_out}")
        return array.view(np.ndarray)

    def __repr__(self) -> str:
        return f"Shards({str(self.folder)!r}, {self.split!r}: {len(self):,} documents, {self.tokens:,} tokens)"

    def __getstate__(self) -> dict[str, Any]:
        # Maps are opened anew in each process.
        return {**self.__dict__, "_open": OrderedDict()}
