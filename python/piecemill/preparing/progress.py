"""What a run of `prepare` tells while it goes on."""

from dataclasses import dataclass

from piecemill.sizes import show_bytes, show_count, show_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareProgress:
    """One moment of a run."""

    stage: str = "prepare"
    "`start` once, with what was chosen for the run; then `prepare`."
    workers: str = ""
    "At the start: how many encode, and why so many."
    files: int = 0
    "Source files done with."
    files_total: int = 0
    bytes_read: int = 0
    "Bytes of the source done with, as they lie on disk."
    bytes_total: int | None = None
    documents: int = 0
    tokens: int = 0
    bytes_per_second: float = 0.0
    "Of this run alone."
    in_flight: int = 0
    "Bytes of documents and tokens that are read and not yet written."
    in_flight_most: int = 0
    seconds_left: float | None = None

    @property
    def fraction(self) -> float | None:
        """How much is done; None if the whole is not known."""
        return min(1.0, self.bytes_read / self.bytes_total) if self.bytes_total else None

    def columns(self) -> tuple[str, ...]:
        """The same columns in every line."""
        if self.stage == "start":
            return (self.workers, f"{self.in_flight_most / 2**30:.2f} GiB for what is in flight", "")
        files = f"{self.files:,}/{self.files_total:,} files" if self.files_total else ""
        left = "" if self.seconds_left is None else f"{show_seconds(self.seconds_left)} left"
        return (
            files,
            f"{show_bytes(self.bytes_read)} read",
            f"{show_count(self.documents)} documents",
            f"{show_count(self.tokens)} tokens",
            f"{self.bytes_per_second / 1e6:.0f} MB/s",
            f"in flight {self.in_flight / 2**30:.2f}/{self.in_flight_most / 2**30:.2f} GiB",
            left,
        )
