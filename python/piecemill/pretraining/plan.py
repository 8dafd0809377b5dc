"""What to train, on what, for how long: one flat record that gives flags, TOML keys and help.

Options left out get values that fit the size and the mode; the resolved ones are stored in plan.json, and a run that is
taken up again must have the same, except for those in `HOW`, which only say how to get there.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from piecemill.errors import PlanError
from piecemill.plans import checked, option
from piecemill.sizes import plural

Size = Literal["tiny", "124m", "370m"]
Mode = Literal["from-scratch", "finetune"]

HOW = ("minutes", "read_every", "checkpoint_every", "device", "compile", "attention", "curve", "sample_tokens")
"Options that the course of the training does not depend on, but for rounding where the device is another."

FINETUNE_LR = 5e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What fits a size: the whole batch is `batch_size` windows."""

    window: int
    batch_size: int
    tokens: int
    lr: float


DEFAULTS: dict[Size, Defaults] = {
    # About a minute on two cores of 2026 with a vocabulary of 8,192.
    "tiny": Defaults(window=128, batch_size=8, tokens=320 * 8 * 128, lr=3e-3),
    "124m": Defaults(window=1024, batch_size=32, tokens=100_000_000, lr=6e-4),
    "370m": Defaults(window=2048, batch_size=32, tokens=100_000_000, lr=3e-4),
}


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainPlan:
    """How a model is trained on shards."""

    size: Size | None = None
    "Size of the model; default: tiny, or that of --init."

    mode: Mode = "from-scratch"
    "from-scratch: random weights, peak rate by size, long warm-up. finetune: weights of --init, 5e-5, short warm-up."

    init: Path | None = None
    "For finetune: a run, one of its checkpoints, or a folder with config.json and model.safetensors of a Llama."

    steps: int | None = None
    "Length of the training in steps; the learning rate falls over it. Default: what --tokens gives."

    tokens: int | None = None
    "Length of the training in tokens, rounded up to whole steps; default: by size."

    minutes: float | None = None
    "End this call after this number of minutes, with a checkpoint; the same command goes on. The schedule stays."

    window: int | None = None
    "Tokens in one training row; default: by size."

    batch_size: int | None = None
    "Rows in one pass through the model; default: by size."

    grad_accumulation: int = 1
    "Passes in one step: the rows of a step are this many times --batch-size."

    lr: float | None = None
    "Peak learning rate; default: by size, or 5e-5 for finetune."

    min_lr: float = 0.1
    "Share of the peak that the learning rate falls to."

    warmup: int | None = None
    "Steps until the peak; default: a tenth of all from scratch (at least 10, at most 2,000), 3% for finetune."

    weight_decay: float = 0.1
    "AdamW's, on matrices only: norms are left alone."

    clip: float = 1.0
    "Gradients are scaled down to this norm."

    seed: int = 0
    "Of the first weights and of the order of the rows."

    split: str | None = None
    "Split to learn from; default: train, or the only one there is."

    val_split: str | None = None
    "Split for validation, or none; default: val, or none where there is only one split."

    eval_every: int | None = None
    "Steps between validations; default: a tenth of all. There is always one before the first step and after the last."

    eval_batches: int = 16
    "Batches in a validation, always the same ones."

    read_every: int = 10
    "Steps between readings of losses from the device."

    checkpoint_every: int | None = None
    "Steps between checkpoints; default: as --eval-every. There is always one at the end and at Ctrl-C."

    device: str = "auto"
    "cpu, cuda, cuda:1, ...; auto: cuda where there is one."

    compile: bool | None = None
    "Compile the layers (torch.compile); default: on a GPU."

    attention: Literal["auto", "flash", "cudnn"] = "auto"
    "Kernel of the attention on a GPU; auto: torch chooses."

    curve: bool = True
    "Draw curve.png and curve.svg (with matplotlib)."

    sample_tokens: int = 128
    "Tokens of generated text at the end."

    def __post_init__(self) -> None:
        if self.size is not None and self.size not in DEFAULTS:
            raise PlanError(f"{option('size', self.size)}: expected {', '.join(DEFAULTS)}.")
        if self.mode not in ("from-scratch", "finetune"):
            raise PlanError(f"{option('mode', self.mode)}: expected from-scratch or finetune.")
        if self.mode == "finetune" and self.init is None:
            raise PlanError(f"{option('mode', self.mode)} without {option('init')}: name the checkpoint to start from.")
        if self.mode == "from-scratch" and self.init is not None:
            raise PlanError(
                f"{option('init', str(self.init))} with {option('mode', self.mode)}: random weights or those? "
                f"Pass {option('mode', 'finetune')}, or leave {option('init')} out."
            )
        if self.init is not None and self.size is not None:
            raise PlanError(f"{option('size', self.size)} with {option('init')}: the checkpoint has its own size.")
        if self.steps is not None and self.tokens is not None:
            raise PlanError(f"{option('steps', self.steps)} and {option('tokens', self.tokens)}: both set the length.")
        for name, least in (
            *(("steps", 1), ("tokens", 1), ("window", 2), ("batch_size", 1), ("grad_accumulation", 1), ("warmup", 0)),
            *(("seed", 0), ("eval_every", 1), ("eval_batches", 1), ("read_every", 1), ("checkpoint_every", 1)),
            ("sample_tokens", 0),
        ):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise PlanError(f"{option(name, value)}: expected a whole number of {least} or more.")
        for name in ("lr", "clip", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise PlanError(f"{option(name, value)}: expected a number above 0.")
        if not 0 <= self.min_lr <= 1:
            raise PlanError(f"{option('min_lr', self.min_lr)}: expected a share of the peak, from 0 to 1.")
        if not 0 <= self.weight_decay < float("inf"):
            raise PlanError(f"{option('weight_decay', self.weight_decay)}: expected 0 or more.")

    def with_splits(self, splits: Collection[str]) -> "PretrainPlan":
        """The plan with the names of its splits, for a folder that has `splits`."""
        only = next(iter(splits)) if len(splits) == 1 else None
        val_split = "val" if only is None or self.split not in (None, only) else "none"
        return replace(self, split=self.split or only or "train", val_split=self.val_split or val_split)

    def resolved(self) -> "Resolved":
        """The plan with every value that it leaves to the size and the mode."""
        defaults = DEFAULTS[self.size or "tiny"]
        window, batch_size = self.window or defaults.window, self.batch_size or defaults.batch_size
        step_tokens = window * batch_size * self.grad_accumulation
        steps = self.steps or -(-(self.tokens or defaults.tokens) // step_tokens)
        finetune = self.mode == "finetune"
        warmup = max(3, round(steps * 0.03)) if finetune else min(2000, max(10, steps // 10))
        eval_every = self.eval_every or max(1, steps // 10)
        return Resolved(
            plan=self,
            steps=steps,
            window=window,
            batch_size=batch_size,
            step_tokens=step_tokens,
            lr=self.lr or (FINETUNE_LR if finetune else defaults.lr),
            warmup=min(warmup if self.warmup is None else self.warmup, steps - 1),
            eval_every=eval_every,
            checkpoint_every=self.checkpoint_every or eval_every,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A plan in which nothing is left open."""

    plan: PretrainPlan
    steps: int
    window: int
    batch_size: int
    step_tokens: int
    lr: float
    warmup: int
    eval_every: int
    checkpoint_every: int

    def output(self) -> dict[str, Any]:
        """The options that the course of the training depends on, ready for JSON."""
        options = asdict(self.plan)
        for name in ("steps", "window", "batch_size", "lr", "warmup", "eval_every"):
            options[name] = getattr(self, name)
        options["init"] = None if self.plan.init is None else str(self.plan.init)
        return {name: value for name, value in options.items() if name not in (*HOW, "tokens")}

    def lines(self) -> list[str]:
        """The plan for people: what matters, with what was chosen for them."""
        plan = self.plan
        what = f"{plan.size or 'tiny'}, random weights" if plan.init is None else f"the weights of {plan.init}"
        return [
            f"{plan.mode}: {what}; split {plan.split}, "
            + ("no validation" if plan.val_split == "none" else f"validation on {plan.val_split}"),
            f"{plural(self.steps, 'step')} of {self.step_tokens:,} tokens "
            f"({self.batch_size * plan.grad_accumulation} rows of {self.window:,}), "
            f"{self.steps * self.step_tokens:,} tokens in all",
            f"learning rate {self.lr:g} after {plural(self.warmup, 'step')} of warm-up, then along a cosine to "
            f"{self.lr * plan.min_lr:g}",
        ]
