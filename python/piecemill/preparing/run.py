"""`prepare`: a source and a tokenizer become a prepared folder, in one go or in several.

The driver only decides: what is checked before anything is written, which tasks are left, how many run at once, and
what is written at the end. The work is `prepare_task`, wherever the executor runs it.
"""

import concurrent.futures
import difflib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from typing import Any

import numpy as np

from piecemill import _core
from piecemill.errors import PlanError, ShardError, Stopped
from piecemill.executors import Executor, open_executor
from piecemill.files import Place, open_place
from piecemill.preparing.finish import Totals, clean_up, finish
from piecemill.preparing.folder import Folder
from piecemill.preparing.groups import directory_keys, parse_weights, weight_groups
from piecemill.preparing.job import Job
from piecemill.preparing.plan import PreparePlan
from piecemill.preparing.progress import STAGES, Numbers, PrepareProgress
from piecemill.preparing.result import Summary, from_stats, part_of
from piecemill.preparing.splits import Splits
from piecemill.preparing.task import prepare_task
from piecemill.shards.folder import STATS, TIMING
from piecemill.shards.format import VERSION, token_dtype
from piecemill.shards.manifest import delete_entry, newest_entries
from piecemill.sources import Source, Task
from piecemill.tokenizers import Tokenizer, load_tokenizer, resolve_bos, resolve_eos
from piecemill.training.stages import memory_now, memory_peak

OnProgress = Callable[[PrepareProgress], None]

MIB = 2**20
# The interpreter with all that preparing imports. What a process holds beyond that when it calls `prepare` is its own.
_INTERPRETER = 256 * MIB
# What a running task holds, besides blocks: pages of files, columns of tables, and what allocators keep.
_TASK, _TABLES = 48 * MIB, 96 * MIB
# Blocks of a running task: one being read, with what it is read from; one being encoded, with its ids.
_BLOCKS = 8
# Caches of the encoder, of fixed size, for each thread.
_THREAD = 24 * MIB


def prepare(
    source: object,
    tokenizer: Tokenizer | str | PathLike[str],
    *,
    out: str | PathLike[str],
    executor: str | Executor | concurrent.futures.Executor = "local",
    ray_address: str | None = None,
    part: str | None = None,
    join: bool = False,
    plan: PreparePlan | None = None,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Summary:
    """Encode `source` into token shards under `out`; called again after a stop, it goes on where it was.

    `source` is whatever `piecemill.sources` can open, `tokenizer` a Tokenizer or where to load one, `out` a folder or
    the URL of one in an object store. Options are the fields of `PreparePlan` (`splits`, `dedup`, `workers`, `memory`,
    ...). The files are the same, byte by byte, for any executor, number of workers and interruptions. With `part`,
    such as "3/64", only that share of the tasks is done; `join` finishes when all are. `docs/prepare.md` has the rules.

    >>> import tempfile
    >>> tok = Tokenizer.from_merges([], split="gpt2", special_tokens=["<|endoftext|>"])
    >>> with tempfile.TemporaryDirectory() as out:
    ...     prepare(["one two", "three"], tok, out=out).tokens
    14
    """
    plan = _with_options(plan or PreparePlan(), options)
    callers_own = max(0, memory_now() - _INTERPRETER)
    tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(tokenizer)
    run = _Run(plan, tokenizer, open_place(out), on_progress or (lambda _: None), callers_own)
    try:
        folder = Folder(run.place, share=part is not None)
        try:
            return run.prepare(source, folder, executor, ray_address=ray_address, part=part, join=join)
        finally:
            folder.release()
    except KeyboardInterrupt as stop:
        raise Stopped(f"stopped; run the same command again to go on with {out}", *stop.args) from None
    except OSError as error:
        raise ShardError(
            f"{error.filename or out}: {error.strerror or error}. What was written so far counts: "
            "free some space or fix the cause, and run the same command again to go on."
        ) from error


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
    """One run of the driver."""

    def __init__(
        self, plan: PreparePlan, tokenizer: Tokenizer, place: Place, on_progress: OnProgress, callers_own: int
    ) -> None:
        self.plan, self.tokenizer, self.place, self.on_progress = plan, tokenizer, place, on_progress
        self.where, self.callers_own = place.local() or place.url, callers_own
        self.started, self.peak_before, self.memory_seen = time.perf_counter(), memory_peak(), 0
        self.splits, self.groups = Splits.parse(plan.splits), parse_weights(plan.weight)
        self.bos, self.eos = resolve_bos(tokenizer, plan.bos), resolve_eos(tokenizer, plan.eos)
        self.dtype = token_dtype(tokenizer.vocab_size)

    def prepare(
        self, source: object, folder: Folder, executor: Any, *, ray_address: str | None, part: str | None, join: bool
    ) -> Summary:
        opened = self.plan.open_source(source, block_bytes=self.plan.size("block_bytes"), group=self.plan.group_field)
        if not opened.files and (part is not None or getattr(executor, "name", executor) != "local"):
            raise PlanError("a source in memory can only be prepared by executor='local', without part: pass files.")
        state = folder.begin(self._resolved(opened), opened, self.tokenizer)
        if state == "complete":
            clean_up(self.place, folder)  # a crash may have come between the last two steps
            return from_stats(self.where, json.loads(self.place.read(STATS)), complete_before=True)
        self.tokenizer.encode("loads the engine")  # so that its memory is known
        before, left = self._left(opened)
        workers, cores = self._share_memory(opened, len(left), local=executor == "local")
        runner = open_executor(executor, workers=workers, ray_address=ray_address, part=part)
        job = self._job(opened, folder, cores)
        if join and left:
            raise ShardError(
                f"{self.place.url}: {len(left):,} of {len(opened.tasks):,} tasks are not done; the first is number "
                f"{left[0].index:,}. Run all parts to their end, then join."
            )
        job.share_tokenizer(self.tokenizer)
        try:
            made = self._run_tasks(opened, left, job, runner, before)
        finally:
            job.share_tokenizer(None)
        resumed = state == "begun" and before.pieces > 0
        timing = self._timing(made, workers, runner, resumed)
        if part is not None:
            return part_of(self.where, part, made, timing=timing, resumed=resumed)
        if self.plan.dedup == "exact":
            self._drop_copies(runner, workers)
            timing = self._timing(made, workers, runner, resumed)
        self.place.write(TIMING, (json.dumps(timing, indent=2) + "\n").encode())
        stats = finish(self.place, opened, self.splits, {"verified": self._verified()})
        clean_up(self.place, folder)
        return from_stats(self.where, stats, timing=timing, resumed=resumed)

    def _resolved(self, source: Source) -> dict[str, Any]:
        """plan.json: everything the output depends on, and nothing else."""
        return {
            "format": VERSION,
            "piecemill": _core.__version__,
            "vocab_size": self.tokenizer.vocab_size,
            "dtype": self.dtype.name,
            "splits": {name: float(share) for name, share in zip(self.splits.names, self.splits.shares, strict=True)},
            "bos": self.bos,
            "eos": self.eos,
            "groups": [{"pattern": group.pattern, "weight": group.weight} for group in self.groups],
            "tokenizer": {
                "vocab_size": self.tokenizer.vocab_size,
                "eos": self.eos,
                "bos": self.bos,
                "kind": self.tokenizer.kind,
                "identity": self.tokenizer.identity,
            },
            "source": {"files": len(source.files), "bytes": source.total_bytes},
            "options": self.plan.output(),
        }

    def _verified(self) -> dict[str, Any]:
        """Which engine encoded, and the home library whose ids it gives."""
        engine, home = self.tokenizer.engine, self.tokenizer.model.home
        try:
            home_version: str | None = version(home)
        except PackageNotFoundError:
            home_version = None
        return {
            "engine": engine.name, "engine_version": engine.version, "home": home, "home_version": home_version
        }  # fmt: skip

    def _left(self, source: Source) -> tuple[Totals, list[Task]]:
        """What earlier runs have done, and the tasks that are not at their end.

        An entry whose shards are missing or have another size is deleted, so that its piece is made again.
        """
        before = Totals()
        pieces: dict[int, int] = {}
        ends: dict[int, int] = {}
        sizes = {split: self.place.sizes(split) for split in self.splits.names}
        for entry in newest_entries(self.place, delete_damaged=True):
            files = [(split, file) for split, shard in entry.shards.items() for file in shard.files.values()]
            if any(sizes[split].get(file.name) != file.bytes for split, file in files):
                delete_entry(self.place, entry.name)
                continue
            before.add(entry)
            pieces[entry.task] = pieces.get(entry.task, 0) + 1
            if entry.last:
                ends[entry.task] = entry.piece + 1
        return before, [task for task in source.tasks if pieces.get(task.index) != ends.get(task.index, -1)]

    def _share_memory(self, source: Source, tasks: int, *, local: bool) -> tuple[int, int]:
        """How many tasks run at once in this process, and how many cores they share: the formula of docs/prepare.md."""
        if not local:
            return 1, 1
        held = memory_now() - self.callers_own
        tables = _TABLES if any(task.kind in ("parquet", "arrow", "memory") for task in source.tasks) else 0
        each = _BLOCKS * self.plan.size("block_bytes") + _TASK + _THREAD + tables
        room = (self.plan.memory_bytes - held) // each
        if room < 1:
            raise PlanError(
                f"memory={self.plan.memory!r}: the interpreter and the tokenizer hold {held / MIB:.0f} MiB, and a task "
                f"takes {each / MIB:.0f}. Allow more, or a smaller block_bytes."
            )
        wanted = self.plan.workers or self.plan.cores
        cores = min(wanted, max(room, 1 + (self.plan.memory_bytes - held - each) // _THREAD))
        workers = max(1, min(cores, room, tasks))
        asked = f"{wanted:,} asked for" if self.plan.workers else f"{wanted:,} cores"
        limit = f", {self.plan.memory} memory has room for {room:,}" if room < min(wanted, tasks) else ""
        said = (
            f"{workers:,} {'tasks' if workers > 1 else 'task'} at once on {cores:,} {'cores' if cores > 1 else 'core'}"
        )
        self.on_progress(PrepareProgress(stage="start", workers=f"{said}: {asked}{limit}"))
        return workers, cores

    def _job(self, source: Source, folder: Folder, cores: int) -> Job:
        plan, levels = self.plan, self.plan.directory_levels
        if not source.files and (len(self.groups) > 1 or levels):
            raise PlanError("weight and split_by directory go by the paths of files, and this source has none.")
        return Job(
            out=self.place,
            reading=source.reading,
            splits=self.splits,
            seed=plan.seed,
            min_bytes=plan.size("min_bytes"),
            max_bytes=None if plan.max_bytes is None else plan.size("max_bytes"),
            piece_bytes=plan.size("piece_bytes"),
            dedup=plan.dedup == "exact",
            identity=self.tokenizer.identity,
            engine=self.tokenizer.engine.name,
            dtype=self.dtype.name,
            bos=self.bos,
            eos=self.eos,
            special=plan.special_in_text,
            cores=cores,
            groups=weight_groups(self.groups, source.files) if len(self.groups) > 1 else None,
            keys=directory_keys(source.files, levels) if levels else None,
            changed=folder.changed_times(),
            memory=source.memory,
        )

    def _run_tasks(
        self, source: Source, tasks: Sequence[Task], job: Job, executor: Executor, before: Totals
    ) -> Numbers:
        done, started = Numbers(), time.perf_counter()
        # Tasks of each file that are left: a file is done when it has none.
        waiting = np.zeros(len(source.files), np.int32)
        for task in tasks:
            waiting[task.first_file : task.first_file + len(task.paths)] += 1

        def tick(running: Sequence[Numbers]) -> None:
            self.memory_seen = max(self.memory_seen, memory_now())
            now, seconds, total = sum(running, done), time.perf_counter() - started, source.total_bytes
            read, speed = before.tally.source_bytes + now.source_bytes, now.source_bytes / max(seconds, 1e-9)
            self.on_progress(
                PrepareProgress(
                    files=int((waiting == 0).sum()),
                    files_total=len(source.files),
                    bytes_read=read,
                    bytes_total=total,
                    documents=before.documents + now.documents,
                    tokens=before.tokens + now.tokens,
                    bytes_per_second=speed,
                    seconds_left=(total - read) / speed if total and speed and seconds > 0.5 else None,
                )
            )

        with closing(executor.map(partial(prepare_task, job=job), tasks, tick)) as results:  # type: ignore[type-var]
            for task, numbers in results:
                done += numbers
                waiting[task.first_file : task.first_file + len(task.paths)] -= 1
        tick(())
        return done

    def _drop_copies(self, executor: Executor, workers: int) -> None:
        from piecemill.preparing.dedup import drop_later_copies

        self.on_progress(PrepareProgress(stage="dedup", workers="finding copies of earlier documents"))
        memory = self.plan.memory_bytes - (memory_now() - self.callers_own)
        memory = max(memory, 64 * MIB) // workers
        entries = newest_entries(self.place)
        drop_later_copies(self.place, entries, self.splits.names, executor, memory, dtype=self.dtype.name)

    def _timing(self, made: Numbers, workers: int, executor: Executor, resumed: bool) -> dict[str, Any]:
        # The peak of the process is that of the run only if the run raised it.
        peak = memory_peak()
        return {
            "seconds": round(time.perf_counter() - self.started, 4),
            "stages": {stage: round(getattr(made, stage), 4) for stage in STAGES},
            "peak_memory_bytes": peak if peak > self.peak_before else max(self.memory_seen, memory_now()),
            "executor": executor.name,
            "workers": workers,
            "memory": self.plan.memory,
            "resumed": resumed,
        }
