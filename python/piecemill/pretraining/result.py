"""Reports of a pretraining run: progress events, its speed, and the result.

Figures of speed come from the `pace` records of metrics.jsonl, of all calls of a run. The first group of steps after
each start is left out: kernels are compiled and memory is allocated there.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from piecemill.sizes import plural, show_count, show_seconds


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
        return self.step / self.steps if self.steps else None

    def columns(self) -> tuple[str, ...]:
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


OnProgress = Callable[[PretrainProgress], None]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainSummary:
    """Steps done, losses reached and speed of a run. Losses are in nats per token."""

    out: Path
    steps: int
    "Steps done, by all calls together."
    steps_wanted: int
    tokens: int
    seconds: float
    "Of training, by all calls together, without validations and checkpoints."
    train_loss: float | None
    "Mean of the last 50 steps with a finite one."
    validation: tuple[tuple[int, float], ...]
    "Step and loss of each validation."
    chance: float
    "ln(V): the loss of a model that knows nothing."
    unigram_entropy: float
    "The loss of a model that knows how frequent each token is, and nothing else."
    parameters: int
    flops_per_token: float
    device: str
    peak_flops: float | None
    tokens_per_second: float | None
    utilisation: float | None
    "Model FLOPs utilisation; None where the device's peak is not known."
    waited_share: float | None
    "Share of the time in which the device waited for batches."
    process_cores: float | None
    "Processor seconds per second of the whole process."
    main_cores: float | None
    "Of these, the training loop's own thread."
    feeder_cores: float | None
    "Of these, the feeder."
    resumed: bool
    complete_before: bool = False
    guard: str | None = None
    "Why the guard ended the run; None if it did not. In result.json: the call raises `Diverged`."
    sample: tuple[str, str] | None = None
    "A prompt and what the model made of it."

    @property
    def complete(self) -> bool:
        return self.steps >= self.steps_wanted

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        listed = {"validation": [list(one) for one in self.validation], "sample": self.sample and list(self.sample)}
        return {**asdict(self), **listed, "out": str(self.out), "complete": self.complete}

    def __str__(self) -> str:
        """The result in a line, and one more for each thing there is to say about it."""
        reached = f"{plural(self.steps, 'step')}, {show_count(self.tokens)} tokens"
        if self.complete_before:
            first = f"{self.out} is complete: {reached}; nothing was done"
        elif self.complete:
            first = f"{reached} in {show_seconds(self.seconds)}: {self.out}"
        else:
            first = f"{reached} of {self.steps_wanted:,} steps; run the same command again to go on with {self.out}"
        lines = [first, f"  loss        {self._losses()}"]
        lines.append(
            f"  for scale   chance ln(V) {self.chance:.3f}, unigrams {self.unigram_entropy:.3f} nats per token"
        )
        lines.append(f"  model       {self.parameters / 1e6:,.1f}M parameters on {self.device}")
        if self.tokens_per_second is not None:
            lines.append(f"  pace        {show_count(self.tokens_per_second)} tokens/s, {self._utilisation()}")
            lines.append(
                f"  waiting     {self.waited_share or 0:.2%} of the time for batches; processor: "
                f"{self.process_cores or 0:.2f} cores, of which feeder {self.feeder_cores or 0:.3f}"
            )
        if self.sample is not None:
            lines.append(f"  sample      {self.sample[0]!r} goes on {self.sample[1]!r}")
        return "\n".join(lines)

    def _losses(self) -> str:
        train = "not read yet" if self.train_loss is None else f"{self.train_loss:.3f} training (last 50 steps)"
        if not self.validation:
            return train
        return f"{train}, {self.validation[-1][1]:.3f} validation (first {self.validation[0][1]:.3f})"

    def _utilisation(self) -> str:
        if self.utilisation is None:
            return f"share of the peak not known: no figure for {self.device!r}"
        return f"{self.utilisation:.1%} of {(self.peak_flops or 0) / 1e12:,.0f} TFLOP/s"
