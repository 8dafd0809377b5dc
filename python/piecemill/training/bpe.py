"""Documents -> a BPE vocabulary.

`train_bpe` counts words (or loads whole documents: `pretokenizer="none"`), learns merges, and returns a `Tokenizer`.
Counting and merging happen in `_core`; this module runs the stages, reports progress and writes the training record.
"""

import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Never

import numpy as np
from numpy.typing import NDArray

from piecemill import _core
from piecemill.errors import PlanError, TokenizerError
from piecemill.executors import Executor, open_executor
from piecemill.files import new_file
from piecemill.machine import memory_now
from piecemill.plans import FROM_PLAN, arguments_of, by_place, did_you_mean, option, with_keywords
from piecemill.sources import Documents, Source, Tally
from piecemill.sources.matching import parse_grouping, parse_weights
from piecemill.tokenizers import Tokenizer
from piecemill.tokenizers.engines.tokenizers import cuts_otherwise
from piecemill.tokenizers.models.byte_level import bytes_of
from piecemill.tokenizers.models.config import read_template
from piecemill.tokenizers.models.integers import IntegerBPE
from piecemill.tokenizers.models.vocabulary import check_special_tokens
from piecemill.tokenizers.pretokenizers import superword_pretokenizer
from piecemill.training.alphabet import Alphabet, IntegerCorpus, Narrowed
from piecemill.training.counting import CountJob, Feed, add_words, count_block, count_on, never_cut
from piecemill.training.counts import (
    NOTHING,
    Corpus,
    check_files,
    check_not_a_source,
    counted_by,
    load_counts,
    not_read,
    write_counts,
)
from piecemill.training.groups import Grouping, Tags, check_parallel, group_records, in_parts
from piecemill.training.growing import Start, padded, start_of
from piecemill.training.plan import DEFAULT_PRETOKENIZER, TrainPlan
from piecemill.training.result import Counted, Stage, TrainProgress
from piecemill.training.stages import Remaining, Stages, moment

OnProgress = Callable[[TrainProgress], None]

# Blocks that wait between reading and counting. Two or three keep every thread busy.
_WAITING_BYTES = 32 * 2**20

# Fewer bytes of distinct words are merged by one thread: more would wait for each other.
_WORTH_THREADS = 16 * 2**20


@did_you_mean
def train_bpe(
    source: object = None,
    *,
    plan: TrainPlan | None = None,
    on_progress: OnProgress | None = None,
    force: bool = False,
    executor: str | Executor | futures.Executor = "local",
    ray_address: str | None = None,
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
    vocab_size: int = FROM_PLAN,
    start: Tokenizer | str | PathLike[str] | None = FROM_PLAN,
    pad_to: int = FROM_PLAN,
    pretokenizer: str | None = FROM_PLAN,
    alphabet: str | None = FROM_PLAN,
    superwords: int | None = FROM_PLAN,
    superword_pretokenizer: str | None = FROM_PLAN,
    max_words: int = FROM_PLAN,
    special_tokens: Sequence[str] = FROM_PLAN,
    roles: Mapping[str, str] | Sequence[str] = FROM_PLAN,
    chat_template: str | PathLike[str] | None = FROM_PLAN,
    min_frequency: int = FROM_PLAN,
    max_token_bytes: int | None = FROM_PLAN,
    balance: str | None = FROM_PLAN,
    balance_on: str | PathLike[str] | None = FROM_PLAN,
    balance_after: int = FROM_PLAN,
    balance_window: int = FROM_PLAN,
    weight: Sequence[str] = FROM_PLAN,
    weight_by: str | None = FROM_PLAN,
    threads: int | None = FROM_PLAN,
    memory: int | str = FROM_PLAN,
    save_counts: str | PathLike[str] | None = FROM_PLAN,
    from_counts: Sequence[str | PathLike[str]] = FROM_PLAN,
    **unknown: Never,
) -> Tokenizer:
    """Learn a byte-level BPE vocabulary from `source`; exact, and the same for any number of threads.

    `source` is whatever `piecemill.sources` can open: a path, a glob, a list of them, a table, an iterable of
    strings. A single string is a path, never a text. Keywords from `field` on are the fields of `TrainPlan`, which
    describes each and its default (as does `piecemill train --help`); they override those of `plan`.
    If no pair is left before the vocabulary is full, the tokenizer is smaller, as its `training` record shows.
    With `start`, a tokenizer or where one is, training goes on from its merges: its ids stay, and `vocab_size` counts
    its tokens too. With `superwords`, tokens beyond that size also span words. With `balance`, each merge is chosen for
    the group of documents that is compressed worst so far. `force` replaces a file at `save_counts`, which otherwise is
    an error. Words are counted on `executor`: threads here ("local"), "ray" (the cluster at `ray_address`), or any
    `concurrent.futures.Executor`; the vocabulary is the same.

    >>> tok = train_bpe(["low lower lowest"] * 10, vocab_size=262, pretokenizer="gpt2")
    >>> tok.decode(tok.encode("lower"))
    'lower'
    """
    return _run(locals()).train(source)


@did_you_mean
@arguments_of(train_bpe)
def count_words(**given: Any) -> Counted:
    """Count the words of `source` into `plan.save_counts` without learning merges; returns what was counted.

    An existing file is an error, unless `force` replaces it. All arguments are as in `train_bpe`.
    """
    run = _run(given)
    if run.save_counts is None:
        raise PlanError("save_counts is not set: say which file the counts go to.")
    run.count(given["source"])
    return Counted(counts=run.save_counts, distinct_words=run.distinct_words, **run.read())


def _run(given: Mapping[str, Any]) -> "Run":
    """The run that the arguments of `train_bpe` ask for."""
    plan = with_keywords(given["plan"], TrainPlan, given, given["unknown"])
    executor = open_executor(given["executor"], ray_address=given["ray_address"])
    return Run(plan, given["on_progress"] or (lambda _: None), force=given["force"], executor=executor)


_NAMED = 100
"So many source files are named in training.json; all are counted."


class Run:
    """One training run: its stages, counters of what was read, and progress."""

    def __init__(self, plan: TrainPlan, on_progress: OnProgress, *, force: bool, executor: Executor) -> None:
        try:
            check_special_tokens(plan.special_tokens)  # before the work, not after it
        except TokenizerError as error:
            raise PlanError(str(error)) from None
        self.chat_template = None if plan.chat_template is None else read_template(Path(plan.chat_template))
        self.save_counts = None if plan.save_counts is None else Path(plan.save_counts)
        check_files(self.save_counts, plan.from_counts, force=force)
        self.plan = plan
        self.start = None if plan.start is None else start_of(plan)
        self.alphabet = None if plan.alphabet is None else Alphabet(plan.alphabet)
        given = self.start.pretokenizer if self.start else "none" if plan.bytes or plan.integers else plan.pretokenizer
        self.pretokenizer = given or (counted_by(plan.from_counts[0]) if plan.from_counts else DEFAULT_PRETOKENIZER)
        if plan.bytes and self.pretokenizer != "none":
            raise PlanError(
                f"{option('bytes')}: the pretokenizer of {option('start')} or of the counts is {self.pretokenizer!r}, "
                "which needs text. Bytes are trained with the pretokenizer 'none'."
            )
        self.second_counter: _core.WordCounter | None = None
        if plan.two_stages:
            self.second_pretokenizer = plan.superword_pretokenizer or superword_pretokenizer(self.pretokenizer)
            self.second_counter = _core.WordCounter(self.second_pretokenizer, plan.memory_bytes, tempfile.gettempdir())
        self.executor = executor
        self.on_progress = on_progress
        self.stages = Stages()
        self.progress = _core.Progress()
        self.corpus = NOTHING
        self.tally = Tally()
        self.files, self.sources = 0, [str(path) for path in plan.from_counts]
        self.pretokenizer_note: str | None = None
        self.unused_separator: str | None = None
        self.notes: tuple[str, ...] = ()
        self.weights = parse_weights(plan.weight)
        self.parts, self.one = in_parts(self.weights)
        self.least = min(plan.min_frequency * self.one, 2**64 - 1)
        self.grouping: Grouping | None = None
        self.tags: Tags | None = None
        self.distinct_words = 0
        self.spills = (0, 0)
        self._bytes_read = 0
        self._started = time.perf_counter()

    def train(self, source: object) -> Tokenizer:
        plan = self.plan
        self.pretokenizer_note = cuts_otherwise(self.second_pretokenizer if self.second_counter else self.pretokenizer)
        here = self.executor.name == "local" and not (plan.balance or plan.weight)
        whole = self.pretokenizer == "none" and not plan.from_counts and plan.save_counts is None and here
        if plan.integers:
            return self._train_integers(source)
        if self.second_counter is not None:
            return self._train_superwords(source, self.second_counter)
        learned: _core.Learned | Narrowed
        if self.start is None:
            learned = all_bytes = self._learn(source, plan.vocab_size, whole=whole)
            if self.alphabet:
                learned = self.alphabet.narrowed(all_bytes, len(plan.special_tokens))
        else:
            learned = self._continue(self.start, source, plan.vocab_size, whole=whole)
        return self._finished(self.start, self.pretokenizer, learned.merges, learned, self._record(learned))

    def _train_integers(self, source: object) -> Tokenizer:
        if self.executor.name != "local":
            raise PlanError(f"{option('executor', self.executor.name)}: integers are not counted elsewhere. Use local.")
        corpus = IntegerCorpus()
        with self.stages.stage("read"):
            self._read(source, corpus.add, lambda: 0, "read")
            values, flat = corpus.ready(self.plan)
        special, size = self.plan.special_tokens, self.plan.vocab_size
        learned = self._merge(lambda: flat.train(self.progress), len(special) + len(values), size)
        model = IntegerBPE(values, learned.merges, special, training=self._record(learned))
        return self._with_roles(padded(Tokenizer(model), self._reserved(learned)))

    def _train_superwords(self, source: object, counter: _core.WordCounter) -> Tokenizer:
        """Merge inside words up to `superwords`, then inside those that `counter` counts by the second pretokenizer."""
        plan, size = self.plan, self.plan.superwords or 0
        first = self._continue(self.start, source, size) if self.start else self._learn(source, size)
        between = self._finished(self.start, self.pretokenizer, first.merges, None, {})
        with self.stages.stage("segment"):
            start = Start(between, self.second_pretokenizer)
            counts = self.stages.watch(counter.finish, self.progress)
            self.spills = (self.spills[0] + counter.spills[0], self.spills[1] + counter.spills[1])
            corpus = self._segmented(start, [counts], plan.vocab_size, plan.max_words)
        self.progress = _core.Progress()
        second = self._merge(lambda: corpus.train(self.progress), start.vocab_size, plan.vocab_size)
        record = self._record(second)
        record["merges"] += len(first.merges)
        record["second_stage"] = {"begins": start.vocab_size, "merges": len(second.merges), "words": len(counts)}
        end = Start(self.start.tokenizer, self.second_pretokenizer) if self.start else None
        merges = np.concatenate([first.merges, second.merges])
        return self._finished(end, self.second_pretokenizer, merges, second, record)

    def _learn(self, source: object, size: int, *, whole: bool = False) -> _core.Learned:
        """The merges of a vocabulary of that size, from nothing; with an alphabet, all 256 bytes are in it."""
        plan, alphabet = self.plan, self.alphabet
        # As the vocabulary compares them: a special token that no bytes are written as is never learned.
        specials = [bytes_of(token) or b"" for token in plan.special_tokens]
        others = (self.least, plan.max_token_bytes, specials)
        begin = 256 + len(specials)
        if whole:
            # The alphabet may not be known before the corpus was read.
            flat = _core.FlatCorpus(size + (255 if alphabet else 0), *others, threads=plan.workers)

            def add(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
                if alphabet:
                    alphabet.add_bytes(data)
                flat.add(data, ends)

            with self.stages.stage("read"):
                self._read(source, add, lambda: 0, "read")
            size = alphabet.size_of_all(size, len(specials)) if alphabet else size
            return self._merge(lambda: flat.train(self.progress, vocab_size=size), begin, size)
        groups = self.count(source)
        if alphabet:
            for words in groups:
                alphabet.check_words(words.arrays(ties=False)[0])
            size = alphabet.size_of_all(size, len(specials))
        groups = self._measured(groups)
        corpus = _core.FlatCorpus(size, *others, threads=self._merging_threads(groups))

        def work() -> _core.Learned:
            for number, words in enumerate(groups):
                corpus.add_words(words, number)
            return corpus.train(self.progress, self._balance)

        return self._merge(work, begin, size)

    def _continue(self, start: Start, source: object, size: int, *, whole: bool = False) -> _core.Learned:
        """The merges that follow those of `start`."""
        if whole:
            corpus = self._segmented_documents(start, source)
        else:
            groups = self._measured(self.count(source))
            with self.stages.stage("segment"):
                corpus = self._segmented(start, groups, size)
        if start.note:
            self.notes += (start.note,)
        return self._merge(lambda: corpus.train(self.progress, self._balance), start.vocab_size, size)

    def _segmented_documents(self, start: Start, source: object) -> _core.FlatCorpus:
        corpus = self._empty_corpus(start, self.plan.workers, self.plan.vocab_size)
        with self.stages.stage("read"):
            self._read(source, lambda data, ends: corpus.add_ids(*start.segment(data, ends)), lambda: 0, "read")
        return corpus

    def _segmented(
        self, start: Start, groups: Sequence[_core.WordCounts], size: int, max_words: int | None = None
    ) -> _core.FlatCorpus:
        corpus = self._empty_corpus(start, self._merging_threads(groups), size, max_words)

        def segment() -> None:
            for number, counted in enumerate(groups):
                words, ends, counts = counted.arrays(ties=False)
                ids, id_ends = start.segment(words, ends, self.plan.workers)
                corpus.add_ids(ids, id_ends, counts, number if self.plan.balance else None)

        self.stages.watch(segment, self.progress)
        return corpus

    def _measured(self, groups: list[_core.WordCounts]) -> list[_core.WordCounts]:
        """`groups`, and after them those of the development set, if there is one."""
        plan = self.plan
        if plan.balance_on is None or self.tags is None:
            return groups
        with self.stages.stage("count development set"):
            source = plan.open_source(plan.balance_on, group=parse_grouping(plan.balance, "balance")[1])
            grouping = Grouping.of(source, plan.balance, ())
            tags = Tags(grouping) if grouping else self.tags
            counter = _core.WordCounter(self.pretokenizer, plan.memory_bytes, tempfile.gettempdir())

            def read() -> None:
                for block in source.blocks():
                    if self.progress.stopped:
                        return
                    count_block(block, counter.add, self.pretokenizer, tags)

            self.stages.watch(read, self.progress)
            check_parallel(self.tags, tags, plan.balance_on)
            return groups + tags.by_group(counter.finish(), [1])

    @property
    def _balance(self) -> tuple[bool, int, int] | None:
        plan = self.plan
        return (plan.balance_on is not None, plan.balance_after, plan.balance_window) if plan.balance else None

    def _merging_threads(self, groups: Sequence[_core.WordCounts]) -> int:
        return self.plan.workers if sum(group.nbytes for group in groups) >= _WORTH_THREADS else 1

    def _empty_corpus(self, start: Start, threads: int, size: int, max_words: int | None = None) -> _core.FlatCorpus:
        limits = (size, self.least, self.plan.max_token_bytes, ())
        return _core.FlatCorpus(*limits, threads=threads, start=start.for_merging(), max_words=max_words)

    def _finished(
        self,
        start: Start | None,
        pretokenizer: str,
        merges: NDArray[np.uint32],
        learned: _core.Learned | Narrowed | None,
        training: dict[str, Any],
    ) -> Tokenizer:
        """The tokenizer with `merges`; with `learned`, the last one, that has its reserved tokens and roles too."""
        reserved = self._reserved(learned) if learned else 0
        if start is not None:
            tokenizer = start.grown(merges, reserved, training)
        else:
            special = self.plan.special_tokens
            alphabet = self.alphabet.bytes if self.alphabet else None
            tokenizer = Tokenizer.from_merges(
                merges, pretokenizer=pretokenizer, special_tokens=special, alphabet=alphabet, training=training
            )
            tokenizer = padded(tokenizer, reserved)
        return self._with_roles(tokenizer) if learned else tokenizer

    def _reserved(self, learned: _core.Learned | Narrowed) -> int:
        """How many tokens make the size a multiple of `pad_to`."""
        return -learned.vocab_size % self.plan.pad_to

    def _with_roles(self, tokenizer: Tokenizer) -> Tokenizer:
        plan = self.plan
        if not plan.roles and self.chat_template is None:
            return tokenizer
        return tokenizer.edit(roles=plan.roles, chat_template=self.chat_template)

    def count(self, source: object) -> list[_core.WordCounts]:
        """The words of `source`, for each group of `balance`."""
        plan = self.plan
        with self.stages.stage("count"):
            counter = _core.WordCounter(self.pretokenizer, plan.memory_bytes, tempfile.gettempdir())
            if plan.from_counts:
                if source is not None and source != ():
                    raise PlanError("from_counts and a source were both given: train from counts or from documents.")
                work = partial(load_counts, plan.from_counts, counter, pretokenizer=self.pretokenizer)
                tick = partial(self._tell_reading, "count", lambda: counter.distinct, None)
                self.corpus, self.tally = self.stages.watch(work, self.progress, tick)
            elif self.executor.name == "local":
                self._read(source, partial(add_words, counter, self.second_counter), lambda: counter.distinct, "count")
            else:
                self._read_elsewhere(source, counter)
            counts: _core.WordCounts = self.stages.watch(counter.finish, self.progress)
            groups = [counts]
            if self.tags is not None:
                groups = self.stages.watch(partial(self.tags.by_group, counts, self.parts), self.progress)
            self.spills = counter.spills
            self.distinct_words = sum(map(len, groups))
        if self.save_counts is not None:
            # The file is opened and renamed in this thread: stopped, the one that writes has nothing left to write to.
            with self.stages.stage("save counts"), new_file(self.save_counts) as file:
                write = partial(write_counts, counts, file, self.pretokenizer, self.corpus, self.tally)
                self.stages.watch(write, self.progress)
        return groups

    def _read(self, source: object, add: Callable[..., None], distinct: Callable[[], int], stage: Stage) -> None:
        plan = self.plan
        opened = self._open(source, stage)
        tallies: dict[tuple[int, int], Tally] = {}
        lock = threading.Lock()

        def consume(block: Documents) -> None:
            here = count_block(block, add, self.pretokenizer, self.tags)
            with lock:
                self.corpus += here
                tallies[block.id] = block.tally
                self._bytes_read += block.tally.source_bytes

        feed = Feed(
            opened, readers=plan.workers, consumers=plan.workers, most_bytes=_WAITING_BYTES, progress=self.progress
        )
        tick = partial(self._tell_reading, stage, distinct, opened)
        self.stages.watch(partial(feed.run, consume), self.progress, tick)
        self.tally = opened.found
        for block_id in sorted(tallies):
            self.tally += tallies[block_id]
        self._check_read(opened)

    def _read_elsewhere(self, source: object, counter: _core.WordCounter) -> None:
        """Count on another executor, in this thread: it mostly waits, and must receive Ctrl-C."""
        opened = self._open(source, "count")

        def on_read(corpus: Corpus, bytes_read: int) -> None:
            self.corpus, self._bytes_read = corpus, bytes_read
            self._tell_reading("count", lambda: counter.distinct, opened)

        job = CountJob(opened.reading, self.pretokenizer, self.plan.memory_bytes, self.grouping)
        self.corpus, self.tally = count_on(self.executor, opened, counter, job, on_read, self.tags)
        if self.second_counter is not None:  # reads everything once more
            again = replace(job, pretokenizer=self.second_pretokenizer)
            count_on(self.executor, opened, self.second_counter, again, lambda *_: None)
        self._check_read(opened)

    def _open(self, source: object, stage: Stage) -> Source:
        if source is None:
            ways = (
                "pass a path, a glob, a table or an iterable of strings",
                "name folders, files or globs before the flags",
            )
            raise PlanError(f"no source was given: {by_place(*ways)}.")
        # Finding the files of a large tree takes a while too.
        plan = self.plan
        allowed = self.alphabet.allowed if self.alphabet else self.start.tokenizer.alphabet if self.start else None
        group = parse_grouping(plan.balance, "balance")[1] or parse_grouping(plan.weight_by, "weight_by")[1]
        find = partial(plan.open_source, source, group=group, alphabet=allowed)
        opened: Source = self.stages.watch(find, self.progress, partial(self._tell_reading, stage, lambda: 0, None))
        self.notes = opened.notes
        self.grouping = Grouping.of(opened, plan.balance, self.weights, plan.weight_by)
        self.tags = Tags(self.grouping) if self.grouping else None
        if self.save_counts is not None:
            check_not_a_source(self.save_counts, opened)
        self.files = len(opened.files)
        self.sources = [file.path for file in opened.files[:_NAMED]] or list(opened.tasks[0].paths)
        return opened

    def _check_read(self, opened: Source) -> None:
        opened.refuse_empty(self.tally)
        if self.plan.separator is not None and never_cut(opened, self.tally):
            self.unused_separator = self.plan.separator

    def _tell_reading(self, stage: Stage, distinct: Callable[[], int], source: Source | None) -> None:
        read, total = self._bytes_read, source.total_bytes if source else None
        seconds = time.perf_counter() - self._started
        left = seconds * (total - read) / read if total and read and seconds > 0.5 else None
        self.on_progress(
            TrainProgress(
                stage=stage,
                documents=self.corpus.documents,
                bytes_read=read,
                bytes_total=total,
                distinct_words=distinct(),
                memory=memory_now(),
                seconds_left=left,
            )
        )

    def _merge(self, work: Callable[[], _core.Learned], begin: int, size: int) -> _core.Learned:
        """Run `work`, which learns merges from a vocabulary of size `begin` to one of `size`."""
        wanted = size - begin
        remaining = Remaining(wanted)
        started = time.perf_counter()

        def tell() -> None:
            progress = self.progress
            now = moment(time.perf_counter() - started, progress)
            remaining.add_snapshot(now)
            self.on_progress(
                TrainProgress(
                    stage="merge",
                    documents=self.corpus.documents,
                    bytes_read=self.corpus.bytes,
                    distinct_words=self.distinct_words,
                    merges=int(now.merges),
                    merges_wanted=wanted,
                    merges_per_second=remaining.merges_per_second(),
                    pair_count=int(now.pair_count) // self.one,
                    token=progress.token,
                    memory=memory_now(),
                    seconds_left=remaining.seconds(),
                )
            )

        with self.stages.stage("merge"):
            learned: _core.Learned = self.stages.watch(work, self.progress, tell)
        return learned

    def read(self) -> dict[str, Any]:
        """What was read, left out and skipped, here or where counts come from."""
        return {
            "documents": self.corpus.documents,
            "bytes": self.corpus.bytes,
            "fingerprint": self.corpus.hex,
            "unused_separator": self.unused_separator,
            "notes": list(self.notes),
            **not_read(self.tally),
        }

    def _record(self, learned: _core.Learned | Narrowed) -> dict[str, Any]:
        """What goes into `training.json`."""
        kept = replace(self.plan, start="") if self.start else self.plan  # a tokenizer is no part of a record
        plan = kept.stored()
        plan["pretokenizer"] = self.pretokenizer
        plan["superword_pretokenizer"] = self.second_pretokenizer if self.second_counter else None
        plan["start"] = self.start and {"identity": self.start.tokenizer.identity, "vocab_size": self.start.vocab_size}
        for name in ("save_counts", "chat_template"):
            plan[name] = str(plan[name]) if plan[name] else None
        plan["from_counts"] = [str(path) for path in plan["from_counts"]]
        return {
            "plan": plan,
            "versions": {"piecemill": _core.__version__, "python": platform.python_version(), "numpy": np.__version__},
            "platform": {"machine": platform.machine(), "system": sys.platform, "threads": self.plan.workers},
            "corpus": {**self.read(), "files": self.files, "sources": self.sources},
            "pretokenizer_note": self.pretokenizer_note,
            "distinct_words": self.distinct_words,
            "spilled": {"runs": self.spills[0], "bytes": self.spills[1]},
            "vocab_size": learned.vocab_size + self._reserved(learned),
            "reserved": self._reserved(learned),
            "merges": len(learned.merges),
            "ended": "vocabulary full" if learned.full else "no pair left",
            "merging": learned.stats,
            "groups": group_records(self.tags, learned, self.one) if self.tags and self.plan.balance else [],
            "stages": self.stages.done,
        }
