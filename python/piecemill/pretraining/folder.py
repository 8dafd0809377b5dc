"""The folder of a run: lock, plan and recorded metrics.

```
plan.json  metrics.jsonl  result.json  sample.txt  curve.png  curve.svg  checkpoints/step-00000200/
```

Start with `RunFolder`; nothing here imports torch.
"""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from piecemill.errors import PretrainError
from piecemill.files import LOCK, FolderLock, LocalPlace, hash_file, parse_json, read_json, regular, replace_file
from piecemill.plans import check_same, option
from piecemill.sizes import plural

PLAN, METRICS, RESULT, SAMPLE, CHECKPOINTS = "plan.json", "metrics.jsonl", "result.json", "sample.txt", "checkpoints"
STATE = "state.json"
"Of a checkpoint."
FORMAT = 1


class RunFolder:
    """The folder of one run, locked by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        mine = {PLAN, LOCK}
        if path.is_dir() and (there := {entry.name for entry in path.iterdir()}) and not there & mine:
            raise PretrainError(
                f"{path} holds other things ({min(there)}, ...) and no run. Name a new or empty {option('out')}."
            )
        self._lock = FolderLock(path, error=PretrainError)
        for left in path.glob(".*.part"):  # of a run that was killed while it wrote a file
            left.unlink(missing_ok=True)
        self._metrics: Any = None

    def begin(self, plan: dict[str, Any]) -> bool:
        """Store `plan`, or compare it with the stored one; true if the run was started before."""
        path = self.path / PLAN
        if not path.exists():
            replace_file(path, (json.dumps({"format": FORMAT, **plan}, indent=2) + "\n").encode())
            return False
        stored = self.plan()
        for name, value in plan["options"].items():
            check_same(self.path, name, stored["options"].get(name), value)
        for name, value in plan["data"].items():
            old = stored["data"].get(name, value)  # earlier versions did not record all
            if old != value:
                raise PretrainError(
                    f"{self.path}: begun on shards with {name} {old!r}, these have {value!r}. Name the same shards, or "
                    f"another {option('out')}."
                )
        return True

    def plan(self) -> dict[str, Any]:
        return read_record(self.path, PLAN)

    def rewind(self, step: int) -> None:
        """Truncate the records to `step`, from which the training resumes, and open the file for appending."""
        path = self.path / METRICS
        if step > 0 and not path.exists():
            raise PretrainError(
                f"{path} is missing: the curve and the times of the first {plural(step, 'step')}. Restore it, or make "
                "an empty file of this name to go on without them."
            )
        kept = [json.dumps(record) + "\n" for record in read_metrics(self.path) if record["step"] <= step]
        replace_file(path, "".join(kept).encode())
        self._metrics = open(path, "a", encoding="utf-8")  # noqa: SIM115 - until `release`

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append one line to metrics.jsonl."""
        plain = {name: _plain(value) for name, value in values.items()}
        self._metrics.write(json.dumps({"kind": kind, "step": step, **plain}) + "\n")
        self._metrics.flush()

    def sync(self) -> None:
        """fsync the records: call it before a checkpoint, which must not outlive the records of its steps."""
        os.fsync(self._metrics.fileno())

    def result(self, result: dict[str, Any]) -> None:
        replace_file(self.path / RESULT, (json.dumps(result, indent=2) + "\n").encode())

    def release(self) -> None:
        """Close open files and release the lock."""
        if self._metrics is not None:
            self._metrics.close()
        self._lock.release()


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    return sorted((run / CHECKPOINTS).glob("step-*"))


def check_tensors(checkpoint: Path, name: str) -> None:
    """PretrainError if a file of a checkpoint has another checksum than its state.json says."""
    path = checkpoint / name
    if not (checkpoint / STATE).is_file():
        return  # a model that `pretrain` did not write
    want = read_record(checkpoint, STATE).get("checksums", {}).get(name)
    try:
        changed = want is not None and hash_file(path) != want
    except OSError as error:
        raise PretrainError(f"{path}: cannot be read: {error.strerror or error}. {OLDER}") from None
    if changed:
        raise PretrainError(f"{path}: was changed after it was written. {OLDER}")


OLDER = "Delete that checkpoint to go on from the one before it."
_FIELDS = {PLAN: ("options", "data", "model"), STATE: ("loader", "guard", "checksums")}
"Fields of each file that must be JSON objects."
_NEW_FIELDS = ("model", "checksums")
"Of these, those that earlier versions did not record."


def read_record(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file of a run or of its checkpoint; PretrainError if it is not as it was written."""
    hint = f"It was changed: restore it, or name another {option('out')}."
    record = read_json(LocalPlace(folder), name, hint, PretrainError)
    for field in _FIELDS.get(name, ()):
        value = record.get(field, {} if field in _NEW_FIELDS else None)
        if not isinstance(value, dict):
            raise PretrainError(f"{folder / name}: {field} is {value!r:.60}; expected an object. {hint}")
    losses = record.get("validation", []) if name == RESULT else []
    if not isinstance(losses, list) or not all(map(_is_loss, losses)):
        raise PretrainError(f"{folder / name}: validation is {losses!r:.60}; expected [step, loss] of each. {hint}")
    return record


def _is_loss(pair: object) -> bool:
    """Whether this is a step and its loss."""
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    return type(pair[0]) is int and isinstance(pair[1], int | float) and abs(pair[1]) < _MOST


_NUMBERS = {
    **dict.fromkeys(("train", "val"), ("tokens", "loss")),
    "pace": ("first", "tokens", "seconds", "waited", "process_cpu", "main_cpu", "feeder_cpu"),
}
"Numbers of a record in metrics.jsonl that are read again, by its kind."
_MOST = 1e300
"No number of a run is as large as this."


def read_metrics(run: Path) -> Iterator[dict[str, Any]]:
    """The records of a run, in order; a line truncated by a crash is ignored."""
    path = run / METRICS
    try:
        content = regular(path).read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise PretrainError(f"{path}: cannot be read: {error.strerror or error}.") from None
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        where, hint = f"{path}, line {number:,}", "It was changed: restore it, or delete the line."
        record = parse_json(line, where, hint, PretrainError)
        if not _is_whole(record):
            raise PretrainError(f"{where}: {line[:60]!r}; expected a kind, a step and its values. {hint}")
        yield record


def _is_whole(record: dict[str, Any]) -> bool:
    """Whether a record of metrics.jsonl has its kind, its step, and the numbers that are read again."""
    numbers = {name: record.get(name) for name in _NUMBERS.get(str(record.get("kind")), ())}
    if numbers.get("loss") in ("nan", "inf", "-inf"):  # of `_plain`
        del numbers["loss"]
    known = all(isinstance(value, int | float) and abs(value) < _MOST for value in numbers.values())
    return known and "kind" in record and type(record.get("step")) is int


def _plain(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
