"""Loading: documents in shards -> batches for a training loop, without delaying a step.

Windows are cut when loading, in an order that is computed; threads prefetch them. Only `torch` and `device` import
torch, only `parquet` imports pyarrow, and nothing imports a tokenizer or the command line.

Start with `batches`; for torch, with `piecemill.loading.torch.batches`.
"""

from piecemill.loading.batching import Batches, Stats
from piecemill.loading.mixing import Mixture, mix
from piecemill.loading.order import Blocks, Local
from piecemill.loading.text import batches
from piecemill.shards.windows import Windows

__all__ = ["Batches", "Blocks", "Local", "Mixture", "Stats", "Windows", "batches", "mix"]
