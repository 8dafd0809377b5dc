"""Shards: the files a training loop reads.

A shard holds every token id one after another, where each document ends, and a record of each document. An entry
marks the shards of one piece of the corpus as complete; the manifest of a split lists its shards in corpus order.
Nothing here knows how the ids were made. The contract is docs/shards.md.

Start with `ShardWriter` and `open_shards`.
"""

from piecemill.shards.folder import write_stats
from piecemill.shards.format import RECORD, token_dtype
from piecemill.shards.reader import Shards, open_shards
from piecemill.shards.writer import ShardWriter

__all__ = ["RECORD", "ShardWriter", "Shards", "open_shards", "token_dtype", "write_stats"]
