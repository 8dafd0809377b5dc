"""`prepare`: a source and a tokenizer -> a prepared folder, in one go or in several.

Here is the order of things: what is checked before anything is written, where a run takes up an earlier one, and
what is told while it goes on. The work itself is in `pipeline`.
"""

import difflib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from piecemill import _core
from piecemill.errors import PlanError, ShardError, Stopped
from piecemill.machine import memory_now
from piecemill.preparing.budget import Budget, Room
from piecemill.preparing.commit import Commits, Totals, kept_hashes
from piecemill.preparing.encoding import USUAL, Encoder
from piecemill.preparing.folder import Folder, Unchanged
from piecemill.preparing.groups import parse_weights
from piecemill.preparing.pipeline import Clock, Encoded, Part, Pipeline, TaskEnd
from piecemill.preparing.plan import PreparePlan
from piecemill.preparing.progress import PrepareProgress
from piecemill.preparing.reading import Reader
from piecemill.preparing.result import Summary, from_stats
from piecemill.preparing.selection import Selected, Selection
from piecemill.preparing.splits import Splits
from piecemill.shards.folder import TIMING, read_stats, write_stats
from piecemill.shards.format import ENDS, RECORD, VERSION, token_dtype
from piecemill.shards.manifest import read_manifest, replace_file
from piecemill.sizes import show_bytes
from piecemill.sources import Source
from piecemill.tokenizers import Tokenizer, load_tokenizer
from piecemill.training.stages import Stages

OnProgress = Callable[[PrepareProgress], None]

# The interpreter with all that preparing imports. What a process holds beyond that when it calls `prepare` is its own.
_INTERPRETER = 256 * 2**20
# Beyond blocks in flight: the block being read, pages of files, and what the allocator keeps.
_RESERVE = 96 * 2**20
# What an encoder can need: its block as text, ids and narrowed ids, and the one that waits for it.
_BLOCKS = 96 * 2**20
# What each needs besides: the encoder's caches, of fixed size, and its batch arrays.
_ENGINE = 40 * 2**20
# What reading Parquet and Arrow takes besides: pages, columns, and what their own allocator keeps.
_TABLES = 128 * 2**20

_NO_DATA, _NO_ENDS, _NO_RECORDS = np.empty(0, np.uint8), np.empty(0, ENDS), np.empty(0, RECORD)


def prepare(
    source: object,
    tokenizer: Tokenizer | str | PathLike[str],
    *,
    out: str | PathLike[str],
    plan: PreparePlan | None = None,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Summary:
    """Encode `source` into token shards under `out`; called again after a stop, it goes on where it was.

    `source` is whatever `piecemill.sources` can open, `tokenizer` a Tokenizer or where to load one. Options are the
    fields of `PreparePlan` (`splits`, `dedup`, `workers`, `memory`, ...). The files are the same, byte by byte, for any
    number of workers and interruptions. The whole process stays within `memory`, except that a single document
    that needs more is worked on alone. `docs/prepare.md` has the rules.

    >>> import tempfile
    >>> tok = Tokenizer.from_merges([], split="gpt2", special_tokens=["<|endoftext|>"])
    >>> with tempfile.TemporaryDirectory() as out:
    ...     prepare(["one two", "three"], tok, out=out).tokens
    14
    """
    plan = _with_options(plan or PreparePlan(), options)
    callers_own = max(0, memory_now() - _INTERPRETER)
    tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(tokenizer)
    folder = Folder(Path(out))
    try:
        return _Run(plan, tokenizer, folder, on_progress or (lambda _: None), callers_own).prepare(source)
    except KeyboardInterrupt as stop:
        raise Stopped(f"stopped; run the same command again to go on with {out}", *stop.args) from None
    except OSError as error:
        raise ShardError(
            f"{error.filename or out}: {error.strerror or error}. What was written so far counts: "
            "make room or mend the cause, and run the same command again to go on."
        ) from error
    finally:
        folder.release()


def _with_options(plan: PreparePlan, options: dict[str, Any]) -> PreparePlan:
    known = [field.name for field in fields(PreparePlan)]
    for name, value in options.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {known}."
            raise PlanError(f"unknown option {name!r}; {hint}")
        if isinstance(value, list):
            options[name] = tuple(value)
    return replace(plan, **options)


class _Run:
    """One run."""

    def __init__(
        self, plan: PreparePlan, tokenizer: Tokenizer, folder: Folder, on_progress: OnProgress, callers_own: int
    ) -> None:
        self.plan, self.folder, self.on_progress = plan, folder, on_progress
        self.memory = plan.memory_bytes + callers_own
        self.tokenizer = tokenizer
        self.started = time.perf_counter()
        self.splits = Splits.parse(plan.splits)
        self.groups = parse_weights(plan.weight)
        self.dtype = token_dtype(tokenizer.vocab_size)
        self.encoder = Encoder(tokenizer, eos=plan.eos, bos=plan.bos, special=plan.special_in_text, dtype=self.dtype)
        self.progress = _core.Progress()
        self.clock = Clock()
        self.stages = Stages()

    def prepare(self, source: object) -> Summary:
        opened = self.plan.open_source(source, block_bytes=self.plan.size("block_bytes"), group=self.plan.group_field)
        resolved = self._resolved(opened)
        state = self.folder.state()
        if state == "new":
            self.folder.begin(resolved, opened, self.tokenizer)
        else:
            self.folder.check_same(resolved, opened)
        if state == "complete":
            stats = read_stats(self.folder.path) or {}
            self.folder.finish()  # a crash may have come between the last two steps
            return from_stats(self.folder.path, stats, complete_before=True)
        self.encoder.warm_up()
        budget, workers, most_seen = self._share_memory(opened)
        selection = Selection(self.plan, self.splits, self.groups, opened, most_seen=most_seen, spill=self.folder.path)
        commits = Commits.open(
            self.folder.path,
            self.splits.names,
            dtype=self.dtype,
            shard_tokens=self.plan.shard_tokens,
            clock=self.clock,
        )
        resumed = commits.totals.blocks > 0
        with self.stages.stage("prepare"):
            tick = self._ticker(opened, commits, budget)
            self.stages.watch(lambda: self._work(opened, selection, commits, budget, workers), self.progress, tick)
            tick()
        return self._finish(opened, commits.totals, workers, resumed)

    def _resolved(self, source: Source) -> dict[str, Any]:
        """plan.json: everything the output depends on, and nothing else."""
        return {
            "format": VERSION,
            "piecemill": _core.__version__,
            "vocab_size": self.encoder.vocab_size,
            "dtype": self.dtype.name,
            "splits": {name: float(share) for name, share in zip(self.splits.names, self.splits.shares, strict=True)},
            "bos": self.encoder.bos,
            "eos": self.encoder.eos,
            "groups": [{"pattern": group.pattern, "weight": group.weight} for group in self.groups],
            "tokenizer": self.encoder.identity(),
            "source": {"files": len(source.files), "bytes": source.total_bytes},
            "options": self.plan.output(),
        }

    def _share_memory(self, source: Source) -> tuple[Budget, int, int]:
        """What may be in flight, how many encoders, and how many hashes of documents in memory."""
        left = self.memory - memory_now() - _RESERVE - _ENGINE
        if any(task.kind in ("parquet", "arrow") for task in source.tasks):
            left -= _TABLES
        # A table of hashes doubles as it grows, with the old one beside it: 17 bytes x 3/2 at 7/8 full.
        most_seen = 0
        if self.plan.dedup == "exact":
            share = max(left // 4, 1 << 20)
            most_seen = (1 << ((share * 2 // 3 // 17).bit_length() - 1)) * 7 // 8
            left -= share
        if left < self.plan.size("block_bytes") * 4:
            raise PlanError(
                f"memory={self.plan.memory!r}: the interpreter, the tokenizer and what they grow to leave "
                f"{left / 2**20:.0f} MiB for blocks; four of them take {self.plan.size('block_bytes') / 2**18:.0f}. "
                "Allow more."
            )
        workers, why = _workers(self.plan, room=max(1, 1 + (left - _BLOCKS) // (_BLOCKS + _ENGINE)))
        left -= (workers - 1) * _ENGINE
        # Half for what is in flight; the rest is what the allocator keeps and what estimates are off by.
        in_flight = left // 2
        self.on_progress(PrepareProgress(stage="start", workers=why, in_flight_most=in_flight))
        return Budget(in_flight, 2 * workers + 2, self.dtype.itemsize, self.progress), workers, most_seen

    def _work(self, source: Source, selection: Selection, commits: Commits, budget: Budget, workers: int) -> None:
        totals = commits.totals
        done = False
        try:
            if totals.blocks:
                selection.named(len(totals.examples))
                if self.plan.dedup == "exact":
                    for hashes in kept_hashes(self.folder.path, self.splits.names, commits):
                        selection.saw(hashes)
            unchanged = Unchanged(source.files, self.folder.changed_times())
            room = Room(budget, self.memory)
            reader = Reader(source, selection, totals, self.clock, unchanged)
            Pipeline(
                lambda: self._with_room(reader.items(), room),
                self._encode,
                commits.commit,
                workers=workers,
                budget=budget,
                progress=self.progress,
                clock=self.clock,
            ).run()
            source.refuse_empty(totals.tally)
            commits.finish()
            done = True
        finally:
            if not done:
                commits.close()

    def _with_room(self, items: Iterator[Selected | TaskEnd], room: Room) -> Iterator[Selected | TaskEnd]:
        """The items; before one with an unusually large document, waits until there is memory to encode it."""
        while (item := next(items, None)) is not None:
            if isinstance(item, Selected):
                heavy = self.encoder.heavy(item.data, item.ends)
                if heavy >= USUAL:
                    largest = int(np.diff(item.ends, prepend=0).max())
                    room.make(item.name, f"a document of {show_bytes(largest)}", heavy)
                item = replace(item, heavy=heavy)
            yield item
            del item  # its text must not stay while the next block is read

    def _encode(self, selected: Selected) -> Encoded:
        parts = [Part(np.empty(0, self.dtype), _NO_ENDS, _NO_RECORDS) for _ in selected.sides]
        data, ends, records, sides = selected.data, selected.ends, selected.records, selected.sides
        whole = next((side for side, chosen in enumerate(sides) if 0 < len(ends) == len(chosen)), None)
        if whole is not None:
            parts[whole] = Part(*self.encoder.encode(data, ends), records)
        elif len(ends):
            ids, id_ends = self.encoder.encode_bare(data, ends)
            marks = {"bos": self.encoder.bos, "eos": self.encoder.eos}
            for side, chosen in enumerate(sides):
                own = _core.gather_tokens(ids, id_ends, chosen, **marks, narrow=self.dtype.itemsize == 2)
                parts[side] = Part(*own, records[chosen])
        return Encoded(replace(selected, data=_NO_DATA, ends=_NO_ENDS, records=_NO_RECORDS, sides=()), tuple(parts))

    def _ticker(self, source: Source, commits: Commits, budget: Budget) -> Callable[[], None]:
        totals, before = commits.totals, commits.totals.tally.source_bytes
        started = time.perf_counter()

        def tick() -> None:
            read, seconds = totals.tally.source_bytes, time.perf_counter() - started
            speed = (read - before) / seconds if seconds > 0 else 0.0
            total = source.total_bytes
            self.on_progress(
                PrepareProgress(
                    files=_files_done(source, totals.ended),
                    files_total=len(source.files),
                    bytes_read=read,
                    bytes_total=total,
                    documents=totals.documents,
                    tokens=totals.tokens,
                    bytes_per_second=speed,
                    in_flight=budget.held,
                    in_flight_most=budget.most_bytes,
                    seconds_left=(total - read) / speed if total and speed and seconds > 0.5 else None,
                )
            )

        return tick

    def _finish(self, source: Source, totals: Totals, workers: int, resumed: bool) -> Summary:
        out = self.folder.path
        tally = source.found + totals.tally
        documents, tokens = totals.documents, totals.tokens
        splits = {
            name: {
                "share": float(share),
                "documents": totals.splits[name][0],
                "tokens": totals.splits[name][1],
                "text_bytes": totals.splits[name][2],
                "documents_share": totals.splits[name][0] / max(documents, 1),
                "tokens_share": totals.splits[name][1] / max(tokens, 1),
            }
            for name, share in zip(self.splits.names, self.splits.shares, strict=True)
        }
        stats = {
            "documents": documents,
            "tokens": tokens,
            "text_bytes": sum(counts[2] for counts in totals.splits.values()),
            "shards": sum(len(read_manifest(out / name)) for name in self.splits.names),
            "splits": splits,
            "dropped": {
                rule: {"documents": count, "bytes": size} for rule, (count, size) in sorted(totals.dropped.items())
            },
            "duplicate_examples": totals.examples,
            "verified": self.encoder.verified,
            "left_out": {rule: count for rule, count in sorted(tally.left_out.items()) if count},
            "skipped": tally.skipped_count,
            "skipped_documents": [list(one) for one in tally.skipped],
            "source_bytes": tally.source_bytes,
        }
        timing = {
            "seconds": round(time.perf_counter() - self.started, 4),
            "stages": {stage: round(seconds, 4) for stage, seconds in self.clock.seconds.items()},
            "peak_memory_bytes": self.stages.done[-1]["peak_memory_bytes"],
            "workers": workers,
            "memory": self.plan.memory,
            "resumed": resumed,
        }
        replace_file(out / TIMING, (json.dumps(timing, indent=2) + "\n").encode())
        write_stats(out, stats)
        self.folder.finish()
        return from_stats(out, stats, timing=timing, resumed=resumed)


def _workers(plan: PreparePlan, room: int) -> tuple[int, str]:
    """How many encoders, and why, in words; the memory holds whatever was asked for."""
    wanted = plan.workers or plan.cores
    count = min(wanted, room)
    encode = f"{count:,} threads encode" if count > 1 else "1 thread encodes"
    asked = f"{wanted:,} asked for" if plan.workers else f"{wanted:,} cores"
    if count < wanted:
        return count, f"{encode}: {asked}, {plan.memory} memory has room for {room:,}"
    return count, f"{encode}: {asked}"


def _files_done(source: Source, ended: int) -> int:
    """Files of which no task is left."""
    if ended + 1 >= len(source.tasks):
        return len(source.files)
    return source.tasks[ended + 1].first_file
