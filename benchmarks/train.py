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
from functools import partial

import tables
from corpus import RECORDED
from protocol import CACHE, OURS, PIECEMILL, SHARED, Entry, environment, failure, installed_version, worker
from session import Benchmark
from tables import CPU_AND_PEAK, MACHINE, WALL, X_OURS, bar, median, of
from train_peers import Trainer

VENVS = CACHE / "venvs-train"
HF, FUNCTIONS = "tokenizers", "functions-127mb"
TOOLS = Trainer.tools
OURS_ALONE = ("superwords", "extend", "anew")


def new_question(question, corpus, split, vocab, threads=2):
    return {"question": question, "corpus": corpus, "split": split, "vocab": vocab, "threads": threads}


def train(corpus, out, vocab, *more, split="gpt2", threads=2):
    """The command of ours."""
    asked = ["--pretokenizer", split, "--vocab-size", str(vocab), "--threads", str(threads), "--quiet", *more]
    return [PIECEMILL, "train", str(corpus), "--out", str(out), *asked]


class Train(Benchmark):
    name, title = "train", "Bars"
    kinds = ("words", "functions", "multilingual", "superwords", "extend", "none")
    peers = tuple(name for name in TOOLS if name != OURS)
    asked = "{question} {corpus} pretokenizer={split} vocab={vocab:,} threads={threads}"
    by, of_each_tool = ("question", "corpus", "threads"), True
    heading = "{question}: {corpus}, pretokenizer `{split}`, vocabulary {vocab:,}, {threads} thread{plural}"
    about = MACHINE + "; {moment}; input {input:.16}"
    columns = {"tool": "{titled}{beside}", **WALL, **X_OURS, **CPU_AND_PEAK, "runs": "{count}", "merges": "{agreement}"}

    def __init__(self):
        # Of the first run of each tool in the last question of a kind, and on which corpus.
        self.seconds: dict[tuple[str, str], tuple[float, str]] = {}

    def questions(self):
        quick = self.args.quick
        python, functions = ("python-5mb", "functions-5mb") if quick else ("python-127mb", FUNCTIONS)
        vocab, cuts = (16_384 if quick else 50_257), [python] if quick else ["python-5mb", "python-20mb", python]
        large = [python] if quick else [python, "mixed-1000mb"]
        asked = {
            # 5 MB of words are used up after 41,045 merges, and what a tool does after that is not the question
            # (gigatoken goes on to 50,001 and took 46 s; 1 s for 16,384).
            "words": [new_question("words", python, "gpt2", vocab, threads) for threads in (1, 2)],
            "functions": [new_question("functions", functions, "none", 50_257)],
            "multilingual": [new_question("multilingual", "multilingual-30mb", "gpt2", 50_257)] * (not quick),
            "superwords": [new_question("superwords", name, "cl100k", 50_257) for name in large],
            "extend": [new_question(kind, python, "gpt2", 60_257) for kind in ("extend", "anew")],
            "none": [new_question("none", name, "none", 50_257) for name in cuts],
        }
        return [question for kind, questions in asked.items() if kind in self.args.only for question in questions]

    def entries(self, question):
        names = [OURS] if question["question"] in OURS_ALONE else [OURS, *self.args.peers]
        no = "does not support this pretokenizer"
        return [Entry(name, reason="" if question["split"] in TOOLS[name].splits else no) for name in names]

    def set_up(self, asked):
        super().set_up(asked)
        return {name: install(name) for name in {entry.tool for _, entries in asked for entry in entries} - {OURS}}

    def command(self, question, entry, out):
        made = RECORDED[question["corpus"]]
        corpus = made.folder if made.folder.exists() else made.jsonl
        how = {name: question[name] for name in ("split", "threads", "vocab")}
        if not entry.ours:
            python = VENVS / entry.tool / "bin" / "python"
            return worker(python, "train_peers.py", entry.tool, "train", out, corpus=corpus, **how)
        # The peers read every file and know no special token.
        more = ["--hidden", "--no-gitignore"]
        start = ["--start", str(SHARED / "vocabs" / "gpt2")]
        more += start if question["question"] == "extend" else ["--no-special-tokens"]
        more += ["--superwords", str(min(40_000, how["vocab"]))] if question["question"] == "superwords" else []
        return train(corpus, out, how.pop("vocab"), *more, **how)

    def once(self, question, entry):
        entry.reason = "" if entry.runs else self.too_slow(question, entry.tool)
        if not entry.reason:
            super().once(question, entry)
        if entry.runs:
            self.seconds[question["question"], entry.tool] = entry.runs[0].seconds, question["corpus"]

    def check(self, question, entry, out):
        entry.result = entry.result or TOOLS[entry.tool]().merges(out)

    def too_slow(self, question, tool):
        """Why a tool is not run: without a pretokenizer, time grew at least as fast as the text: over the cap."""
        seconds, corpus = self.seconds.get((question["question"], tool), (0, question["corpus"]))
        times = RECORDED[question["corpus"]].bytes / RECORDED[corpus].bytes
        if tool == OURS or question["question"] != "none" or times <= 1 or seconds * times < self.args.cap:
            return ""
        return f"not run: {seconds:,.0f} s for {corpus}, so over {self.args.cap:,.0f} s here at the same pace"

    def compare(self, question, entries):
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
                said = self.asked.format_map(question)
                raise SystemExit(f"{said}: our merges are not those of {judge.tool}: {found}. No time is reported.")

    def facts(self, question, entry):
        learned, version = entry.result or [], TOOLS[entry.tool].version or installed_version()
        digest = hashlib.sha256(json.dumps(learned).encode()).hexdigest() if learned else ""
        return super().facts(question, entry) | {"version": version, "merges": len(learned), "merges_sha256": digest}

    def groups(self, records):
        found = super().groups(records)
        for group in found.values():
            session = (of(group, OURS) or group[0])["session"]
            for one in group:
                other = f" (session of {tables.words(one)['moment']})"
                one |= {"plural": "s" * (one["threads"] > 1), "beside": other * (one["session"] != session)}
        return found

    def bars(self, records):
        """The promises of training, on two cores."""
        found = self.groups(records)

        def asked(kind, corpus="python-127mb"):
            """Our record and that of the fastest peer."""
            group = found.get((kind, corpus, 2), [])
            return of(group, OURS), tables.fastest(line for line in group if line["tool"] != OURS)

        def under(promise, record, most, unit="s"):
            figure = median(record) if unit == "s" else median(record, "peak_bytes", 1e6)
            return bar(promise, f"{{:,.1f}} {unit}", figure, most=most)

        at_most = partial(tables.at_most, digits=3)
        (words, other), theirs = asked("words"), of(found.get(("words", "python-127mb", 2), []), HF)
        (whole, _), (small, _), functions = asked("none"), asked("none", "python-20mb"), asked("functions", FUNCTIONS)
        (super_words, _), (large, _) = asked("superwords"), asked("superwords", "mixed-1000mb")
        extended, anew = median(asked("extend")[0]), median(asked("anew")[0])
        learned = words and words["merges"]
        same = words["merges_sha256"] == theirs["merges_sha256"] if median(words) and median(theirs) else None
        extending = "gpt2 extended by 10,000 tokens, 127 MB: at most 2 s more than from nothing"
        more = extended - anew if extended and anew else None
        return [
            at_most("words 127 MB: at most 0.5x the time of the fastest peer", words, other, 0.5),
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
            bar(extending, "{:.2f} s, from nothing {:.2f} s", extended, anew, more, most=2),
        ]


def install(name):
    """Set up a peer once; returns the reason if that fails."""
    tool = TOOLS[name]
    reason = environment(VENVS / name, [f"{name}=={tool.version}"], tool.build_with)
    return reason or (compile_quickbpe() if name == "quickbpe" else "")


def compile_quickbpe():
    """Its wheel carries libraries built against a newer C++ runtime than many machines have, and their source."""
    folder = next((VENVS / "quickbpe").glob("lib/python*/site-packages/QuickBPE/fastfuncs"))
    if (folder / "compiled").exists():
        return ""
    if shutil.which("make") is None or shutil.which("gcc") is None:
        return "its shipped library needs compiling here, and make or gcc is missing"
    if reason := failure(["make", "--always-make", "bpe.so", "encode.so"], cwd=folder):
        return reason
    return (folder / "compiled").touch() or ""


def difference(found, wanted):
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
