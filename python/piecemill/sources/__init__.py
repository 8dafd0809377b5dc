"""Sources: files, tables and strings -> documents.

Finds what a corpus consists of, plans it as tasks that can be read anywhere, and reads each as blocks of
`Documents`: one buffer, and the offset at which each document ends. Nothing is dropped silently: rules count what they
leave out, and a bad document stops the run or is counted and listed. This package does not tokenize.

```
open_source ─▶ discover: files ─▶ plan: tasks ─▶ text, pieces, jsonl, parquet, arrow, items ─▶ Packer: blocks
```

Start with `open_source`. A new format is a module and a line in `tasks.ENDINGS`.
"""

from piecemill.sources.documents import Documents, Skipped, Tally, show_left_out
from piecemill.sources.packing import BLOCK_BYTES, Reading
from piecemill.sources.source import Source, open_source, read_task
from piecemill.sources.tasks import Task

__all__ = [
    "BLOCK_BYTES",
    "Documents",
    "Reading",
    "Skipped",
    "Source",
    "Tally",
    "Task",
    "open_source",
    "read_task",
    "show_left_out",
]
