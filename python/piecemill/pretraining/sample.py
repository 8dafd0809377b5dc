"""Sample text from a trained model: its continuation of a document that it has not seen."""

import torch

from piecemill.pretraining.step import Step
from piecemill.shards import Shards

PROMPT_TOKENS = 24
TEMPERATURE = 0.8
TOP = 50


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
