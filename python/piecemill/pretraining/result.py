"""The result of a pretraining run, for people and for programs."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from piecemill.sizes import show_count, show_seconds


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
        """Whether all steps are done."""
        return self.steps >= self.steps_wanted

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        listed = {"validation": [list(one) for one in self.validation], "sample": self.sample and list(self.sample)}
        return {**asdict(self), **listed, "out": str(self.out), "complete": self.complete}

    def __str__(self) -> str:
        """The result in a line, and one more for each thing there is to say about it."""
        reached = f"{self.steps:,} steps, {show_count(self.tokens)} tokens"
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
