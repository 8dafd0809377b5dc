"""Training a WordPiece vocabulary of 30,522, against HF `tokenizers`: `python benchmarks/wordpiece.py`.

HF numbers the symbols that continue words in an order that changes from process to process, and ties go by ids. So ours
is trained in the order of each run of HF, and a difference ends the benchmark.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tables
from corpus import RECORDED
from protocol import Entry, worker
from session import Benchmark
from tables import OURS

HF = "tokenizers"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, slots=True)
class Question:
    corpus: str
    vocab: int = 30_522
    threads: int = 2

    def __str__(self) -> str:
        return f"wordpiece {self.corpus}"


class WordPiece(Benchmark):
    name, kinds, peers = "wordpiece", ("english-4mb", "python-20mb"), (HF,)
    must_be_default = ("only",)

    def questions(self) -> list[Question]:
        return [Question(corpus) for corpus in self.args.only]

    def command(self, question: Question, entry: Entry, out: Path) -> list[str]:
        asked = {"corpus": RECORDED[question.corpus].jsonl, "vocab": question.vocab, "special": SPECIAL}
        return worker(sys.executable, "train_peers.py", entry.tool, "train_wordpiece", out, **asked)

    def check(self, question: Question, entry: Entry, out: Path) -> None:
        if entry.tool == HF:
            vocab = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
            theirs = sorted(vocab, key=vocab.__getitem__)
            if in_their_order(question, theirs) != theirs:
                raise SystemExit(f"{question}: another vocabulary than that of {HF}; no time is reported")

    def tables(self, records: Sequence[dict]) -> list[str]:
        last = tables.last_session(records)
        groups = tables.latest(last, "corpus")
        ours = {corpus: tables.median(tables.of(group, OURS)) for (corpus,), group in groups.items()}
        names = {"corpus": tables.field("corpus"), "tool": tables.titled}
        figures = {**tables.WALL, "x": tables.times(lambda line: ours[line["corpus"]]), **tables.CPU_AND_PEAK}
        lines = [line for group in groups.values() for line in group]
        return [tables.section("", tables.machine_and_time(last[0]), tables.table(lines, names, figures, tables.RUNS))]


def in_their_order(question: Question, theirs: list[str]) -> list[str]:
    """Our vocabulary, with the symbols that continue words numbered as theirs."""
    from piecemill._core import Progress, WordCounter
    from piecemill.sources import open_source
    from piecemill.training.wordpiece import RAW_WORDS, Initial, WordPiecePlan, spelled

    plan = WordPiecePlan(vocab_size=question.vocab, special_tokens=SPECIAL)
    counter = WordCounter(RAW_WORDS, 1 << 30, "")
    for block in open_source(RECORDED[question.corpus].jsonl).blocks():
        counter.add(block.data, block.ends)
    words = spelled(*counter.finish().arrays(), plan, 0)
    place = {text: i for i, text in enumerate(theirs)}
    initial = Initial.of(words, plan, lambda c: place["##" + c])
    return initial.vocabulary(initial.corpus(words, plan, 2).train(Progress()).merges.tolist())


if __name__ == "__main__":
    WordPiece().main()
