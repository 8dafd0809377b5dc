"""Preparing: documents -> token shards, resumable at any point.

```
sources: blocks ─▶ selection: hash, drop, split ─▶ encoding: ids ─▶ commit: shards + journal
```

One thread reads and decides, several encode, one writes, all in the order of the corpus; a budget bounds what is
between them. What is on disk is always what the journal says, so a run can be ended anywhere and go on from there.

Start with `prepare` and `PreparePlan`.
"""

from piecemill.preparing.plan import PreparePlan
from piecemill.preparing.result import Summary
from piecemill.preparing.run import prepare

__all__ = ["PreparePlan", "Summary", "prepare"]
