"""Training a WordPiece vocabulary of 30,522, against HF `tokenizers`: `python benchmarks/wordpiece.py`.

Each run is a process that reads the corpus (JSONL), trains and saves; the tools take turns. Vocabularies are compared
first. HF numbers the symbols that continue words in an order that changes from process to process, and ties go by ids:
so ours is trained in the order of each of its runs, and a difference ends the benchmark. Runs are appended to
`results.jsonl`; the table is printed, for `docs/benchmarks.md`.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

TOOLS = ("piecemill", "tokenizers")
SIZE, SPECIAL = 30_522, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train(tool: str, source: Path, out: Path) -> None:
    """What a measured process does; it imports only the tool."""
    if tool == "piecemill":
        from piecemill import train_wordpiece

        return train_wordpiece(source, vocab_size=SIZE, special_tokens=SPECIAL).save(out, force=True)
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=SPECIAL, show_progress=False)
    with source.open(encoding="utf-8") as lines:
        made.train_from_iterator((json.loads(line)["text"] for line in lines), trainer)
    out.mkdir(parents=True, exist_ok=True)
    made.save(str(out / "tokenizer.json"))


def vocabulary(out: Path) -> list[str]:
    vocab = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    return sorted(vocab, key=vocab.__getitem__)


def in_their_order(source: Path, theirs: list[str]) -> list[str]:
    """Our vocabulary, with the symbols that continue words numbered as theirs."""
    from piecemill._core import Progress, WordCounter
    from piecemill.sources import open_source
    from piecemill.training.wordpiece import RAW_WORDS, Initial, WordPiecePlan, spelled

    plan = WordPiecePlan(vocab_size=SIZE, special_tokens=tuple(SPECIAL))
    counter = WordCounter(RAW_WORDS, 1 << 30, "")
    for block in open_source(source).blocks():
        counter.add(block.data, block.ends)
    words = spelled(*counter.finish().arrays(), plan, 0)
    place = {text: i for i, text in enumerate(theirs)}
    initial = Initial.of(words, plan, lambda c: place["##" + c])
    return initial.vocabulary(initial.corpus(words, plan, 2).train(Progress()).merges.tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["english-4mb", "python-20mb"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        tool, source, out = args.worker
        return train(tool, Path(source), Path(out))
    from measure import machine, measure, median_and_spread
    from protocol import CACHE, RESULTS, append, installed_version

    session = time.strftime("%Y-%m-%dT%H:%M:%S")
    print("| corpus | tool | seconds | x | CPU s | peak MB | runs |\n|---|---|---|---|---|---|---|")
    for corpus in args.only:
        source, runs = CACHE / f"{corpus}.jsonl", {tool: [] for tool in TOOLS}
        for _ in range(args.repeats):
            for tool in TOOLS:
                out = CACHE / "runs" / f"wordpiece-{tool}"
                command = [sys.executable, __file__, "--worker", tool, str(source), str(out)]
                runs[tool].append(measure(command, threads=2, log=CACHE / "logs" / f"wordpiece-{tool}.log"))
                if runs[tool][-1].outcome != "ok":
                    raise SystemExit(f"{tool}: {runs[tool][-1].message}")
            theirs = vocabulary(CACHE / "runs" / "wordpiece-tokenizers")
            if in_their_order(source, theirs) != theirs:
                raise SystemExit(f"{corpus}: another vocabulary than that of tokenizers; no time is reported")
        first = median_and_spread([run.seconds for run in runs["piecemill"]])[0]
        for tool in TOOLS:
            middle, low, high = median_and_spread([run.seconds for run in runs[tool]])
            cpu = median_and_spread([run.cpu_seconds for run in runs[tool]])[0]
            peak = median_and_spread([run.peak_bytes for run in runs[tool]])[0]
            print(
                f"| {corpus} | {tool} {installed_version(tool)} | {middle:.2f} ({low:.2f}-{high:.2f}) | "
                f"{middle / first:.1f} | {cpu:.2f} | {peak / 1e6:.0f} | {args.repeats} |"
            )
            facts = {"benchmark": "wordpiece", "session": session, "machine": machine(), "corpus": corpus}
            about = {"input": CACHE.joinpath(f"{corpus}.sha256").read_text().strip(), "vocab": SIZE}
            told = {"threads": 2, "tool": tool, "version": installed_version(tool)}
            append(RESULTS, {**facts, **about, **told, "runs": [asdict(run) for run in runs[tool]]})


if __name__ == "__main__":
    main()
