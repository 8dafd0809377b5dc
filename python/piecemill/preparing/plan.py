"""What to prepare and how: one flat record that gives flags, TOML keys and help.

Options that the output depends on are stored in plan.json, and a resumed run must have the same; `threads` and `memory`
may change between runs.
"""

from dataclasses import dataclass
from typing import Any, Literal

from piecemill.errors import PlanError
from piecemill.plans import checked, option
from piecemill.preparing.selection import Splits
from piecemill.sizes import parse_size
from piecemill.sources.matching import parse_grouping, parse_weights
from piecemill.sources.options import SourceOptions

LEAST_MEMORY = 512 * 2**20
HOW = ("threads", "memory")
"Options that the output does not depend on, besides those that are never stored."
_SIZES = ("min_bytes", "max_bytes", "max_file_bytes", "block_bytes", "piece_bytes")
PIECE_DOCUMENTS = 1 << 20
"A piece also ends after this many documents: records of tiny documents take more memory than their text."


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class PreparePlan(SourceOptions):
    """How documents become token shards."""

    splits: str | None = None
    "Names and shares of the splits, such as train=85,val=10,test=5; default: one split, all."

    split_by: str | None = None
    "Keep groups on one side: directory (the first folder under a source), directory:2, or a field of JSONL or Parquet."

    seed: int = 0
    "Another seed assigns documents to splits differently."

    dedup: Literal["exact", "none"] = "none"
    "exact: of equal documents, keep the first in the order of the corpus."

    weight: tuple[str, ...] = ()
    "Sampling weight of the files that match, such as 'src/**=2'; repeat the flag. The first match counts; else 1."

    min_bytes: str = "0"
    "Drop documents shorter than this."

    max_bytes: str | None = None
    "Drop documents longer than this."

    eos: str = "auto"
    "Token after each document: its text, auto (what the tokenizer declares), or none."

    bos: str = "auto"
    "Token before each document: its text, auto (if the tokenizer's own library would add one), or none."

    special_in_text: Literal["plain", "parse", "stop"] = "plain"
    "Special tokens inside documents: text like any other (plain), the tokens (parse), or an error (stop)."

    piece_bytes: str = "256MiB"
    "Text in one piece of a task, which becomes one shard per split; part of the result. A stop costs at most a piece."

    threads: int | None = None
    "Cores to use; default: all, as far as the memory allows. The result does not depend on it."

    memory: str = "2GiB"
    "Memory of the whole process, to which large documents come. The result does not depend on it."

    block_bytes: str = "8MiB"
    "Text that is read and encoded at a time. Pieces end where a block ends, so this is part of the result."

    def __post_init__(self) -> None:
        SourceOptions.__post_init__(self)  # not super(): a class with slots is made twice
        if isinstance(self.splits, dict):  # {"train": 85, "val": 15} says the same as "train=85,val=15"
            object.__setattr__(self, "splits", ",".join(f"{name}={share}" for name, share in self.splits.items()))
        Splits.parse(self.splits)
        parse_weights(self.weight)
        for name in (*_SIZES, "memory"):
            if getattr(self, name) is not None:
                parse_size(getattr(self, name), name)
        if self.size("memory") < LEAST_MEMORY:
            raise PlanError(f"{option('memory', self.memory)}: the interpreter, the tokenizer and a block need 512MiB.")
        for name, value in {"threads": self.threads, **{size: self.size(size) for size in _SIZES[-2:]}}.items():
            if value is not None and value < 1:
                raise PlanError(f"{option(name, getattr(self, name))}: expected 1 or more.")
        if self.max_bytes is not None and self.size("max_bytes") < self.size("min_bytes"):
            raise PlanError(f"{option('max_bytes', self.max_bytes)}: less than {option('min_bytes', self.min_bytes)}.")
        if self.split_by is not None and self.splits is None:
            raise PlanError(f"{option('split_by', self.split_by)}: needs {option('splits', 'train=90,val=10')}.")
        parse_grouping(self.split_by, "split_by")

    def size(self, name: str) -> int:
        """An option that is a size, as a number of bytes."""
        return parse_size(getattr(self, name), name)

    def output(self) -> dict[str, Any]:
        """The options that the output depends on, sizes as numbers, ready for JSON."""
        options = {name: value for name, value in self.stored().items() if name not in HOW}
        return options | {name: self.size(name) for name in _SIZES if options[name] is not None}
