"""Training a WordPiece vocabulary of 30,522, against HF `tokenizers`: `python benchmarks/wordpiece.py`.

HF numbers the symbols that continue words in an order that changes from process to process, and ties go by ids. So ours
is trained in the order of each run of HF, and a difference ends the benchmark.
"""

import json
import sys

from corpus import RECORDED
from encode_vocabularies import BERT_SIZE, SPECIAL
from protocol import worker
from session import Benchmark
from tables import CPU_AND_PEAK, OURS, WALL, fastest_first, grouped, last_session, times
from train import HF


class WordPiece(Benchmark):
    name, kinds, peers = "wordpiece", ("english-4mb", "python-20mb"), (HF,)
    asked, must_be_default = "wordpiece {corpus}", ("only",)
    ours = times(lambda other, line: (other["tool"], other["corpus"]) == (OURS, line["corpus"]))
    columns = {"corpus": "{corpus}", "tool": "{titled}", **WALL, "x": ours, **CPU_AND_PEAK, "runs": "{count}"}

    def questions(self):
        return [{"corpus": corpus, "vocab": BERT_SIZE, "threads": 2} for corpus in self.args.only]

    def command(self, question, entry, out):
        asked = {"corpus": RECORDED[question["corpus"]].jsonl, "vocab": question["vocab"], "special": SPECIAL}
        return worker(sys.executable, "train_peers.py", entry.tool, "train_wordpiece", out, **asked)

    def check(self, question, entry, out):
        if not entry.ours:
            vocab = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
            theirs = sorted(vocab, key=vocab.__getitem__)
            if in_their_order(question, theirs) != theirs:
                raise SystemExit(f"{question['corpus']}: another vocabulary than that of {HF}; no time is reported")

    def groups(self, records):
        """The last session in one table."""
        groups = grouped(last_session(records), "corpus").values()
        return {"": [line for group in groups for line in fastest_first(group)]}


def in_their_order(question, theirs):
    """Our vocabulary, with the symbols that continue words numbered as theirs."""
    from piecemill._core import Progress, WordCounter
    from piecemill.sources import open_source
    from piecemill.training.wordpiece import RAW_WORDS, Initial, WordPiecePlan, spelled

    plan = WordPiecePlan(vocab_size=question["vocab"], special_tokens=SPECIAL)
    counter = WordCounter(RAW_WORDS, 1 << 30, "")
    for block in open_source(RECORDED[question["corpus"]].jsonl).blocks():
        counter.add(block.data, block.ends)
    words = spelled(*counter.finish().arrays(), plan, 0)
    place = {text: i for i, text in enumerate(theirs)}
    initial = Initial.of(words, plan, lambda c: place["##" + c])
    return initial.vocabulary(initial.corpus(words, plan, 2).train(Progress()).merges.tolist())


if __name__ == "__main__":
    WordPiece().main()
