"""Progress events of a pretraining run, and its speed.

Figures of speed come from the `pace` records of metrics.jsonl, of all calls of a run. The first group of steps after
each start is left out: kernels are compiled and memory is allocated there.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Sums over groups of steps, and figures derived from them."""

    tokens: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    process_cpu: float = 0.0
    main_cpu: float = 0.0
    feeder_cpu: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """None before anything was measured."""
        return self.tokens / self.seconds if self.seconds else None

    def utilisation(self, flops_per_token: float, peak: float | None) -> float | None:
        """Model FLOPs utilisation; None where the device's peak is not known."""
        speed = self.tokens_per_second
        return None if peak is None or speed is None else speed * flops_per_token / peak

    @property
    def waited_share(self) -> float | None:
        """Share of the time in which the device waited for batches."""
        return self.waited / self.seconds if self.seconds else None

    def cores(self, name: str) -> float | None:
        """Processor seconds per second of `process`, `main` or `feeder`."""
        return float(getattr(self, f"{name}_cpu")) / self.seconds if self.seconds else None


def pace_of(records: Iterable[dict[str, Any]]) -> Pace:
    """The pace of a run by its records; of a run so short that it has none but first groups, by those."""
    groups = [record for record in records if record["kind"] == "pace"]
    steady = [group for group in groups if not group["first"]] or groups
    return Pace(**{each.name: sum(group[each.name] for group in steady) for each in fields(Pace)})
