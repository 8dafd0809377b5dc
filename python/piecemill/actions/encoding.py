"""Histories to files of tokens: JSON lines, or flat arrays. For other programs; training makes batches from shards."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from piecemill._core import gather_tokens
from piecemill.actions.encoding_plan import EncodePlan
from piecemill.actions.histories import Histories
from piecemill.actions.shards import write_action_shards
from piecemill.actions.tokenizer import ActionTokenizer, Ids, Ints
from piecemill.errors import TokenizerError
from piecemill.files import new_file, new_folder
from piecemill.shards.format import token_dtype

# Histories encoded at a time: bounded memory, and Ctrl-C is heard in between.
_CHUNK = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeProgress:
    """One moment of encoding."""

    done: int
    histories: int
    tokens: int
    stage: str = "encode"

    @property
    def fraction(self) -> float | None:
        """How much is done."""
        return self.done / max(1, self.histories)

    def columns(self) -> tuple[str, ...]:
        """The same columns in every line."""
        return (f"{self.done:,}/{self.histories:,} histories", f"{self.tokens:,} tokens", "")


def encode_histories(
    histories: Any,
    tokenizer: ActionTokenizer,
    out: str | os.PathLike[str],
    plan: EncodePlan | None = None,
    *,
    on_progress: Callable[[EncodeProgress], None] | None = None,
) -> dict[str, Any]:
    """Write the tokens of `histories` (as `Histories.of` takes them) at `out`, whole or not at all; says what was done.

    The row of a history, which its draws depend on, is its place among the histories.
    """
    plan = plan or EncodePlan()
    target = Path(out)
    if target.exists():
        raise TokenizerError(f"{target}: something is there already. Choose another name, or remove it first.")
    if plan.to == "shards":
        shards = write_action_shards(histories, tokenizer, target, unknown=plan.unknown)
        counts = {"histories": len(shards), "actions": len(shards.items), "tokens": None}
        return {"out": str(target), **counts, "report": shards.manifest["report"], "plan": asdict(plan)}
    over = Histories.of(histories).over(tokenizer.known_items, unknown=plan.unknown)
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
            f"{target}: could not be written ({error}). Make room, or choose another place."
        ) from error
    counts = {"histories": len(over), "actions": len(over.items), "tokens": tokens}
    return {"out": str(target), **counts, "report": over.report, "plan": asdict(plan)}


def chunks(histories: Histories) -> Iterator[tuple[int, Ints, Ints]]:
    """Some histories at a time: the number of the first, their items, and where each ends among these."""
    for first in range(0, len(histories), _CHUNK):
        ends = histories.ends[first : first + _CHUNK]
        begin = int(histories.starts[first])
        yield first, histories.items[begin : int(ends[-1])], ends - begin


def _encoded(
    histories: Histories, tokenizer: ActionTokenizer, plan: EncodePlan, tell: Callable[[EncodeProgress], None]
) -> Iterator[tuple[int, Ids, Ints]]:
    """Some histories at a time: the number of the first, their tokens, and where each ends."""
    tokens = 0
    for first, items, ends in chunks(histories):
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
