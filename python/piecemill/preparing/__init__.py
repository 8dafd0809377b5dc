"""Preparing: documents -> token shards, resumable at any point.

```
run: tasks without entries ─▶ executor ─▶ task: read, select, encode, write shards, then the entry ─▶ dedup ─▶ finish
```

`prepare_task` is the unit of work; everything else decides where and when it runs. An entry is written after its
shards and marks them as complete, so a run can stop at any point and resume. Start with task.py, then run.py.
"""

from piecemill.preparing.plan import PreparePlan
from piecemill.preparing.result import Summary
from piecemill.preparing.run import prepare

__all__ = ["PreparePlan", "Summary", "prepare"]
