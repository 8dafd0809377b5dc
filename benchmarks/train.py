"""Training a vocabulary, against everybody who does: `make bench`, or `python benchmarks/train.py --quick`.

    words         GPT-2's pretokenizer, vocabulary 50,257, one and two threads
    none          no pretokenizer: each file is one word, 5, 20 and 127 MB
    functions     no pretokenizer: each top-level function or class is one word
    multilingual  GPT-2's pretokenizer over text in some hundred languages
    superwords    two stages, 40,000 tokens in words, then across them to 50,257; 127 MB and 1 GB. No peer in the
                  package index trains in two stages: HF's trainer takes no merges to go on from
    extend        gpt2 and 10,000 tokens more (60,257), and the same size from nothing, which is called anew; 127 MB

Each tool is a separate process that reads the corpus, trains and saves (`peers/train_peers.py`). Where HF's order of
merges is promised, a difference of ours ends the benchmark. The page shows of each question and tool the last complete
session: peers that take many minutes need not run each time we do. A row from another session than ours is marked.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tables
from corpus import RECORDED
from encode_vocabularies import SHARED
from protocol import CACHE, PIECEMILL, Entry, call, environment, installed_version, worker
from session import Benchmark, choose
from tables import OURS, Bar, bar, median, moment, of
from train_peers import Trainer

VENVS = CACHE / "venvs-train"
HF = "tokenizers"
TOOLS = Trainer.tools
OURS_ALONE = ("superwords", "extend", "anew")
# Smaller cuts get a smaller vocabulary when split: 5 MB of words are used up after 41,045 merges, and what a tool does
# after that is not the question (gigatoken goes on to 50,001 and took 46 s; 1 s for 16,384).
VOCABS = {5: 16_384, 20: 32_768, 127: 50_257}


@dataclass(frozen=True, slots=True)
class Question:
    """What every tool has to do."""

    question: str
    corpus: str
    split: str
    vocab: int
    threads: int = 2

    def __str__(self) -> str:
        return f"{self.question} {self.corpus} pretokenizer={self.split} vocab={self.vocab:,} threads={self.threads}"


def train(corpus: Path, out: Path, vocab: int, *more: str, split: str = "gpt2", threads: int = 2) -> list[str]:
    """The command of ours."""
    asked = ["--pretokenizer", split, "--vocab-size", str(vocab), "--threads", str(threads), "--quiet", *more]
    return [PIECEMILL, "train", str(corpus), "--out", str(out), *asked]


def peer(tool: str, verb: str, out: Path, **options: object) -> list[str]:
    python = sys.executable if tool == OURS else VENVS / tool / "bin" / "python"
    return worker(python, "train_peers.py", tool, verb, out, **options)


class Train(Benchmark):
    name, title = "train", "Bars"
    kinds = ("words", "functions", "multilingual", "superwords", "extend", "none")
    peers = tuple(name for name in TOOLS if name != OURS)

    def __init__(self) -> None:
        # Of the first run of each tool in the last question of a kind, and on which corpus.
        self.seconds: dict[tuple[str, str], tuple[float, str]] = {}

    def flags(self, add) -> None:
        add("--sizes", help="MB of the cuts: 5,20,127 (default: 127 for words and functions, all for none)")

    def questions(self) -> list[Question]:
        given = [int(size) for size in choose(self.args.sizes, ["5", "20", "127"], "--sizes")]
        sizes = given or ([5] if self.args.quick else [127])
        python, growing = [f"python-{n}mb" for n in sizes], sizes if given or self.args.quick else [5, 20, 127]
        large = ["mixed-1000mb"] * (127 in sizes)
        asked = {
            "words": [Question("words", f"python-{n}mb", "gpt2", VOCABS[n], t) for n in sizes for t in (1, 2)],
            "functions": [Question("functions", f"functions-{n}mb", "none", 50_257) for n in sizes],
            "multilingual": [Question("multilingual", "multilingual-30mb", "gpt2", 50_257)] * (not self.args.quick),
            "superwords": [Question("superwords", corpus, "cl100k", 50_257) for corpus in [*python, *large]],
            "extend": [Question(kind, corpus, "gpt2", 60_257) for kind in ("extend", "anew") for corpus in python],
            "none": [Question("none", f"python-{n}mb", "none", 50_257) for n in growing],
        }
        return [question for kind, questions in asked.items() if kind in self.args.only for question in questions]

    def entries(self, question: Question) -> list[Entry]:
        names = [OURS] if question.question in OURS_ALONE else [OURS, *self.args.peers]
        no = "does not support this pretokenizer"
        return [Entry(name, reason="" if question.split in TOOLS[name].splits else no) for name in names]

    def set_up(self, asked) -> dict[str, str]:
        super().set_up(asked)
        used = dict.fromkeys(entry.tool for _, entries in asked for entry in entries if entry.tool != OURS)
        return {name: install(TOOLS[name]) for name in used}

    def command(self, question: Question, entry: Entry, out: Path) -> list[str]:
        made = RECORDED[question.corpus]
        corpus = made.folder if made.folder.exists() else made.jsonl
        if entry.tool != OURS:
            asked = {"split": question.split, "threads": question.threads, "vocab": question.vocab}
            return peer(entry.tool, "train", out, corpus=corpus, **asked)
        # The peers read every file and know no special token.
        more = ["--hidden", "--no-gitignore"]
        more += ["--start", str(SHARED / "gpt2")] if question.question == "extend" else ["--no-special-tokens"]
        more += ["--superwords", str(min(40_000, question.vocab))] if question.question == "superwords" else []
        return train(corpus, out, question.vocab, *more, split=question.split, threads=question.threads)

    def once(self, question: Question, entry: Entry) -> None:
        entry.reason = "" if entry.runs else self.too_slow(question, entry.tool)
        if not entry.reason:
            super().once(question, entry)
        if entry.runs:
            self.seconds[question.question, entry.tool] = entry.runs[0].seconds, question.corpus

    def check(self, question: Question, entry: Entry, out: Path) -> None:
        entry.result = entry.result or call(peer(entry.tool, "merges", out))

    def too_slow(self, question: Question, tool: str) -> str:
        """Why a tool is not run: without a pretokenizer, time grew at least as fast as the text: over the cap."""
        seconds, corpus = self.seconds.get((question.question, tool), (0, question.corpus))
        times = RECORDED[question.corpus].bytes / RECORDED[corpus].bytes
        if tool == OURS or question.question != "none" or times <= 1 or seconds * times < self.args.cap:
            return ""
        return f"not run: {seconds:,.0f} s for {corpus}, so over {self.args.cap:,.0f} s here at the same pace"

    def compare(self, question: Question, entries: Sequence[Entry]) -> None:
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
                entry.agreement = f"{len(entry.result):,} merges"
            else:
                entry.agreement = difference(entry.result, base.result) or f"same as {base.tool}"
        for judge in ([done[HF]] if HF in done else promised) if OURS in done else []:
            if found := difference(done[OURS].result, judge.result):
                raise SystemExit(f"{question}: our merges are not those of {judge.tool}: {found}. No time is reported.")

    def facts(self, question: Question, entry: Entry) -> dict:
        learned, version = entry.result or [], TOOLS[entry.tool].version or installed_version()
        digest = hashlib.sha256(json.dumps(learned).encode()).hexdigest() if learned else ""
        return super().facts(question, entry) | {"version": version, "merges": len(learned), "merges_sha256": digest}

    def tables(self, records: Sequence[dict]) -> list[str]:
        """Of each question median (lowest-highest) of each tool, and how many times our time it took."""
        return [self.table(group, of(group, OURS)) for group in groups(records).values()]

    def table(self, group: Sequence[dict], ours: dict | None) -> str:
        first = ours or group[0]
        threads = f"{first['threads']} {'thread' if first['threads'] == 1 else 'threads'}"
        asked = f"pretokenizer `{first['split']}`, vocabulary {first['vocab']:,}, {threads}"

        def tool(record: dict) -> str:
            other = f" (session of {moment(record)})" if record["session"] != first["session"] else ""
            return f"{tables.titled(record)}{other}"

        figures = {**tables.WALL, "x ours": tables.times(lambda _: median(ours)), **tables.CPU_AND_PEAK}
        table = tables.table(group, {"tool": tool}, figures, tables.RUNS | {"merges": tables.field("agreement")})
        about = f"{tables.machine_and_time(first)}; input {first['input'][:16]}"
        return tables.section(f"{first['question']}: {first['corpus']}, {asked}", about, table)

    def bars(self, records: Sequence[dict]) -> list[Bar]:
        """The promises of training, on two cores."""
        found = groups(records)

        def asked(kind: str, corpus: str = "python-127mb") -> tuple[dict | None, dict | None]:
            """Our record and that of the fastest peer."""
            group = found.get((kind, corpus, 2), [])
            return of(group, OURS), tables.fastest(line for line in group if line["tool"] != OURS)

        def under(promise: str, record: dict | None, most: float, unit: str = "s") -> Bar:
            figure = median(record) if unit == "s" else median(record, "peak_bytes", 1e6)
            return bar(promise, f"{{:,.1f}} {unit}", figure, most=most)

        at_most = partial(tables.at_most, digits=3)
        (words, peer), theirs = asked("words"), of(found.get(("words", "python-127mb", 2), []), HF)
        whole, small, functions = (
            asked("none")[0],
            asked("none", "python-20mb")[0],
            asked("functions", "functions-127mb"),
        )
        super_words, large = asked("superwords")[0], asked("superwords", "mixed-1000mb")[0]
        extended, anew = median(asked("extend")[0]), median(asked("anew")[0])
        learned = words and words["merges"]
        same = words["merges_sha256"] == theirs["merges_sha256"] if median(words) and median(theirs) else None
        return [
            at_most("words 127 MB: at most 0.5x the time of the fastest peer", words, peer, 0.5),
            at_most("words 127 MB: at most 1/12 of the time of HF tokenizers", words, theirs, 1 / 12),
            under("words 127 MB: peak memory at most 400 MB", words, 400, "MB"),
            bar("words 127 MB: merges equal to HF tokenizers'", "{:,} merges", learned, same, least=True),
            under("no pretokenizer 127 MB, whole files: at most 15 s", whole, 15),
            under("no pretokenizer 127 MB, whole files: peak memory at most 1.5 GB", whole, 1500, "MB"),
            at_most("no pretokenizer 127 MB, functions: at least 5x faster than the fastest peer", *functions, 1 / 5),
            at_most("no pretokenizer, 20 to 127 MB (6.35x): time grows at most 9x", whole, small, 9, "20 MB"),
            under("superwords 127 MB: at most 8 s", super_words, 8),
            under("superwords 127 MB: peak memory at most 1.5 GB", super_words, 1500, "MB"),
            under("superwords 1 GB: at most 90 s", large, 90),
            under("superwords 1 GB: peak memory at most 10 GB", large, 10_000, "MB"),
            bar(
                "gpt2 extended by 10,000 tokens, 127 MB: at most 2 s more than from nothing",
                "{:.2f} s, from nothing {:.2f} s",
                *(extended, anew, extended - anew if extended and anew else None),
                most=2,
            ),
        ]


def groups(records: Sequence[dict]) -> dict[tuple, list[dict]]:
    return tables.latest(records, "question", "corpus", "threads", of_each_tool=True)


def install(tool: type[Trainer]) -> str:
    """Set up a peer once; returns the reason if that fails."""
    reason = environment(VENVS / tool.name, [f"{tool.name}=={tool.version}"], tool.build_with)
    return reason or (compile_quickbpe() if tool.name == "quickbpe" else "")


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


if __name__ == "__main__":
    Train().main()
