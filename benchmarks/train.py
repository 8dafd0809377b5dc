"""Training a vocabulary, against everybody who does: `make bench`, or `python benchmarks/train.py --quick`.

    words         GPT-2's pretokenizer, vocabulary 50,257, one and two threads
    none          no pretokenizer: each file is one word, 5, 20 and 127 MB
    functions     no pretokenizer: each top-level function or class is one word
    multilingual  GPT-2's pretokenizer over text in some hundred languages
    superwords    two stages, 40,000 tokens in words, then across them to 50,257; 127 MB and 1 GB. No peer in the
                  package index trains in two stages: HF's trainer takes no merges to go on from
    extend        gpt2 and 10,000 tokens more (60,257), and the same size from nothing, which is called anew; 127 MB

Each tool is a separate process that reads the corpus, trains and saves (`peers/train_peers.py`). Merges are compared
before any time is shown: where HF's order of merges is promised, a difference of ours ends the benchmark. Every run is
appended to `results.jsonl`; complete sessions rewrite the table in `docs/benchmarks.md`. Of each question and tool the
last complete session counts there. Peers that take many minutes need not run each time we do: a row from another
session than ours is marked.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import protocol
import tables
from corpus import RECORDED
from encode_vocabularies import SHARED
from protocol import CACHE, PIECEMILL, Entry, Session, call, choose, worker
from tables import OURS, Bar, bar, median, moment, of

SCRATCH = CACHE / "runs"
VENVS = CACHE / "venvs-train"
HF = "tokenizers"
KINDS = ["words", "none", "functions", "multilingual", "superwords", "extend"]
OURS_ALONE = ("superwords", "extend", "anew")
"Questions without peers."
FIRST_STAGE = 40_000


@dataclass(frozen=True, slots=True)
class Tool:
    """One trainer and what it supports."""

    name: str
    version: str = ""
    promises: str = "none"
    "`hf`: the merges must be HF's, in order. `none`: what differs is reported. `other rules`: not comparable."
    splits: tuple[str, ...] = ("gpt2", "none")
    build_with: tuple[str, ...] = ()
    "Installed first, for tools that build from source with what is there."

    @property
    def python(self) -> str:
        return sys.executable if self.name == OURS else str(VENVS / self.name / "bin" / "python")


TOOLS = {
    tool.name: tool
    for tool in [
        Tool(OURS, promises="hf", splits=("gpt2", "none", "cl100k")),
        Tool(HF, "0.23.3", "hf"),
        Tool("gigatoken", "0.10.0", "hf", splits=("gpt2",)),
        Tool("ffbpe", "0.1.10", "hf"),
        Tool("rustbpe", "0.1.0"),
        Tool("fast-bpe-rs", "0.6.1"),
        Tool("quickbpe", "2.1", build_with=("numpy", "regex", "setuptools", "wheel")),
        Tool("bpeasy", "0.1.6"),
        Tool("youtokentome", "1.0.6", "other rules", build_with=("cython", "setuptools", "wheel")),
        Tool("sentencepiece", "0.2.2", "other rules"),
    ]
}
PEERS = [name for name in TOOLS if name != OURS]


def install(name: str) -> str:
    """Set up a peer once; returns the reason if that fails."""
    tool = TOOLS[name]
    reason = protocol.environment(VENVS / name, [f"{name}=={tool.version}"], tool.build_with)
    return reason or (compile_quickbpe() if name == "quickbpe" else "")


def compile_quickbpe() -> str:
    """Its wheel carries libraries built against a newer C++ runtime than many machines have, and their source."""
    folder = next((VENVS / "quickbpe").glob("lib/python*/site-packages/QuickBPE/fastfuncs"))
    if (folder / "compiled").exists():
        return ""
    if shutil.which("make") is None or shutil.which("gcc") is None:
        return "its shipped library needs compiling here, and make or gcc is missing"
    command = ["make", "--always-make", "bpe.so", "encode.so"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        (folder / "compiled").touch()
    return done.stderr.strip()[-300:] if done.returncode else ""


@dataclass(frozen=True, slots=True)
class Question:
    """What every tool has to do."""

    question: str
    corpus: str
    split: str
    vocab: int
    threads: int

    def __str__(self) -> str:
        return f"{self.question} {self.corpus} pretokenizer={self.split} vocab={self.vocab:,} threads={self.threads}"


def questions(only: Sequence[str], sizes: Sequence[int]) -> list[Question]:
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
    if "superwords" in only:
        corpora = [f"python-{size}mb" for size in sizes] + ["mixed-1000mb"] * (127 in sizes)
        asked += [Question("superwords", corpus, "cl100k", 50_257, 2) for corpus in corpora]
    if "extend" in only:
        asked += [
            Question(kind, f"python-{size}mb", "gpt2", 60_257, 2) for kind in ("extend", "anew") for size in sizes
        ]
    return asked


def asked_of(question: Question, peers: Sequence[str]) -> list[str]:
    return [OURS] if question.question in OURS_ALONE else [OURS, *peers]


def run_once(question: Question, cap: float, entry: Entry) -> None:
    out, made = SCRATCH / entry.tool, RECORDED[question.corpus]
    shutil.rmtree(out, ignore_errors=True)
    corpus = made.folder if made.folder.exists() else made.jsonl
    asked = {"vocab": question.vocab, "threads": question.threads, "split": question.split}
    answer, python = SCRATCH / "answer.json", TOOLS[entry.tool].python
    if entry.tool == OURS:
        # The peers read every file and know no special token.
        command = [PIECEMILL, "train", str(corpus), "--out", str(out), "--pretokenizer", question.split, "--quiet"]
        command += ["--vocab-size", str(question.vocab), "--threads", str(question.threads)]
        command += ["--hidden", "--no-gitignore"]
        command += ["--start", str(SHARED / "gpt2")] if question.question == "extend" else ["--no-special-tokens"]
        if question.question == "superwords":
            command += ["--superwords", str(min(FIRST_STAGE, question.vocab))]
    else:
        command = worker(python, "train_peers.py", entry.tool, "train", answer, corpus=corpus, out=out, **asked)
    ended = entry.run(f"train   {question}", command, threads=question.threads, cap=cap)
    if ended and "merges" not in entry.facts:
        entry.facts["merges"] = call(worker(python, "train_peers.py", entry.tool, "merges", answer, out=out))
    shutil.rmtree(out, ignore_errors=True)


def compare(question: Question, entries: Sequence[Entry]) -> None:
    """Say of each tool how its merges compare with HF's; a broken promise of ours is an error, not a footnote."""
    done = {entry.tool: entry for entry in entries if entry.finished}
    promised = [entry for entry in done.values() if TOOLS[entry.tool].promises == "hf"]
    # Without a pretokenizer HF rarely ends in time; then anybody who promises its order stands in.
    base = done.get(HF) or done.get(OURS) or next(iter(promised), None)
    for entry in done.values():
        if TOOLS[entry.tool].promises == "other rules":
            entry.agreement = "other rules"
        elif base is None:
            entry.agreement = "nothing to compare with"
        elif entry is base:
            entry.agreement = f"{len(entry.facts['merges']):,} merges"
        else:
            found = difference(entry.facts["merges"], base.facts["merges"])
            entry.agreement = found or f"same as {base.tool}"
    for judge in ([done[HF]] if HF in done else promised) if OURS in done else []:
        found = difference(done[OURS].facts["merges"], judge.facts["merges"])
        if found:
            raise SystemExit(f"{question}: our merges are not those of {judge.tool}: {found}. No time is reported.")


def difference(found: list[list[str]], wanted: list[list[str]]) -> str:
    """Empty if equal; else where two lists of merges part, and how much they share all the same.

    A merge is [left, right]; of a tool that reports only [token] the tokens are compared.
    """
    tokens_only = any(len(merge) == 1 for merge in found[:1] + wanted[:1])
    theirs, base = (["".join(m) if tokens_only else tuple(m) for m in merges] for merges in (found, wanted))
    if theirs == base:
        return ""
    first = next((i for i, (a, b) in enumerate(zip(theirs, base, strict=False)) if a != b), min(len(theirs), len(base)))
    shared = len({"".join(merge) for merge in found} & {"".join(merge) for merge in wanted})
    return f"first difference at merge {first + 1:,}; {shared:,} of {len(wanted):,} tokens shared"


def too_slow(question: Question, tool: str, last: dict, cap: float) -> str:
    """Why a tool is not run: without a pretokenizer, time grew at least as fast as the text: over the cap."""
    seconds, corpus = last.get((question.question, tool), (0, question.corpus))
    times = RECORDED[question.corpus].bytes / RECORDED[corpus].bytes
    if tool == OURS or question.question != "none" or times <= 1 or seconds * times < cap:
        return ""
    return f"not run: {seconds:,.0f} s for {corpus}, so over {cap:,.0f} s here at the same pace"


def facts(question: Question, entry: Entry) -> dict:
    learned = entry.facts.get("merges", [])
    entry.facts = {
        "merges": len(learned),
        "merges_sha256": hashlib.sha256(json.dumps(learned).encode()).hexdigest() if learned else "",
    }
    version = TOOLS[entry.tool].version or protocol.installed_version()
    return asdict(question) | {"input": RECORDED[question.corpus].sha256, "version": version}


# Tables


def latest(records: Sequence[dict]) -> dict[tuple, list[dict]]:
    """Of each question (name, corpus, threads) the last record of every tool, fastest first."""
    groups = tables.grouped(tables.complete(records, "train"), "question", "corpus", "threads")
    return {key: tables.fastest_first({line["tool"]: line for line in group}.values()) for key, group in groups.items()}


def render(records: Sequence[dict]) -> str:
    groups = latest(records)
    return tables.bars_table("Bars", bars(groups)) + "".join(map(table, groups.values())) + "\n"


def table(group: Sequence[dict]) -> str:
    """One question: median (lowest-highest) of each tool, and how many times our time it took."""
    ours = of(group, OURS)
    first, rows = ours or group[0], []
    for record in group:
        other = f" (session of {moment(record)})" if record["session"] != first["session"] else ""
        cells = [f"{tables.titled(record)}{other}", *tables.measured(record, median(ours))]
        rows.append([*cells, str(len(record["runs"])), record["agreement"]])
    return (
        f"\n## {first['question']}: {first['corpus']}, pretokenizer `{first['split']}`, vocabulary {first['vocab']:,}, "
        f"{first['threads']} {'thread' if first['threads'] == 1 else 'threads'}\n\n"
        f"{tables.machine(first)}; {moment(first)}; input {first['input'][:16]}\n\n"
    ) + tables.table(["tool", "wall s", "x ours", "CPU s", "peak MB", "runs", "merges"], rows)


def bars(groups: dict[tuple, list[dict]]) -> list[Bar]:
    """The promises of the training benchmark, on two cores."""
    words, whole, smaller, functions = (
        groups.get((*key, 2), [])
        for key in (("words", "python-127mb"), ("none", "python-127mb"), ("none", "python-20mb"),
                    ("functions", "functions-127mb"))
    )  # fmt: skip
    ours, theirs, at_most = of(words, OURS), of(words, HF), partial(tables.at_most, digits=3)
    fastest, other = (tables.fastest(line for line in group if line["tool"] != OURS) for group in (words, functions))
    lines, longer = (of(groups.get(("superwords", name, 2), []), OURS) for name in ("python-127mb", "mixed-1000mb"))
    extended, anew = (of(groups.get((kind, "python-127mb", 2), []), OURS) for kind in ("extend", "anew"))
    merges = [ours and median(ours) and ours["merges"], theirs and median(theirs) and theirs["merges"]]
    return [
        at_most("words 127 MB: at most 0.5x the time of the fastest peer", ours, fastest, 0.5),
        at_most("words 127 MB: at most 1/12 of the time of HF tokenizers", ours, theirs, 1 / 12),
        _under("words 127 MB: peak memory at most 400 MB", ours, "peak_bytes", 400e6, 1e6, "MB"),
        bar("words 127 MB: merges equal to HF tokenizers'", merges,
            lambda count, _: (f"{count:,} merges", ours["merges_sha256"] == theirs["merges_sha256"])),
        _under("no pretokenizer 127 MB, whole files: at most 15 s", of(whole, OURS), "seconds", 15, 1, "s"),
        _under("no pretokenizer 127 MB, whole files: peak memory at most 1.5 GB",
               of(whole, OURS), "peak_bytes", 1.5e9, 1e6, "MB"),
        at_most("no pretokenizer 127 MB, functions: at least 5x faster than the fastest peer",
                of(functions, OURS), other, 1 / 5),
        at_most("no pretokenizer, 20 to 127 MB (6.35x): time grows at most 9x",
                of(whole, OURS), of(smaller, OURS), 9, "20 MB"),
        _under("superwords 127 MB: at most 8 s", lines, "seconds", 8, 1, "s"),
        _under("superwords 127 MB: peak memory at most 1.5 GB", lines, "peak_bytes", 1.5e9, 1e6, "MB"),
        _under("superwords 1 GB: at most 90 s", longer, "seconds", 90, 1, "s"),
        _under("superwords 1 GB: peak memory at most 10 GB", longer, "peak_bytes", 10e9, 1e6, "MB"),
        bar("gpt2 extended by 10,000 tokens, 127 MB: at most 2 s more than from nothing",
            [median(extended), median(anew)],
            lambda taken, plain: (f"{taken:.2f} s, from nothing {plain:.2f} s", taken <= plain + 2)),
    ]  # fmt: skip


def _under(promise: str, ours: dict | None, field: str, limit: float, unit: float, name: str) -> Bar:
    return bar(promise, [median(ours, field)], lambda found: (f"{found / unit:,.1f} {name}", found <= limit))


def main() -> None:
    flags = protocol.parser(__doc__, kinds=KINDS, peers=PEERS)
    flags.add_argument("--sizes", help="MB of the cuts: 5,20,127 (default: 127 for words and functions, all for none)")
    args = flags.parse_args()
    if args.table:
        return protocol.write_page("train", render, args.results)
    only, chosen = choose(args.only, KINDS, "--only"), choose(args.peers, PEERS, "--peers")
    sizes = [int(size) for size in choose(args.sizes, ["5", "20", "127"], "--sizes")] if args.sizes else None
    if args.quick:
        asked = questions([kind for kind in only if kind != "multilingual"], sizes or [5])
    else:
        asked = questions([kind for kind in only if kind != "none"], sizes or [127])
        asked += questions([kind for kind in only if kind == "none"], sizes or [5, 20, 127])
    if args.dry_run:
        able = {one: [name for name in asked_of(one, chosen) if one.split in TOOLS[name].splits] for one in asked}
        return protocol.dry_run(args, able.items())
    failed = {name: install(name) for name in chosen} if any(one.question not in OURS_ALONE for one in asked) else {}
    protocol.make_corpora(question.corpus for question in asked)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    session, last = Session("train", args), {}
    for question in asked:
        entries = [Entry(name, reason=failed.get(name, "")) for name in asked_of(question, chosen)]
        for entry in entries:
            able = question.split in TOOLS[entry.tool].splits
            slow = too_slow(question, entry.tool, last, args.cap) if able else "does not support this pretokenizer"
            entry.reason = entry.reason or slow
        once, about = partial(run_once, question, args.cap), partial(facts, question)
        session.ask(question, entries, once, about, partial(compare, question, entries))
        last |= {(question.question, one.tool): (one.runs[0].seconds, question.corpus) for one in entries if one.runs}
    session.finish(render)


if __name__ == "__main__":
    main()
