"""Training a WordPiece vocabulary of 30,522, against HF `tokenizers`: `python benchmarks/wordpiece.py`.

Each run is a process that reads the corpus (JSONL), trains and saves; the tools take turns. HF numbers the symbols that
continue words in an order that changes from process to process, and ties go by ids. So ours is trained in the order of
each run of HF, and a difference ends the benchmark.
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
from protocol import CACHE, Entry, Session, choose, worker
from tables import OURS

CORPORA, VOCAB, HF = ("english-4mb", "python-20mb"), 30_522, "tokenizers"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def run_once(corpus: str, cap: float, entry: Entry) -> None:
    source, out = RECORDED[corpus].jsonl, CACHE / "runs" / f"wordpiece-{entry.tool}"
    shutil.rmtree(out, ignore_errors=True)
    options = {"corpus": source, "out": out, "vocab": VOCAB, "special": SPECIAL}
    answer = CACHE / "runs" / "wordpiece.json"
    command = worker(sys.executable, "train_peers.py", entry.tool, "train_wordpiece", answer, **options)
    if entry.run(f"wordpiece {corpus}", command, threads=2, cap=cap) and entry.tool == HF:
        vocab = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
        theirs = sorted(vocab, key=vocab.__getitem__)
        if in_their_order(source, theirs) != theirs:
            raise SystemExit(f"{corpus}: another vocabulary than that of {HF}; no time is reported")


def in_their_order(source: Path, theirs: list[str]) -> list[str]:
    """Our vocabulary, with the symbols that continue words numbered as theirs."""
    from piecemill._core import Progress, WordCounter
    from piecemill.sources import open_source
    from piecemill.training.wordpiece import RAW_WORDS, Initial, WordPiecePlan, spelled

    plan = WordPiecePlan(vocab_size=VOCAB, special_tokens=SPECIAL)
    counter = WordCounter(RAW_WORDS, 1 << 30, "")
    for block in open_source(source).blocks():
        counter.add(block.data, block.ends)
    words = spelled(*counter.finish().arrays(), plan, 0)
    place = {text: i for i, text in enumerate(theirs)}
    initial = Initial.of(words, plan, lambda c: place["##" + c])
    return initial.vocabulary(initial.corpus(words, plan, 2).train(Progress()).merges.tolist())


def facts(corpus: str, entry: Entry) -> dict:
    about = {"corpus": corpus, "input": RECORDED[corpus].sha256, "vocab": VOCAB, "threads": 2}
    return {**about, "version": protocol.installed_version(entry.tool)}


def render(records: Sequence[dict]) -> str:
    done = tables.complete(records, "wordpiece")
    last = tables.last_session(done) if done else []
    rows = []
    for (corpus,), group in tables.grouped(last, "corpus").items():
        ours = tables.median(tables.of(group, OURS))
        rows += [
            [corpus, tables.titled(line), *tables.measured(line, ours), str(len(line["runs"]))]
            for line in tables.fastest_first(group)
        ]
    head = f"\n{tables.machine(last[0])}; {tables.moment(last[0])}\n\n" if last else "\n"
    return head + tables.table(["corpus", "tool", "wall s", "x", "CPU s", "peak MB", "runs"], rows) + "\n"


def main() -> None:
    args = protocol.parser(__doc__, kinds=CORPORA).parse_args()
    if args.table:
        return protocol.write_page("wordpiece", render, args.results)
    only = choose(args.only, CORPORA, "--only")
    if args.dry_run:
        return protocol.dry_run(args, ((f"wordpiece {corpus}", [OURS, HF]) for corpus in only))
    protocol.make_corpora(only)
    (CACHE / "runs").mkdir(parents=True, exist_ok=True)
    session = Session("wordpiece", args, complete=only == list(CORPORA))
    for corpus in only:
        entries = [Entry(OURS), Entry(HF)]
        session.ask(f"wordpiece {corpus}", entries, partial(run_once, corpus, args.cap), partial(facts, corpus))
    session.finish(render)


if __name__ == "__main__":
    main()
