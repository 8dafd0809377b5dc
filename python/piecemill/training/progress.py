"""Progress events of a training run."""

from dataclasses import dataclass
from typing import Literal

from piecemill.sizes import show_bytes, show_count, show_seconds
from piecemill.tokenizers.listing import show_token

Stage = Literal["count", "read", "merge", "save"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainProgress:
    """One progress event. Fields that are not known yet are 0 or None."""

    stage: Stage
    documents: int = 0
    bytes_read: int = 0
    "Bytes of the source done with, as they lie on disk."
    bytes_total: int | None = None
    distinct_words: int = 0
    merges: int = 0
    merges_wanted: int = 0
    merges_per_second: float = 0.0
    pair_count: int = 0
    "How often the pair that was merged last occurred."
    token: bytes = b""
    "The token that was made last."
    memory: int = 0
    "Bytes this process holds."
    seconds_left: float | None = None

    @property
    def fraction(self) -> float | None:
        """Fraction of the stage that is done; None if the total is not known."""
        if self.stage == "merge":
            return self.merges / self.merges_wanted if self.merges_wanted else 1.0
        if self.bytes_total:
            return min(1.0, self.bytes_read / self.bytes_total)
        return None

    def columns(self) -> tuple[str, ...]:
        """The columns of a progress line, of fixed width within a stage; the last is the time left."""
        left = "" if self.seconds_left is None else f"{show_seconds(self.seconds_left)} left"
        memory = f"{self.memory / 2**30:.2f} GiB"
        if self.stage == "merge":
            wanted = f"{self.merges_wanted:,}"
            return (
                f"{self.merges:>{len(wanted)},}/{wanted} merges",
                f"{show_count(self.merges_per_second):>7}/s",
                f"{show_count(self.pair_count):>8} x {show_token(self.token, 16):<16}",
                memory,
                left,
            )
        words = (f"{show_count(self.distinct_words)} words",) if self.stage == "count" else ()
        return (f"{show_count(self.documents)} documents", f"{show_bytes(self.bytes_read)} read", *words, memory, left)
