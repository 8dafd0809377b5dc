"""Windows: a view of documents as training rows, chosen when loading or exporting and not when preparing.

A stream of n tokens has n - 1 places to predict from. Windows begin every `window - overlap` tokens; the label of a
place is the token after it, also where that is the first token of the next window. So every token but the first is a
label exactly once: those that an overlap would bring again are masked, and the last window is filled up with
padding. The stream is all documents laid end to end (`pack`), or each document on its own.

A window is a list of token ranges of files, and `gather` copies the ranges of many windows in one call. The plain
version is `piecemill.reference.windows`. Start with `Windows`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from operator import index
from os import PathLike
from typing import Any, Literal, Protocol, SupportsIndex, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from piecemill._core import gather_windows
from piecemill.errors import LoadError, PlanError
from piecemill.plans import check_names, checked, did_you_mean, option
from piecemill.shards.format import Kind

Ints = NDArray[np.int64]
IGNORED = -100
"The label of a place that is not trained on; torch's cross entropy passes over it."


class Rows(Protocol):
    """What windows are cut from: documents in a few files. `Shards` is one."""

    document_ends: Ints
    "Documents up to the end of each file."
    token_ends: Ints
    "Tokens up to the end of each file."

    @property
    def vocab_size(self) -> int: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def identity(self) -> str: ...
    @property
    def tokenizer_identity(self) -> str | None: ...
    def array(self, number: int, kind: Kind, /) -> NDArray[Any]: ...
    def checked_ends(self, number: int, /) -> Ints:
        """Where the documents of a file end; an error unless they rise to the number of its tokens."""

    def __len__(self) -> int: ...
    @property
    def tokens(self) -> int: ...


def check_rows(rows: object) -> None:
    """PlanError if `rows` is nothing that windows can be cut from."""
    if not hasattr(rows, "token_ends"):
        path = isinstance(rows, str | PathLike)
        what = f"{rows!r}: a path" if path else f"rows: found {type(rows).__name__}"
        shown = str(rows) if path else "shards/"
        raise PlanError(f"{what}; expected rows, such as piecemill.open_shards({shown!r:.60}, split='train').")


@runtime_checkable
class FetchedRows(Protocol):
    """Rows whose files must be downloaded before they can be read. `RemoteShards` is one."""

    @property
    def ahead_bytes(self) -> int:
        """How many bytes of files may be prefetched."""

    def prefetch(self, numbers: Iterable[int], kinds: Sequence[Kind], /) -> None:
        """Begin to download these files, in this order, and return at once."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpec:
    """How documents become windows."""

    window: int = 2048
    "Tokens in one row."

    overlap: int = 0
    "Tokens that a window shares with the one before it, to be read there and not trained on again."

    pack: bool = True
    "Cut windows from documents laid end to end; else from each document, with padding."

    boundaries: bool = False
    "Tell where documents begin and end, and predict no token of one from another."

    overlap_labels: bool = False
    "Train on the overlap again."

    labels: Literal["shifted", "unshifted"] = "shifted"
    "shifted: the label of a place is the token after it. unshifted: the token itself, for models that shift labels."

    pad_id: int | None = None
    "What stands behind the last token of a padded row; default: eos, or 0 without one."

    def __post_init__(self) -> None:
        if not isinstance(self.window, SupportsIndex) or self.window < 1:
            raise PlanError(f"{option('window', self.window)}: expected a whole number: a row has at least 1 token.")
        if not isinstance(self.overlap, SupportsIndex) or not 0 <= self.overlap < self.window:
            raise PlanError(
                f"{option('overlap', self.overlap)}: expected 0 to {self.window - 1}, less than the window."
            )

        if self.labels not in ("shifted", "unshifted"):
            raise PlanError(f"{option('labels', self.labels)}: expected shifted or unshifted.")

    @property
    def masked(self) -> int:
        """Labels at the beginning of a window that the window before it had.

        A model that shifts labels has none for the last place of a window: one token of an overlap makes up for it.
        """
        return 0 if self.overlap_labels else max(0, self.overlap - (self.labels == "unshifted"))

    def padding(self, eos: int | None, vocab_size: int) -> int:
        """The id that fills a row after its last token."""
        pad = (eos or 0) if self.pad_id is None else self.pad_id
        if not 0 <= pad < vocab_size:
            raise PlanError(f"pad_id={pad}: the vocabulary has {vocab_size:,} ids.")
        return pad

    def count(self, lengths: Ints, *, short: bool = True) -> Ints:
        """How many windows streams of these lengths have, with or without a short last one.

        A short one has at least one place to predict from that no window before it has.

        >>> WindowSpec(window=4, overlap=2).count(np.array([0, 1, 2, 5, 6, 7, 8])).tolist()
        [0, 0, 1, 1, 2, 2, 3]
        >>> WindowSpec(window=4, overlap=2).count(np.array([0, 1, 2, 5, 6, 7, 8]), short=False).tolist()
        [0, 0, 0, 1, 1, 2, 2]
        """
        # A model that shifts labels predicts from one place less, and an overlap of one token is none to it.
        window = self.window - int(self.labels == "unshifted" and self.overlap > 0)
        step, places = self.window - self.overlap, lengths - 1
        full = np.where(places >= window, (places - window) // step + 1, 0)
        return full + (short & (places > np.where(full > 0, (full - 1) * step + window, 0)))


@dataclass(frozen=True, slots=True)
class TokenRanges:
    """What windows consist of: for each range the row it belongs to, its file, where it begins and its length.

    The ranges of a row are in order. `masked` says how many labels at the beginning of each row are not trained on.
    """

    row: Ints
    file: Ints
    start: Ints
    length: Ints
    masked: Ints


class Windows:
    """The windows of some rows, by number. Has a length, gives windows as dicts of arrays; torch's DataLoader takes it.

    >>> # windows = Windows(pm.open_shards("shards/", "train"), window=2048)
    >>> # windows[7]["input_ids"], windows[7]["labels"]
    """

    @did_you_mean
    def __init__(self, rows: Rows, *, group: int | None = None, **options: Any) -> None:
        """`group`: only documents of this group (see `--weight` of prepare); `options` are those of `WindowSpec`."""
        check_rows(rows)
        check_names(options, WindowSpec.__slots__)
        self.rows, self.cut, self.group = rows, WindowSpec(**options), group
        self.pad = self.cut.padding(rows.eos, rows.vocab_size)
        if self.cut.pack and rows.tokens < self.cut.window + 1:
            raise LoadError(
                f"{rows}: window={self.cut.window} needs {self.cut.window + 1:,} tokens, one more than it holds, and "
                f"there are {rows.tokens:,}. Choose a smaller window, another split, or pack=False, which pads."
            )
        self.view = view_of(rows, self.cut, group)
        "Which tokens each window has."
        if not len(self.view) and group is None:
            raise LoadError(f"{rows}: no document has 2 tokens, one to read and one to predict, so there is no window.")

    def __len__(self) -> int:
        return len(self.view)

    @did_you_mean
    def with_labels(self, labels: Literal["shifted", "unshifted"]) -> "Windows":
        """The same windows with labels of the other kind; with an overlap, unshifted ones can have one window more."""
        if labels == self.cut.labels:
            return self
        return Windows(self.rows, group=self.group, **{**asdict(self.cut), "labels": labels})

    @property
    def targets(self) -> int:
        """Tokens that are labels once in an epoch, where `boundaries` masks none."""
        return self.view.targets

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The files of a shard that gathering reads."""
        return ("tokens", "ends") if self.cut.boundaries or not self.cut.pack else ("tokens",)

    def __getitem__(self, number: SupportsIndex) -> dict[str, NDArray[Any]]:
        """One window: `input_ids` and `labels`, with boundaries also `position_ids` and `document_ids`."""
        try:
            number = index(number)  # also of a tensor: `torch.utils.data.Subset` may ask with one
        except TypeError:
            found = type(number).__name__
            raise LoadError(f"window {number!r:.60}: found {found}, expected its number, from 0.") from None
        if not 0 <= number < len(self):
            raise IndexError(f"window {number} of {self.rows}, which has {len(self):,}")
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, NDArray[Any]]]:
        """Several windows with one gather: what torch's DataLoader asks for."""
        columns, _ = gather([self], np.zeros(len(numbers), np.int64), np.asarray(numbers, np.int64))
        return [{name: array[row] for name, array in columns.items()} for row in range(len(numbers))]


def view_of(rows: Rows, cut: WindowSpec, group: int | None = None, *, short: bool = True) -> "Packed | Single":
    """The windows of `rows` (or of a group in it), by number; with or without short ones."""
    return Packed(rows, cut, group, short) if cut.pack else Single(rows, cut, group, short)


class Packed:
    """All documents (of a group) as one stream: runs of tokens that lie next to each other in a file."""

    def __init__(self, rows: Rows, cut: WindowSpec, group: int | None, short: bool) -> None:
        self.cut, self.file_count = cut, len(rows.token_ends)
        if group is None:
            self.file = np.arange(len(rows.token_ends))
            self.start = np.zeros(len(rows.token_ends), np.int64)
            self.ends = rows.token_ends
        else:
            self.file, self.start, lengths = _runs(rows, group)
            self.ends = np.cumsum(lengths)
        self.tokens = int(self.ends[-1]) if len(self.ends) else 0
        self.begins = np.concatenate([np.zeros(1, np.int64), self.ends])[:-1]
        self.targets = max(0, self.tokens - 1)
        self.windows = int(cut.count(np.array([self.tokens]), short=short)[0])

    def __len__(self) -> int:
        return self.windows

    def files(self, numbers: Ints) -> Ints:
        """The file in which each of these windows begins; opens no file."""
        runs = np.searchsorted(self.ends, numbers * (self.cut.window - self.cut.overlap), side="right")
        found: Ints = self.file[runs]
        return found

    def shard_ends(self) -> Ints:
        """How many windows begin in the files up to each one."""
        # The last run of each file; a file without one ends where the file before it does.
        runs = np.searchsorted(self.file, np.arange(self.file_count), side="right")
        tokens = np.concatenate([np.zeros(1, np.int64), self.ends])[runs]
        step = self.cut.window - self.cut.overlap
        found: Ints = np.minimum(-(-tokens // step), self.windows)
        return found

    def ranges(self, numbers: Ints) -> TokenRanges:
        """Where the tokens of these windows are, and of each the one after."""
        cut = self.cut
        begin = numbers * (cut.window - cut.overlap)
        end = np.minimum(begin + cut.window + 1, self.tokens)
        first = np.searchsorted(self.ends, begin, side="right")
        last = np.searchsorted(self.ends, end, side="left")
        masked = np.where(numbers > 0, cut.masked, 0)
        # A window that crosses from one run to another has a piece of each.
        count = last - first + 1
        row = np.repeat(np.arange(len(numbers)), count)
        run = np.arange(len(row)) + np.repeat(first - np.cumsum(count) + count, count)
        start = np.maximum(begin[row], self.begins[run])
        length = np.minimum(end[row], self.ends[run]) - start
        return TokenRanges(row, self.file[run], self.start[run] + start - self.begins[run], length, masked)


class Single:
    """Each document (of a group) on its own. Holds 8 bytes of each, and 8 more if there is a group."""

    def __init__(self, rows: Rows, cut: WindowSpec, group: int | None, short: bool) -> None:
        self.rows, self.cut = rows, cut
        self.documents = None if group is None else _members(rows, group)
        _fetch_all(rows, "ends")
        lengths = [np.diff(rows.checked_ends(number), prepend=0) for number in range(len(rows.document_ends))]
        all_lengths = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
        if self.documents is not None:
            all_lengths = all_lengths[self.documents]
        self.counted = np.cumsum(cut.count(all_lengths, short=short))
        self.targets = int(np.maximum(all_lengths - 1, 0).sum())

    def __len__(self) -> int:
        return int(self.counted[-1]) if len(self.counted) else 0

    def files(self, numbers: Ints) -> Ints:
        which = np.searchsorted(self.counted, numbers, side="right")
        documents = which if self.documents is None else self.documents[which]
        found: Ints = np.searchsorted(self.rows.document_ends, documents, side="right")
        return found

    def shard_ends(self) -> Ints:
        ends = self.rows.document_ends
        if self.documents is not None:
            ends = np.searchsorted(self.documents, ends, side="left")
        found: Ints = np.concatenate([np.zeros(1, np.int64), self.counted])[ends]
        return found

    def ranges(self, numbers: Ints) -> TokenRanges:
        cut = self.cut
        which = np.searchsorted(self.counted, numbers, side="right")
        inside = numbers - np.where(which > 0, self.counted[which - 1], 0)
        documents = which if self.documents is None else self.documents[which]
        file, first, length = _spans(self.rows, documents)
        begin = inside * (cut.window - cut.overlap)
        masked = np.where(inside > 0, cut.masked, 0)
        row = np.arange(len(numbers))
        return TokenRanges(row, file, first + begin, np.minimum(cut.window + 1, length - begin), masked)


def _fetch_all(rows: Rows, kind: Kind) -> None:
    """Download the files of one kind side by side, where they must be: they are read one after another then."""
    if isinstance(rows, FetchedRows):
        rows.prefetch(range(len(rows.document_ends)), (kind,))


def _spans(rows: Rows, documents: Ints) -> tuple[Ints, Ints, Ints]:
    """The file of each document, where it begins there, and how many tokens it has."""
    file = np.searchsorted(rows.document_ends, documents, side="right")
    at = documents - np.where(file > 0, rows.document_ends[file - 1], 0)
    first, length = np.empty_like(at), np.empty_like(at)
    for row, (number, place) in enumerate(zip(file.tolist(), at.tolist(), strict=True)):
        ends = rows.array(number, "ends")
        first[row] = ends[place - 1] if place else 0
        length[row] = ends[place] - first[row]
    return file, first, length


def _members(rows: Rows, group: int) -> Ints:
    """The numbers of the documents of a group."""
    found, before = [np.zeros(0, np.int64)], 0
    _fetch_all(rows, "documents")
    for number, end in enumerate(rows.document_ends.tolist()):
        found.append(before + np.flatnonzero(rows.array(number, "documents")["group"] == group))
        before = end
    return np.concatenate(found)


def _runs(rows: Rows, group: int) -> tuple[Ints, Ints, Ints]:
    """Tokens of a group that lie next to each other: file, start and length of each run."""
    files, starts, lengths = ([np.zeros(0, np.int64)] for _ in range(3))
    _fetch_all(rows, "documents")
    _fetch_all(rows, "ends")
    for number in range(len(rows.document_ends)):
        inside = np.concatenate([[False], rows.array(number, "documents")["group"] == group, [False]])
        first, last = np.flatnonzero(inside[1:] & ~inside[:-1]), np.flatnonzero(inside[:-1] & ~inside[1:])
        ends = np.concatenate([np.zeros(1, np.int64), rows.checked_ends(number)])
        some = ends[last] > ends[first]
        files.append(np.full(int(some.sum()), number))
        starts.append(ends[first][some])
        lengths.append((ends[last] - ends[first])[some])
    return np.concatenate(files), np.concatenate(starts), np.concatenate(lengths)


def gather(
    parts: Sequence[Windows],
    part: Ints,
    numbers: Ints,
    *,
    into: tuple[NDArray[Any], NDArray[Any]] | None = None,
) -> tuple[dict[str, NDArray[Any]], Ints | None]:
    """Window `numbers[i]` of `parts[part[i]]` in row i, by column; a row whose number is -1 is all padding.

    With boundaries also positions and documents, and the cuts: where each document begins among all places of all rows,
    and where a row or its padding does. All parts are cut alike. `into` are arrays for inputs and labels, int32 or
    int64; else they are made, int64.
    """
    cut = parts[0].cut
    inputs, labels = into or np.empty((2, len(numbers), cut.window), np.int64)
    found, documents = [], []
    arrays: list[NDArray[Any]] = []
    masked = np.zeros(len(numbers), np.int64)
    for which, windows in enumerate(parts):
        mine = np.flatnonzero((part == which) & (numbers >= 0)) if len(parts) > 1 or (numbers < 0).any() else None
        if mine is not None and not len(mine):
            continue
        ranges = windows.view.ranges(numbers if mine is None else numbers[mine])
        row = ranges.row if mine is None else mine[ranges.row]
        masked[slice(None) if mine is None else mine] = ranges.masked
        files, file = np.unique(ranges.file, return_inverse=True)
        if isinstance(windows.rows, FetchedRows):
            windows.rows.prefetch(files.tolist(), windows.kinds)
        found.append(np.stack([row, file + len(arrays), ranges.start, ranges.length], axis=1))
        arrays += [windows.rows.array(number, "tokens") for number in files.tolist()]
        if cut.boundaries:
            documents.append(_segments(windows.rows, ranges, row))
    pieces_of_rows = np.concatenate(found) if found else np.zeros((0, 4), np.int64)
    if len(numbers):
        gather_windows(arrays, pieces_of_rows, masked, inputs, labels, pad=parts[0].pad)
    columns, cuts = {"input_ids": inputs, "labels": labels}, None
    if cut.boundaries:
        columns["position_ids"], columns["document_ids"], cuts = _boundaries(labels, pieces_of_rows, documents)
    if cut.labels == "unshifted":
        labels[:, 1:] = labels[:, :-1]
        labels[:, 0] = IGNORED
    return columns, cuts


def _segments(rows: Rows, ranges: TokenRanges, row: Ints) -> Ints:
    """Where a document begins or goes on in these rows: (row, column, document), also in the column behind the last."""
    found, filled = [np.zeros((0, 3), np.int64)], dict.fromkeys(row.tolist(), 0)
    columns = zip(row.tolist(), ranges.file.tolist(), ranges.start.tolist(), ranges.length.tolist(), strict=True)
    for at, file, start, length in columns:
        if not length:
            continue
        ends = rows.array(file, "ends")
        inner = ends[np.searchsorted(ends, start, "right") : np.searchsorted(ends, start + length, "left")]
        begins = np.unique(np.concatenate([np.array([start]), inner]))
        if begins[0] < start or begins[-1] >= start + length:
            rows.checked_ends(file)  # not in order: raises with the file and the way out
        before = int(rows.document_ends[file - 1]) if file else 0
        number = np.searchsorted(ends, begins, "right") + before
        found.append(np.stack([np.full(len(begins), at), filled[at] + begins - start, number], axis=1))
        filled[at] += length
    return np.concatenate(found)


def _boundaries(labels: NDArray[Any], ranges: Ints, documents: list[Ints]) -> tuple[Ints, Ints, Ints]:
    """Positions, documents and cuts; and no label that is the first token of another document."""
    rows, window = labels.shape
    filled = np.bincount(ranges[:, 0], ranges[:, 3], minlength=rows).astype(np.int64)
    # Padding is a separate document, -1.
    padded = np.flatnonzero(filled < window)
    padding = np.stack([padded, filled[padded], np.full(len(padded), -1)], axis=1)
    row, column, number = np.concatenate([*documents, padding]).T
    labels[row[column > 0], column[column > 0] - 1] = IGNORED
    inside = column < window
    cuts = (row * window + column)[inside]
    order = np.argsort(cuts)
    cuts, number = cuts[order], number[inside][order]
    lengths = np.diff(cuts, append=rows * window)
    positions = np.arange(rows * window) - np.repeat(cuts, lengths)
    return positions.reshape(rows, window), np.repeat(number, lengths).reshape(rows, window), cuts
