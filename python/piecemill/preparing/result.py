"""Reports of a `prepare` run: counters of its tasks, progress events, and the result."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from piecemill.shards.folder import group_lines
from piecemill.sizes import plural, show_bytes, show_count, show_seconds
from piecemill.sources import show_left_out

STAGES = ("read", "select", "encode", "write")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Counters of one task so far, or the sum over all tasks of a run."""

    pieces: int = 0
    documents: int = 0
    tokens: int = 0
    source_bytes: int = 0
    read: float = 0.0
    "Seconds spent in each stage, over all threads."
    select: float = 0.0
    encode: float = 0.0
    write: float = 0.0

    def __add__(self, other: "Numbers") -> "Numbers":
        return Numbers(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(Numbers)})


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareProgress:
    """One moment of a run."""

    stage: str = "prepare"
    "`start` once, with the chosen settings; then `prepare`; then `dedup`, if requested."
    workers: str = ""
    "At the start: how many tasks run at once, on how many cores, and why."
    files: int = 0
    "Source files that are done."
    files_total: int = 0
    bytes_read: int = 0
    "Bytes of the source that are done, as they lie on disk."
    bytes_total: int | None = None
    documents: int = 0
    tokens: int = 0
    bytes_per_second: float = 0.0
    "Rate of this run, without earlier ones."
    seconds_left: float | None = None

    @property
    def fraction(self) -> float | None:
        """How much is done; None if the whole is not known."""
        return min(1.0, self.bytes_read / self.bytes_total) if self.bytes_total else None

    def columns(self) -> tuple[str, ...]:
        """The same columns in every line."""
        if self.stage != "prepare":
            return (self.workers, "")
        return (
            f"{self.files:,}/{self.files_total:,} files" if self.files_total else "",
            f"{show_bytes(self.bytes_read)} read",
            f"{show_count(self.documents)} documents",
            f"{show_count(self.tokens)} tokens",
            f"{self.bytes_per_second / 1e6:.0f} MB/s",
            "" if self.seconds_left is None else f"{show_seconds(self.seconds_left)} left",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What is in a prepared folder, and what it took."""

    out: Path | str
    "The folder, or its URL in an object store."
    documents: int
    tokens: int
    text_bytes: int = 0
    shards: int = 0
    splits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    "Of each split: target share, documents, tokens, text_bytes, and the shares achieved in documents and tokens."
    groups: tuple[Mapping[str, Any], ...] = ()
    "Of each weight group: pattern, weight, documents, tokens; the first is all that no pattern matches."
    notes: tuple[str, ...] = ()
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    "Documents and bytes dropped by the plan, by rule: too_short, too_long, duplicate."
    duplicate_examples: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    "Files and documents that the source left out, by rule."
    skipped: int = 0
    "Bad documents that were skipped."
    skipped_documents: tuple[tuple[str, str], ...] = ()
    timing: Mapping[str, Any] = field(default_factory=dict)
    "Seconds by stage, memory, workers: of this run alone, and no part of the deterministic output."
    resumed: bool = False
    "Whether an earlier run had begun it."
    complete_before: bool = False
    "Whether there was nothing left to do."
    part: str | None = None
    "The part of the run that was done, such as 3/64: the folder is complete after `join`."

    @classmethod
    def from_stats(cls, out: Path | str, stats: Mapping[str, Any], **more: Any) -> "Summary":
        """The summary of a complete folder, from its stats.json."""
        known = {each.name: stats[each.name] for each in fields(cls) if each.name in stats}
        known["groups"], known["notes"] = tuple(stats.get("groups", ())), tuple(stats.get("notes", ()))
        known["duplicate_examples"] = tuple(stats["duplicate_examples"])
        known["skipped_documents"] = tuple((name, reason) for name, reason in stats["skipped_documents"])
        return cls(out=out, **known, **more)

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        listed = {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
        return {**values, **listed, "out": str(self.out)}

    def __str__(self) -> str:
        """The result in a line, and one more for each thing there is to say about it."""
        what, timing = f"{show_count(self.tokens)} tokens of {plural(self.documents, 'document')}", self.timing
        if self.part is not None:
            return f"part {self.part} is done: {what}, in {show_seconds(timing['seconds'])}; join when all parts are"
        what += f", {show_bytes(self.text_bytes)}"
        if self.complete_before:
            return f"{self.out} is complete: {what}, {plural(self.shards, 'shard')}; nothing was done"
        lines = [
            f"{what}, in {show_seconds(timing['seconds'])} with {timing['peak_memory_bytes'] / 2**30:.2f} GiB: "
            f"{plural(self.shards, 'shard')} in {self.out}"
        ]
        for name, split in self.splits.items() if len(self.splits) > 1 else ():
            lines.append(
                f"  {name}: {plural(split['documents'], 'document')} ({split['documents_share']:.2%}), "
                f"{show_count(split['tokens'])} tokens ({split['tokens_share']:.2%}), target {split['share']:.2%}"
            )
        lines += [f"  {line}" for line in group_lines(self.groups)] + [f"note: {note}" for note in self.notes]
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
            lines.append(f"note: skipped {plural(self.skipped, 'bad document')}; the first: {name}: {reason}")
        return "\n".join(lines)
