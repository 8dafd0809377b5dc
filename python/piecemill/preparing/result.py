"""The result of a run of `prepare`, for people and for programs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from piecemill.preparing.progress import Numbers
from piecemill.sizes import show_bytes, show_count, show_seconds
from piecemill.sources import show_left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What is in a prepared folder, and what it took."""

    out: Path | str
    "The folder, or its URL in an object store."
    documents: int
    tokens: int
    text_bytes: int
    splits: Mapping[str, Mapping[str, Any]]
    "Of each split: share asked for, documents, tokens, text_bytes, and the shares achieved in documents and tokens."
    dropped: Mapping[str, Mapping[str, int]]
    "Documents and bytes dropped by the plan, by rule: too_short, too_long, duplicate."
    duplicate_examples: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    "Files and documents that the source left out, by rule."
    skipped: int = 0
    "Bad documents that were skipped."
    skipped_documents: tuple[tuple[str, str], ...] = ()
    shards: int = 0
    timing: Mapping[str, Any] = field(default_factory=dict)
    "Seconds by stage, memory, workers: of this run alone, and no part of the deterministic output."
    resumed: bool = False
    "Whether an earlier run had begun it."
    complete_before: bool = False
    "Whether there was nothing left to do."
    part: str | None = None
    "The part of the run that was done, such as 3/64: the folder is complete after `join`."

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "out": str(self.out),
            "documents": self.documents,
            "tokens": self.tokens,
            "text_bytes": self.text_bytes,
            "shards": self.shards,
            "splits": {name: dict(split) for name, split in self.splits.items()},
            "dropped": {rule: dict(counts) for rule, counts in self.dropped.items()},
            "duplicate_examples": list(self.duplicate_examples),
            "left_out": dict(self.left_out),
            "skipped": self.skipped,
            "skipped_documents": [list(one) for one in self.skipped_documents],
            "timing": dict(self.timing),
            "resumed": self.resumed,
            "complete_before": self.complete_before,
            "part": self.part,
        }

    def as_text(self) -> str:
        """The result in a line, and one more for each thing there is to say about it."""
        what = f"{show_count(self.tokens)} tokens of {self.documents:,} documents, {show_bytes(self.text_bytes)}"
        if self.complete_before:
            return f"{self.out} is complete: {what}, {self.shards:,} shards; nothing was done"
        timing = self.timing
        if self.part is not None:
            what = f"{show_count(self.tokens)} tokens of {self.documents:,} documents"
            return f"part {self.part} is done: {what}, in {show_seconds(timing['seconds'])}; join when all parts are"
        lines = [
            f"{what}, in {show_seconds(timing['seconds'])} with {timing['peak_memory_bytes'] / 2**30:.2f} GiB: "
            f"{self.shards:,} shards in {self.out}"
        ]
        if len(self.splits) > 1:
            for name, split in self.splits.items():
                lines.append(
                    f"  {name}: {split['documents']:,} documents ({split['documents_share']:.2%}), "
                    f"{show_count(split['tokens'])} tokens ({split['tokens_share']:.2%}), "
                    f"asked for {split['share']:.2%}"
                )
        stages = ", ".join(f"{stage} {show_seconds(seconds)}" for stage, seconds in timing["stages"].items())
        lines.append(f"  work by stage, over all threads: {stages}")
        if self.dropped:
            rules = ", ".join(
                f"{counts['documents']:,} {rule.replace('_', ' ')} ({show_bytes(counts['bytes'])})"
                for rule, counts in self.dropped.items()
            )
            first = f"; first duplicate: {self.duplicate_examples[0]}" if self.duplicate_examples else ""
            lines.append(f"note: dropped {rules}{first}")
        if self.left_out:
            lines.append(f"note: left out {show_left_out(self.left_out)}")
        if self.skipped:
            name, reason = self.skipped_documents[0]
            lines.append(f"note: skipped {self.skipped:,} bad documents; the first: {name}: {reason}")
        return "\n".join(lines)


def part_of(out: Path | str, part: str, made: Numbers, **more: Any) -> Summary:
    """The summary of one part of a run: what it made, as nothing is known of the others."""
    return Summary(
        out=out, part=part, documents=made.documents, tokens=made.tokens, text_bytes=0, splits={}, dropped={}, **more
    )


def from_stats(out: Path | str, stats: Mapping[str, Any], **more: Any) -> Summary:
    """A summary from what stats.json holds."""
    return Summary(
        out=out,
        documents=stats["documents"],
        tokens=stats["tokens"],
        text_bytes=stats["text_bytes"],
        shards=stats["shards"],
        splits=stats["splits"],
        dropped=stats["dropped"],
        duplicate_examples=tuple(stats["duplicate_examples"]),
        left_out=stats["left_out"],
        skipped=stats["skipped"],
        skipped_documents=tuple((name, reason) for name, reason in stats["skipped_documents"]),
        **more,
    )
