"""Tokenizers compared on a corpus: the same documents, encoded by each, counted by group.

```
source ─▶ blocks of a sample ─▶ words, bytes by group ─▶ encode_flat of each tokenizer ─▶ tokens by group, counts by id
```

One block is held at a time, and the counts of one vocabulary per tokenizer. Start with `compare`.
"""

import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Never

import numpy as np
from numpy.typing import NDArray

from piecemill._core import WordCounter, count_ids, gather_documents, invalid_documents
from piecemill.errors import PlanError, SourceError, TokenizerError
from piecemill.plans import FROM_PLAN, by_place, did_you_mean, option, with_keywords
from piecemill.reporting.plan import ComparePlan
from piecemill.shards.format import token_dtype
from piecemill.sizes import parse_size, plural, show_bytes, show_count
from piecemill.sources import BLOCK_BYTES, Documents, Source
from piecemill.tokenizers import Tokenizer, load_tokenizer

ALPHA = 2.5
"The order of the Rényi efficiency: the one that predicts translation quality best (Zouhar et al., 2023)."
SHOWN_GROUPS = 20
"Groups of one kind that are listed; the others are added up as one."
_WORD_MEMORY = 256 << 20
_SAMPLED_TASKS = 64
"At most this many tasks, of 64 MiB each, are read for a sample."
_SPACE = np.zeros(256, bool)
_SPACE[list(b" \t\n\r\v\f")] = True

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found. `str()` is a table, `to_dict()` everything, ready for JSON."""

    corpus: Mapping[str, Any]
    "Documents, bytes and words compared, of how many source bytes they are a sample, and notes on what is not in it."
    tokenizers: Sequence[Mapping[str, Any]]
    "For each: tokens, bytes_per_token, tokens_per_word, words_whole, renyi_efficiency, mb_per_second, gini by kind."
    groups: Mapping[str, Sequence[Mapping[str, Any]]]
    "By kind (source, ending, language): bytes, documents, words and, in the order of the tokenizers, tokens."

    def to_dict(self) -> dict[str, Any]:
        """What `piecemill compare --json` prints."""
        return asdict(self)

    def __str__(self) -> str:
        corpus, names = self.corpus, [one["name"] for one in self.tokenizers]
        width = max(9, *map(len, names)) + 2
        part = "" if corpus["whole"] else ", a sample of the corpus"
        lines = [
            f"{plural(corpus['documents'], 'document')}, {show_bytes(corpus['bytes'])}, "
            f"{show_count(corpus['words'])} words{part}",
            "",
            f"{'tokenizer':<{width}}{'vocabulary':>11}{'tokens':>10}{'bytes/token':>13}{'tokens/word':>13}"
            f"{'words whole':>13}{'Rényi 2.5':>11}{'Gini':>7}{'MB/s':>8}",
        ]
        for one in self.tokenizers:
            gini = next((f"{found:.3f}" for found in one["gini"].values() if found is not None), "")
            lines.append(
                f"{one['name']:<{width}}{one['vocab_size']:>11,}{show_count(one['tokens']):>10}"
                f"{one['bytes_per_token']:>13.3f}{one['tokens_per_word']:>13.3f}{_percent(one['words_whole']):>13}"
                f"{one['renyi_efficiency']:>11.3f}{gini:>7}{one['mb_per_second']:>8.0f}"
            )
        for kind, groups in self.groups.items():
            first = max(len(kind), *(len(group["name"]) for group in groups)) + 2
            columns = [max(len(name), 8) + 2 for name in names]
            lines += ["", f"bytes per token by {kind}"]
            heads = "".join(f"{name:>{size}}" for name, size in zip(names, columns, strict=True))
            lines.append(f"{kind:<{first}}{'text':>10}{heads}")
            for group in groups:
                cells = [f"{group['bytes'] / tokens if tokens else 0:.3f}" for tokens in group["tokens"]]
                row = "".join(f"{cell:>{size}}" for cell, size in zip(cells, columns, strict=True))
                lines.append(f"{group['name']:<{first}}{show_bytes(group['bytes']):>10}{row}")
        lines += [f"note: {note}" for note in corpus.get("notes", ())]
        return "\n".join(lines)


@did_you_mean
def compare(
    tokenizers: Sequence[Tokenizer | str | PathLike[str]],
    *,
    on: object,
    plan: ComparePlan | None = None,
    field: str = FROM_PLAN,
    separator: str | None = FROM_PLAN,
    include: Sequence[str] = FROM_PLAN,
    exclude: Sequence[str] = FROM_PLAN,
    gitignore: bool = FROM_PLAN,
    hidden: bool = FROM_PLAN,
    max_file_bytes: int | str = FROM_PLAN,
    on_bad_document: Literal["stop", "skip"] = FROM_PLAN,
    bytes: bool = FROM_PLAN,
    integers: bool = FROM_PLAN,
    upper: bool = FROM_PLAN,
    storage_option: Sequence[str] = FROM_PLAN,
    language: str | None = FROM_PLAN,
    sample: int | str = FROM_PLAN,
    threads: int | None = FROM_PLAN,
    **unknown: Never,
) -> Comparison:
    """Encode the documents of `on` with each tokenizer and compare the results, overall and by group.

    `on` is whatever `piecemill.sources` can open. Keywords from `field` on are the fields of `ComparePlan`. Groups are
    the first folder under a source, the ending of a file's name and, with `language`, the values of that field. Special
    tokens in texts are text, and nothing is put around documents. A word is what stands between white space; one is
    kept whole if it is letters only, and one token. `docs/report.md` has the formulas.

    >>> import piecemill as pm
    >>> tok = pm.train_bpe(["low lower lowest"] * 10, vocab_size=262, pretokenizer="gpt2")
    >>> found = compare([tok], on=["lower and lower", "low"])
    >>> found.corpus["words"], found.tokenizers[0]["tokens"]
    (4, 10)
    """
    plan = with_keywords(plan, ComparePlan, locals(), unknown)
    single = isinstance(tokenizers, str | PathLike | Tokenizer)
    if single or not isinstance(tokenizers, Iterable) or not (tokenizers := list(tokenizers)):
        raise PlanError(
            by_place(
                f"tokenizers={tokenizers!r:.60}: expected a list of one or more tokenizers or paths.",
                "no tokenizer was given: name one or more before the flags.",
            )
        )
    loaded = [one if isinstance(one, Tokenizer) else load_tokenizer(one) for one in tokenizers]
    names = names_of(tokenizers, loaded)
    most = parse_size(plan.sample, "sample")
    # Small blocks, so that a sample has many; but not so small that threads have nothing to do.
    opened = plan.open_source(
        on,
        group=plan.language,
        block_bytes=max(1 << 16, min(BLOCK_BYTES, most // 64 or BLOCK_BYTES)),
        **_documents_of(dict(zip(names, loaded, strict=True)), plan),
    )
    inside = [file.inside or file.path.rpartition("/")[2] for file in opened.files]
    groupings = group_paths(inside, [file.named for file in opened.files])
    if plan.language is not None:
        groupings["language"] = DocumentGroups()
    tally = opened.found
    with Counting(loaded, names, threads=plan.threads) as counting:
        for block in sample_blocks(opened, most):
            tally += block.tally
            if len(block):
                groups = {kind: grouping.of(block) for kind, grouping in groupings.items()}
                counting.add(block.data, block.ends, groups)
        opened.refuse_empty(tally)
        total = opened.total_bytes
        whole = total is None or tally.source_bytes >= total
        notes = [*opened.notes, *([f"left out {described}"] if (described := tally.describe()) else [])]
        return counting.result(groupings, source_bytes=total, whole=whole, notes=notes)


def _documents_of(named: Mapping[str, Tokenizer], plan: ComparePlan) -> dict[str, Any]:
    """What the source must refuse, as `open_source` takes it: documents that not every tokenizer can encode."""
    of_integers = {name: one.integers for name, one in named.items() if one.integers is not None}
    if of_integers and not plan.integers:
        raise PlanError(
            f"{option('integers')}: {next(iter(of_integers))} encodes integers: say that documents are such."
        )
    alphabets = [set(one.alphabet) for one in named.values() if one.alphabet is not None]
    return {
        "alphabet": bytes(sorted(set.intersection(*alphabets))) if alphabets and not plan.integers else None,
        "known": reduce(np.intersect1d, of_integers.values()) if of_integers else None,
    }


def names_of(given: Sequence[object], loaded: Sequence[Tokenizer]) -> list[str]:
    """A short, distinct name for each tokenizer: the name of its folder or file, else where it is."""
    whole = [
        str(one) if isinstance(one, str | PathLike) else f"{len(tok):,} tokens"
        for one, tok in zip(given, loaded, strict=True)
    ]
    short = []
    for name in whole:
        path = Path(name)
        named = (
            path.parent.name
            if path.name in ("tokenizer.json", "integers.json", "tokenizer.model", "vocab.json")
            else path.name
        )
        for ending in (".gz", ".json", ".model", ".tiktoken", ".tokenizer"):
            named = named.removesuffix(ending)
        short.append(named or name)
    names = short if len(set(short)) == len(short) else whole
    return [name if names.index(name) == at else f"{name} ({at + 1})" for at, name in enumerate(names)]


def sample_blocks(source: Source, most: int) -> Iterator[Documents]:
    """Blocks of about `most` bytes of text, from tasks and places in them that are spread evenly; 0 for all blocks."""
    tasks, share = source.tasks, 0
    if most and source.total_bytes is not None and source.total_bytes > most:
        count = min(len(tasks), _SAMPLED_TASKS)
        tasks, share = tuple(tasks[len(tasks) * at // count] for at in range(count)), most // count
    for task in tasks:
        step = max(1, task.nbytes // share) if share else 1
        for number, block in enumerate(source.read(task)):
            if number % step == 0 or not len(block):
                yield block


class DocumentGroups:
    """Groups of one kind: by the file of a document, or by the hash of a field of it."""

    def __init__(self, names: Sequence[str] = (), by_file: Ints | None = None) -> None:
        self.names, self.by_file = list(names), by_file
        self._keys: dict[int, int] = {}

    def of(self, block: Documents) -> Ints:
        """The group of each document of a block."""
        if self.by_file is not None:
            return self.of_files(block.files)
        if block.keys is None:
            raise SourceError(f"{block.name(0)}: has no field for its language.")
        distinct, inverse = np.unique(block.keys, return_inverse=True)
        for key in distinct.tolist():
            if key not in self._keys:
                self._keys[key] = len(self.names)
                self.names.append(block.names.get(key, "(other)"))
        return np.array([self._keys[key] for key in distinct.tolist()], np.int64)[inverse]

    def of_files(self, files: NDArray[Any]) -> Ints:
        """The group of each of these files, by number."""
        return np.zeros(len(files), np.int64) if self.by_file is None else self.by_file[files]


def group_paths(paths: Sequence[str], named: Sequence[bool] = ()) -> dict[str, DocumentGroups]:
    """Groups of files by their first folder, and by the ending of names; only kinds with two groups or more.

    Paths begin in the folder that was named; a file that was `named` itself is a group.
    """
    own = named or [False] * len(paths)
    kinds = {
        "source": _numbered([_folder(path, one) for path, one in zip(paths, own, strict=True)]),
        "ending": _numbered([ending_of(path) for path in paths]),
    }
    return {kind: DocumentGroups(names, numbers) for kind, (names, numbers) in kinds.items() if len(names) > 1}


def _numbered(values: Sequence[str]) -> tuple[list[str], Ints]:
    numbers: dict[str, int] = {}
    found = np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)
    return list(numbers), found


def _folder(path: str, named: bool) -> str:
    folder, slash, _ = path.partition("/")
    return f"{folder}/" if slash else path if named else "(no folder)"


def ending_of(path: str) -> str:
    """The ending of a file's name, with the one before a packing: ".jsonl.zst".

    >>> ending_of("a/b.tar.gz"), ending_of("Makefile"), ending_of(".gitignore")
    ('.tar.gz', '(none)', '(none)')
    """
    name = path.rpartition("/")[2].lower()
    packing = next((ending for ending in (".gz", ".zst") if name.endswith(ending)), "")
    stem, dot, ending = name.removesuffix(packing).rpartition(".")
    return f".{ending}{packing}" if stem and dot else packing or "(none)"


class Counting:
    """Encodes blocks with every tokenizer and adds up, overall and by group. A context manager, for scratch files."""

    def __init__(self, tokenizers: Sequence[Tokenizer], names: Sequence[str], *, threads: int | None = None) -> None:
        self.tokenizers, self.names, self.threads = tokenizers, names, threads
        # A row for documents, bytes and words, then one for the tokens of each tokenizer; a column for each group.
        self.sums: dict[str, Ints] = {}
        self.total = np.zeros(3 + len(tokenizers), np.int64)
        self.counts = [np.zeros(tokenizer.vocab_size, np.uint64) for tokenizer in tokenizers]
        self.seconds = [0.0] * len(tokenizers)
        self._scratch = tempfile.TemporaryDirectory(prefix="piecemill-")
        self._words = WordCounter("gpt2", _WORD_MEMORY, self._scratch.name)

    def __enter__(self) -> "Counting":
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    def add(self, data: NDArray[np.uint8], ends: Ints, groups: Mapping[str, Ints]) -> None:
        """Add some documents, and the number of the group of each by kind."""
        rows = [np.ones(len(ends), np.int64), np.diff(ends, prepend=0), words_in(data, ends)]
        for at, tokenizer in enumerate(self.tokenizers):
            started = time.perf_counter()
            try:
                ids, id_ends = tokenizer.encode_flat(
                    data, ends, dtype=token_dtype(tokenizer.vocab_size), threads=self.threads
                )
            except TokenizerError as error:  # such as a letter that is not in its alphabet
                raise TokenizerError(f"{self.names[at]} cannot encode a document: {error}") from None
            self.seconds[at] += time.perf_counter() - started
            count_ids(ids, self.counts[at])
            rows.append(np.diff(id_ends, prepend=0))
        if other := [row for row, _ in invalid_documents(data, ends)]:  # of any bytes: without words
            data, ends = gather_documents(data, ends, np.delete(np.arange(len(ends)), other))
        self._words.add(data, ends)
        table = np.stack(rows)
        self.total += table.sum(axis=1)
        for kind, of in groups.items():
            more = np.stack([np.bincount(of, row) for row in table]).astype(np.int64)
            self.sums[kind] = _added(self.sums.get(kind, more[:, :0]), more)

    def result(self, groups: Mapping[str, DocumentGroups], **corpus: Any) -> Comparison:
        """The comparison, with the names of the groups of each kind."""
        documents, size, words, *tokens = self.total.tolist()
        whole = words_kept_whole(self._words, self.tokenizers)
        ginis = [{kind: _gini(sums[3 + at], sums[1]) for kind, sums in self.sums.items()} for at in range(len(tokens))]
        return Comparison(
            {"documents": documents, "bytes": size, "words": words, **corpus},
            [
                {
                    "name": self.names[at],
                    "model": tokenizer.kind,
                    "identity": tokenizer.identity,
                    "engine": tokenizer.engine.name,
                    "vocab_size": tokenizer.vocab_size,
                    "tokens": tokens[at],
                    "bytes_per_token": size / max(1, tokens[at]),
                    "tokens_per_word": tokens[at] / max(1, words),
                    "words_whole": whole[at],
                    "renyi_efficiency": renyi_efficiency(self.counts[at]),
                    "tokens_used": int(np.count_nonzero(self.counts[at])),
                    "gini": ginis[at],
                    "mb_per_second": size / 1e6 / max(self.seconds[at], 1e-9),
                }
                for at, tokenizer in enumerate(self.tokenizers)
            ],
            {kind: _listed(groups[kind].names, sums) for kind, sums in self.sums.items()},
        )


def _added(one: Ints, other: Ints) -> Ints:
    size = max(one.shape[1], other.shape[1])
    return sum((np.pad(part, ((0, 0), (0, size - part.shape[1]))) for part in (one, other)), np.zeros(1, np.int64))


def largest_groups(names: Sequence[str], sums: Ints) -> list[tuple[str, list[int]]]:
    """Groups by falling bytes, those beyond the first `SHOWN_GROUPS` as one; `sums` begin with documents and bytes."""
    order = np.argsort(-sums[1], kind="stable")
    order = order[sums[0][order] > 0]
    rows = [(names[at], sums[:, at]) for at in order.tolist()]
    if len(rows) > SHOWN_GROUPS:
        rest = rows[SHOWN_GROUPS - 1 :]
        rows = [*rows[: SHOWN_GROUPS - 1], (f"({len(rest):,} others)", np.sum([row for _, row in rest], axis=0))]
    return [(name, row.tolist()) for name, row in rows]


def _listed(names: Sequence[str], sums: Ints) -> list[dict[str, Any]]:
    return [
        {"name": name, "documents": documents, "bytes": size, "words": words, "tokens": tokens}
        for name, (documents, size, words, *tokens) in largest_groups(names, sums)
    ]


def words_in(data: NDArray[np.uint8], ends: Ints) -> Ints:
    """How many words each document has: what stands between white space (of ASCII).

    >>> words_in(np.frombuffer(b"one  two three", np.uint8), np.array([3, 6, 14])).tolist()
    [1, 1, 2]
    """
    space = _SPACE[data]
    starts = ~space
    starts[1:] &= space[:-1]
    firsts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    firsts = firsts[firsts < ends]
    starts[firsts] = ~space[firsts]
    return np.diff(np.searchsorted(np.flatnonzero(starts), ends), prepend=0)


def words_kept_whole(counter: WordCounter, tokenizers: Sequence[Tokenizer]) -> list[float | None]:
    """The share of words of letters, as often as each occurs, that are one token; None without such words."""
    data, ends_u, counts = counter.finish().arrays()
    ends = ends_u.astype(np.int64)
    firsts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    spaced = data[firsts] == 32 if len(ends) else np.zeros(0, bool)
    at = np.minimum(firsts + spaced, ends - 1)
    head = data[at] if len(ends) else data
    letters = ((head | 32) >= 97) & ((head | 32) <= 122) & (head < 128)
    for number in np.flatnonzero(head >= 128).tolist():
        start = int(at[number])
        letters[number] = data[start : start + 4].tobytes().decode("utf-8", "ignore")[:1].isalpha()
    chosen = np.flatnonzero(letters)
    total = int(counts[chosen].sum())
    if not total:
        return [None] * len(tokenizers)
    words, word_ends = gather_documents(data, ends, chosen)
    found: list[float | None] = []
    for tokenizer in tokenizers:
        texts, text_ends = words, word_ends
        # One that is not byte-level may put a space before a text by itself.
        if not tokenizer.exact and len(tokenizer.encode(" a")) > len(tokenizer.encode("a")):
            lead = np.concatenate([np.zeros(1, np.int64), word_ends[:-1]])[spaced[chosen]]
            keep = np.ones(len(words), bool)
            keep[lead] = False
            texts, text_ends = words[keep], np.cumsum(keep)[word_ends - 1]
        _, id_ends = tokenizer.encode_flat(texts, text_ends)
        one = np.diff(id_ends, prepend=0) == 1
        found.append(int(counts[chosen][one].sum()) / total)
    return found


def renyi_efficiency(counts: NDArray[np.uint64], alpha: float = ALPHA) -> float:
    """The Rényi entropy of the tokens over the entropy of a vocabulary whose tokens are all equally frequent.

    >>> renyi_efficiency(np.array([5, 5, 5, 5], np.uint64)), renyi_efficiency(np.array([9, 0, 0, 0], np.uint64))
    (1.0, 0.0)
    """
    total = int(counts.sum())
    if not total or len(counts) < 2:
        return 0.0
    shares = counts[counts > 0] / total
    return max(0.0, math.log(float((shares**alpha).sum())) / (1 - alpha) / math.log(len(counts)))


def _gini(tokens: Ints, size: Ints) -> float | None:
    """How unequal groups are in tokens per byte: 0 where all pay the same, towards 1 where one pays all."""
    return gini((tokens[size > 0] / size[size > 0]).tolist())


def gini(costs: Sequence[float]) -> float | None:
    """The Gini coefficient of costs; None of fewer than two.

    >>> gini([1, 1, 1]), gini([0, 0, 0, 1])
    (0.0, 0.75)
    """
    if len(costs) < 2 or not sum(costs):
        return None
    ordered = sorted(costs)
    weighted = sum((2 * at - len(ordered) + 1) * cost for at, cost in enumerate(ordered))
    return weighted / (len(ordered) * sum(ordered))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
