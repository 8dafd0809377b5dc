"""`prepare`: a source and a tokenizer become a prepared folder, in one go or in several.

The driver checks the arguments before it writes anything, chooses the tasks that are left and how many run at once, and
writes the manifests at the end. The work is done by `prepare_task`, wherever the executor runs it.
"""

import concurrent.futures
import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from os import PathLike
from typing import Any, Literal, Never

import numpy as np

from piecemill import _core, machine
from piecemill.errors import PlanError, ShardError, Stopped
from piecemill.executors import Executor, open_executor
from piecemill.files import Place, clear_scratch, locked, open_place
from piecemill.machine import memory_now, memory_peak
from piecemill.plans import FROM_PLAN, did_you_mean, option, with_keywords
from piecemill.preparing.dedup import drop_later_copies
from piecemill.preparing.finish import Totals, finish
from piecemill.preparing.folder import begin
from piecemill.preparing.plan import PreparePlan
from piecemill.preparing.result import STAGES, Numbers, PrepareProgress, Summary
from piecemill.preparing.selection import Splits
from piecemill.preparing.task import Job, prepare_task
from piecemill.shards.folder import STATS, TIMING, begun_times, checked_stats, saved_tokenizer
from piecemill.shards.format import VERSION, token_dtype
from piecemill.shards.manifest import delete_entry, delete_leftovers, newest_entries, whole_entries
from piecemill.sources import Source, Task
from piecemill.sources.matching import directory_keys, parse_grouping, parse_weights, weight_groups
from piecemill.tokenizers import Tokenizer, load_tokenizer, resolve_bos, resolve_eos
from piecemill.tokenizers.verify import engine_record

OnProgress = Callable[[PrepareProgress], None]

MIB = 2**20
# The interpreter with all imports of `prepare`. Memory of the process beyond this belongs to the caller.
_INTERPRETER = 256 * MIB
# Memory of a running task besides blocks: file pages, table columns, and memory that allocators retain.
_TASK, _TABLES = 48 * MIB, 96 * MIB
# Blocks of a running task: two read ahead, with input buffers; one being encoded, with its ids; ids being written.
_BLOCKS = 8
_THREAD = 32 * MIB  # of the encoder, for each thread: caches, ids of chunks, its part of the table of shared words


@did_you_mean
def prepare(
    source: object,
    tokenizer: Tokenizer | str | PathLike[str],
    *,
    out: str | PathLike[str],
    executor: str | Executor | concurrent.futures.Executor = "local",
    ray_address: str | None = None,
    part: str | None = None,
    join: bool = False,
    force: bool = False,
    plan: PreparePlan | None = None,
    on_progress: OnProgress | None = None,
    field: str = FROM_PLAN,
    separator: str | None = FROM_PLAN,
    include: Sequence[str] = FROM_PLAN,
    exclude: Sequence[str] = FROM_PLAN,
    gitignore: bool = FROM_PLAN,
    hidden: bool = FROM_PLAN,
    max_file_bytes: int | str = FROM_PLAN,
    on_bad_document: Literal["stop", "skip"] = FROM_PLAN,
    bytes: bool = FROM_PLAN,
    integers: bool = FROM_PLAN,
    upper: bool = FROM_PLAN,
    storage_option: Sequence[str] = FROM_PLAN,
    splits: str | dict[str, float] | None = FROM_PLAN,
    split_by: str | None = FROM_PLAN,
    seed: int = FROM_PLAN,
    dedup: Literal["exact", "none"] = FROM_PLAN,
    weight: Sequence[str] = FROM_PLAN,
    min_bytes: int | str = FROM_PLAN,
    max_bytes: int | str | None = FROM_PLAN,
    eos: str = FROM_PLAN,
    bos: str = FROM_PLAN,
    special_in_text: Literal["plain", "parse", "stop"] = FROM_PLAN,
    piece_bytes: int | str = FROM_PLAN,
    threads: int | None = FROM_PLAN,
    memory: int | str = FROM_PLAN,
    block_bytes: int | str = FROM_PLAN,
    **unknown: Never,
) -> Summary:
    """Encode `source` into token shards under `out`; called again after a stop, it resumes.

    `source` is whatever `piecemill.sources` can open, `tokenizer` a Tokenizer or where to load one, `out` a folder or
    the URL of one in an object store. Keywords from `field` on are the fields of `PreparePlan`, which says what each
    means and its default; they override those of `plan`. The files are the same, byte by byte, for any executor,
    number of workers and interruptions. With `part`, such as "3/64", only that share of the tasks is done; `join`
    finishes the folder when all parts are done. A folder made from other data, also other data in memory, is an error;
    `force` replaces it. The rules are in `docs/prepare.md`.

    >>> import tempfile
    >>> tok = Tokenizer.from_merges([], pretokenizer="gpt2", special_tokens=["<|endoftext|>"])
    >>> with tempfile.TemporaryDirectory() as out:
    ...     prepare(["one two", "three"], tok, out=out).tokens
    14
    """
    plan = with_keywords(plan, PreparePlan, locals(), unknown)
    if part is not None and join:
        raise PlanError(f"{option('part', part)} and {option('join')}: first run all parts, then join once.")
    # Invalid arguments are reported before anything is written.
    open_executor(executor, ray_address=ray_address, part=part)
    callers_own = max(0, memory_now() - _INTERPRETER)
    tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(tokenizer)
    run = _Driver(plan, tokenizer, open_place(out), on_progress or (lambda _: None), callers_own)
    try:
        opened = run.open(source, executor, part=part, join=join, force=force)
        with locked(run.place, shared=part is not None, complete=None if force else STATS):
            return run.prepare(opened, executor, ray_address=ray_address, part=part, join=join, force=force)
    except KeyboardInterrupt as stop:
        raise Stopped(f"stopped; run the same command again to go on with {out}", *stop.args) from None
    except OSError as error:
        raise ShardError(
            f"{error.filename or out}: {error.strerror or error}. What was written so far counts: "
            "free some space or fix the cause, and run the same command again to go on."
        ) from error


def _is_local(executor: object) -> bool:
    """Whether tasks run in threads of this process and share its cores and memory. Elsewhere a task uses one core."""
    return getattr(executor, "name", executor) == "local"


def _documents_of(tokenizer: Tokenizer, plan: PreparePlan) -> dict[str, Any]:
    """What a source must refuse, as `open_source` takes it; PlanError if the tokenizer takes other documents.

    With `special_in_text="parse"`, documents may have the text of special tokens, which need not be in the alphabet:
    then the tokenizer refuses the rest.
    """
    if plan.bytes and not tokenizer.takes_bytes:
        raise PlanError(
            f"{option('bytes')}: a {tokenizer.kind} with a pretokenizer encodes text. Expected byte-level BPE without "
            "one, as `piecemill train --bytes` makes it."
        )
    if plan.integers and tokenizer.integers is None:
        raise PlanError(
            f"{option('integers')}: the tokenizer is a {tokenizer.kind}, expected one that was trained on integers."
        )
    if tokenizer.integers is not None and not plan.integers:
        raise PlanError(f"{option('integers')}: the tokenizer is a {tokenizer.kind}: say that documents are integers.")
    alphabet = None if plan.special_in_text == "parse" else tokenizer.alphabet
    return {"alphabet": alphabet, "known": tokenizer.integers}


class _Driver:
    """The driver of one call of `prepare`."""

    def __init__(
        self, plan: PreparePlan, tokenizer: Tokenizer, place: Place, on_progress: OnProgress, callers_own: int
    ) -> None:
        self.plan, self.tokenizer, self.place, self.on_progress = plan, tokenizer, place, on_progress
        self.where, self.callers_own = place.local() or place.url, callers_own
        self.started, self.peak_before, self.memory_seen = time.perf_counter(), memory_peak(), 0
        self.splits, self.groups = Splits.parse(plan.splits), parse_weights(plan.weight)
        self.levels, self.group_field = parse_grouping(plan.split_by, "split_by")
        self.bos, self.eos = resolve_bos(tokenizer, plan.bos), resolve_eos(tokenizer, plan.eos)
        self.dtype = token_dtype(tokenizer.vocab_size)
        background = concurrent.futures.ThreadPoolExecutor(1)  # loads the engine while the folder is begun
        self.engine, self.record = background.submit(tokenizer.encode, ""), background.submit(engine_record, tokenizer)
        background.shutdown(wait=False)

    def open(self, source: object, executor: Any, *, part: str | None, join: bool, force: bool) -> Source:
        """The source, once it is sure that it can be prepared so; nothing is written."""
        plan = self.plan
        sizes = {"block_bytes": plan.size("block_bytes"), "group_bytes": plan.size("piece_bytes")}
        opened = plan.open_source(
            source, group=self.group_field, out=self.where, **_documents_of(self.tokenizer, plan), **sizes
        )
        if not opened.files and (part is not None or not _is_local(executor)):
            raise PlanError("a source in memory can only be prepared by executor='local', without part: pass files.")
        if not opened.files and (plan.weight or self.levels):
            raise PlanError("weight and split_by directory go by the paths of files, and this source has none.")
        if force and (part is not None or join):
            raise PlanError("force and part: each part would delete what the others did. Delete the folder first.")
        self.file_groups = weight_groups(self.groups, opened.files)  # a pattern may be wrong
        return opened

    def prepare(
        self, opened: Source, executor: Any, *, ray_address: str | None, part: str | None, join: bool, force: bool
    ) -> Summary:
        """Begin or resume the folder, which is locked, and do what is left."""
        alone = part is None and not join and self.place.local() is not None  # object stores have no locks
        state = begin(self.place, self._resolved(opened), opened, self.tokenizer, force=force, alone=alone)
        try:
            if state != "complete":
                return self._go_on(opened, executor, ray_address, part, join, resumed=state == "begun")
        except (ShardError, FileNotFoundError):
            # Object stores have no locks: a second run may have completed the folder and deleted files this one needs.
            if STATS not in self.place.sizes():
                raise
        for task in () if opened.files else opened.tasks:  # data in memory has no sizes and times to compare
            prepare_task(task, self._job(opened, 1))
        delete_leftovers(self.place)  # a crash may have come between the last two steps
        return Summary.from_stats(
            self.where, checked_stats(self.place.read(STATS), f"{self.where}/{STATS}"), complete_before=True
        )

    def _go_on(
        self, opened: Source, executor: Any, ray_address: str | None, part: str | None, join: bool, *, resumed: bool
    ) -> Summary:
        """Run the tasks that are left and, without `part`, the steps after them."""
        if part is None:
            clear_scratch(self.place)
        before, left = self._left(opened)
        if join and left:
            raise ShardError(
                f"{self.place.url}: {len(left):,} of {len(opened.tasks):,} tasks are not done; the first is number "
                f"{left[0].index:,}. Run all parts to their end, then join."
            )
        self.engine.result()  # loaded, so that its memory can be measured
        workers, cores = self._share_memory(opened, len(left)) if _is_local(executor) else (1, 1)
        runner = open_executor(executor, threads=workers, ray_address=ray_address, part=part)
        job = self._job(opened, cores)
        saved_tokenizer(job.out, job.identity, job.engine, self.tokenizer)  # tasks in this process need not load it
        made = self._run_tasks(opened, left, job, runner, before)
        resumed = resumed and before.pieces > 0
        if part is not None:
            more: dict[str, Any] = {"timing": self._timing(made, workers, runner, resumed), "resumed": resumed}
            return Summary(out=self.where, part=part, documents=made.documents, tokens=made.tokens, **more)
        if self.plan.dedup == "exact":
            self.on_progress(PrepareProgress(stage="dedup", workers="finding copies of earlier documents"))
            memory = max((self.plan.size("memory") - memory_now() + self.callers_own) // workers, 64 * MIB)
            entries, names = newest_entries(self.place), self.splits.names
            drop_later_copies(self.place, entries, names, runner, memory, vocab=job.vocab_size)
        timing = self._timing(made, workers, runner, resumed)
        self.place.write(TIMING, (json.dumps(timing, indent=2) + "\n").encode())
        stats = finish(self.place, opened, self.splits, self.groups, job.vocab_size, self.record.result())
        delete_leftovers(self.place)
        return Summary.from_stats(self.where, stats, timing=timing, resumed=resumed)

    def _resolved(self, source: Source) -> dict[str, Any]:
        """plan.json: everything the output depends on, and nothing else."""
        ids = {"vocab_size": self.tokenizer.vocab_size, "eos": self.eos, "bos": self.bos}
        return {
            "format": VERSION,
            "piecemill": _core.__version__,
            "vocab_size": self.tokenizer.vocab_size,
            "dtype": self.dtype.name,
            "splits": {name: float(share) for name, share in zip(self.splits.names, self.splits.shares, strict=True)},
            "bos": self.bos,
            "eos": self.eos,
            "groups": [group._asdict() for group in self.groups],
            "tokenizer": {**ids, "kind": self.tokenizer.kind, "identity": self.tokenizer.identity},
            "source": {"files": len(source.files), "bytes": source.total_bytes},
            "options": self.plan.output(),
        }

    def _left(self, source: Source) -> tuple[Totals, list[Task]]:
        """Totals of earlier runs, and the unfinished tasks."""
        before, pieces, ends, damaged = Totals(), dict[int, int](), dict[int, int](), list[str]()
        for entry in whole_entries(self.place, damaged):
            before.add(entry)
            pieces[entry.task] = pieces.get(entry.task, 0) + 1
            if entry.last:
                ends[entry.task] = entry.piece + 1
        if damaged and STATS in self.place.sizes():
            raise ShardError(f"{self.place.url}: another run has just completed it.")  # and deleted replaced shards
        for name in damaged:
            delete_entry(self.place, name)
        unfinished = [task for task in source.tasks if pieces.get(task.index) != ends.get(task.index, -1)]
        return before, unfinished if source.files else list(source.tasks)  # from memory: to be compared

    def _share_memory(self, source: Source, tasks: int) -> tuple[int, int]:
        """How many tasks run at once in this process, and on how many cores: the formula of docs/prepare.md."""
        plan, held = self.plan, memory_now() - self.callers_own
        tables = _TABLES if any(task.kind in ("parquet", "arrow", "memory") for task in source.tasks) else 0
        each = _BLOCKS * plan.size("block_bytes") + _TASK + tables + _THREAD
        room = (plan.size("memory") - held) // each
        if room < 1:
            raise PlanError(
                f"{option('memory', plan.memory)}: interpreter and tokenizer hold {held / MIB:.0f} MiB, and a task "
                f"takes {each / MIB:.0f}. Allow more, or a smaller block_bytes."
            )
        wanted = plan.threads or machine.cores()
        workers = max(1, min(wanted, room, tasks))
        cores = min(wanted, workers + (plan.size("memory") - held - workers * each) // _THREAD)
        why = f"{wanted:,} requested" if plan.threads else f"{wanted:,} cores"
        limit = f", {plan.memory} memory has room for {room:,}" if room < min(wanted, tasks) else ""
        said = f"{workers:,} task{'s' * (workers > 1)} at once on {cores:,} core{'s' * (cores > 1)}: {why}{limit}"
        self.on_progress(PrepareProgress(stage="start", workers=said))
        return workers, cores

    def _job(self, source: Source, cores: int) -> Job:
        return Job(
            plan=self.plan,
            out=self.place,
            reading=source.reading,
            splits=self.splits,
            identity=self.tokenizer.identity,
            engine=self.tokenizer.engine.name,
            vocab_size=self.tokenizer.vocab_size,
            bos=self.bos,
            eos=self.eos,
            cores=cores,
            groups=self.file_groups,
            keys=directory_keys(source.files, self.levels) if self.levels else None,
            changed=begun_times(self.place, len(source.files)),
            memory=source.memory,
        )

    def _run_tasks(self, source: Source, tasks: list[Task], job: Job, executor: Executor, before: Totals) -> Numbers:
        done, started = Numbers(), time.perf_counter()
        # Tasks of each file that are left: a file is done when it has none.
        waiting = np.zeros(len(source.files), np.int32)
        for task in tasks:
            waiting[task.first_file : task.first_file + len(task.paths)] += 1

        def tick(running: Sequence[Numbers]) -> None:
            self.memory_seen = max(self.memory_seen, memory_now())
            now, seconds, total = sum(running, done), time.perf_counter() - started, source.total_bytes
            read, speed = before.tally.source_bytes + now.source_bytes, now.source_bytes / max(seconds, 1e-9)
            event = PrepareProgress(
                files=int((waiting == 0).sum()),
                files_total=len(source.files),
                bytes_read=read,
                bytes_total=total,
                documents=before.sum(0) + now.documents,
                tokens=before.sum(1) + now.tokens,
                bytes_per_second=speed,
                seconds_left=(total - read) / speed if total and speed and seconds > 0.5 else None,
            )
            self.on_progress(event)

        with closing(executor.map(partial(prepare_task, job=job), tasks, tick)) as results:
            for task, numbers in results:
                done += numbers
                waiting[task.first_file : task.first_file + len(task.paths)] -= 1
        tick(())
        return done

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
