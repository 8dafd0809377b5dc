"""The vocabulary of actions: features of items, and the pairs of tokens that were merged.

Token 0 is padding; then come the features (category, value), then one token per merge, in the order in which they were
made: the first k tokens of a vocabulary are themselves a vocabulary. Two more ids belong to the model and to no
list: `bos` and `eos`, behind the last token.

The file has the published format, byte for byte; what that format cannot hold (plan, names of columns, readable values)
is in an optional second file beside it. Nothing here knows items or how merges are learned.

Start with `ActionVocabulary.load`.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import TokenizerError
from piecemill.files import as_path, file_for_user, hash_bytes
from piecemill.plans import did_you_mean, option

NAME = "actionpiece.json"
"The file in a folder that is named instead of a file."
FORMAT = 1
"Of the file beside it."

_KEYS = ("n_categories", "n_init_feats", "token2feat", "priority")
_LARGEST = 2**32 - 3  # ids are 32 bits wide, and bos and eos come behind the last token


@dataclass(frozen=True, eq=False)
class ActionVocabulary:
    """Tokens of actions; see the module. Arrays are checked when it is made, and read-only from then on."""

    n_categories: int
    "Features of an item: m."
    initial: NDArray[np.int64]
    "Rows (category, value) of the tokens 1, 2, ...: rising, and every category has a value."
    merges: NDArray[np.uint32]
    "Rows of tokens (a, b), a <= b, that the tokens behind the initial ones stand for."
    priority: Sequence[float]
    "The weight each pair had when it was merged; 0 for padding and features."
    columns: tuple[str, ...] | None = None
    "Names of the categories."
    plan: dict[str, Any] | None = None
    "How it was trained, as far as known."
    labels: Sequence[Sequence[Any] | None] | None = None
    "For each category, what its values 0, 1, ... stand for; None where a value is its own name."
    _values: tuple[NDArray[np.int64], ...] = field(init=False, repr=False)
    "The values of each category, rising."

    def __post_init__(self) -> None:
        initial = np.array(self.initial, np.int64).reshape(-1, 2)
        merges = np.array(self.merges, np.uint32).reshape(-1, 2)
        _check_initial(self.n_categories, initial)
        _check_merges(merges, len(initial) + 1)
        _check_priority(self.priority, len(initial) + 1, len(merges))
        for what, names in (("columns", self.columns), ("labels", self.labels)):
            if names is not None and len(names) != self.n_categories:
                raise TokenizerError(f"{what}: {len(names)} for {self.n_categories} categories; expected one for each.")
        initial.flags.writeable = merges.flags.writeable = False
        object.__setattr__(self, "initial", initial)
        object.__setattr__(self, "merges", merges)
        values = tuple(initial[initial[:, 0] == category, 1] for category in range(self.n_categories))
        object.__setattr__(self, "_values", values)

    @property
    def size(self) -> int:
        """Tokens, padding counted; bos and eos are not."""
        return self.n_init_feats + len(self.merges)

    @property
    def n_init_feats(self) -> int:
        """Tokens that are no merge: padding and the features. Also the id of the first merge."""
        return len(self.initial) + 1

    @property
    def bos(self) -> int:
        """The id that stands before a sequence."""
        return self.size

    @property
    def eos(self) -> int:
        """The id that stands behind a sequence."""
        return self.size + 1

    def __repr__(self) -> str:
        return (
            f"ActionVocabulary({self.size:,} tokens: {len(self.initial):,} features of {self.n_categories} categories)"
        )

    def truncated(self, vocab_size: int) -> "ActionVocabulary":
        """The first `vocab_size` tokens: what training with that size gives."""
        if not isinstance(vocab_size, int) or not self.n_init_feats <= vocab_size <= self.size:
            raise TokenizerError(
                f"{option('vocab_size', vocab_size)}: this vocabulary has {self.size} tokens, {self.n_init_feats} "
                f"of them padding and features. Expected a size from {self.n_init_feats} to {self.size}."
            )
        merges = self.merges[: vocab_size - self.n_init_feats]
        return replace(self, merges=merges, priority=self.priority[:vocab_size])

    def initial_ids(self, codes: NDArray[np.integer[Any]]) -> NDArray[np.uint32]:
        """The tokens of items: a row of m ids for each row of m feature values.

        >>> vocabulary = ActionVocabulary(2, np.array([[0, 7], [0, 9], [1, 7]]), np.empty((0, 2)), [0] * 4)
        >>> vocabulary.initial_ids(np.array([[9, 7]]))
        array([[2, 3]], dtype=uint32)
        """
        codes = np.asarray(codes)
        if codes.ndim != 2 or codes.shape[1] != self.n_categories:
            raise TokenizerError(
                f"items of shape {codes.shape}; expected one row of {self.n_categories} feature values per item."
            )
        ids = np.empty(codes.shape, np.uint32)
        first = 1
        for column, values in enumerate(self._values):
            at = np.searchsorted(values, codes[:, column])
            known = values[np.minimum(at, len(values) - 1)] == codes[:, column]
            if not known.all():
                row = int(np.argmin(known))
                value = int(codes[row, column])
                raise TokenizerError(
                    f"item row {row}: {self.column_name(column)} has the value {value}, which is not in the "
                    f"vocabulary (it knows {len(values):,} values of this column). Train on an item table that has "
                    "every item, or leave this item out."
                )
            ids[:, column] = at + first
            first += len(values)
        return ids

    def entry(self, token: int) -> tuple[int, int] | tuple[int, int, int]:
        """What a token stands for, as in the file: (-1, -1), (category, value) or (-1, a, b)."""
        if token == 0:
            return (-1, -1)
        if token < self.n_init_feats:
            category, value = self.initial[token - 1].tolist()
            return (category, value)
        a, b = self.merges[token - self.n_init_feats].tolist()
        return (-1, a, b)

    def column_name(self, category: int) -> str:
        return self.columns[category] if self.columns is not None else f"column {category}"

    def value_name(self, category: int, value: int) -> str:
        names = self.labels[category] if self.labels is not None else None
        return str(names[value]) if names is not None and 0 <= value < len(names) else str(value)

    def published(self) -> bytes:
        """The content of the published file."""
        entries = [[-1, -1], *self.initial.tolist(), *([-1, a, b] for a, b in self.merges.tolist())]
        record = dict(zip(_KEYS, (self.n_categories, self.n_init_feats, entries, list(self.priority)), strict=True))
        return json.dumps(record).encode()

    @did_you_mean
    def save(self, path: str | os.PathLike[str], *, files: Mapping[str, str] | None = None) -> None:
        """Write the published JSON file at `path` (in a folder: as `actionpiece.json`), and the rest beside it.

        Each file is whole or as before, and the second names the checksum of the first: after a crash between the
        two, loading fails with an error. `files` are others that belong to it, by name, with their checksums.
        """
        target = file_at(path)
        content = self.published()
        beside = {
            "format": FORMAT,
            "vocabulary": target.name,
            "xxh3": hash_bytes(content),
            "files": dict(files or {}),
            "columns": self.columns,
            "labels": self.labels,
            "plan": self.plan,
        }
        beside = json.loads(json.dumps(beside))  # as it will be read: keys are text, tuples lists
        beside["seal"] = _seal(beside)
        with file_for_user(sidecar_of(target)) as file:
            file.write((json.dumps(beside, ensure_ascii=False, indent=1) + "\n").encode())
        with file_for_user(target) as file:
            file.write(content)

    @classmethod
    @did_you_mean
    def load(cls, path: str | os.PathLike[str], vocab_size: int | None = None) -> "ActionVocabulary":
        """The vocabulary in a file that `save` or the published code wrote; its first `vocab_size` tokens if given."""
        target = file_at(path)
        try:
            content = target.read_bytes()
        except OSError as error:
            raise TokenizerError(
                f"{target}: cannot be read: {error.strerror}. Expected a vocabulary of actions, as `piecemill actions "
                "train` or the published code writes it."
            ) from None
        fields = _parse(target, content)
        beside = read_sidecar(target, content)
        try:
            vocabulary = cls(**fields, **beside)
        except TokenizerError as error:
            raise TokenizerError(f"{target}: {error}") from None
        return vocabulary if vocab_size is None else vocabulary.truncated(vocab_size)


def file_at(path: str | os.PathLike[str]) -> Path:
    """The vocabulary file that `path` means: itself, or the one in it if it is a folder or has no suffix."""
    target = Path(as_path(path))
    return target / NAME if target.is_dir() or not target.suffix else target


def sidecar_of(target: Path) -> Path:
    """The file with the plan and the names, beside the vocabulary file `target`."""
    return target.with_name(f"{target.stem}.piecemill.json")


def sealed(target: Path) -> dict[str, str]:
    """Other files that were saved with the vocabulary file `target`, and their checksums."""
    files: dict[str, str] = _record(target).get("files", {})
    return files


def read_sidecar(target: Path, content: bytes) -> dict[str, Any]:
    """Columns, labels and plan of the vocabulary file `target` with this `content`; nothing if it stands alone."""
    record = _record(target)
    if not record:
        return {}
    columns, labels = record["columns"], record["labels"]
    if record["xxh3"] != hash_bytes(content):
        raise TokenizerError(
            f"{sidecar_of(target)}: written for another {target.name} than the one beside it. Save the vocabulary "
            f"again, or delete this file: {target.name} loads without it."
        )
    return {
        "columns": None if columns is None else tuple(columns),
        "labels": None if labels is None else tuple(labels),
        "plan": record["plan"],
    }


def _record(target: Path) -> dict[str, Any]:
    """The record beside the vocabulary file `target`, every field of its type; empty if the file stands alone."""
    beside = sidecar_of(target)
    try:
        record = json.loads(beside.read_bytes())
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']!r}; this version of Piecemill reads format {FORMAT}")
        # Without this, a changed label would silently give an item another code. Earlier versions wrote no seal.
        if record.get("seal", _seal(record)) != _seal(record):
            raise ValueError("it was changed after it was written")
        json.dumps(record, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        columns, labels, files = record["columns"], record["labels"], record.setdefault("files", {})
        if not isinstance(record["xxh3"], str) or not isinstance(record["plan"], dict | None):
            raise ValueError("xxh3 is no checksum, or plan no object")
        if not isinstance(files, dict) or not _are_texts([*files, *files.values()]):
            raise ValueError("files are not names and checksums")
        if columns is not None and not _are_texts(columns):
            raise ValueError("columns are not names")
        if labels is not None and not all(names is None or _are_values(names) for names in labels):
            raise ValueError("labels are not lists of values")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TokenizerError(
            f"{beside}: does not describe a vocabulary ({error}). Restore it, or delete it: {target.name} loads "
            "without it."
        ) from None
    return dict(record)


def _seal(record: Mapping[str, Any]) -> str:
    """The checksum of all fields but itself."""
    rest = {key: value for key, value in record.items() if key != "seal"}
    return hash_bytes(json.dumps(rest, sort_keys=True).encode())


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(one, str) for one in values)


def _are_values(values: Any) -> bool:
    return (
        isinstance(values, list) and bool(values) and all(isinstance(one, str | int | float | None) for one in values)
    )


def _parse(target: Path, content: bytes) -> dict[str, Any]:
    """The fields of the published file, of the right kinds; whether they fit together is for the vocabulary to say."""
    expected = f"Expected a vocabulary of actions: a JSON object with {', '.join(_KEYS)}."
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{target}: not JSON ({error}). {expected}") from None
    missing = [key for key in _KEYS if key not in record] if isinstance(record, dict) else list(_KEYS)
    if missing:
        raise TokenizerError(f"{target}: {', '.join(missing)} not found. {expected}")
    categories, initial, entries, priority = (record[key] for key in _KEYS)
    if type(categories) is not int or categories < 1 or type(initial) is not int or not isinstance(priority, list):
        raise TokenizerError(f"{target}: n_categories and n_init_feats must be numbers, priority a list. {expected}")
    if not isinstance(entries, list) or not 1 <= initial <= len(entries) or entries[0] != [-1, -1]:
        raise TokenizerError(
            f"{target}: token2feat must be a list that begins with the padding, [-1, -1], and has at least "
            f"n_init_feats={initial} entries. {expected}"
        )
    for token, entry in enumerate(entries[1:], start=1):
        width = 2 if token < initial else 3
        fits = isinstance(entry, list) and len(entry) == width and all(type(part) is int for part in entry)
        if not fits or (width == 3 and (entry[0] != -1 or min(entry[1:]) < 0 or max(entry[1:]) > _LARGEST)):
            form = "[category, value]" if width == 2 else "[-1, a, b] with two token ids"
            raise TokenizerError(f"{target}: token {token} is {entry!r}; expected {form}. {expected}")
    if len(priority) != len(entries):
        raise TokenizerError(f"{target}: {len(entries)} tokens but {len(priority)} priorities; expected as many.")
    try:
        features = np.array(entries[1:initial], np.int64)
    except OverflowError:
        raise TokenizerError(f"{target}: a feature value does not fit in 64 bits. {expected}") from None
    merges = np.array([entry[1:] for entry in entries[initial:]], np.uint32)
    return {"n_categories": categories, "initial": features, "merges": merges, "priority": priority}


def _check_initial(n_categories: int, initial: NDArray[np.int64]) -> None:
    categories = initial[:, 0]
    found = np.unique(categories)
    if n_categories < 1 or len(found) != n_categories or (found[0], found[-1]) != (0, n_categories - 1):
        raise TokenizerError(
            f"the features have the categories {found[:20].tolist()}; expected each of 0 to "
            f"{n_categories - 1} (n_categories={n_categories})."
        )
    step = np.diff(categories)
    rising = (step > 0) | ((step == 0) & (initial[1:, 1] > initial[:-1, 1]))
    if not rising.all():
        token = int(np.argmin(rising)) + 2
        before, after = (tuple(row) for row in initial[token - 2 : token].tolist())
        raise TokenizerError(
            f"token {token} is the feature {after} after {before}; expected features in rising order of category and "
            "value, each once."
        )


def _check_merges(merges: NDArray[np.uint32], first: int) -> None:
    own = np.arange(first, first + len(merges))
    sound = (merges[:, 0] >= 1) & (merges[:, 0] <= merges[:, 1]) & (merges[:, 1] < own)
    if not sound.all():
        at = int(np.argmin(sound))
        raise TokenizerError(
            f"token {first + at} merges {tuple(merges[at].tolist())}; expected two earlier tokens (a, b), a <= b, "
            "neither of them padding."
        )
    if first + len(merges) > _LARGEST:
        raise TokenizerError(f"{first + len(merges)} tokens; at most {_LARGEST} are possible.")


def _check_priority(priority: Sequence[float], first: int, merges: int) -> None:
    if len(priority) != first + merges:
        raise TokenizerError(f"{first + merges} tokens but {len(priority)} priorities; expected as many.")
    for token, weight in enumerate(priority):
        # Compared, as math.isfinite raises for whole numbers beyond all floats.
        if type(weight) not in (int, float) or not -sys.float_info.max <= weight <= sys.float_info.max:
            raise TokenizerError(f"the priority of token {token} is {weight!r:.40}; expected a finite Python number.")
