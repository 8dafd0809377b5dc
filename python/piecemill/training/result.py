"""Progress events of a training run, and its result, or that of one that only counted, for people and for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from piecemill.plans import option
from piecemill.sizes import plural, show_bytes, show_count, show_seconds
from piecemill.sources import show_left_out
from piecemill.tokenizers import Tokenizer
from piecemill.tokenizers.listing import show_token

Stage = Literal["count", "read", "merge", "save"]

_MOST_GROUPS = 20
"Groups that the result lists; training.json has all."


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainProgress:
    """One progress event. Fields that are not known yet are 0 or None."""

    stage: Stage
    documents: int = 0
    bytes_read: int = 0
    "Bytes of the source done with, as they lie on disk."
    bytes_total: int | None = None
    distinct_words: int = 0
    merges: int = 0
    merges_wanted: int = 0
    merges_per_second: float = 0.0
    pair_count: int = 0
    "How often the pair that was merged last occurred."
    token: bytes = b""
    "The token that was made last."
    memory: int = 0
    "Bytes this process holds."
    seconds_left: float | None = None

    @property
    def fraction(self) -> float | None:
        """Fraction of the stage that is done; None if the total is not known."""
        if self.stage == "merge":
            return self.merges / self.merges_wanted if self.merges_wanted else 1.0
        if self.bytes_total:
            return min(1.0, self.bytes_read / self.bytes_total)
        return None

    def columns(self) -> tuple[str, ...]:
        """The columns of a progress line, of fixed width within a stage; the last is the time left."""
        left = "" if self.seconds_left is None else f"{show_seconds(self.seconds_left)} left"
        memory = f"{self.memory / 2**30:.2f} GiB"
        if self.stage == "merge":
            wanted = f"{self.merges_wanted:,}"
            return (
                f"{self.merges:>{len(wanted)},}/{wanted} merges",
                f"{show_count(self.merges_per_second):>7}/s",
                f"{show_count(self.pair_count):>8} x {show_token(self.token, 16):<16}",
                memory,
                left,
            )
        words = (f"{show_count(self.distinct_words)} words",) if self.stage == "count" else ()
        return (f"{show_count(self.documents)} documents", f"{show_bytes(self.bytes_read)} read", *words, memory, left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The result of `count_words`: what was counted, and what of the source was not."""

    counts: Path
    "The file with the counts."
    distinct_words: int
    documents: int
    bytes: int
    "Bytes of text in all documents."
    fingerprint: str
    "Of the text, whatever its order: equal for equal corpora."
    unused_separator: str | None
    "The separator, if it occurs in no file."
    notes: Sequence[str]
    "What a user should know about how the source was found: patterns that matched nothing."
    left_out: Mapping[str, int]
    "Files and documents that the source left out, by rule."
    skipped: int
    "Bad documents that were skipped."
    skipped_documents: Sequence[Sequence[str]]
    "Name and reason of the first of them."

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {**asdict(self), "counts": str(self.counts)}

    def __str__(self) -> str:
        """One line, and more for what was not read."""
        what = f"{self.distinct_words:,} distinct words in {self.counts}, from {_documents(self.documents, self.bytes)}"
        return "\n".join([what, *_reading(self.to_dict(), f"the metadata of {self.counts}")])


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of `piecemill train`: a tokenizer with the record of its training, and where it was saved."""

    tokenizer: Tokenizer
    out: Path

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints: where the tokenizer is, and its training record."""
        return {"out": str(self.out), **self.tokenizer.training}

    def __str__(self) -> str:
        """One line, and a note for each deviation from the plan."""
        record = self.tokenizer.training
        corpus = record["corpus"]
        seconds = sum(stage["seconds"] for stage in record["stages"])
        peak = max(stage["peak_memory_bytes"] for stage in record["stages"])
        lines = [
            f"{self.tokenizer.vocab_size:,} tokens ({record['merges']:,} merges{_second(record)}) "
            f"from {_documents(corpus['documents'], corpus['bytes'])}, "
            f"in {show_seconds(seconds)} with {peak / 2**30:.2f} GiB: {self.out}"
        ]
        if record["ended"] != "vocabulary full":
            plan = record["plan"]
            ways = ["give more text"]
            if plan["min_frequency"] > 1:
                ways.append(f"a lower {option('min_frequency')} than {plan['min_frequency']:,}")
            if plan["max_token_bytes"] is not None:
                ways.append(f"a higher {option('max_token_bytes')} than {plan['max_token_bytes']:,}")
            if "second_stage" in record:
                ways.append(f"a higher {option('max_words')} than {plan['max_words']:,}")
            lines.append(
                f"note: {plan['vocab_size']:,} tokens were requested, but no pair is left that may be merged; "
                + ", or ".join(ways)
            )
        if record["pretokenizer_note"]:
            lines.append(f"note: {record['pretokenizer_note']}")
        lines += _groups(record.get("groups", []))
        return "\n".join([*lines, *_reading(corpus, str(self.out / "training.json"))])


def _groups(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """The groups that were balanced, worst first."""
    if not groups:
        return []
    lines = [f"balanced over {plural(len(groups), 'group')}:"]
    width = max(len(group["group"]) for group in groups[:_MOST_GROUPS])
    for group in groups[:_MOST_GROUPS]:
        measured = (
            f"   {group['tokens_measured']:,} tokens of {option('balance_on')}" if "tokens_measured" in group else ""
        )
        sizes = f"{show_bytes(group['bytes'])} in {group['tokens']:,} tokens"
        lines.append(f"  {group['group']:{width}}   {group['bytes_per_token']:.3f} bytes per token: {sizes}{measured}")
    return lines + ([f"  ... and {len(groups) - _MOST_GROUPS:,} more"] if len(groups) > _MOST_GROUPS else [])


def _second(record: Mapping[str, Any]) -> str:
    return f", {record['second_stage']['merges']:,} across words" if "second_stage" in record else ""


def _documents(count: int, size: int) -> str:
    return f"{plural(count, 'document')}, {show_bytes(size)}"


def _reading(corpus: Mapping[str, Any], listed_in: str) -> list[str]:
    """What there is to say of the reading: what did not cut, what was left out, and what was skipped."""
    lines = [f"note: {note}" for note in corpus.get("notes", ())]
    if corpus["unused_separator"] is not None:
        lines.append(f"note: the separator {corpus['unused_separator']!r} occurs in no file; each is one document")
    if corpus["left_out"]:
        lines.append(f"left out: {show_left_out(corpus['left_out'])}")
    if corpus["skipped"]:
        lines.append(f"skipped {plural(corpus['skipped'], 'bad document')}, listed in {listed_in}:")
        lines += [f"  {name}: {reason}" for name, reason in corpus["skipped_documents"][:5]]
        if corpus["skipped"] > 5:
            lines.append(f"  ... and {corpus['skipped'] - 5:,} more")
    return lines
