"""Progress of a run of `prepare`: numbers that tasks report, and what is shown of them."""

from dataclasses import dataclass, fields

from piecemill.sizes import show_bytes, show_count, show_seconds

STAGES = ("read", "select", "encode", "write")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What was done: by a task so far, or by all tasks of a run. Adds up."""

    pieces: int = 0
    documents: int = 0
    tokens: int = 0
    source_bytes: int = 0
    read: float = 0.0
    "Seconds spent in each stage, over all threads."
    select: float = 0.0
    encode: float = 0.0
    write: float = 0.0

    def __add__(self, other: "Numbers") -> "Numbers":
        return Numbers(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(Numbers)})


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareProgress:
    """One moment of a run."""

    stage: str = "prepare"
    "`start` once, with what was chosen for the run; then `prepare`, and `dedup` if there is that."
    workers: str = ""
    "At the start: how many tasks run at once, on how many cores, and why."
    files: int = 0
    "Source files that are done."
    files_total: int = 0
    bytes_read: int = 0
    "Bytes of the source that are done, as they lie on disk."
    bytes_total: int | None = None
    documents: int = 0
    tokens: int = 0
    bytes_per_second: float = 0.0
    "Of this run alone."
    seconds_left: float | None = None

    @property
    def fraction(self) -> float | None:
        """How much is done; None if the whole is not known."""
        return min(1.0, self.bytes_read / self.bytes_total) if self.bytes_total else None

    def columns(self) -> tuple[str, ...]:
        """The same columns in every line."""
        if self.stage != "prepare":
            return (self.workers, "")
        files = f"{self.files:,}/{self.files_total:,} files" if self.files_total else ""
        left = "" if self.seconds_left is None else f"{show_seconds(self.seconds_left)} left"
        return (
            files,
            f"{show_bytes(self.bytes_read)} read",
            f"{show_count(self.documents)} documents",
            f"{show_count(self.tokens)} tokens",
            f"{self.bytes_per_second / 1e6:.0f} MB/s",
            left,
        )
