"""The result of a training run, for people and for programs."""

from pathlib import Path
from typing import Any

from piecemill.sizes import show_bytes, show_seconds
from piecemill.sources import show_left_out
from piecemill.tokenizers import Tokenizer


def as_json(tokenizer: Tokenizer, out: Path) -> dict[str, Any]:
    """What `--json` prints: where the tokenizer is, and its training record."""
    return {"out": str(out), **tokenizer.training}


def as_text(tokenizer: Tokenizer, out: Path) -> str:
    """One line, and one more for each thing that did not go as asked."""
    record = tokenizer.training
    corpus = record["corpus"]
    seconds = sum(stage["seconds"] for stage in record["stages"])
    peak = max(stage["peak_memory_bytes"] for stage in record["stages"])
    lines = [
        f"{tokenizer.vocab_size:,} tokens ({record['merges']:,} merges) from {corpus['documents']:,} "
        f"{'document' if corpus['documents'] == 1 else 'documents'}, "
        f"{show_bytes(corpus['bytes'])}, in {show_seconds(seconds)} with {peak / 2**30:.2f} GiB: {out}"
    ]
    if record["ended"] != "vocabulary full":
        lines.append(
            f"note: {record['plan']['vocab_size']:,} tokens were asked for, but no pair is left that may be merged; "
            "give more text, or a lower --min-frequency or higher --max-token-bytes if set"
        )
    if record["split_note"]:
        lines.append(f"note: {record['split_note']}")
    if corpus["left_out"]:
        lines.append(f"left out: {show_left_out(corpus['left_out'])}")
    if corpus["skipped"]:
        lines.append(f"skipped {corpus['skipped']:,} bad documents, listed in {out / 'training.json'}:")
        lines += [f"  {name}: {reason}" for name, reason in corpus["skipped_documents"][:5]]
        if corpus["skipped"] > 5:
            lines.append(f"  ... and {corpus['skipped'] - 5:,} more")
    return "\n".join(lines)
