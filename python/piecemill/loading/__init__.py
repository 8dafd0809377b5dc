"""Loading: documents in shards to batches in a training loop, at no cost to the step.

Windows are cut when loading, in an order that is computed; threads gather them ahead. Nothing here but `torch` and
`device` imports torch, nothing but `parquet` imports pyarrow, and nothing imports a tokenizer or the command line.

Start with `batches`; for torch, with `piecemill.loading.torch.batches`.
"""

from piecemill.loading.batching import Batches, Stats
from piecemill.loading.mixing import Mixture, mix
from piecemill.loading.order import Blocks, Local
from piecemill.loading.text import batches
from piecemill.shards.windows import Windows

__all__ = ["Batches", "Blocks", "Local", "Mixture", "Stats", "Windows", "batches", "mix"]
