"""AdamW, with weight decay on matrices only, and its state by the names of the parameters."""

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
