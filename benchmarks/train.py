"""Training a vocabulary, against everybody who does: `make bench`, or `python benchmarks/train.py --quick`.

    words         GPT-2 split, vocabulary 50,257, one and two threads
    none          no split: each file is one word, 5, 20 and 127 MB
    functions     no split: each top-level function or class is one word
    multilingual  GPT-2 split over text in some hundred languages

Each tool is a process of its own that reads the corpus, trains and saves. The first round of a question is
compared before any time is shown: where HF's order of merges is promised, a difference ends the benchmark.
Rounds go through all tools before the next begins, so that a slow minute of the machine hits everybody.
Every run is appended to `results.jsonl`; sessions with every repeat rewrite the table in `docs/benchmarks.md`.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import tables
from asking import PAGE, RESULTS, choose, fastest_first, in_words, parser, rounds, session
from corpus import RECORDED
from measure import Run, append, measure, median_and_spread, read, record
from tools import HF, OURS, TOOLS, Tool, install, merges, train_command, version

HERE = Path(__file__).parent
SCRATCH = HERE / "cache" / "runs"


@dataclass(frozen=True, slots=True)
class Question:
    """What every tool is asked."""

    name: str
    corpus: str
    split: str
    vocab: int
    threads: int

    def __str__(self) -> str:
        return f"{self.name} {self.corpus} split={self.split} vocab={self.vocab:,} threads={self.threads}"


@dataclass(slots=True)
class Entry:
    """One tool on one question: its runs so far, and what it learned."""

    tool: Tool
    runs: list[Run] = field(default_factory=list)
    reason: str = ""
    merges: list[list[str]] = field(default_factory=list)
    agreement: str = ""

    @property
    def finished(self) -> bool:
        return bool(self.runs) and all(run.outcome == "ok" for run in self.runs)


def questions(only: list[str], sizes: list[int]) -> list[Question]:
    # Smaller cuts get a smaller vocabulary when split: 5 MB of words are used up after 41,045 merges, and what a
    # tool does after that is not the question (gigatoken goes on to 50,001 and took 46 s; 1 s for 16,384).
    vocab = {5: 16_384, 20: 32_768, 127: 50_257}
    asked = []
    for size in sizes:
        if "words" in only:
            asked += [Question("words", f"python-{size}mb", "gpt2", vocab[size], threads) for threads in (1, 2)]
        if "none" in only:
            asked.append(Question("none", f"python-{size}mb", "none", 50_257, 2))
        if "functions" in only:
            asked.append(Question("functions", f"functions-{size}mb", "none", 50_257, 2))
    if "multilingual" in only:
        asked.append(Question("multilingual", "multilingual-30mb", "gpt2", 50_257, 2))
    return asked


def ask(question: Question, entries: list[Entry], *, repeats: int | None, time_limit: float) -> None:
    """Every tool once, then the comparison, then the other rounds."""
    for entry in entries:
        if not entry.reason:
            run_once(question, entry, time_limit)
    compare(question, entries)
    rounds(entries, lambda entry: run_once(question, entry, time_limit, keep_merges=False), repeats)


def too_slow(question: Question, smaller: tuple[float, str] | None, cap: float) -> str:
    """Why a tool is not asked: the seconds it took for a smaller cut, if even at that pace this one is over the cap."""
    if smaller is None:
        return ""
    seconds, corpus = smaller
    times = RECORDED[question.corpus].bytes / RECORDED[corpus].bytes
    if times <= 1 or seconds * times < cap:
        return ""
    return f"not run: {seconds:,.0f} s for {corpus}, so over {cap:,.0f} s here at the same pace"


def run_once(question: Question, entry: Entry, time_limit: float, *, keep_merges: bool = True) -> None:
    out = SCRATCH / entry.tool.name
    shutil.rmtree(out, ignore_errors=True)
    made = RECORDED[question.corpus]
    command = train_command(
        entry.tool,
        corpus=made.folder if made.folder.exists() else made.jsonl,
        split=question.split,
        vocab=question.vocab,
        threads=question.threads,
        out=out,
    )
    print(f"train   {question}  {entry.tool.name}, run {len(entry.runs) + 1}", file=sys.stderr)
    # Our own time is never capped: a miss must be seen in full.
    limit = 24 * 3600 if entry.tool.name == OURS else time_limit
    entry.runs.append(
        measure(command, threads=question.threads, log=SCRATCH / f"{entry.tool.name}.log", time_limit=limit)
    )
    if entry.finished and keep_merges:
        entry.merges = merges(entry.tool, out)
    shutil.rmtree(out, ignore_errors=True)


def compare(question: Question, entries: list[Entry]) -> None:
    """Say of each tool how its merges compare with HF's; a broken promise of ours is an error, not a footnote."""
    done = {entry.tool.name: entry for entry in entries if entry.finished}
    promised = [entry for entry in done.values() if entry.tool.promises == "hf"]
    # Without a split HF rarely ends in time; then anybody who promises its order stands in.
    base = done.get(HF) or done.get(OURS) or next(iter(promised), None)
    for entry in done.values():
        if entry.tool.promises == "other rules":
            entry.agreement = "other rules"
        elif base is None:
            entry.agreement = "nothing to compare with"
        elif entry is base:
            entry.agreement = f"{len(entry.merges):,} merges"
        else:
            entry.agreement = difference(entry.merges, base.merges) or f"same as {base.tool.name}"
    ours = done.get(OURS)
    if ours is None:
        return
    for judge in [done[HF]] if HF in done else promised:
        found = difference(ours.merges, judge.merges)
        if found:
            raise SystemExit(
                f"{question}: our merges are not those of {judge.tool.name}: {found}. No time is reported."
            )


def difference(found: list[list[str]], wanted: list[list[str]]) -> str:
    """Empty if equal; else where two lists of merges part, and how much they share all the same.

    A merge is [left, right]; of a tool that tells only [token] the tokens are compared.
    """
    tokens_only = any(len(merge) == 1 for merge in found[:1] + wanted[:1])
    theirs, base = (["".join(m) if tokens_only else tuple(m) for m in merges] for merges in (found, wanted))
    if theirs == base:
        return ""
    first = next((i for i, (a, b) in enumerate(zip(theirs, base, strict=False)) if a != b), min(len(theirs), len(base)))
    shared = len({"".join(merge) for merge in found} & {"".join(merge) for merge in wanted})
    return f"first difference at merge {first + 1:,}; {shared:,} of {len(wanted):,} tokens shared"


def keep(question: Question, entries: list[Entry], session: dict) -> None:
    for entry in entries:
        line = record(
            entry.runs,
            benchmark="train",
            **session,
            question=question.name,
            corpus=question.corpus,
            input=RECORDED[question.corpus].sha256,
            split=question.split,
            vocab=question.vocab,
            threads=question.threads,
            tool=entry.tool.name,
            version=version(entry.tool),
            reason=entry.reason,
            agreement=entry.agreement,
            merges=len(entry.merges),
            merges_sha256=hashlib.sha256(json.dumps(entry.merges).encode()).hexdigest() if entry.merges else "",
        )
        append(RESULTS, line)


def show(question: Question, entries: list[Entry]) -> None:
    print(f"\n{question}")
    for entry in fastest_first(entries):
        print(f"  {entry.tool.name:14} {in_words(entry, entry.agreement)}", flush=True)


def main() -> None:
    kinds = ["words", "none", "functions", "multilingual"]
    peers = [name for name in TOOLS if name != OURS]
    flags = parser(__doc__, kinds=kinds, peers=peers, cap=600)
    flags.add_argument("--sizes", help="MB of the cuts: 5,20,127 (default: 127 for words and functions, all for none)")
    args = flags.parse_args()
    if args.table:
        tables.page(read(RESULTS), PAGE)
        return

    only = choose(args.only, kinds, "--only")
    chosen = choose(args.peers, peers, "--peers")
    sizes = [int(size) for size in choose(args.sizes, ["5", "20", "127"], "--sizes")] if args.sizes else None
    if args.quick:
        asked = questions([kind for kind in only if kind != "multilingual"], sizes or [5])
    else:
        asked = questions([kind for kind in only if kind != "none"], sizes or [127])
        asked += questions([kind for kind in only if kind == "none"], sizes or [5, 20, 127])
    failed = install()
    for name in dict.fromkeys(question.corpus for question in asked):
        # In a process of its own, so that its memory is given back before anything is measured.
        subprocess.run([sys.executable, str(HERE / "corpus.py"), name], check=True)

    this = session(args)  # a table may take slow peers from another session
    stopped: dict[tuple[str, str], str] = {}
    # Without a split time never grew slower than the text: who would be over the cap at that pace is not run.
    pace = {
        (record["question"], record["tool"]): (tables.seconds(record) or args.cap, record["corpus"])
        for record in (read(RESULTS) if RESULTS.exists() else [])
        if record.get("benchmark", "train") == "train" and record["complete"] and record["runs"]
    }
    for question in asked:
        entries = [Entry(TOOLS[name]) for name in ([] if args.without_ours else [OURS]) + chosen]
        for entry in entries:
            if question.split not in entry.tool.splits:
                entry.reason = "cannot be asked"
            else:
                entry.reason = failed.get(entry.tool.name) or stopped.get((question.name, entry.tool.name), "")
            if not entry.reason and entry.tool.name != OURS and question.name == "none":
                entry.reason = too_slow(question, pace.get((question.name, entry.tool.name)), args.cap)
        ask(question, entries, repeats=1 if args.quick else args.repeats, time_limit=args.cap)
        show(question, entries)
        keep(question, entries, this)
        for entry in entries:
            if entry.finished:
                seconds = median_and_spread([run.seconds for run in entry.runs])[0]
                pace[question.name, entry.tool.name] = (seconds, question.corpus)
            if entry.runs and entry.runs[-1].outcome in ("over time", "over memory"):
                stopped[question.name, entry.tool.name] = f"not run: {entry.runs[-1].outcome} at {question.corpus}"
    if this["complete"]:
        tables.page(read(RESULTS), PAGE)
        print(f"\nthe table in {PAGE} is rewritten")


if __name__ == "__main__":
    main()
