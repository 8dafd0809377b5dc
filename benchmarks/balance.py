"""Balanced training against plain training, and against HF's `ParityBpeTrainer`: `python benchmarks/balance.py`.

python-127mb in ten groups, document n in group n modulo 10: every group has all the common words, which is the hardest
case, since the words of each group are counted and merged by themselves. Pretokenizer gpt2, 50,257 tokens, two threads.
Runs alternate. The peer breaks ties of pairs differently, so its merges are compared but need not be equal.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import protocol
import tables
from corpus import RECORDED
from protocol import CACHE, PIECEMILL, Entry, Session, worker
from tables import OURS, Bar

CORPUS, GROUPS, VOCAB = "python-127mb", 10, 50_257
SCRATCH = CACHE / "runs"
HF = "tokenizers"
PLAIN, BALANCED = "plain", f"{GROUPS} groups"


def grouped() -> Path:
    """The corpus with a field that says the group."""
    path = CACHE / f"{CORPUS}-groups.jsonl"
    if not path.exists():
        with RECORDED[CORPUS].jsonl.open(encoding="utf-8") as lines, path.open("w", encoding="utf-8") as out:
            for number, line in enumerate(lines):
                out.write(json.dumps({**json.loads(line), "group": f"{number % GROUPS}"}) + "\n")
    return path


def run_once(corpus: Path, cap: float, entry: Entry) -> None:
    out = SCRATCH / "balance"
    shutil.rmtree(out, ignore_errors=True)
    command = [PIECEMILL, "train", str(corpus), "--out", str(out), "--pretokenizer", "gpt2", "--quiet"]
    command += ["--no-special-tokens"]
    command += ["--vocab-size", str(VOCAB), "--threads", "2"]
    if entry.tool == HF:
        options = {"corpus": corpus, "out": out, "vocab": VOCAB}
        command = worker(sys.executable, "train_peers.py", HF, "train_balanced", SCRATCH / "balance.json", **options)
    elif entry.how == BALANCED:
        command += ["--balance", "group"]
    if entry.run(f"balance {CORPUS}", command, threads=2, cap=cap):
        merges = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
        entry.facts["made"] = {"".join(merge if isinstance(merge, list) else merge.split(" ")) for merge in merges}
        if entry.tool == OURS and entry.how == BALANCED:
            rates = [one["bytes_per_token"] for one in json.loads((out / "training.json").read_text())["groups"]]
            entry.note = f"{min(rates):.3f} to {max(rates):.3f} bytes per token"


def compare(entries: Sequence[Entry]) -> None:
    ours = next(entry for entry in entries if entry.how == BALANCED and entry.tool == OURS)
    for entry in entries:
        if entry.finished and entry is not ours:
            shared = len(entry.facts["made"] & ours.facts["made"])
            entry.agreement = f"{shared:,} of {len(ours.facts['made']):,} tokens shared"


def facts(entry: Entry) -> dict:
    entry.facts = {"merges": len(entry.facts.pop("made", ()))}
    version = protocol.installed_version(entry.tool)
    return {"question": CORPUS, "how": entry.how, "note": entry.note, "vocab": VOCAB, "threads": 2,
            "input": RECORDED[CORPUS].sha256, "version": version}  # fmt: skip


def render(records: Sequence[dict]) -> str:
    done = tables.complete(records, "balance")
    last = tables.last_session(done) if done else []
    ways = {(line["tool"], line["how"]): line for line in last}
    plain, ours = ways.get((OURS, PLAIN)), ways.get((OURS, BALANCED))
    bars: list[Bar] = [tables.at_most("10 groups, 127 MB: at most 2x plain training", ours, plain, 2, "plain training")]
    rows = []
    for line in tables.fastest_first(last):
        cells = [f"{tables.titled(line)}, {line['how']}", *tables.measured(line, tables.median(plain))]
        rows.append([*cells, str(len(line["runs"])), line["note"] or line["agreement"]])
    head = f"{tables.machine(last[0])}; {tables.moment(last[0])}\n\n" if last else ""
    names = ["tool", "wall s", "x plain", "CPU s", "peak MB", "runs", ""]
    return tables.bars_table("Bars of balancing", bars) + "\n" + head + tables.table(names, rows) + "\n"


def main() -> None:
    args = protocol.parser(__doc__, peers=[HF]).parse_args()
    if args.table:
        return protocol.write_page("balance", render, args.results)
    entries = [Entry(OURS, PLAIN), Entry(OURS, BALANCED)]
    entries += [Entry(HF, BALANCED)] if HF in args.peers else []
    if args.dry_run:
        return protocol.dry_run(args, [(f"balance {CORPUS}", [f"{one.tool} {one.how}" for one in entries])])
    protocol.make_corpora([CORPUS])
    SCRATCH.mkdir(parents=True, exist_ok=True)
    session = Session("balance", args)
    session.ask(f"balance {CORPUS}", entries, partial(run_once, grouped(), args.cap), facts, partial(compare, entries))
    session.finish(render)


if __name__ == "__main__":
    main()
