"""The learning rate of each step: linear warm-up, then cosine decay."""

import math


def learning_rate(step: int, *, steps: int, warmup: int, peak: float, floor: float) -> float:
    """The rate of `step` (from 0) of `steps`: the peak comes right after the warm-up, `floor` with the last step.

    >>> [round(learning_rate(step, steps=6, warmup=2, peak=1.0, floor=0.1), 2) for step in range(6)]
    [0.33, 0.67, 1.0, 0.78, 0.33, 0.1]
    """
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    part = (step - warmup) / max(1, steps - 1 - warmup)
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, part)))
