"""Balanced training against plain training, and against HF's `ParityBpeTrainer`: `python benchmarks/balance.py`.

python-127mb in ten groups, document n in group n modulo 10: every group has all the common words, which is the hardest
case, since the words of each group are counted and merged by themselves. Pretokenizer gpt2, 50,257 tokens, two threads.
The peer breaks ties of pairs differently, so its merges are compared but need not be equal.
"""

import json
import sys

from corpus import RECORDED
from protocol import CACHE, Entry, installed_version, make_corpora, worker
from session import Benchmark
from tables import CPU_AND_PEAK, OURS, WALL, at_most, last_session, times
from train import HF, TOOLS, train

CORPUS, VOCAB = RECORDED["python-127mb"], 50_257
GROUPED = CACHE / f"{CORPUS.name}-groups.jsonl"
PLAIN, BALANCED = "plain", "10 groups"


class Balance(Benchmark):
    name, title, peers, label = "balance", "Bars of balancing", (HF,), "{0.tool} {0.how}"
    asked = "balance {question}"
    x_plain = {"x plain": times(lambda other, _: other["how"] == PLAIN)}
    columns = {"tool": "{titled}, {how}", **WALL, **x_plain, **CPU_AND_PEAK, "runs": "{count}", "": "{note}{agreement}"}

    def questions(self):
        return [{"question": CORPUS.name, "vocab": VOCAB, "threads": 2, "input": CORPUS.sha256}]

    def entries(self, question):
        return [Entry(OURS, PLAIN), Entry(OURS, BALANCED), *(Entry(peer, BALANCED) for peer in self.args.peers)]

    def set_up(self, asked):
        """The corpus, with a field that says the group."""
        make_corpora([CORPUS.name])
        if not GROUPED.exists():
            with CORPUS.jsonl.open(encoding="utf-8") as lines, GROUPED.open("w", encoding="utf-8") as out:
                for number, line in enumerate(lines):
                    out.write(json.dumps({**json.loads(line), "group": f"{number % 10}"}) + "\n")

    def command(self, question, entry, out):
        if not entry.ours:
            return worker(sys.executable, "train_peers.py", HF, "train_balanced", out, corpus=GROUPED, vocab=VOCAB)
        balanced = ["--balance", "group"] if entry.how == BALANCED else []
        return train(GROUPED, out, VOCAB, "--no-special-tokens", *balanced)

    def check(self, question, entry, out):
        entry.result = set(map("".join, TOOLS[entry.tool]().merges(out)))
        if entry.ours and entry.how == BALANCED:
            rates = [one["bytes_per_token"] for one in json.loads((out / "training.json").read_text())["groups"]]
            entry.note = f"{min(rates):.3f} to {max(rates):.3f} bytes per token"

    def compare(self, question, entries):
        ours = next(entry for entry in entries if entry.how == BALANCED and entry.ours)
        for entry in entries:
            if entry.finished and entry is not ours:
                entry.agreement = f"{len(entry.result & ours.result):,} of {len(ours.result):,} tokens shared"

    def facts(self, question, entry):
        made = {"merges": len(entry.result or ()), "note": entry.note}
        return {"how": entry.how, **made, "version": installed_version(entry.tool)}

    def bars(self, records):
        ways = {line["how"]: line for line in last_session(records) if line["tool"] == OURS}
        ours, plain = ways.get(BALANCED), ways.get(PLAIN)
        return [at_most("10 groups, 127 MB: at most 2x plain training", ours, plain, 2, "plain training")]


if __name__ == "__main__":
    Balance().main()
