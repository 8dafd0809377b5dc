"""The job: all that a task needs to be prepared, on this machine or another."""

import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import ShardError, SourceError
from piecemill.files import Place
from piecemill.preparing.plan import PreparePlan
from piecemill.preparing.selection import Splits
from piecemill.shards.folder import TOKENIZER, load_saved_tokenizer
from piecemill.sources import Reading, Task
from piecemill.tokenizers import Tokenizer

_loaded: dict[tuple[str, str, str], Tokenizer] = {}
"Tokenizers of this process by place, identity and engine: a worker loads each once."
_loading = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Job:
    """What is the same for all tasks of a run. Can be pickled: no locks, threads, callbacks or open files."""

    plan: PreparePlan
    out: Place
    reading: Reading
    splits: Splits
    identity: str
    "Of the tokenizer in `out`."
    engine: str
    dtype: str
    bos: int | None
    eos: int | None
    cores: int
    "Cores for the tasks of one process; those that run at the same time share them."
    groups: NDArray[np.int32] | None
    "The weight group of each source file; None if all are in group 0."
    keys: NDArray[np.uint64] | None
    "A hash of what each source file belongs with, for `split_by=directory`."
    changed: NDArray[np.int64]
    "When each source file was last changed, in nanoseconds; -1 where that is not known."
    memory: Any = None
    "The object to read, of a source in memory: then the job stays in its process."

    def tokenizer(self, loaded: Tokenizer | None = None) -> Tokenizer:
        """The tokenizer of the run, loaded once per process; `loaded` is it, where it is there already."""
        key = (self.out.url, self.identity, self.engine)
        with _loading:
            if key not in _loaded:
                tokenizer = loaded or load_saved_tokenizer(self.out, engine=self.engine)
                if tokenizer.identity != self.identity:
                    raise ShardError(
                        f"{self.out.url}/{TOKENIZER}: not the tokenizer of this run ({tokenizer.identity}, expected "
                        f"{self.identity}). Restore it, or choose another --out."
                    )
                _loaded.clear()  # a worker serves one run after another
                _loaded[key] = tokenizer
            return _loaded[key]

    def check_unchanged(self, task: Task) -> None:
        """SourceError if a file of `task` is not as it was when the run began; called before anything is kept."""
        if not len(self.changed):
            return
        for number, (path, size) in enumerate(zip(task.paths, task.sizes, strict=True), task.first_file):
            try:
                now = os.stat(path)
            except OSError:
                continue  # a URL, or gone: then the reader has reported it
            if now.st_size != size:
                raise source_changed(path, f"it had {size:,} bytes and has {now.st_size:,} now")
            if now.st_mtime_ns != self.changed[number]:
                raise source_changed(path, "it was written to since the run began")


def source_changed(path: str, how: str) -> SourceError:
    """The error for a source file that is no longer what was prepared."""
    return SourceError(
        f"{path}: changed under the run: {how}. The shards no longer match this file: "
        "restore it (with its time), or choose another --out."
    )
