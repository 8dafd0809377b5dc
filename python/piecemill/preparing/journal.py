"""The journal of a run: what was committed, in order, one line each.

A line holds a record and the xxh3 of its text, so that a line that a power loss took or mangled is known for what
it is; nothing after it counts. There are two kinds: a block that was committed, and a task that has no more blocks.

Start with `Journal`; `read` gives what is there.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from piecemill.files import hash_bytes


@dataclass(frozen=True, slots=True)
class Line:
    """A record, and where its line ends in the file."""

    record: dict[str, Any]
    end: int


class Journal:
    """Appends lines. A line is in the file (though not yet safe from a power loss) when `write` returns."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        """Go on behind the first `keep` bytes; what follows them goes."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self._file.truncate(keep)
        self._file.seek(keep)

    def write(self, record: dict[str, Any]) -> None:
        """Add one line."""
        text = json.dumps(record, separators=(",", ":"))
        line = f'{{"xxh3":"{hash_bytes(text.encode())}","record":{text}}}\n'.encode()
        done = 0
        while done < len(line):
            done += self._file.write(line[done:])

    def sync(self) -> None:
        """Make the lines so far last."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def read(path: Path) -> Iterator[Line]:
    """The lines that are whole, up to the first that is not; none if there is no journal."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return
    end = 0
    with file:
        for line in file:
            end += len(line)
            try:
                parsed = json.loads(line)
                text = json.dumps(parsed["record"], separators=(",", ":"))
                whole = line.endswith(b"\n") and parsed["xxh3"] == hash_bytes(text.encode())
            except (ValueError, KeyError, TypeError):
                whole = False
            if not whole:
                return
            yield Line(parsed["record"], end)
