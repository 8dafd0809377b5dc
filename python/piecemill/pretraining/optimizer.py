"""AdamW, with weight decay on matrices only; its state by the names of the parameters, and its learning rate."""

import math
from typing import Any

import torch

_MOMENTS = ("exp_avg", "exp_avg_sq")


def build_optimizer(model: torch.nn.Module, *, weight_decay: float, fused: bool) -> torch.optim.AdamW:
    """AdamW over all parameters; the learning rate is set before each step."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), eps=1e-8, fused=fused)


def optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.AdamW) -> dict[str, torch.Tensor]:
    """The moments of every parameter, by its name; empty before the first step."""
    return {
        f"{name}.{moment}": optimizer.state[parameter][moment]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for moment in _MOMENTS
    }


def load_optimizer(
    model: torch.nn.Module, optimizer: torch.optim.AdamW, tensors: dict[str, torch.Tensor], step: int
) -> None:
    """Put the moments back where `optimizer_tensors` took them from, after `step` steps."""
    if not tensors:
        return
    state: dict[int, Any] = {}
    names = {parameter: name for name, parameter in model.named_parameters()}
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(ordered):
        state[number] = {moment: tensors[f"{names[parameter]}.{moment}"] for moment in _MOMENTS}
        state[number]["step"] = torch.tensor(float(step))
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def learning_rate(step: int, *, steps: int, warmup: int, peak: float, floor: float) -> float:
    """The rate of `step` (from 0) of `steps`: linear up to the peak, right after the warm-up, then along a cosine to
    `floor`, with the last step.

    >>> [round(learning_rate(step, steps=6, warmup=2, peak=1.0, floor=0.1), 2) for step in range(6)]
    [0.33, 0.67, 1.0, 0.78, 0.33, 0.1]
    """
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    part = (step - warmup) / max(1, steps - 1 - warmup)
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, part)))
