"""Reading the shards of one split: documents by number, memory-mapped on first use.

Opening reads plan.json, stats.json and the manifest, so it costs the same for any number of tokens. Nothing is
imported but numpy: a training loop pays for neither pyarrow nor a tokenizer.
"""

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import count_ids, map_file
from piecemill.errors import PlanError, ShardError
from piecemill.files import LocalPlace, Place, hash_bytes, local_folder, open_place, read_npy, regular
from piecemill.objects import ObjectPlace, is_object_url
from piecemill.plans import did_you_mean, option, prepared_again, unreadable
from piecemill.shards import folder as prepared
from piecemill.shards.counts import NAME as COUNTS
from piecemill.shards.counts import Counts, parse_counts
from piecemill.shards.format import HEADER_BYTES, KINDS, Kind, dtype_of, header, token_dtype
from piecemill.shards.manifest import NAME, ShardEntry, newest_entries, parse_manifest
from piecemill.sizes import parse_size

if TYPE_CHECKING:
    from piecemill.tokenizers import Tokenizer

# A memory map holds no file descriptor, but Linux allows a process 65,530 maps. Views keep theirs after eviction.
_OPEN_MAPS = 16_384


@dataclass(frozen=True, slots=True)
class Shard:
    """The three arrays of a shard, memory-mapped and read-only."""

    tokens: NDArray[Any]
    ends: NDArray[np.int64]
    documents: NDArray[np.void]


@did_you_mean
def open_shards(
    folder: str | PathLike[str],
    split: str | None = None,
    *,
    unfinished: bool = False,
    cache: str | PathLike[str] | None = None,
    cache_bytes: int | str = "50GiB",
    storage: Mapping[str, Any] | None = None,
) -> "Shards":
    """The documents of one split of a prepared folder; `split` may be left out where there is only one.

    A folder that `prepare` has not completed is an error, because documents are missing. With `unfinished`, the shards
    of finished pieces are opened, with duplicates.

    The last three are for folders in an object store (`s3://bucket/run`, also gs://, az://, memory://).

    cache: a folder on a local disk. Shards are downloaded there when first needed; processes of a machine can share it.
    cache_bytes: what the files in `cache` may take; the least recently used ones are deleted.
    storage: options of the store as obstore names them; without, they come from the environment. Docs: docs/objects.md.
    """
    if isinstance(folder, str) and is_object_url(folder):
        from piecemill.shards.remote import Cache, RemoteShards

        if cache is None:
            raise PlanError(
                f"{folder}: pass cache=FOLDER, a folder on a local disk that shards are downloaded to, and "
                "cache_bytes, the most that it may hold."
            )
        remote = ObjectPlace(folder, storage)
        found = read_split(remote, split, unfinished)
        return RemoteShards(remote, Cache(Path(cache), parse_size(cache_bytes, "cache_bytes")), *found)
    place = open_place(folder)
    path = place.local()
    if path is None:
        raise ShardError(f"{folder}: expected a folder or the URL of an object store.")
    return Shards(path, *read_split(place, split, unfinished))


def read_split(place: Place, split: str | None, unfinished: bool) -> tuple[str, dict[str, Any], list[ShardEntry]]:
    """The name of a split, the plan of its folder, and its shards."""
    plan = prepared.read_plan(place)
    names = list(plan["splits"])
    if split is None and len(names) == 1:
        split = names[0]
    if split is None or split not in names:
        raise ShardError(
            f"{place.url}: {option('split', split)}: this folder has {', '.join(names)}. Name one of them: "
            f"{option('split', names[0])}."
        )
    stats, name = prepared.read_stats(place), f"{split}/{NAME}"
    if stats is not None:
        prepared.sealed(place, prepared.PLAN, stats)
        content = prepared.sealed(place, name, stats)
    elif not unfinished:
        raise ShardError(
            f"{place.url} is not complete: there is no {prepared.STATS}. Run the same `piecemill prepare` again, which "
            "goes on where it stopped, or pass unfinished=True for the shards that are done."
        )
    elif plan["format"] > 1:
        return split, plan, [entry.shards[split] for entry in newest_entries(place) if split in entry.shards]
    else:
        content = prepared.read_if_there(place, name)
    return split, plan, parse_manifest(content or b"", f"{place.url}/{name}")


class FileRows(ABC):
    """Documents in files, whose arrays are opened on first use; may be pickled to other processes."""

    def __init__(self, documents: Sequence[int], tokens: Sequence[int], most_open: int) -> None:
        self.document_ends = np.cumsum([0, *documents], dtype=np.int64)[1:]
        self.token_ends = np.cumsum([0, *tokens], dtype=np.int64)[1:]
        self._most_open = most_open
        self._open: OrderedDict[tuple[int, Kind], NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Documents."""
        return int(self.document_ends[-1]) if len(self.document_ends) else 0

    @property
    def tokens(self) -> int:
        """Token ids in all documents, bos and eos included, padding not."""
        return int(self.token_ends[-1]) if len(self.token_ends) else 0

    @abstractmethod
    def array(self, number: int, kind: Kind, /) -> NDArray[Any]:
        """One array of one file; thread-safe."""

    @abstractmethod
    def checked_ends(self, number: int, /) -> NDArray[np.int64]:
        """Where the documents of a file end, which rise to the number of its tokens."""

    def _opened(self, number: int, kind: Kind, open: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """What `open` gives; the least recently used arrays are dropped."""
        with self._lock:
            array = self._open.get((number, kind))
            if array is None:
                array = self._open[number, kind] = open()
                if len(self._open) > self._most_open:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end((number, kind))
            return array

    def _ids(self, index: int) -> NDArray[Any]:
        """The ids of document `index`, which exists."""
        number = int(np.searchsorted(self.document_ends, index, side="right"))
        at = index - int(self.document_ends[number - 1] if number else 0)
        ends, tokens = self.array(number, "ends"), self.array(number, "tokens")
        start, end = int(ends[at - 1]) if at else 0, int(ends[at])
        if not 0 <= start <= end <= len(tokens):
            self.checked_ends(number)  # raises
        return tokens[start:end]

    def __getstate__(self) -> dict[str, Any]:
        # Files are opened anew in each process.
        return {name: value for name, value in self.__dict__.items() if name not in ("_open", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _open=OrderedDict(), _lock=threading.Lock())


class Shards(FileRows):
    """The documents of one split, in corpus order. Made by `open_shards`; may be pickled to other processes."""

    def __init__(self, folder: Path, split: str, plan: dict[str, Any], entries: list[ShardEntry]) -> None:
        if not isinstance(entries, list):
            raise ShardError(f"Shards: found {type(entries).__name__}; open_shards(path, split) opens a folder.")
        super().__init__([entry.documents for entry in entries], [entry.tokens for entry in entries], _OPEN_MAPS)
        self.folder, self.split, self.plan, self.entries = folder, split, plan, entries
        self.place: Place = LocalPlace(folder)

    @property
    def url(self) -> str:
        """Where the folder is, for messages."""
        return self.place.url

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

    @property
    def bos(self) -> int | None:
        """The id before each document, if there is one."""
        return self.plan["bos"]  # type: ignore[no-any-return] # read_plan has checked

    @property
    def eos(self) -> int | None:
        """The id after each document, if there is one."""
        return self.plan["eos"]  # type: ignore[no-any-return]

    @property
    def identity(self) -> str:
        """A hash of the manifest as 16 hexadecimal digits: it identifies these tokens."""
        told = [f"{entry.documents} {entry.files['tokens'].xxh3} {entry.files['ends'].xxh3}" for entry in self.entries]
        return hash_bytes("\n".join([str(self.vocab_size), *told]).encode())

    @property
    def tokenizer_identity(self) -> str | None:
        """`Tokenizer.identity` of the tokenizer that made the ids, from plan.json; None if it has none."""
        recorded = self.plan.get("tokenizer")
        return recorded.get("identity") if isinstance(recorded, dict) else None

    def tokenizer(self) -> "Tokenizer":
        """The tokenizer that made the ids, from the folder itself."""
        return prepared.read_tokenizer(self.place)

    def token_counts(self) -> Counts | None:
        """How often each id occurs in the split; None if its folder has no counts (it is not complete, or older)."""
        name, stats = f"{self.split}/{COUNTS}", prepared.read_stats(self.place)
        content = None if stats is None else prepared.sealed(self.place, name, stats)
        return None if content is None else parse_counts(content, f"{self.url}/{name}", self.vocab_size)

    def document(self, index: int) -> NDArray[Any]:
        """The ids of one document: a read-only view of the file."""
        if not isinstance(index, Integral):
            raise ShardError(f"document {index!r:.60}: found {type(index).__name__}, expected its number, from 0.")
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {self.url}/{self.split}, which has {len(self):,}")
        return self._ids(index)

    def __getitem__(self, index: int) -> NDArray[Any]:
        """As `document`; a negative number counts from the end."""
        return self.document(index + len(self) if isinstance(index, Integral) and index < 0 else index)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """The ids of every document, in order."""
        for number in range(len(self.entries)):
            tokens, start = self.array(number, "tokens"), 0
            for end in self.checked_ends(number).tolist():
                yield tokens[start:end]
                start = end

    def shard(self, number: int) -> Shard:
        """The arrays of one shard, mapped on first use."""
        return Shard(*(self.array(number, kind) for kind in KINDS))

    def array(self, number: int, kind: Kind) -> NDArray[Any]:
        """One array of one shard, mapped on first use; thread-safe."""
        known = isinstance(number, Integral) and isinstance(kind, str) and kind in KINDS
        if not known or not 0 <= number < len(self.entries):
            raise ShardError(
                f"shard {number!r:.60}, array {kind!r:.60}; {self.url}/{self.split} has {len(self.entries):,} shards, "
                f"from 0, each with {', '.join(KINDS)}."
            )
        return self._opened(number, kind, lambda: self._map(self.entries[number], kind))

    def checked_ends(self, number: int) -> NDArray[np.int64]:
        """Where the documents of a shard end; ShardError if the ends do not rise to the number of its tokens.

        Reads all of them. Packed windows do not: `piecemill check` compares every byte, once.
        """
        ends: NDArray[np.int64] = self.array(number, "ends")
        entry = self.entries[number]
        last = int(ends[-1]) if len(ends) else 0
        if last != entry.tokens or (len(ends) and (int(ends[0]) < 0 or bool((ends[1:] < ends[:-1]).any()))):
            raise ShardError(
                f"{self.url}/{self.split}/{entry.files['ends'].name}: its ends do not rise to {entry.tokens:,}, the "
                f"tokens of the shard. Run `piecemill check {self.url}`. {prepared_again()}"
            )
        return ends

    def path(self, entry: ShardEntry, kind: Kind) -> Path:
        """Where a file of a shard is on this machine."""
        return self.folder / self.split / entry.files[kind].name

    def _mapped(self, entry: ShardEntry, kind: Kind) -> NDArray[np.uint8]:
        """The bytes of a file of a shard."""
        return map_file(regular(self.path(entry, kind)))

    def _map(self, entry: ShardEntry, kind: Kind) -> NDArray[Any]:
        file = entry.files[kind]
        where = f"{self.url}/{self.split}/{file.name}"
        way_out = f"Run `piecemill check {self.url}`. {prepared_again()}"
        try:
            mapped = self._mapped(entry, kind)
        except FileNotFoundError:
            raise ShardError(f"{where} is missing, but the manifest lists it. {way_out}") from None
        except OSError as error:
            raise ShardError(f"{where}: {unreadable(error)}") from None
        if len(mapped) != file.bytes:
            raise ShardError(f"{where} has {len(mapped):,} bytes; the manifest says {file.bytes:,}. {way_out}")
        count = entry.count(kind)
        want = dtype_of(kind, self.dtype)
        head = HEADER_BYTES[kind]
        if mapped[:head].tobytes() != header(kind, want, count) or len(mapped) != head + count * want.itemsize:
            found = _in_header(self.path(entry, kind))
            raise ShardError(f"{where}: {found}; expected {count:,} of {want}. {way_out}")
        array: NDArray[Any] = mapped[head:].view(want)
        return array

    def __repr__(self) -> str:
        return f"Shards({self.url!r}, {self.split!r}: {len(self):,} documents, {self.tokens:,} tokens)"


def _in_header(path: Path) -> str:
    """Describe a header that is not as it was written."""
    try:
        array = read_npy(path)
    except (OSError, ValueError) as error:
        return f"its header is damaged ({error})"
    return f"its header says {array.shape} of {array.dtype}"


def count_tokens(folder: str | PathLike[str], tokenizer: "Tokenizer") -> NDArray[np.int64]:
    """How often each id occurs in all splits of a prepared folder, which was made with `tokenizer`."""
    total = np.zeros(tokenizer.vocab_size, np.uint64)
    for name in prepared.read_plan(local_folder(folder, "counting tokens"))["splits"]:
        shards = open_shards(folder, name)
        if shards.tokenizer_identity != tokenizer.identity:
            raise ShardError(f"{folder}: made with another tokenizer; its own is in {folder}/{prepared.TOKENIZER}.")
        total += counted(shards)
    return total.astype(np.int64)


def counted(shards: Shards) -> Counts:
    """How often each id occurs in a split: the stored counts, or those of now if its folder has none."""
    counts = shards.token_counts()
    if counts is None:
        counts = np.zeros(shards.vocab_size, np.uint64)
        for number in range(len(shards.entries)):
            count_ids(shards.array(number, "tokens"), counts)
    return counts
