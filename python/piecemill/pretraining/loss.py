"""The loss over a large vocabulary, some rows of the logits at a time.

With 65,536 tokens and 50,304 columns the logits alone are 13 GB in fp32, and a plain cross entropy passes over them
many times. Here one chunk of them is computed, its loss and its gradient are taken at once, and the chunk is freed; the
backward pass only multiplies. The plain version this must equal is `plain_loss`.
"""

from typing import Any

import torch
import torch.nn.functional as F

from piecemill.shards.windows import IGNORED

CHUNK_BYTES = {"cuda": 1 << 30, "cpu": 1 << 23}
"Of fp32 logits at a time. On a CPU, 32 MB at a time spent a third of the time on getting pages from the system."


def plain_loss(states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The definition: the mean over all labels that count."""
    logits = (states @ weight.to(states.dtype).T).float()[:, :vocab_size]
    return F.cross_entropy(logits, labels, ignore_index=IGNORED)


def chunked_loss(
    states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int,
    *,
    compiled: bool = False,
    chunk: int | None = None,
) -> torch.Tensor:
    """As `plain_loss`: `states` are (tokens, width), `weight` (columns, width), `labels` (tokens).

    Columns from `vocab_size` on are padding and are ignored.
    """
    if chunk is None:
        # A power of two, as batches are: chunks of one length are compiled once.
        most = CHUNK_BYTES[states.device.type] // (4 * weight.shape[0])
        chunk = 1 << max(8, most.bit_length() - 1)
    return _ChunkedLoss.apply(states, weight, labels, vocab_size, compiled, chunk)


class _ChunkedLoss(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        vocab_size: int,
        compiled: bool,
        chunk: int,
    ) -> torch.Tensor:
        wanted = any(ctx.needs_input_grad[:2])
        with torch.autocast(states.device.type, enabled=False):
            matrix = weight.to(states.dtype)
            # On the device, as a tensor: to ask how many labels count would be to wait for them.
            scale = 1.0 / (labels != IGNORED).sum().clamp(min=1).float()
            total = torch.zeros((), device=states.device)
            states_gradient = torch.empty_like(states) if wanted else None
            weight_gradient = torch.zeros_like(weight) if wanted else None
            of_chunk = _compiled() if compiled else _loss_and_gradient
            for start in range(0, len(states), chunk):
                part = states[start : start + chunk]
                loss, gradient = of_chunk(part @ matrix.T, labels[start : start + chunk], scale, vocab_size, wanted)
                total += loss
                if states_gradient is not None and weight_gradient is not None:
                    states_gradient[start : start + chunk] = gradient @ matrix
                    weight_gradient += gradient.T @ part
        if wanted:
            ctx.save_for_backward(states_gradient, weight_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (above,) = gradients
        states_gradient, weight_gradient = ctx.saved_tensors
        return states_gradient * above.to(states_gradient.dtype), weight_gradient * above, None, None, None, None


def _loss_and_gradient(
    logits: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor, vocab_size: int, wanted: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The share of some rows in the loss, and its gradient by the logits in their own type."""
    column = torch.arange(logits.shape[1], device=logits.device)
    values = logits.float().masked_fill(column >= vocab_size, float("-inf"))
    log_sum = torch.logsumexp(values, 1)
    counts = labels != IGNORED
    target = labels.clamp(min=0)
    picked = values.gather(1, target[:, None]).squeeze(1)
    loss = torch.where(counts, log_sum - picked, 0.0).sum() * scale
    if not wanted:
        return loss, loss
    gradient = torch.exp(values - log_sum[:, None]) - (column[None, :] == target[:, None]).float()
    return loss, (gradient * torch.where(counts, scale, 0.0)[:, None]).to(logits.dtype)


_COMPILED: list[Any] = []


def _compiled() -> Any:
    if not _COMPILED:
        _COMPILED.append(torch.compile(_loss_and_gradient))
    return _COMPILED[0]
