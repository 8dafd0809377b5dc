"""Exporting a prepared folder as rows for other loaders.

An export consists of parts, one file for each shard (one pair for each split with Megatron). The content of a part
depends only on the folder and the plan, and a part gets its final name when it is complete, so the same command
resumes after a stop. The number of windows is computed before the first one is written.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Never

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PlanError, ShardError, Stopped
from piecemill.files import LOCK, LocalPlace, as_path, locked, new_file, read_json, replace_file
from piecemill.objects import is_object_url
from piecemill.plans import FROM_PLAN, check_same, checked, did_you_mean, option, with_keywords
from piecemill.shards import folder as prepared
from piecemill.shards.reader import Shards, open_shards
from piecemill.shards.windows import Ints, WindowSpec, view_of
from piecemill.sizes import plural, show_bytes, show_count

Tail = Literal["keep", "pad", "drop"]
CLAIM = "export.json"
_BATCH_TOKENS = 1 << 20


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """How shards become rows."""

    to: Literal["parquet", "jsonl", "megatron"] = "parquet"
    "What to write."

    window: int = 2048
    "Places to predict from in one row, which has one token more: the label of the last place."

    overlap: int = 0
    "Tokens that a row shares with the one before it."

    tail: Tail = "keep"
    "What to do with the tokens after the last full row: keep them as a shorter one, pad it, or drop them."

    pack: bool = True
    "Cut rows from the documents of a split laid end to end; else from each document."

    pad_id: int | None = None
    "The id that fills a padded row; default: eos, or 0 without one. The attention mask says where it is."

    split: str | None = None
    "Only this split; default: each, under its own name. No row has tokens of two splits."

    zst: bool = False
    "Compress JSON lines with zstd."

    def __post_init__(self) -> None:
        if self.to == "megatron":
            rows = {"window": 2048, "overlap": 0, "tail": "keep", "pack": True, "pad_id": None}
            given = [option(name, ...) for name, default in rows.items() if getattr(self, name) != default]
            if given:
                raise PlanError(
                    f"{option('to', 'megatron')}: Megatron cuts documents itself. Leave out {' and '.join(given)}."
                )
        elif self.to not in ("parquet", "jsonl"):
            raise PlanError(f"{option('to', self.to)}: expected parquet, jsonl or megatron.")
        else:
            WindowSpec(window=self.window, overlap=self.overlap)  # checks them
        if self.zst and self.to != "jsonl":
            raise PlanError(f"{option('zst')} goes with {option('to', 'jsonl')}; {self.to} has its own compression.")
        if self.pad_id is not None and (self.tail != "pad" or self.pad_id < 0):
            raise PlanError(
                f"{option('pad_id', self.pad_id)}: expected an id, 0 or more, with {option('tail', 'pad')}."
            )


@dataclass(frozen=True, slots=True)
class ExportRows:
    """Windows on their way to a file: their ids one after another (`length` real ones each), and where they are from.

    `document` is the number in the split of the document in which a row begins, `start` the place in that document.
    With padding, every row has `width` ids.
    """

    ids: NDArray[Any]
    document: Ints
    start: Ints
    length: Ints
    width: int | None


@dataclass(frozen=True, slots=True)
class ExportPart:
    """One output file: which shard it is made from, and what will be in it."""

    name: str
    split: str
    shard: int
    windows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote, this time and before."""

    out: str
    windows: int
    tokens: int
    dropped: int
    parts: int
    made: int
    "Of these parts, those that this call wrote."
    bytes: int
    rows: str = "rows"
    "What a window is: rows, or the documents of Megatron."

    def to_dict(self) -> dict[str, Any]:
        """What `piecemill export --json` prints."""
        return asdict(self)

    def __str__(self) -> str:
        dropped = f", {self.dropped:,} tokens in dropped tails" if self.dropped else ""
        return (
            f"{self.windows:,} {self.rows}, {show_count(self.tokens)} tokens{dropped}; {show_bytes(self.bytes)} in "
            f"{plural(self.parts, 'part')} ({self.made:,} made now) in {self.out}"
        )


@did_you_mean
def export(
    folder: str | PathLike[str],
    *,
    out: str | PathLike[str],
    plan: ExportPlan | None = None,
    on_part: Callable[[ExportPart, int, int], None] | None = None,
    to: Literal["parquet", "jsonl", "megatron"] = FROM_PLAN,
    window: int = FROM_PLAN,
    overlap: int = FROM_PLAN,
    tail: Tail = FROM_PLAN,
    pack: bool = FROM_PLAN,
    pad_id: int | None = FROM_PLAN,
    split: str | None = FROM_PLAN,
    zst: bool = FROM_PLAN,
    **unknown: Never,
) -> Exported:
    """Write a complete prepared folder as rows under `out`; called again after a stop, it makes the missing parts.

    Keywords from `to` on are the fields of `ExportPlan`, which says what each means; they override those of `plan`.
    `on_part` is called after each finished part with the part, the number of finished parts and their total.
    """
    plan = with_keywords(plan, ExportPlan, locals(), unknown)
    for where in (folder, out):
        if isinstance(where, str) and is_object_url(where):
            raise PlanError(
                f"{where}: an export reads and writes local folders. Copy the prepared folder to a local disk first; "
                "a loader needs no export: open_shards reads it from the object store."
            )
    source, target = Path(as_path(folder)), Path(as_path(out))
    names = [plan.split] if plan.split is not None else list(prepared.read_plan(source)["splits"])
    seal = _seal(source)
    splits = {name: SplitRows(open_shards(source, name), plan, seal) for name in names}
    parts = [part for split in splits.values() for part in split.parts]
    made = done = 0
    try:
        # Two exports into one folder would delete each other's unfinished parts as leftovers.
        with locked(LocalPlace(target)):
            _claim(source, seal, target, plan, parts)
            for part in parts:
                if not (target / part.name).exists():
                    splits[part.split].write(target, part)
                    made += 1
                done += 1
                if on_part is not None:
                    on_part(part, done, len(parts))
    except KeyboardInterrupt as stop:
        raise Stopped(
            f"stopped; {done:,} of {len(parts):,} parts are whole: run the same command again to make the others "
            f"in {target}",
            *stop.args,
        ) from None
    except OSError as error:
        raise ShardError(
            f"{error.filename or target}: {error.strerror or error}. The parts that were made are whole: free some "
            "space or fix the cause, and run the same command again to make the others."
        ) from error
    files = [path for path in target.rglob("*") if path.is_file() and path.name not in (CLAIM, LOCK)]
    return Exported(
        str(target),
        sum(part.windows for part in parts),
        sum(part.tokens for part in parts),
        sum(split.dropped for split in splits.values()),
        len(parts),
        made,
        sum(path.stat().st_size for path in files),
        "documents" if plan.to == "megatron" else "rows",
    )


def _seal(source: Path) -> str | None:
    """The checksum in stats.json of a prepared folder, on which all of its files depend."""
    return (prepared.read_stats(source) or {}).get("xxh3")


def _claim(source: Path, seal: str | None, out: Path, plan: ExportPlan, parts: list[ExportPart]) -> None:
    """Claim `out` for this export; an error if it has another export or other files."""
    record = {"source": seal, "plan": asdict(plan), "parts": {part.name: part.windows for part in parts}}
    left = list(out.rglob(".*.part"))  # left by a killed export
    if (out / CLAIM).exists():
        before = read_json(LocalPlace(out), CLAIM, f"Choose another {option('out')}.")
        if before == record:
            for path in left:
                path.unlink()
            return
        for key, new in asdict(plan).items():
            check_same(out, key, before.get("plan", {}).get(key), new)
        raise ShardError(
            f"{out}: exported from other shards than {source}. Choose another {option('out')}, or delete it first."
        )
    claimed = [path for path in left if path.parent == out and path.name.startswith(f".{CLAIM}.")]
    if set(out.iterdir()) - {out / LOCK, *claimed}:
        raise ShardError(
            f"{out} is not empty and holds no {CLAIM}. Choose another {option('out')}; nothing there is replaced."
        )
    for path in claimed:
        path.unlink()
    replace_file(out / CLAIM, (json.dumps(record, indent=2) + "\n").encode())


class SplitRows:
    """The rows of one split: windows of a view, in a part for each shard that windows begin in."""

    def __init__(self, shards: Shards, plan: ExportPlan, seal: str | None) -> None:
        self.shards, self.plan, self.dropped = shards, plan, 0
        self._sealed = seal
        if plan.pad_id is not None and plan.pad_id >= shards.vocab_size:
            raise PlanError(f"{option('pad_id', plan.pad_id)}: the vocabulary has {shards.vocab_size:,} ids.")
        if plan.to == "megatron":
            whole = ExportPart(f"{shards.split}.idx", shards.split, -1, len(shards), shards.tokens)
            self.parts = [whole] if len(shards) else []
            return
        lengths = [np.diff(shards.checked_ends(number), prepend=0) for number in range(len(shards.entries))]
        cut, short = WindowSpec(window=plan.window, overlap=plan.overlap, pack=plan.pack), plan.tail != "drop"
        self._view = view_of(shards, cut, short=short)
        self._ends = self._view.shard_ends()
        streams = np.array([shards.tokens]) if plan.pack else np.concatenate([np.zeros(0, np.int64), *lengths])
        rows = cut.count(streams, short=short)
        # All rows are full but the last of a stream: where that would end, and how much of it is missing.
        full = np.where(rows > 0, (rows - 1) * (plan.window - plan.overlap) + plan.window + 1, 0)
        missing = np.maximum(full - streams, 0) * (rows > 0)
        self.dropped = int((streams - full + missing).sum())
        # By shard: its rows, the streams that end in or before it, and what its rows are short of.
        counts = np.diff(self._ends, prepend=0).tolist()
        ended = (self._ends == self._ends[-1:]).astype(np.int64) if plan.pack else shards.document_ends
        short_of = np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(missing)])[ended], prepend=0).tolist()
        suffix = {"parquet": "parquet", "jsonl": "jsonl.zst" if plan.zst else "jsonl"}[plan.to]
        self.parts = [
            ExportPart(
                f"{shards.split}/{number:05}.{suffix}", shards.split, number, count, count * (plan.window + 1) - less
            )
            for number, (count, less) in enumerate(zip(counts, short_of, strict=True))
            if count
        ]

    def write(self, out: Path, part: ExportPart) -> None:
        """Write a part under a temporary name, compare it with the prediction, sync it and rename it."""
        from piecemill.shards.export_formats import write_jsonl, write_megatron, write_parquet

        target, plan = out / part.name, self.plan
        if plan.to == "megatron":
            write_megatron(target, self.shards, self._check_unchanged)
            return
        rows = self.rows(part.shard)
        with new_file(target) as file:
            if plan.to == "parquet":
                written = write_parquet(file, rows, padded=plan.tail == "pad")
            else:
                written = write_jsonl(file, rows, self.shards.vocab_size, compress=plan.zst)
            if written != part.windows:
                raise ShardError(
                    f"{target}: {written:,} windows were written and {part.windows:,} predicted. The shards were "
                    f"changed meanwhile, or this is a fault of Piecemill: run `piecemill check {self.shards.folder}`."
                )
            self._check_unchanged()

    def _check_unchanged(self) -> None:
        """Called when a part was read: ShardError if it may be of shards that took the place of those opened."""
        if _seal(self.shards.folder) != self._sealed:
            raise ShardError(
                f"{self.shards.folder}: was prepared again while it was exported, so parts would be of different "
                "shards. Delete what was exported, and export again."
            )

    def rows(self, shard: int) -> Iterator[ExportRows]:
        """The rows that begin in one shard, in batches of about a million tokens."""
        shards, end = self.shards, int(self._ends[shard])
        batch = max(1, _BATCH_TOKENS // self.plan.window)
        for first in range(int(self._ends[shard - 1]) if shard else 0, end, batch):
            rows = self._gathered(shard, np.arange(first, min(first + batch, end)))
            if len(rows.ids) and int(rows.ids.max()) >= shards.vocab_size:
                raise ShardError(
                    f"{shards.path(shards.entries[shard], 'tokens')}: holds the id {int(rows.ids.max()):,}; the "
                    f"vocabulary has {shards.vocab_size:,}. Run `piecemill check {shards.folder}`."
                )
            yield rows

    def _gathered(self, shard: int, numbers: Ints) -> ExportRows:
        ranges = self._view.ranges(numbers)
        columns = zip(ranges.file.tolist(), ranges.start.tolist(), ranges.length.tolist(), strict=True)
        ids = np.concatenate([self.shards.array(file, "tokens")[start : start + n] for file, start, n in columns])
        lengths = np.bincount(ranges.row, ranges.length).astype(np.int64)
        # A row begins in this shard, in the document that its first token is in.
        starts, ends = ranges.start[np.searchsorted(ranges.row, range(len(numbers)))], self.shards.array(shard, "ends")
        documents = np.searchsorted(ends, starts, side="right")
        before = np.where(documents > 0, ends[np.maximum(documents, 1) - 1], 0)
        width = self.plan.window + 1 if self.plan.tail == "pad" else None
        if width is not None:
            ids = self._padded(ids, lengths, width)
        first = int(self.shards.document_ends[shard]) - len(ends)
        return ExportRows(ids, documents + first, starts - before, lengths, width)

    def _padded(self, ids: NDArray[Any], lengths: Ints, width: int) -> NDArray[Any]:
        pad = self.plan.pad_id
        if pad is None:
            pad = self.shards.plan["eos"] or 0
        rows = np.full((len(lengths), width), pad, ids.dtype)
        rows[np.arange(width) < lengths[:, None]] = ids
        return rows.reshape(-1)
