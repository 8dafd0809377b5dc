"""One step of training, one validation, and text sampled from the model; the optimizer and its learning rate.

A step takes batches and leaves two numbers on the device. Nothing in it reads a value back, so the host never waits for
the device and runs ahead of it. A step is the same whether its batches come from the feeder or are on the device
already.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from transformers import LlamaForCausalLM

from piecemill.pretraining.loss import chunked_loss
from piecemill.pretraining.model import attention_kernel, compile_layers, hidden
from piecemill.shards import Shards
from piecemill.shards.windows import IGNORED

Batch = Mapping[str, torch.Tensor]

_MOMENTS = ("exp_avg", "exp_avg_sq")
PROMPT_TOKENS = 24
TEMPERATURE = 0.8
TOP = 50


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


def build_optimizer(model: torch.nn.Module, *, weight_decay: float, fused: bool) -> torch.optim.AdamW:
    """AdamW, with weight decay on matrices only; the learning rate is set before each step."""
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


def generate(step: Step, prompt: list[int], *, tokens: int, eos: int | None, seed: int) -> list[int]:
    """Up to `tokens` ids after `prompt`, drawn from the `TOP` likeliest; the same for the same weights and `seed`."""
    generator = torch.Generator().manual_seed(seed)
    longest = step.model.config.max_position_embeddings
    ids = list(prompt)
    for _ in range(tokens):
        context = torch.tensor([ids[-longest:]], device=step.device)
        best, which = step.logits(context)[0].cpu().topk(min(TOP, step.vocab_size))
        chosen = torch.multinomial(torch.softmax(best / TEMPERATURE, 0), 1, generator=generator)
        ids.append(int(which[chosen]))
        if ids[-1] == eos:
            break
    return ids[len(prompt) :]


def sample_text(step: Step, shards: Shards, *, tokens: int, seed: int) -> tuple[str, str]:
    """A prompt from the first document of `shards` that is long enough, and its continuation."""
    eos = shards.eos
    prompt = [int(shards.document(0)[0])]
    for index in range(min(len(shards), 1000)):
        if len(document := shards.document(index)) > 2 * PROMPT_TOKENS:
            prompt = document[:PROMPT_TOKENS].tolist()
            break
    made = generate(step, prompt, tokens=tokens, eos=eos, seed=seed)
    tokenizer = shards.tokenizer()
    return tokenizer.decode(prompt), tokenizer.decode(made)
