"""A whole prepared folder from texts, without `prepare`: for the tests of everything that reads one."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from piecemill import _core
from piecemill.files import LocalPlace
from piecemill.shards import RECORD, ShardWriter, token_dtype, write_stats
from piecemill.shards.manifest import ENTRIES, NAME, Entry, ShardEntry, entry_files, piece_name
from piecemill.tokenizers import Tokenizer

TALLY = {"documents": 0, "text_bytes": 0, "source_bytes": 0, "left_out": {}, "skipped_count": 0, "skipped": []}


class SplitWriter:
    """Writes a split as `prepare` would: a piece, with an entry, ends after the block that fills `shard_tokens`.

    The splits of a folder must be written one after another: each is a task of its own.
    """

    def __init__(self, folder: Path, *, dtype, shard_tokens: int = 1000) -> None:
        self.place, self.split, self.dtype, self.shard_tokens = (
            LocalPlace(folder.parent),
            folder.name,
            dtype,
            shard_tokens,
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.task = max((task + 1 for task, *_ in entry_files(self.place.sizes(ENTRIES))), default=0)
        self.shards: list[ShardEntry] = []
        self.writer, self.tokens = None, 0

    def append(self, ids, ends, records) -> None:
        if self.writer is None:
            stem = piece_name(self.task, len(self.shards))
            self.writer, self.tokens = ShardWriter(self.place, self.split, stem, dtype=self.dtype), 0
        self.writer.append(ids, ends, records)
        self.tokens += len(ids)
        if self.tokens >= self.shard_tokens:
            self._end_piece()

    def _end_piece(self) -> None:
        if self.writer is not None and (shard := self.writer.finish()) is not None:
            entry = Entry(self.task, len(self.shards), False, "", "file", TALLY, {}, {self.split: shard})
            self.place.write(entry.name, entry.to_json())
            self.shards.append(shard)
        self.writer = None

    def finish(self) -> None:
        self._end_piece()
        lines = [shard.line(number) for number, shard in enumerate(self.shards)]
        self.place.write(f"{self.split}/{NAME}", "".join(lines).encode())


def complete(folder: Path, stats: dict) -> None:
    """Write stats.json, and leave nothing but what a complete folder has."""
    write_stats(LocalPlace(folder), stats)
    (folder / ".scratch").rmdir()


def reseal(folder: Path) -> None:
    """Take the files of a complete folder, as they are now, for the right ones."""
    stats = json.loads((folder / "stats.json").read_text())
    complete(folder, {key: value for key, value in stats.items() if key not in ("checksums", "xxh3")})


def block(texts: Sequence[str], tok: Tokenizer, first: int = 0, *, bos: int | None = None, eos: int | None = None):
    """The ids, ends and records of some documents, as `prepare` would hand them over."""
    rows = [tok.encode(text).tolist() for text in texts]
    rows = [([] if bos is None else [bos]) + row + ([] if eos is None else [eos]) for row in rows]
    data = [text.encode() for text in texts]
    hashes = _core.hash_documents(
        np.frombuffer(b"".join(data), np.uint8), np.cumsum([len(d) for d in data], dtype=np.int64)
    )
    records = np.zeros(len(texts), RECORD)
    records["hash_low"], records["hash_high"] = hashes.T
    records["bytes"] = [len(d) for d in data]
    records["place"] = np.arange(first, first + len(texts))
    ids = np.array([i for row in rows for i in row], token_dtype(tok.vocab_size))
    return ids, np.cumsum([len(row) for row in rows], dtype=np.int64), records


def prepare_folder(
    folder: Path,
    splits: dict[str, Sequence[str]],
    tok: Tokenizer,
    *,
    bos: int | None = None,
    eos: int | None = 0,
    shard_tokens: int = 1000,
    block_documents: int = 5,
) -> Path:
    """Write texts as a complete prepared folder, in blocks of a few documents."""
    folder.mkdir(parents=True)
    plan = {"format": 2, "vocab_size": tok.vocab_size, "splits": dict.fromkeys(splits, 1), "bos": bos, "eos": eos}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "files.jsonl").write_text('{"path": "a.txt", "bytes": 10}\n')
    tok.save(folder / "tokenizer")
    for name, texts in splits.items():
        writer = SplitWriter(folder / name, dtype=token_dtype(tok.vocab_size), shard_tokens=shard_tokens)
        for first in range(0, len(texts), block_documents):
            writer.append(*block(texts[first : first + block_documents], tok, first, bos=bos, eos=eos))
        writer.finish()
    complete(folder, {"documents": sum(map(len, splits.values())), "seconds": 0.25})
    return folder
