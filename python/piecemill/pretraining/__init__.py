"""Pretraining: a smoke run that proves shards and tokenizer on a real model.

```
loading: batches ─▶ model: hidden ─▶ loss ─▶ optimizer      one step, without synchronization
                          │
           readings ─▶ guard, metrics.jsonl ─▶ curve, sample, result
```

A Llama-style decoder is trained on prepared shards, for minutes, not for weeks. Every step leaves its loss on the
device; losses are read some steps later, compared with chance, and recorded. A run that was stopped or killed resumes
from its last checkpoint with the same losses. torch, transformers, safetensors and matplotlib are the extra
`pretrain`; none of them is imported before a run starts.

Start with `pretrain` and `PretrainPlan`.
"""

from piecemill.pretraining.plan import PretrainPlan
from piecemill.pretraining.result import PretrainSummary
from piecemill.pretraining.run import pretrain

__all__ = ["PretrainPlan", "PretrainSummary", "pretrain"]
