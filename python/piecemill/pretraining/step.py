"""One step of training, and one validation: batches in, two numbers out, both left on the device.

Nothing here reads a value back, so the host never waits for the device and runs ahead of it. A step is the same
whether its batches come from the feeder or are on the device already.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from transformers import LlamaForCausalLM

from piecemill.pretraining.loss import chunked_loss
from piecemill.pretraining.model import attention_kernel, compile_layers, hidden
from piecemill.shards.windows import IGNORED

Batch = Mapping[str, torch.Tensor]


class Step:
    """Forward, backward, clipping and the optimizer's step, for one model on one device."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        optimizer: torch.optim.Optimizer,
        *,
        vocab_size: int,
        clip: float = 1.0,
        accumulation: int = 1,
        compiled: bool = False,
        attention: str = "auto",
    ) -> None:
        self.model, self.optimizer, self.vocab_size = model, optimizer, vocab_size
        self.clip, self.accumulation = clip, accumulation
        self.compiled, self.attention = compiled, attention
        self.device = next(model.parameters()).device
        # Weights, gradients and AdamW's moments stay in fp32; on a GPU all products are made in bf16.
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if compiled:
            compile_layers(model)

    def __call__(self, next_batch: Callable[[], Batch], lr: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Take one step with rate `lr`; the mean loss of its batches and the norm of the gradient before clipping."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        total = torch.zeros((), device=self.device)
        with attention_kernel(self.attention):
            for _ in range(self.accumulation):
                loss = self.loss(next_batch()) / self.accumulation
                loss.backward()
                total += loss.detach()
        # Without error_if_nonfinite there is nothing to read: the scale is a tensor too.
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, norm

    def loss(self, batch: Batch) -> torch.Tensor:
        """The mean loss of a batch; its labels are shifted already."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            states = hidden(self.model, batch["input_ids"], self.dtype)
        flat = states.reshape(-1, states.shape[-1]).to(self.dtype)
        labels = batch["labels"].reshape(-1)
        return chunked_loss(flat, self.model.lm_head.weight, labels, self.vocab_size, compiled=self.compiled)

    def validate(self, batches: Iterable[Batch]) -> torch.Tensor:
        """The mean loss over all labels of `batches`, on the device."""
        total, count = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        with torch.no_grad(), attention_kernel(self.attention):
            for batch in batches:
                labels = (batch["labels"] != IGNORED).sum()
                total += self.loss(batch) * labels
                count += labels
        return total / count

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Of the token after each row of `ids`; never compiled, as each length would be compiled separately."""
        stance = torch.compiler.set_stance("force_eager")
        bf16 = self.dtype == torch.bfloat16
        with torch.no_grad(), stance, torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            states = hidden(self.model, ids, self.dtype)[:, -1].to(self.dtype)
            return (states @ self.model.lm_head.weight.to(self.dtype).T).float()[:, : self.vocab_size]
