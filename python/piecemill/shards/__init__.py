"""Shards: the files a training loop reads.

A shard holds every token id one after another, where each document ends, and a record of each document; the
manifest has one line per finished shard. Nothing here knows how the ids were made: text and actions write the
same files. The contract is docs/shards.md.

Start with `ShardWriter` and `open_shards`.
"""

from piecemill.shards.folder import write_stats
from piecemill.shards.format import RECORD, token_dtype
from piecemill.shards.reader import Shards, open_shards
from piecemill.shards.writer import ShardWriter

__all__ = ["RECORD", "ShardWriter", "Shards", "open_shards", "token_dtype", "write_stats"]
