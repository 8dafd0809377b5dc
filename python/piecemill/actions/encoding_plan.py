"""What to make of histories: one flat record that gives flags, TOML keys and help."""

from dataclasses import dataclass
from typing import Literal

from piecemill.errors import PlanError
from piecemill.plans import checked, option


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class EncodePlan:
    """How histories become tokens, and what they are written as."""

    to: Literal["jsonl", "npy", "shards"] = "jsonl"
    "jsonl: a line per history; npy: a folder with ids.npy and ends.npy; shards: a folder to make batches from."
    seed: int | None = None
    "Segment at random, by set permutation regularisation with this seed; without it, by weight and without chance."
    epoch: int = 0
    "Of the random segmentation: each has its own draws."
    marks: bool = False
    "Put bos before and eos behind each sequence."
    unknown: Literal["stop", "drop"] = "stop"
    "Actions with an item that the tokenizer does not know: stop with the first, or drop and count them."

    def __post_init__(self) -> None:
        if self.to not in ("jsonl", "npy", "shards"):
            raise PlanError(f"{option('to', self.to)}: expected jsonl, npy or shards.")
        if self.unknown not in ("stop", "drop"):
            raise PlanError(f"{option('unknown', self.unknown)}: expected stop or drop.")
        if self.seed is None and self.epoch:
            raise PlanError(
                f"{option('epoch', self.epoch)}: epochs differ only where segmentation is random. Give "
                f"{option('seed', ...)} too."
            )
        if self.to == "shards" and (self.seed is not None or self.marks):
            raise PlanError(
                f"{option('to', 'shards')}: shards hold items, which batches segment anew each epoch. Leave out "
                f"{option('seed')} and {option('marks')}."
            )
