"""The folder that a run writes to: new, begun or complete, and begun with the same plan, tokenizer and source?

plan.json is created first, in one step that only one run can win; a run that finds another plan there has changed
nothing. Besides the files of docs/shards.md there is `.sources.npy`: when each source file was last changed.

Start with `Folder`.
"""

import io
import json
import os
import shutil
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PlanError, ShardError
from piecemill.files import LOCK, SCRATCH, FolderLock, Place, parse_json
from piecemill.preparing.job import source_changed
from piecemill.shards.folder import CHANGED, FILES, PLAN, STATS, TIMING, TOKENIZER
from piecemill.shards.format import VERSION
from piecemill.shards.manifest import ENTRIES
from piecemill.sources import File, Source
from piecemill.tokenizers import Tokenizer
from piecemill.tokenizers.saving import files_of

_OURS = frozenset({PLAN, FILES, STATS, TOKENIZER, LOCK, SCRATCH, CHANGED, TIMING, ENTRIES})
_SHOWN = 60


class Folder:
    """The folder of one run. On a file system it is locked until `release`; runs that `share` it do a part each."""

    def __init__(self, place: Place, *, share: bool) -> None:
        self.place, self._lock, self._path = place, None, place.local()
        if self._path is not None:
            self._path.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self._path, shared=share)
        self._share = share

    def release(self) -> None:
        """Let the next run in."""
        if self._lock is not None:
            self._lock.release()

    def clear_scratch(self) -> None:
        """Delete what killed runs left unfinished."""
        if self._path is not None:
            shutil.rmtree(self._path / SCRATCH, ignore_errors=True)

    def begin(self, plan: dict[str, Any], source: Source, tokenizer: Tokenizer) -> Literal["new", "begun", "complete"]:
        """Begin a run or go on with one; refuses another plan, tokenizer or source, and a folder of someone else."""
        names = set(self.place.sizes() if self._path is None else os.listdir(self._path))
        if PLAN not in names and (foreign := sorted(names - _OURS)):
            raise ShardError(
                f"{self.place.url}: holds {foreign[0]!r} and was not made by `piecemill prepare`. "
                "Choose an empty or a new folder for --out."
            )
        new = PLAN not in names and self.place.create(PLAN, (json.dumps(plan, indent=2) + "\n").encode())
        if not new:
            self._check_same(plan, source, names)
        if not self._share:
            self.clear_scratch()
        saved = self.place.sizes(TOKENIZER)
        for name, content in files_of(tokenizer).items():
            if name not in saved:
                self.place.write(f"{TOKENIZER}/{name}", content)
        if CHANGED not in names:
            buffer = io.BytesIO()
            np.save(buffer, changed_times(source.files))
            self.place.write(CHANGED, buffer.getvalue())
        if FILES not in names:
            self.place.write(FILES, _file_lines(source))
        return "complete" if STATS in names else "new" if new else "begun"

    def changed_times(self) -> NDArray[np.int64]:
        """When each source file was last changed, as the run that began the folder saw it."""
        try:
            times: NDArray[np.int64] = np.load(io.BytesIO(self.place.read(CHANGED)), allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ShardError(
                f"{self.place.url}/{CHANGED}: cannot be read ({error}), so it is not known whether the sources are "
                "the same. Choose another --out."
            ) from None
        return times

    def _check_same(self, plan: dict[str, Any], source: Source, names: set[str]) -> None:
        old = parse_json(self.place.read(PLAN), f"{self.place.url}/{PLAN}", "Choose another --out.")
        if old.get("format") != VERSION:
            raise ShardError(
                f"{self.place.url}: in format {old.get('format')!r}, of another version of Piecemill; this one writes "
                f"format {VERSION}. It can be read, but not gone on with: choose another --out."
            )
        # The options first: what the user wrote says more than what follows from it. The files before their sum.
        for name in ("options", *sorted({*old, *plan} - {"options", "source"})):
            self._check_field(name, old.get(name), plan.get(name))
        if FILES in names:
            self._check_files(source)
        self._check_field("source", old.get("source"), plan.get("source"))
        if CHANGED in names:
            for file, was, now in zip(source.files, self.changed_times(), changed_times(source.files), strict=True):
                if was != now:
                    raise source_changed(file.path, "it was written to since")

    def _check_files(self, source: Source) -> None:
        if (content := self.place.read(FILES)) == _file_lines(source):
            return
        listed, files = [json.loads(line) for line in content.splitlines()], source_files(source)
        for number, (was, file) in enumerate(zip(listed, files, strict=False)):
            if was["path"] != file.path:
                raise ShardError(
                    f"{self.place.url}: its source file {number + 1:,} was {was['path']}, and is {file.path} now. "
                    "Resuming needs the same files: restore them, or choose another --out."
                )
            if was["bytes"] != file.size and source.files:
                raise source_changed(file.path, f"it had {was['bytes']:,} bytes and has {file.size:,} now")
        if len(listed) != len(files):
            raise ShardError(
                f"{self.place.url}: made from {len(listed):,} source files, found {len(files):,} now. "
                "Resuming needs the same files: restore them, or choose another --out."
            )

    def _check_field(self, name: str, old: Any, new: Any) -> None:
        if json.loads(json.dumps(new)) == old:
            return
        if isinstance(old, dict) and isinstance(new, dict):
            inner = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
            if name == "tokenizer":
                raise ShardError(
                    f"{self.place.url}: made with another tokenizer ({inner} was {old.get(inner)!r}, is "
                    f"{new.get(inner)!r}). Resuming needs the same one: choose another --out, or pass "
                    f"--tokenizer {self.place.url}/{TOKENIZER}."
                )
            name, old, new = (inner if name == "options" else f"{name}.{inner}"), old.get(inner), new.get(inner)
        raise PlanError(
            f"{self.place.url}: made with {name}={_short(old)}, asked for {name}={_short(new)}. "
            f"Going on needs the same plan: choose another --out, or the same --{name.replace('_', '-')}."
        )


def changed_times(files: Sequence[File]) -> NDArray[np.int64]:
    """When each file was last changed, in nanoseconds; -1 if it cannot be asked."""
    times = np.full(len(files), -1, np.int64)
    for number, file in enumerate(files):
        try:
            times[number] = os.stat(file.path).st_mtime_ns
        except OSError:
            continue
    return times


def source_files(source: Source) -> Sequence[File]:
    """The files that documents refer to by number; a source in memory counts as one."""
    return source.files or [File(task.paths[0], task.nbytes, True) for task in source.tasks[:1]]


def _file_lines(source: Source) -> bytes:
    lines = [json.dumps({"path": file.path, "bytes": file.size}) + "\n" for file in source_files(source)]
    return "".join(lines).encode()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
