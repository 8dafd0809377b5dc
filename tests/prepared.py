"""A whole prepared folder from texts, without `prepare`: for the tests of everything that reads one."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from piecemill import _core
from piecemill.shards import RECORD, ShardWriter, token_dtype, write_stats
from piecemill.tokenizers import Tokenizer


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
    plan = {"format": 1, "vocab_size": tok.vocab_size, "splits": dict.fromkeys(splits, 1), "bos": bos, "eos": eos}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "files.jsonl").write_text('{"path": "a.txt", "bytes": 10}\n')
    tok.save(folder / "tokenizer")
    for name, texts in splits.items():
        writer = ShardWriter(folder / name, dtype=token_dtype(tok.vocab_size), shard_tokens=shard_tokens)
        for first in range(0, len(texts), block_documents):
            writer.append(*block(texts[first : first + block_documents], tok, first, bos=bos, eos=eos))
        writer.finish()
    write_stats(folder, {"documents": sum(map(len, splits.values())), "seconds": 0.25})
    return folder
