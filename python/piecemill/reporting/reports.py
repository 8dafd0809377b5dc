"""`report`: one self-contained HTML page about tokenizers, shards and runs, and the same facts as JSON.

```
paths ─▶ describe ─▶ sections (vocabulary, corpus, runs: plain dicts) ─▶ JSON
                                                                     └▶ html: one page
```

The page depends only on what is at the paths and on the options, so the same input gives the same bytes; with `speed`
it also has measured times. Start with `report`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from piecemill._core import __version__
from piecemill.errors import PlanError, TokenizerError
from piecemill.files import as_path, check_writable, file_for_user, local_folder
from piecemill.plans import did_you_mean, option
from piecemill.reporting.comparing import SHOWN_GROUPS, Comparison, Counting, compare, group_paths, names_of
from piecemill.reporting.corpus import PreparedCorpus, compression_tables, corpus_section, group_row, samples
from piecemill.reporting.describing import KINDS, Description, describe
from piecemill.reporting.html import page
from piecemill.reporting.runs import actions_section, run_section
from piecemill.reporting.tokenizers import spelling
from piecemill.reporting.vocabulary import (
    Merges,
    bytes_of_tokens,
    compression_by_size,
    merges_of,
    numbers_section,
    section,
    table,
    vocabulary_section,
)
from piecemill.sizes import parse_size, plural, show_bytes
from piecemill.tokenizers import Tokenizer, load_tokenizer

LIMIT = 2_000_000
"Bytes of a page; the vocabulary for typing text is left out where the page would be larger."
SHOWN_SOURCES = 20


@dataclass(frozen=True, slots=True)
class Report:
    """Where a report was written, and its facts."""

    out: str
    json: str
    "The file with the facts."
    bytes: int
    facts: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """What `piecemill report --json` prints."""
        return {"out": self.out, "json": self.json, "bytes": self.bytes, **self.facts}

    def __str__(self) -> str:
        titles = ", ".join(one["title"] for one in self.facts["sections"])
        return f"{self.out}: {show_bytes(self.bytes)}; {titles}\n{self.json}: the same facts as JSON"


@did_you_mean
def report(
    paths: Sequence[str | PathLike[str]] | str | PathLike[str],
    *,
    out: str | PathLike[str],
    against: Sequence[str | PathLike[str]] = (),
    on: object = None,
    language: str | None = None,
    histories: str | PathLike[str] | None = None,
    sample: int | str = "16MiB",
    speed: bool = False,
    threads: int | None = None,
) -> Report:
    """Write a page about what is at `paths` to `out`, and its facts beside it as JSON.

    `paths` are tokenizers, prepared folders, vocabularies of actions and pretraining runs. Tokenizers, and those of
    `against`, are compared on documents of the prepared folder, or of the corpus `on`; `sample` limits the text. With
    `language`, groups by that field of `on`, or of the files that the folder was prepared from. `histories` say how a
    vocabulary of actions is used. `speed` adds the measured speed of encoding, which is not the same twice. The rules
    are in `docs/report.md`. A report that is there is replaced, any other file is an error.
    """
    given = list(paths) if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]
    if not given:
        raise PlanError("report: no path was given; name a tokenizer, a prepared folder or a run.")
    for path in given:
        local_folder(path, "a report")
    described = [describe(path) for path in given]
    corpora = [PreparedCorpus(Path(one.path), one.facts) for one in described if one.kind == "shards"]
    target = Path(as_path(out))
    if target.is_dir():
        raise PlanError(f"{target}: is a folder; expected the page in it, such as {target / 'report.html'}.")
    check_writable(target)
    beside = target.with_suffix(".facts.json")
    if target.exists() != beside.exists():  # a report is both
        there, missing = (target, beside) if target.exists() else (beside, target)
        raise PlanError(
            f"{there}: is there already without {missing}, so it is no report of this name. Delete it, or choose "
            f"another {option('out')}."
        )
    for one in described:
        if Path(one.path).resolve() in target.resolve().parents:
            raise PlanError(
                f"{target}: lies in {one.path}, which would not stay as it was made. Choose another {option('out')}."
            )
    if isinstance(against, str) or not isinstance(against, Sequence):
        raise PlanError(f"{option('against', against)}: expected a list of tokenizers.")
    for name, value in (("against", against), ("language", language)):
        if value and on is None and not corpora:
            raise PlanError(
                f"{option(name)}: there are no documents to compare on; name a prepared folder, or {option('on', ...)}."
            )
    tokenizers = _tokenizers(described, corpora)
    main = next(iter(tokenizers.values()), None)
    merges = None if main is None else merges_of(main)
    sections = [_head(described, corpora)]
    if tokenizers:
        sections += _tokenizer_sections(
            tokenizers, merges, corpora, against, on, language, parse_size(sample, "sample"), speed, threads
        )
    for one, path in zip(described, given, strict=True):
        if one.kind == "run":
            sections.append(run_section(Path(path), one.facts, corpora))
        if one.kind == "action_vocabulary":
            facts = _with_histories(Path(path), histories) if histories is not None else one.facts
            sections.append(actions_section(Path(path), facts))
    facts = {"piecemill": __version__, "sections": sections}
    content = page(facts, main, merges, LIMIT)
    with file_for_user(target) as file:
        file.write(content)
    with file_for_user(beside) as file:
        file.write((json.dumps(facts, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "backslashreplace"))
    return Report(str(target), str(beside), len(content), facts)


def _tokenizers(described: Sequence[Description], corpora: Sequence[PreparedCorpus]) -> dict[str, Tokenizer]:
    """The tokenizers that the report is about, by name; that of a prepared folder once, however often it is given."""
    found: dict[str, Tokenizer] = {}
    folders = iter(corpora)
    for one in described:
        if one.kind == "tokenizer":
            found[one.path] = load_tokenizer(one.path)
        elif one.kind == "shards":
            corpus = next(folders)
            if not any(corpus.identity == tok.identity for tok in found.values()):
                found[one.path] = corpus.tokenizer
    return found


def _head(described: Sequence[Description], corpora: Sequence[PreparedCorpus]) -> dict[str, Any]:
    rows, folded, folders = [], [], iter(corpora)
    for one in described:
        facts, training = one.facts, one.facts.get("training", {})
        plan = facts.get("plan") or {}
        identity = facts.get("identity") or (plan.get("tokenizer") or {}).get("identity")
        splits = facts["splits"].items() if one.kind == "shards" else ()
        rows.append(
            {
                "path": one.path,
                "what": KINDS[one.kind],
                "made_from": _made_from(facts),
                "made_by": plan.get("piecemill") or training.get("piecemill"),
                "tokenizer_identity": identity,
                "shards_identity": ", ".join(f"{name} {split['identity']}" for name, split in splits) or None,
            }
        )
        options = plan.get("options") or training.get("plan") or {}
        folded.append(
            table(f"Plan of {one.path}", [{"option": key, "value": str(value)} for key, value in options.items()])
        )
        folded.append(_sources(one, next(folders).files if one.kind == "shards" else None))
    return section(
        "head",
        "What this is about",
        "The same input gives the same page; the figures are in the JSON file beside it.",
        figures={"piecemill": __version__},
        tables=[table("Given", rows), *({**one, "folded": True} for one in folded if one["rows"])],
    )


def _sources(described: Description, files: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """The names of the first sources: `files` of shards, or what a tokenizer was trained on."""
    corpus = described.facts.get("training", {}).get("corpus", {})
    names, total = corpus.get("sources", []), corpus.get("files", 0)
    if files is not None:
        names, total = [file["path"] for file in files], len(files)
    more = f"and {total - SHOWN_SOURCES:,} more files" if total > SHOWN_SOURCES else ""
    return table(f"Sources of {described.path}", [{"source": str(name)} for name in names[:SHOWN_SOURCES]], note=more)


def _made_from(facts: Mapping[str, Any]) -> str | None:
    """What something was made from, if recorded."""
    plan = facts.get("plan") or {}
    if source := plan.get("source"):
        return f"{plural(source['files'], 'file')}, {show_bytes(source['bytes'] or 0)}"
    if corpus := facts.get("training", {}).get("corpus"):
        return f"{plural(corpus['documents'], 'document')}, {show_bytes(corpus['bytes'])}"
    if data := plan.get("data"):
        return f"shards {data.get('identity')}"
    return None


def _tokenizer_sections(
    tokenizers: dict[str, Tokenizer],
    merges: Merges | None,
    corpora: Sequence[PreparedCorpus],
    against: Sequence[str | PathLike[str]],
    on: object,
    language: str | None,
    sample: int,
    speed: bool,
    threads: int | None,
) -> list[dict[str, Any]]:
    main = next(iter(tokenizers.values()))
    corpus = next((one for one in corpora if one.identity == main.identity), None)
    counts = None if corpus is None else corpus.counts
    named = {**tokenizers, **{str(path): load_tokenizer(path) for path in against}}
    compared = _compared(named, corpora, on, language, sample, threads)
    sections = []
    by_size = None if counts is None else compression_by_size(main, merges, counts)
    if compared is not None or corpus is not None:
        sections.append(_compression(corpus, by_size, compared, same=on is None and corpus in corpora[:1]))
    if compared is not None and len(named) > 1:
        sections.append(_comparison(compared, speed))
    sections.append(vocabulary_section(main, merges, counts))
    shown, rule = [], "Type text to see how it is cut."
    if corpus is not None:
        shown = samples(corpus, sample)
        rule = "Each colour change is a token border; hover or tap for id, bytes and count in the corpus."
    raw = bytes_of_tokens(main)
    for one in shown:
        one["tokens"] = [
            [i, spelling(main, i), raw and raw[i].hex(" "), None if counts is None else int(counts[i])]
            for i in one.pop("ids")
        ]
    sections.append(section("samples", "Text as tokens", rule, samples=shown, typing=True))
    if main.alphabet is None and main.integers is None:  # else it need not have digits
        try:
            sections.append(numbers_section(main))
        except TokenizerError as error:  # of items, or of words
            sections.append(section("numbers", "Numbers, white space and code", f"They have no tokens: {error}"))
    sections += [corpus_section(one) for one in corpora]
    return sections


def _compared(
    named: dict[str, Tokenizer],
    corpora: Sequence[PreparedCorpus],
    on: object,
    language: str | None,
    sample: int,
    threads: int | None,
) -> Comparison | None:
    """All tokenizers on the same documents; None where there are none."""
    names, loaded = names_of(list(named), list(named.values())), list(named.values())
    if on is not None:
        found = compare(loaded, on=on, language=language, sample=str(sample), threads=threads)
        tokenizers = [{**one, "name": name} for one, name in zip(found.tokenizers, names, strict=True)]
        return Comparison(found.corpus, tokenizers, found.groups)
    if not corpora:
        return None
    corpus = corpora[0]
    groups = group_paths(corpus.paths)
    with Counting(loaded, names, threads=threads) as counting:
        for data, ends, files in corpus.sample(sample):
            counting.add(data, ends, {kind: grouping.of_files(files) for kind, grouping in groups.items()})
        if not counting.total[0]:
            return None
        whole = int(counting.total[0]) == corpus.facts["documents"]
        found = counting.result(groups, whole=whole)
    if language is None:
        return found
    more = corpus.by_language(loaded, language, sample=str(sample), threads=threads)
    for one, other in zip(found.tokenizers, more.tokenizers, strict=True):
        one["gini"]["language"] = other["gini"]["language"]
    return Comparison(found.corpus, found.tokenizers, {**found.groups, "language": more.groups["language"]})


def _compression(
    corpus: PreparedCorpus | None, by_size: dict[str, Any] | None, compared: Comparison | None, *, same: bool
) -> dict[str, Any]:
    """`same` says whether the comparison is on documents of the corpus."""
    words = {
        kind: {group["name"]: group["tokens"][0] / group["words"] for group in groups if group["words"]}
        for kind, groups in (compared.groups if compared is not None else {}).items()
    }
    tables = [] if corpus is None else compression_tables(corpus, words if same else {})
    for kind, groups in (compared.groups if compared is not None else {}).items():
        if not same or kind == "language":
            rows = [
                group_row(one["name"], one["documents"], one["bytes"], one["tokens"][0], words[kind].get(one["name"]))
                for one in groups
            ]
            tables.append(table(f"By {kind}, on the sample", rows, bar="bytes_per_token"))
    figures = {} if by_size is None else by_size["figures"]
    return section(
        "compression",
        "Compression",
        "More bytes per token make shorter sequences. The first k merges are the vocabulary of size k: where the curve "
        "is flat, more tokens buy little.",
        figures=figures,
        tables=tables,
        curves=[] if by_size is None else [by_size["curve"]],
    )


def _comparison(compared: Comparison, speed: bool) -> dict[str, Any]:
    keys = ("name", "bytes_per_token", "tokens_per_word")
    rows, tables = [], []
    for at, one in enumerate(compared.tokenizers):
        row = {key: one[key] for key in keys}
        row |= {"words_whole_share": one["words_whole"], "renyi_efficiency": one["renyi_efficiency"]}
        for kind, groups in compared.groups.items():
            ordered = sorted(
                (group["bytes"] / group["tokens"][at], group["name"]) for group in groups if group["tokens"][at]
            )
            row |= {
                f"gini_by_{kind}": one["gini"][kind],
                f"worst_{kind}": ordered[0][1],
                f"best_{kind}": ordered[-1][1],
            }
        row |= {"tokens": one["tokens"], "vocab_size": one["vocab_size"]}
        rows.append(row | ({"mb_per_second": one["mb_per_second"]} if speed else {}))
    names = [one["name"] for one in compared.tokenizers]
    columns = [f"{name} (tokenizer)" if name in ("group", "bytes") else name for name in names]
    for kind, groups in compared.groups.items():
        cells = [
            {"group": group["name"], "bytes": group["bytes"]}
            | {name: group["bytes"] / max(1, tokens) for name, tokens in zip(columns, group["tokens"], strict=True)}
            for group in groups[:SHOWN_GROUPS]
        ]
        tables.append({**table(f"Bytes per token by {kind}", cells), "names": columns})
    figures = {key: compared.corpus[key] for key in ("documents", "bytes", "words")}
    return section(
        "comparison",
        "Comparison",
        "All tokenizers encode the same documents. Gini is 0 where all groups pay the same number of tokens per byte; "
        "Rényi efficiency (order 2.5) is 1 where all tokens are equally frequent; a word is whole if it is one token.",
        figures=figures,
        tables=[table("Tokenizers", rows, bar="bytes_per_token"), *tables],
    )


def _with_histories(path: Path, histories: str | PathLike[str]) -> dict[str, Any]:
    from piecemill.actions.show import describe as describe_vocabulary
    from piecemill.actions.tokenizer import ActionTokenizer

    return describe_vocabulary(ActionTokenizer.load(path), Path(histories)).to_dict()
