"""What every pipeline script has in common: how it is called, how it reads its share, how it shows its tokens.

    python peers_prepare/run_X.py prepare --input FILE... --tokenizer tokenizer.json --workers N --out FOLDER \
        [--library gigatoken]
    python peers_prepare/run_X.py tokens  --out FOLDER

`prepare` is the process that is timed: from a file of documents (JSONL, or Parquet with a column `text`) to tokens
on disk in the tool's own format, as a user's script would. Every document gets its ids and then the id of
<|endoftext|>. `tokens` is not timed: it reads what was written, with the tool's own reader where it has one, and
writes `digest.json`, so that answers can be compared.

Nothing here knows the tools. Start with `peer`; a script gives it a function for each.
"""

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from libraries import LIBRARIES

EOS = "<|endoftext|>"

Share = tuple[str, int, int]
"""A part of a file that one worker reads: (path, first, last) in bytes of JSONL or in row groups of Parquet."""


class Digest:
    """What was produced, small enough to compare: of each document 16 bytes."""

    def __init__(self) -> None:
        self._documents: list[bytes] = []
        self._tokens = 0

    def add(self, ids: Iterable[int]) -> None:
        import numpy as np

        array = np.ascontiguousarray(ids, "<u4")
        self._documents.append(hashlib.blake2b(array.tobytes(), digest_size=16).digest())
        self._tokens += len(array)

    def summary(self) -> dict[str, int | str]:
        """Counts, and two hashes: of the documents in order, and of the same documents sorted."""
        return {
            "documents": len(self._documents),
            "tokens": self._tokens,
            "ordered": hashlib.sha256(b"".join(self._documents)).hexdigest(),
            "unordered": hashlib.sha256(b"".join(sorted(self._documents))).hexdigest(),
        }


def peer(prepare: Callable[[argparse.Namespace], None], tokens: Callable[[Path], Iterable[Iterable[int]]]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("do", choices=["prepare", "tokens"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--input", type=Path, nargs="+")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--library", choices=list(LIBRARIES), default="tokenizers")
    args = parser.parse_args()
    if args.do == "prepare":
        args.out.mkdir(parents=True, exist_ok=True)
        prepare(args)
    else:
        digest = Digest()
        for ids in tokens(args.out):
            digest.add(ids)
        (args.out / "digest.json").write_text(json.dumps(digest.summary()))


def one_thread_each() -> None:
    """Workers are processes here: HF's own threads on top of them would only get in each other's way.

    To be called before `tokenizers` is imported.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"


class Encoder:
    """The library that encodes, by its fastest call: HF `tokenizers`, the default of all pipelines, or gigatoken."""

    def __init__(self, path: Path, library: str = "tokenizers") -> None:
        self._made_of, self._library = (path, library), None

    def __call__(self, texts: list[str]) -> list:
        """The ids of each text and then the end, as uint16, which 50,257 entries fit in."""
        import numpy as np

        if self._library is None:
            # Only here, in the worker: not every library can be pickled, or used after a fork.
            path, library = self._made_of
            self._library = LIBRARIES[library](str(path))
            self._eos = self._library.id_of(EOS)
        found = []
        for ids in self._library.batch(texts, threads=1):
            ended = np.empty(len(ids) + 1, np.uint16)
            ended[:-1], ended[-1] = ids, self._eos
            found.append(ended)
        return found


def shares(path: Path, count: int) -> list[Share]:
    """The file in `count` parts of about the same size."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        size = pq.ParquetFile(path).metadata.num_row_groups
    else:
        size = path.stat().st_size
    return [(str(path), size * part // count, size * (part + 1) // count) for part in range(count)]


def read_share(share: Share) -> Iterator[str]:
    """The documents of a share; a line belongs to the share in which it starts."""
    path, first, last = share
    if path.endswith(".parquet"):
        import pyarrow.parquet as pq

        for batch in pq.ParquetFile(path).iter_batches(1000, row_groups=list(range(first, last)), columns=["text"]):
            yield from batch.column("text").to_pylist()
        return
    with open(path, "rb") as lines:
        if first:
            lines.seek(first - 1)
            lines.readline()
        while lines.tell() < last and (line := lines.readline()):
            yield json.loads(line)["text"]


def batches(texts: Iterable[str], size: int = 256) -> Iterator[list[str]]:
    held = []
    for text in texts:
        held.append(text)
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held
