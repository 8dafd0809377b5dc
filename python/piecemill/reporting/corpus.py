"""Facts about a prepared folder: a sample of its documents, compression by group, and what became of the corpus."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PlanError, ShardError
from piecemill.files import LocalPlace, read_json, regular
from piecemill.plans import option, prepared_again
from piecemill.reporting.comparing import Comparison, DocumentGroups, Ints, compare, group_paths, largest_groups
from piecemill.reporting.shards import distinct_lengths
from piecemill.reporting.vocabulary import Counts, section, table
from piecemill.shards import Shards, open_shards
from piecemill.shards import folder as prepared
from piecemill.tokenizers import Tokenizer
from piecemill.tokenizers.texts import flatten

WINDOWS = (1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class PreparedCorpus:
    """A prepared folder, opened for a report."""

    folder: Path
    facts: Mapping[str, Any]
    "What `describe` says."

    @cached_property
    def splits(self) -> dict[str, Shards]:
        names = prepared.read_plan(self.folder)["splits"]
        return {name: open_shards(self.folder, name, unfinished=True) for name in names}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return next(iter(self.splits.values())).tokenizer()

    @cached_property
    def identity(self) -> str:
        """The identity of the tokenizer, from the plan where it has one."""
        return next(iter(self.splits.values())).tokenizer_identity or self.tokenizer.identity

    @cached_property
    def counts(self) -> Counts | None:
        """How often each token occurs, over all splits; None where a split has no counts."""
        found = [shards.token_counts() for shards in self.splits.values()]
        known = [counts for counts in found if counts is not None]
        return sum(known[1:], known[0]) if known and len(known) == len(found) else None

    @cached_property
    def files(self) -> list[dict[str, Any]]:
        """The source files: path, and bytes where they are known."""
        path = self.folder / prepared.FILES
        try:
            with open(regular(path), "rb") as lines:
                found = [json.loads(line) for line in lines]
            if not found or not all(isinstance(file["path"], str) and "bytes" in file for file in found):
                raise ValueError("not a path and bytes in each of its lines")
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise ShardError(
                f"{path}: not the list of source files that was written ({error}). "
                f"Run `piecemill check {self.folder}`. {prepared_again()}"
            ) from None
        return found

    @cached_property
    def paths(self) -> list[str]:
        """The source files, from the folder that they all lie in."""
        names = [file["path"] for file in self.files]
        folders = [name.split("/")[:-1] for name in names]
        common = 0
        while all(len(folder) > common and folder[common] == folders[0][common] for folder in folders):
            common += 1
        return ["/".join(name.split("/")[common:]) for name in names]

    def by_language(self, tokenizers: Sequence[Tokenizer], language: str, **options: Any) -> Comparison:
        """Compare on the source files, which have the field; shards do not. PlanError if they are not as they were."""
        for file in self.files:
            path = Path(file["path"])
            if "://" not in file["path"] and (not path.is_file() or path.stat().st_size != file["bytes"]):
                raise PlanError(
                    f"{option('language', language)}: is read from the sources of {self.folder}, and {path} is not "
                    "as it was prepared. Restore it, or pass a corpus with this field (on)."
                )
        own = {key: self.facts["plan"]["options"][key] for key in ("field", "separator", "on_bad_document")}
        paths = [file["path"] for file in self.files]
        return compare(tokenizers, on=paths, language=language, **own, **options)

    @property
    def marks(self) -> int:
        """Tokens that are put around each document: bos and eos."""
        return sum(mark is not None for mark in (self.facts["plan"]["bos"], self.facts["plan"]["eos"]))

    @cached_property
    def sums_by_file(self) -> Ints:
        """Documents, bytes and tokens (without bos and eos) of each source file: three rows."""
        sums = np.zeros((3, max(1, len(self.paths))), np.int64)
        for shards in self.splits.values():
            for number in range(len(shards.entries)):
                lengths = np.diff(shards.checked_ends(number), prepend=0) - self.marks
                for row, weights in enumerate((None, shards.shard(number).documents["bytes"], lengths)):
                    found = np.bincount(self._file_numbers(shards, number), weights, sums.shape[1])
                    sums[row] += found.astype(np.int64)
        return sums

    def _file_numbers(self, shards: Shards, number: int) -> Ints:
        """The source file of each document of a shard; ShardError if there is no such file."""
        files, most = shards.shard(number).documents["file"], max(1, len(self.paths))
        outside = np.flatnonzero((files < 0) | (files >= most))
        if len(outside):
            raise ShardError(
                f"{shards.url}/{shards.split}/{shards.entries[number].files['documents'].name}: document {outside[0]} "
                f"is of file {files[outside[0]]}, and {prepared.FILES} has {most:,}. "
                f"Run `piecemill check {shards.url}`. {prepared_again()}"
            )
        return files.astype(np.int64)

    def sample(self, most: int) -> "Iterator[tuple[NDArray[np.uint8], Ints, Ints]]":
        """Decoded documents of about `most` bytes (0: all), spread evenly: text, ends, and the file of each."""
        total = sum(shards.text_bytes for shards in self.splits.values())
        step = max(1, -(-total // most)) if most else 1
        bos, marks = self.facts["plan"]["bos"] is not None, self.marks
        for shards in self.splits.values():
            for number in range(len(shards.entries)):
                shard, ends = shards.shard(number), shards.checked_ends(number)
                chosen = np.arange(0, len(ends), step)
                starts = np.concatenate([np.zeros(1, np.int64), ends])[chosen] + bos
                lengths = np.maximum(ends[chosen] - starts - (marks - bos), 0)
                text_ends = np.cumsum(lengths)
                ids = [
                    np.asarray(shard.tokens[start : start + length])
                    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
                ]
                if ids:
                    flat = np.concatenate(ids).astype(np.uint32)
                    yield *self._decoded(flat, text_ends), self._file_numbers(shards, number)[chosen]

    def _decoded(self, ids: NDArray[np.uint32], ends: Ints) -> tuple[NDArray[np.uint8], Ints]:
        if self.tokenizer.exact:
            return self.tokenizer.decode_flat(ids, ends)
        return flatten(self.tokenizer.decode_batch(ids, ends))


def compression_tables(corpus: PreparedCorpus, words: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Exact bytes per token by source group and file ending; `words` has tokens per word on a sample, by both."""
    return [
        table(
            f"By {kind}",
            _by_group(corpus.sums_by_file, grouping, words.get(kind, {})),
            bar="bytes_per_token",
            note="All documents; tokens per word are of the sample.",
        )
        for kind, grouping in group_paths(corpus.paths).items()
    ]


def group_row(name: str, documents: int, size: int, tokens: int, tokens_per_word: float | None) -> dict[str, Any]:
    """The row of a group in a table of compression: what matters first, for narrow screens."""
    ratios = {"bytes_per_token": size / max(1, tokens), "tokens_per_word": tokens_per_word}
    return {"group": name, **ratios, "documents": documents, "bytes": size, "tokens": tokens}


def _by_group(sums: Ints, grouping: DocumentGroups, words: Mapping[str, float]) -> list[dict[str, Any]]:
    every = np.arange(sums.shape[1])
    added = np.stack([np.bincount(grouping.of_files(every), row, len(grouping.names)) for row in sums]).astype(np.int64)
    rows = largest_groups(grouping.names, added)
    return [group_row(name, n, size, tokens, words.get(name)) for name, (n, size, tokens) in rows]


def corpus_section(corpus: PreparedCorpus) -> dict[str, Any]:
    """Documents, drops, duplicates, splits, lengths and time."""
    facts, stats = corpus.facts, corpus.facts["stats"]
    lengths = distinct_lengths(corpus.splits.values())
    text_bytes = sum(split["text_bytes"] for split in facts["splits"].values())
    timing = _timing(corpus.folder, text_bytes)
    tables = [
        table("Splits", [_split_row(name, split, facts) for name, split in facts["splits"].items()]),
        table(
            "Dropped and left out",
            [
                *({"rule": rule, **amounts} for rule, amounts in stats.get("dropped", {}).items()),
                *({"rule": rule, "documents": n, "bytes": None} for rule, n in stats.get("left_out", {}).items()),
                *(
                    [{"rule": "skipped: bad documents", "documents": stats["skipped"], "bytes": None}]
                    if stats.get("skipped")
                    else []
                ),
            ],
        ),
        table(
            "Tokens per document",
            [
                {"length": name, "documents": count, "documents_share": share}
                for name, count, share in _histogram(lengths)
            ],
            bar="documents_share",
        ),
        table(
            "Documents and windows",
            [_window_row(window, lengths, corpus) for window in WINDOWS],
            note="Cut: longer than the window. Padding: with one document a row, and with documents laid end to end.",
        ),
    ]
    if timing:
        tables.append(table("Time by stage, over all threads", timing["stages"]))
    return section(
        "corpus",
        "Corpus",
        "Of equal documents the first stays; the split of a document depends on its content alone.",
        figures={
            "documents": facts["documents"],
            "tokens": facts["tokens"],
            "text_bytes": text_bytes,
            "complete": facts["complete"],
            "documents_that_repeat_an_earlier_text": facts["duplicates"],
            "texts_in_several_splits": facts["texts_in_several_splits"],
            **({} if timing is None else timing["figures"]),
        },
        tables=[one for one in tables if one["rows"]],
    )


def _split_row(name: str, split: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    shares = facts["plan"]["splits"]
    return {
        "split": name,
        "asked_share": shares[name] / sum(shares.values()),
        "documents": split["documents"],
        "documents_share": split["share_of_documents"],
        "tokens": split["tokens"],
        "tokens_share": split["share_of_tokens"],
        "bytes_per_token": split["bytes_per_token"],
    }


def _histogram(lengths: Ints) -> list[tuple[str, int, float]]:
    if not lengths.size:
        return []
    total, bins = int(lengths[1].sum()), np.floor(np.log2(np.maximum(lengths[0], 1))).astype(np.int64)
    rows = []
    for power in range(int(bins.min()), int(bins.max()) + 1):
        count = int(lengths[1][bins == power].sum())
        rows.append((f"{1 << power:,} to {(2 << power) - 1:,}", count, count / total))
    return rows


def _window_row(window: int, lengths: Ints, corpus: PreparedCorpus) -> dict[str, Any]:
    long, count = lengths
    documents, tokens = max(1, int(count.sum())), max(1, int((long * count).sum()))
    alone = -(-long // window) * window
    packed = sum(-shards.tokens % window for shards in corpus.splits.values())
    return {
        "window": window,
        "documents_cut_share": int(count[long > window].sum()) / documents,
        "tokens_beyond_share": int((np.maximum(long - window, 0) * count).sum()) / tokens,
        "padding_share_one_document_a_row": 1 - tokens / max(1, int((alone * count).sum())),
        "padding_share_packed": packed / (tokens + packed),
    }


def _timing(folder: Path, text_bytes: int) -> dict[str, Any] | None:
    if not (folder / prepared.TIMING).exists():
        return None
    way_out = "Delete it: it is not needed."
    timing = read_json(LocalPlace(folder), prepared.TIMING, way_out)
    try:
        stages, seconds, peak = timing["stages"], float(timing["seconds"]), int(timing["peak_memory_bytes"])
        total = sum(stages.values()) or 1
        rows = [{"stage": name, "seconds": time, "time_share": time / total} for name, time in stages.items()]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise ShardError(f"{folder / prepared.TIMING}: was changed after it was written. {way_out}") from None
    figures = {
        "seconds": seconds,
        "megabytes_of_text_per_second": text_bytes / 1e6 / max(seconds, 1e-9),
        "peak_memory_bytes": peak,
    }
    return {"figures": figures, "stages": rows}


def samples(corpus: PreparedCorpus, most: int, shown: int = 6, tokens: int = 250) -> list[dict[str, Any]]:
    """The second half of a long document of each of the largest groups, as ids; no more than `tokens` of them."""
    groups = group_paths(corpus.paths)
    kind = next(iter(groups), None)
    every = np.arange(max(1, len(corpus.paths)))
    by_file = groups[kind].of_files(every) if kind else np.zeros(len(every), np.int64)
    names = groups[kind].names if kind else ["documents"]
    sums = np.bincount(by_file, corpus.sums_by_file[1], len(names))
    wanted = np.argsort(-sums, kind="stable")[:shown].tolist()
    enough, found = 8 * tokens, dict[int, tuple[bytes, int]]()
    for data, ends, files in corpus.sample(most):
        sizes = np.diff(ends, prepend=0)
        for at in np.flatnonzero(sizes > 40).tolist():
            group = int(by_file[files[at]])
            best = len(found[group][0]) if group in found else 0
            if group in wanted and best < enough and sizes[at] // 2 > best:
                # The middle of a document says more than its head, which is often a licence.
                middle = int(ends[at] - sizes[at] // 2)
                found[group] = data[middle : min(int(ends[at]), middle + enough)].tobytes(), int(files[at])
        if len(found) == len(wanted) and all(len(text) >= enough for text, _ in found.values()):
            break
    shown_groups = []
    for group in wanted:
        raw, file = found.get(group, (b"", 0))
        text = raw.decode("utf-8", "ignore")
        ids = corpus.tokenizer.encode(text[text.find("\n") + 1 :] or text)[:tokens].tolist()
        if ids:
            name = corpus.paths[file] if corpus.paths else ""
            shown_groups.append({"group": names[group], "name": name, "ids": ids})
    return shown_groups
