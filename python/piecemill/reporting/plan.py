"""Options of `compare`: one flat record that gives flags, TOML keys and help."""

from dataclasses import dataclass

from piecemill.errors import PlanError
from piecemill.plans import checked, option
from piecemill.sizes import parse_size
from piecemill.sources.options import SourceOptions


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePlan(SourceOptions):
    """Which documents of a corpus tokenizers are compared on."""

    language: str | None = None
    "Field (JSONL) or column (Parquet, Arrow) with the language of a document; its values become groups."

    sample: str = "256MiB"
    "Compare on this much text, taken evenly from the corpus; 0 for all of it."

    threads: int | None = None
    "Threads that encode; default: all cores."

    def __post_init__(self) -> None:
        SourceOptions.__post_init__(self)  # not super(): a class with slots is made twice
        parse_size(self.sample, "sample")
        if self.threads is not None and self.threads < 1:
            raise PlanError(f"{option('threads', self.threads)}: expected 1 or more.")
