"""Speed of a run: tokens per second, share of the device's peak, waiting time, and CPU time.

Figures come from the `pace` records of metrics.jsonl, of all calls of a run. The first group of steps after each start
is left out: kernels are compiled and memory is allocated there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


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
    names = ("tokens", "seconds", "waited", "process_cpu", "main_cpu", "feeder_cpu")
    return Pace(**{name: sum(group[name] for group in steady) for name in names})
