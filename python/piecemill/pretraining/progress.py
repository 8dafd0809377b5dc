"""Progress events of a pretraining run."""

from dataclasses import dataclass

from piecemill.sizes import show_count, show_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainProgress:
    """One progress event."""

    stage: str = "pretrain"
    step: int = 0
    steps: int = 0
    tokens: int = 0
    loss: float | None = None
    "Of the last step that was read."
    validation: float | None = None
    tokens_per_second: float | None = None
    utilisation: float | None = None
    waited: float | None = None
    "Share of the time in which the device waited for batches."
    seconds_left: float | None = None

    @property
    def fraction(self) -> float | None:
        """How much is done."""
        return self.step / self.steps if self.steps else None

    def columns(self) -> tuple[str, ...]:
        """The same columns in every line."""
        speed = f"{show_count(self.tokens_per_second)} tokens/s" if self.tokens_per_second else ""
        if self.utilisation is not None:
            speed += f", {self.utilisation:.1%} of peak"
        return (
            f"{self.step:,}/{self.steps:,} steps",
            f"{show_count(self.tokens)} tokens",
            "" if self.loss is None else f"loss {self.loss:.3f}",
            "" if self.validation is None else f"val {self.validation:.3f}",
            speed,
            "" if self.waited is None else f"{self.waited:.2%} waiting",
            "" if self.seconds_left is None else f"{show_seconds(self.seconds_left)} left",
        )
