"""The folder a run writes to: whose it is, and whether it is new, begun or complete.

A run holds an flock on `.lock`, which the system lets go of when the process ends, however it ends. plan.json is
written last of what a run begins with, so a folder without it has nothing worth keeping. Besides the files of
docs/shards.md there is `.sources.npy`: when each source file was last changed, by which a changed one is noticed.

Start with `Folder`.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PlanError, ShardError, SourceError
from piecemill.shards.folder import CHANGED, FILES, JOURNAL, LOCK, PLAN, STATS, TIMING, TOKENIZER
from piecemill.files import read_json, replace_file, sync_folder
from piecemill.sources import File, Source, Task

_OURS = frozenset({PLAN, FILES, STATS, TOKENIZER, JOURNAL, LOCK, CHANGED, TIMING})
_SHOWN = 60


class Folder:
    """The folder of one run, held against other runs until `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock()

    def _take_lock(self) -> int:
        path = self.path / LOCK
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever finished deleted the name; a lock on a file that has none holds nobody off.
                if os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    os.truncate(descriptor, 0)
                    os.write(descriptor, f"{os.getpid()}\n".encode())
                    return descriptor
            except OSError as error:
                owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
                os.close(descriptor)
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                raise ShardError(
                    f"{self.path}: another run is writing to it (process {owner}). "
                    "Wait for it or stop it; a run that is dead holds nothing."
                ) from None
            except FileNotFoundError:  # pragma: no cover - deleted between two calls
                pass
            os.close(descriptor)

    def release(self) -> None:
        """Let the next run in. The name goes first, while nobody else can hold it."""
        if self._lock >= 0:
            (self.path / LOCK).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1

    def state(self) -> Literal["new", "begun", "complete"]:
        """How far a run got here; a folder with other people's files is an error."""
        if (self.path / STATS).exists():
            return "complete"
        if (self.path / PLAN).exists():
            return "begun"
        foreign = sorted(name for name in os.listdir(self.path) if name not in _OURS and not _left_over(name))
        if foreign:
            raise ShardError(
                f"{self.path}: holds {foreign[0]!r} and was not made by `piecemill prepare`. "
                "Choose an empty or a new folder for --out."
            )
        return "new"

    def begin(self, plan: dict[str, Any], source: Source, tokenizer: Any) -> None:
        """Write down what the run is about; plan.json last."""
        for name in filter(_left_over, os.listdir(self.path)):
            path = self.path / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (self.path / JOURNAL).unlink(missing_ok=True)
        shutil.rmtree(self.path / TOKENIZER, ignore_errors=True)
        tokenizer.save(self.path / TOKENIZER)
        lines = [json.dumps({"path": file.path, "bytes": file.size}) + "\n" for file in _files(source)]
        replace_file(self.path / FILES, "".join(lines).encode())
        self._save_changed(source.files)
        replace_file(self.path / PLAN, _rendered(plan))

    def _save_changed(self, files: Sequence[File]) -> None:
        part = self.path / f".{CHANGED}.part"
        with open(part, "wb") as file:
            np.save(file, changed_times(files))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.path / CHANGED)
        sync_folder(self.path)

    def check_same(self, plan: dict[str, Any], source: Source) -> None:
        """Refuse another plan, tokenizer or source than the one the folder was begun with; say what differs."""
        old = read_json(self.path / PLAN, "Choose another --out.")
        # The options first: what the user wrote says more than what follows from it. The files before their sum.
        self._check_plan(old, plan, ("options", *sorted({*old, *plan} - {"options", "source"})))
        self._check_files(source)
        self._check_plan(old, plan, ("source",))

    def _check_plan(self, old: dict[str, Any], plan: dict[str, Any], names: Sequence[str]) -> None:
        for name in names:
            if json.loads(json.dumps(plan.get(name))) != old.get(name):
                self._refuse_plan(name, old.get(name), plan.get(name))

    def _check_files(self, source: Source) -> None:
        with open(self.path / FILES, encoding="ascii") as lines:
            listed = [json.loads(line) for line in lines]
        files = _files(source)
        for number, (was, file) in enumerate(zip(listed, files, strict=False)):
            if was["path"] != file.path:
                raise ShardError(
                    f"{self.path}: its source file {number + 1:,} was {was['path']}, and is {file.path} now. "
                    "Resuming needs the same files: restore them, or choose another --out."
                )
            if was["bytes"] != file.size and source.files:
                raise _changed(file.path, f"it had {was['bytes']:,} bytes and has {file.size:,} now")
        if len(listed) != len(files):
            raise ShardError(
                f"{self.path}: made from {len(listed):,} source files, found {len(files):,} now. "
                "Resuming needs the same files: restore them, or choose another --out."
            )
        for file, was, now in zip(source.files, self.changed_times(), changed_times(source.files), strict=True):
            if was != now:
                raise _changed(file.path, "it was written to since")

    def changed_times(self) -> NDArray[np.int64]:
        """When each source file was last changed, as the run that began the folder saw it."""
        try:
            times: NDArray[np.int64] = np.load(self.path / CHANGED)
        except (OSError, ValueError) as error:
            raise ShardError(
                f"{self.path / CHANGED}: cannot be read ({error}), so it is not known whether the sources are "
                "the same. Choose another --out."
            ) from None
        return times

    def _refuse_plan(self, name: str, old: Any, new: Any) -> None:
        if isinstance(old, dict) and isinstance(new, dict):
            inner = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
            if name == "tokenizer":
                raise ShardError(
                    f"{self.path}: made with another tokenizer ({inner} was {old.get(inner)!r}, is "
                    f"{new.get(inner)!r}). Resuming needs the same one: choose another --out, or pass "
                    f"--tokenizer {self.path / TOKENIZER}."
                )
            name, old, new = (inner if name == "options" else f"{name}.{inner}"), old.get(inner), new.get(inner)
        flag = name.replace("_", "-")
        raise PlanError(
            f"{self.path}: made with {name}={_short(old)}, asked for {name}={_short(new)}. "
            f"Going on needs the same plan: choose another --out, or the same --{flag}."
        )

    def finish(self) -> None:
        """Remove what only a running run needs."""
        (self.path / JOURNAL).unlink(missing_ok=True)
        sync_folder(self.path)


class Unchanged:
    """Watches that source files stay as they were when the run began."""

    def __init__(self, files: Sequence[File], times: NDArray[np.int64]) -> None:
        self._files, self._times = files, times

    def check(self, task: Task) -> None:
        """Raises `SourceError` if a file of `task` was changed; called after reading and before anything is kept."""
        if not self._files:
            return
        for number in range(task.first_file, task.first_file + len(task.paths)):
            file = self._files[number]
            try:
                now = os.stat(file.path)
            except OSError:
                continue  # gone or unreadable: a bad document, which the reader has told already
            if now.st_size != file.size:
                raise _changed(file.path, f"it had {file.size:,} bytes and has {now.st_size:,} now")
            if now.st_mtime_ns != self._times[number]:
                raise _changed(file.path, "it was written to since the run began")


def changed_times(files: Sequence[File]) -> NDArray[np.int64]:
    """When each file was last changed, in nanoseconds; -1 if it cannot be asked."""
    times = np.empty(len(files), np.int64)
    for number, file in enumerate(files):
        try:
            times[number] = os.stat(file.path).st_mtime_ns
        except OSError:
            times[number] = -1
    return times


def _files(source: Source) -> Sequence[File]:
    return source.files or [File(task.paths[0], task.nbytes, True) for task in source.tasks[:1]]


def _changed(path: str, how: str) -> SourceError:
    return SourceError(
        f"{path}: changed under the run: {how}. What was prepared from it no longer stands for it: "
        "restore the file (with its time), or choose another --out."
    )


def _left_over(name: str) -> bool:
    """Whether this is what a killed run leaves of a file or folder that it was about to write."""
    return name.startswith(f".{TOKENIZER}.") or (name.endswith(".part") and name[1:-5] in _OURS)


def _rendered(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, indent=2) + "\n").encode()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
