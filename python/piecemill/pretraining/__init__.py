"""Pretraining: a smoke run that proves shards and tokenizer on a real model.

```
loading: batches ─▶ model: hidden ─▶ loss ─▶ optimizer      one step, with nothing that waits for the device
                          │
           readings ─▶ guard, metrics.jsonl ─▶ curve, sample, result
```

A Llama-style decoder learns from prepared shards, for minutes, not for weeks. Every step leaves its loss on the
device; they are read some steps later, judged against chance, and written down. A run that was stopped or killed goes
on from its last checkpoint with the same losses. torch, transformers, safetensors and matplotlib are the extra
`pretrain`; nothing is imported from them before a run begins.

Start with `pretrain` and `PretrainPlan`.
"""

from piecemill.pretraining.plan import PretrainPlan
from piecemill.pretraining.result import PretrainSummary
from piecemill.pretraining.run import pretrain

__all__ = ["PretrainPlan", "PretrainSummary", "pretrain"]
