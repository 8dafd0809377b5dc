"""The model: a Llama-style decoder of `transformers`, and the arithmetic of its size.

The layers are called here and not through the model's own `forward`: that one builds a mask, which under
torch.compile keeps the attention off its fast kernels, and inspects positions in a way that synchronizes with the
device. In full rows there is nothing to mask but the future. A test compares the results of both.

Start with `build` and `hidden`.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from piecemill.pretraining.plan import Size


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a model size."""

    layers: int
    width: int
    heads: int
    inner: int


SHAPES: dict[Size, Shape] = {
    "tiny": Shape(layers=4, width=128, heads=4, inner=384),
    "124m": Shape(layers=12, width=768, heads=12, inner=2048),
    # Heads of 128: with 64, attention runs at little more than half its speed on Hopper.
    "370m": Shape(layers=24, width=1024, heads=8, inner=2944),
}

PADDING = 128
"Rows of the embedding are a multiple of this: matrix units want whole tiles, and 50,257 is odd. No id is above V."


def config(size: Size, *, vocab_size: int, eos: int | None, window: int) -> LlamaConfig:
    """The shape of a model with a vocabulary. The embedding is tied: it is also the last layer."""
    shape = SHAPES[size]
    return LlamaConfig(
        vocab_size=padded(vocab_size),
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=window,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos,
        use_cache=False,
        attn_implementation="sdpa",
    )


def padded(vocab_size: int) -> int:
    """`vocab_size` rounded up to a multiple of the tile size."""
    return -(-vocab_size // PADDING) * PADDING


def build(shape: LlamaConfig, *, seed: int) -> LlamaForCausalLM:
    """A model with random weights that depend on `shape` and `seed` alone, in fp32 on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(shape)
    return model.train()


def hidden(model: LlamaForCausalLM, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The last hidden states of rows that are full, with the stream between the layers in `dtype`."""
    body = model.model
    states = body.embed_tokens(ids)
    positions = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
    rotary = body.rotary_emb(states, position_ids=positions)
    states = states.to(dtype)
    for layer in body.layers:
        states = layer(states, attention_mask=None, position_embeddings=rotary)
    result: torch.Tensor = body.norm(states)
    return result


def compile_layers(model: LlamaForCausalLM) -> None:
    """Compile each layer separately: all are alike, so one compilation serves them, in seconds and not in minutes."""
    for layer in model.model.layers:
        layer.compile()


def attention_kernel(choice: str) -> Any:
    """A context in which attention uses that kernel first; `auto` leaves it to torch."""
    if choice == "auto":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    order = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    return sdpa_kernel(order if choice == "flash" else order[::-1], set_priority=True)


def parameter_count(model: torch.nn.Module) -> int:
    """Parameters, a tied one once."""
    return sum(parameter.numel() for parameter in model.parameters())


def flops_per_token(model: LlamaForCausalLM, window: int) -> float:
    """Floating-point operations that one token of training needs: 6 for each parameter, and the attention.

    A tied embedding is looked up for nothing and multiplied as the last layer, so it counts once, as a matrix. Of the
    attention's two products, 12 x layers x width x window, the causal half counts: the other half is never computed.
    """
    shape = model.config
    matrices = parameter_count(model)
    if not shape.tie_word_embeddings:
        matrices -= shape.vocab_size * shape.hidden_size
    attention: int = shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim * window
    return 6.0 * matrices + 6.0 * attention


# Dense bf16 without sparsity, by the vendors' datasheets; a name is matched by its beginning, the longest first.
_PEAKS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA GH200": 989e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
    "NVIDIA A10G": 70e12,
}


def peak_flops(device_name: str) -> float | None:
    """The bf16 operations a second of a device by its datasheet; None where it is not known here."""
    names = [name for name in _PEAKS if device_name.startswith(name)]
    return _PEAKS[max(names, key=len)] if names else None
