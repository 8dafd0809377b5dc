"""Piecemill's own shards, read by numpy alone: they are real .npy files, and that is part of the claim.

The timed process is the command `piecemill prepare`, not this script.
"""

from pathlib import Path

from pipeline import peer


def tokens(out: Path):
    import numpy as np

    for path in sorted((out / "all").glob("*.tokens.npy")):
        ids, start = np.load(path, mmap_mode="r"), 0
        for end in np.load(path.with_name(path.name.replace(".tokens.", ".ends."))).tolist():
            yield ids[start:end]
            start = end


def prepare(args):
    raise SystemExit("run: piecemill prepare")


if __name__ == "__main__":
    peer(prepare, tokens)
