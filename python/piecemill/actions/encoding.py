"""Histories to files of tokens: JSON lines, or flat arrays. For other programs; training makes batches from shards."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from piecemill._core import gather_tokens
from piecemill.actions.histories import Histories
from piecemill.actions.plan import EncodePlan
from piecemill.actions.shards import write_action_shards
from piecemill.actions.tokenizer import ActionTokenizer, Ids, Ints
from piecemill.errors import PlanError, TokenizerError
from piecemill.files import check_writable, new_file, new_folder, replaced
from piecemill.plans import did_you_mean, option
from piecemill.shards.format import token_dtype
from piecemill.sizes import plural

_SHARDS = {"plan.json", "files.jsonl", "stats.json", "tokenizer", "entries", "all"}
_OLD_SHARDS = {"items.npy", "ends.npy", "table.npy", "tokenizer", "manifest.json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeProgress:
    """One progress event."""

    done: int
    histories: int
    tokens: int
    stage: str = "encode"

    @property
    def fraction(self) -> float | None:
        return self.done / max(1, self.histories)

    def columns(self) -> tuple[str, ...]:
        return (f"{self.done:,}/{self.histories:,} histories", f"{self.tokens:,} tokens", "")


@dataclass(frozen=True, slots=True)
class Encoded:
    """The result of `encode_histories`."""

    out: Path
    histories: int
    actions: int
    tokens: int | None
    "None for shards, which hold items."
    report: Mapping[str, Any]
    "What was read and dropped."
    plan: EncodePlan

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {**asdict(self), "out": str(self.out)}

    def __str__(self) -> str:
        tokens = (
            "" if self.tokens is None else f", {self.tokens:,} tokens ({self.tokens / max(1, self.actions):.2f} each)"
        )
        line = f"{self.histories:,} histories, {self.actions:,} actions{tokens} in {self.out}"
        if lost := self.report.get("items"):
            actions, items = plural(lost["actions_dropped"], "action"), plural(lost["unknown_items"], "unknown item")
            line += f"\nnote: {actions} of {items} left out; users without any other: {lost['users_dropped']:,}"
        return line


@did_you_mean
def encode_histories(
    histories: Any,
    tokenizer: ActionTokenizer,
    *,
    out: str | os.PathLike[str],
    plan: EncodePlan | None = None,
    force: bool = False,
    on_progress: Callable[[EncodeProgress], None] | None = None,
) -> Encoded:
    """Write the tokens of `histories` (as `Histories.of` takes them) at `out`, whole or not at all.

    `force` replaces what an earlier call wrote there, and nothing else.

    The row of a history, which its draws depend on, is its place among the histories.
    """
    plan = plan or EncodePlan()
    target = Path(out)
    if target.exists() and not (force and _is_ours(target)):
        whose = " that `actions encode` did not write. Choose another name." if force else ""
        remedy = f" already. Choose another name; {option('force', True)} replaces it."
        raise PlanError(f"{target}: something is there{whose or remedy}")
    check_writable(target)
    if target.exists():
        with replaced(target) as aside:
            done = encode_histories(histories, tokenizer, out=aside, plan=plan, on_progress=on_progress)
        return replace(done, out=target)
    if plan.to == "shards":
        shards = write_action_shards(histories, tokenizer, out=target, unknown=plan.unknown)
        return Encoded(target, len(shards), len(shards.items), None, shards.manifest["report"], plan)
    over = Histories.of(histories).map_to_items(tokenizer.known_items, unknown=plan.unknown)
    tell = on_progress or (lambda moment: None)
    try:
        if plan.to == "jsonl":
            with new_file(target) as file:
                tokens = _write_lines(over, tokenizer, file, plan, tell)
        else:
            with new_folder(target) as folder:
                tokens = _write_arrays(over, tokenizer, folder, plan, tell)
    except OSError as error:
        raise TokenizerError(
            f"{target}: could not be written ({error.strerror or error}). Free some space, or choose another place."
        ) from error
    return Encoded(target, len(over), len(over.items), tokens, over.report, plan)


def _is_ours(target: Path) -> bool:
    """Whether `target` looks like something that encoding writes, so that replacing it loses nothing else."""
    if target.is_file():
        with open(target, "rb") as file:
            return file.read(9) in (b"", b'{"user": ')
    there = {path.name for path in target.iterdir()}
    return there <= {"ids.npy", "ends.npy"} or there in (_SHARDS, _OLD_SHARDS)


def _encoded(
    histories: Histories, tokenizer: ActionTokenizer, plan: EncodePlan, tell: Callable[[EncodeProgress], None]
) -> Iterator[tuple[int, Ids, Ints]]:
    """Some histories at a time: the number of the first, their tokens, and where each ends."""
    tokens = 0
    for first, items, ends in histories.chunks():
        rows = np.arange(first, first + len(ends))
        ids, cut = tokenizer.encode_batch(items, ends, seed=plan.seed, epoch=plan.epoch, rows=rows)
        if plan.marks:
            bos, eos = tokenizer.bos, tokenizer.eos
            ids, cut = gather_tokens(ids, cut, np.arange(len(cut)), bos=bos, eos=eos, narrow=False)
        tokens += len(ids)
        yield first, ids, cut
        tell(EncodeProgress(done=first + len(ends), histories=len(histories), tokens=tokens))


def _write_lines(
    histories: Histories,
    tokenizer: ActionTokenizer,
    file: BinaryIO,
    plan: EncodePlan,
    tell: Callable[[EncodeProgress], None],
) -> int:
    """A JSON object per history: its user and its ids."""
    tokens = 0
    for first, ids, cut in _encoded(histories, tokenizer, plan, tell):
        tokens += len(ids)
        users = histories.users[first : first + len(cut)].to_pylist()
        for user, row in zip(users, np.split(ids, cut[:-1]), strict=True):
            file.write((json.dumps({"user": user, "ids": row.tolist()}, ensure_ascii=False) + "\n").encode())
    return tokens


def _write_arrays(
    histories: Histories,
    tokenizer: ActionTokenizer,
    path: Path,
    plan: EncodePlan,
    tell: Callable[[EncodeProgress], None],
) -> int:
    """A folder with all ids in a row, as narrow as the vocabulary allows, and where each history ends."""
    dtype = token_dtype(tokenizer.model_size)
    parts: list[NDArray[Any]] = []
    ends: list[Ints] = []
    tokens = 0
    for _, ids, cut in _encoded(histories, tokenizer, plan, tell):
        parts.append(ids.astype(dtype))
        ends.append(cut + tokens)
        tokens += len(ids)
    for name, arrays in (("ids.npy", parts), ("ends.npy", ends)):
        np.save(path / name, np.concatenate(arrays))
    return tokens
