"""Preparing a corpus, against everybody who does: `python benchmarks/prepare.py`, or with `--quick`.

    127mb   8,238 Python files in one JSONL; Piecemill, Piecemill before its redesign, and all pipelines, three of them
            also with `tokenizers` 1.0 and with gigatoken
    2gb     two billion bytes of code and other text, as JSONL, Parquet and .jsonl.zst; Piecemill, with 2 GiB and with
            1 GiB, and gigatoken's own encode_batch in memory as the yardstick
    dedup   the same JSONL, in which no document occurs twice; Piecemill with and without `--dedup exact`
    ray     the same JSONL; Piecemill with threads, and on Ray clusters of one, two and four nodes on this machine

Each pipeline is a process of its own with two workers, from the file to tokens on disk, all with one tokenizer of
50,257 entries. What it wrote is read back and compared with HF `tokenizers` before any time is shown; a
difference of ours ends the benchmark, one of a peer takes its time out of the table.
`--setup` makes all that is not measured (corpora, environments, references) and ends.
Memory is that of all processes together. Every run is appended to `results.jsonl`; complete sessions rewrite the
table in `docs/benchmarks.md`.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import tables_prepare
from asking import PAGE, RESULTS, choose, fastest_first, in_words, parser, rounds, session
from corpus import CACHE, RECORDED, compress
from measure import Run, append, measure, median_and_spread, read, record
from pipelines import (
    BEFORE,
    DEDUP,
    OURS,
    PEERS,
    PIPELINES,
    PYTHON,
    RAY,
    YARDSTICK,
    Pipeline,
    cluster,
    install,
    prepare_command,
    produced,
    version,
)

HERE = Path(__file__).parent
SCRATCH = CACHE / "runs-prepare"
TOKENIZER = CACHE / "tokenizer-50257" / "tokenizer.json"
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Question:
    """What every pipeline is asked."""

    name: str
    corpus: str
    format: str
    memory: str

    def __str__(self) -> str:
        return f"{self.name} {self.corpus}.{self.format} workers={WORKERS} memory={self.memory}"

    @property
    def input(self) -> Path:
        made = RECORDED[self.corpus]
        return {"parquet": made.parquet, "jsonl.zst": made.zst, "jsonl": made.jsonl}[self.format]


@dataclass(slots=True)
class Entry:
    """One pipeline on one question: its runs so far, and what it wrote."""

    pipeline: Pipeline
    runs: list[Run] = field(default_factory=list)
    reason: str = ""
    agreement: str = ""
    output_bytes: int = 0
    inside_seconds: list[float] = field(default_factory=list)
    "Of the yardstick: the seconds of the call alone."
    digest: dict = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return bool(self.runs) and not self.reason and all(run.outcome == "ok" for run in self.runs)


def questions(only: list[str], quick: bool) -> list[Question]:
    large = "python-5mb" if quick else "mixed-2000mb"
    asked = []
    if "127mb" in only:
        asked.append(Question("127mb", "python-5mb" if quick else "python-127mb", "jsonl", "2GiB"))
    if "2gb" in only:
        for kind in ("jsonl", "jsonl.zst") if quick else ("jsonl", "parquet", "jsonl.zst"):
            asked += [Question("2gb", large, kind, memory) for memory in ("2GiB", "1GiB")]
    return [*asked, *(Question(name, large, "jsonl", "2GiB") for name in ("dedup", "ray") if name in only)]


def pipelines(question: Question, peers: list[str], *, peers_on_2gb: bool) -> list[str]:
    """Which pipelines are asked, ours first."""
    if question.name == "dedup":
        return [OURS, DEDUP.name]
    if question.name == "ray":
        return [OURS, *(pipeline.name for pipeline in RAY)]
    if question.name == "127mb":
        return [OURS, BEFORE, YARDSTICK, *peers]
    if question.memory != "2GiB":  # the limit is ours alone; the others are asked once
        return [OURS]
    return [OURS, YARDSTICK, *(peers if peers_on_2gb and question.format != "jsonl.zst" else [])]


def ask(question: Question, entries: list[Entry], *, repeats: int | None, time_limit: float) -> None:
    """Every pipeline once, then the comparison, then the other rounds."""
    wanted = reference(question)
    for entry in entries:
        if not entry.reason:
            run_once(question, entry, time_limit, compare_with=wanted)
    rounds(entries, lambda entry: run_once(question, entry, time_limit), repeats)


def run_once(question: Question, entry: Entry, time_limit: float, *, compare_with: dict | None = None) -> None:
    name = entry.pipeline.name
    out = SCRATCH / name
    shutil.rmtree(out, ignore_errors=True)
    inputs = parts(question) if entry.pipeline.reads_whole_files else [question.input]
    if name == YARDSTICK and question.format == "jsonl.zst":
        inputs = [RECORDED[question.corpus].jsonl]  # how it comes into memory is not measured
    print(f"prepare {question}  {name}, run {len(entry.runs) + 1}", file=sys.stderr)
    with cluster(entry.pipeline.nodes, WORKERS) as address:
        command = prepare_command(
            entry.pipeline,
            inputs=inputs,
            tokenizer=TOKENIZER,
            workers=WORKERS,
            memory=question.memory,
            out=out,
            address=address,
        )
        # What the last one wrote is on its way to the disk; nobody shall wait for another's bytes.
        os.sync()
        # Our own time is never capped: a miss must be seen in full.
        limit = 24 * 3600 if entry.pipeline.ours else time_limit
        entry.runs.append(measure(command, threads=WORKERS, log=SCRATCH / f"{name}.log", time_limit=limit, tree=True))
    if entry.finished:
        entry.output_bytes = folder_bytes(out)
        if name == YARDSTICK:
            entry.inside_seconds.append(json.loads((out / "inside.json").read_text())["seconds"])
        if compare_with is not None:
            entry.digest = produced(entry.pipeline, out)
            judge(question, entry, compare_with)
    shutil.rmtree(out, ignore_errors=True)


def judge(question: Question, entry: Entry, wanted: dict) -> None:
    """Say how the tokens compare; other tokens than the reference's have no time."""
    found = entry.digest
    if found["ordered"] == wanted["ordered"]:
        entry.agreement = "same tokens"
    elif found["unordered"] == wanted["unordered"] and not entry.pipeline.ours:
        entry.agreement = "same tokens, documents in another order"
    else:
        entry.agreement = (
            f"other tokens: {found['documents']:,} documents, {found['tokens']:,} tokens; "
            f"expected {wanted['documents']:,}, {wanted['tokens']:,}"
        )
        entry.reason = entry.agreement
        if entry.pipeline.ours:
            raise SystemExit(f"{question}: ours has {entry.agreement}. No time is reported.")


def reference(question: Question) -> dict:
    """What HF `tokenizers` makes of the corpus; made once for each corpus and tokenizer."""
    made_with = hashlib.sha256(TOKENIZER.read_bytes()).hexdigest()[:16]
    target = CACHE / "reference" / f"{RECORDED[question.corpus].sha256[:16]}-{made_with}.json"
    if not target.exists():
        print(f"prepare reference for {question.corpus}", file=sys.stderr)
        target.parent.mkdir(parents=True, exist_ok=True)
        arguments = [str(RECORDED[question.corpus].jsonl), str(TOKENIZER), str(target)]
        subprocess.run([str(PYTHON), str(HERE / "peers_prepare" / "reference.py"), *arguments], check=True)
    return json.loads(target.read_text())


def parts(question: Question) -> list[Path]:
    """The corpus in a file for each worker, cut between documents. Not timed."""
    folder = CACHE / "parts" / f"{question.corpus}-{question.format}"
    paths = [folder / f"{number}.{question.format}" for number in range(WORKERS)]
    if all(path.exists() for path in paths):
        return paths
    shutil.rmtree(folder, ignore_errors=True)
    temporary = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    if question.format == "parquet":
        import pyarrow.parquet as pq

        source = pq.ParquetFile(question.input)
        groups = source.metadata.num_row_groups
        for number, path in enumerate(paths):
            with pq.ParquetWriter(temporary / path.name, source.schema_arrow, compression="zstd") as writer:
                for group in range(groups * number // WORKERS, groups * (number + 1) // WORKERS):
                    writer.write_table(source.read_row_group(group))
    else:
        cut_lines(question.input, [temporary / path.name for path in paths])
    temporary.rename(folder)
    return paths


def cut_lines(source: Path, targets: list[Path]) -> None:
    """Cut a file of lines into files of about the same size; together they are the same bytes."""
    size = source.stat().st_size
    with source.open("rb") as lines:
        for number, target in enumerate(targets):
            with target.open("wb") as part:
                while lines.tell() < size * (number + 1) // len(targets) and (line := lines.readline()):
                    part.write(line)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files that were left, caches and logs too."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def train_tokenizer() -> None:
    """The tokenizer of all pipelines, trained once from the 127 MB."""
    if TOKENIZER.exists():
        return
    command = [str(Path(sys.executable).parent / "piecemill"), "train", str(RECORDED["python-127mb"].jsonl)]
    options = ["--split", "gpt2", "--vocab-size", "50257", "--out", str(TOKENIZER.parent), "--quiet"]
    subprocess.run([*command, *options], check=True)


def keep(question: Question, entries: list[Entry], session: dict) -> None:
    for entry in entries:
        line = record(
            entry.runs,
            benchmark="prepare",
            **session,
            question=question.name,
            corpus=question.corpus,
            input=RECORDED[question.corpus].sha256,
            text_bytes=RECORDED[question.corpus].bytes,
            format=question.format,
            workers=WORKERS,
            memory=question.memory,
            memory_measured="sum of all processes, sampled",
            tool=entry.pipeline.name,
            version=version(entry.pipeline),
            tokenizers=entry.pipeline.tokenizers,
            reason=entry.reason,
            agreement=entry.agreement,
            digest=entry.digest,
            output_bytes=entry.output_bytes,
            inside_seconds=entry.inside_seconds,
        )
        append(RESULTS, line)


def show(question: Question, entries: list[Entry]) -> None:
    print(f"\n{question}")
    for entry in fastest_first(entries):
        more = f"wrote {entry.output_bytes / 1e6:8,.1f} MB  {entry.agreement}"
        if entry.inside_seconds:
            more += f"  encode alone {median_and_spread(entry.inside_seconds)[0]:.2f} s"
        print(f"  {entry.pipeline.name:28} {in_words(entry, more)}", flush=True)


def main() -> None:
    kinds = ["127mb", "2gb", "dedup", "ray"]
    flags = parser(__doc__, kinds=kinds, peers=PEERS, cap=1800)
    flags.add_argument("--peers-on-2gb", action="store_true", help="ask the peers about the 2 GB too (an hour or more)")
    flags.add_argument("--setup", action="store_true", help="make all that is not measured, and end")
    args = flags.parse_args()
    if args.table:
        tables_prepare.page(read(RESULTS), PAGE)
        return

    only = choose(args.only, kinds, "--only")
    chosen = choose(args.peers, PEERS, "--peers")
    asked = questions(only, args.quick)
    failed = install([YARDSTICK, *([BEFORE, *chosen] if "127mb" in only or args.peers_on_2gb else [])])
    for name in dict.fromkeys(["python-127mb", *(question.corpus for question in asked)]):
        # In a process of its own, so that its memory is given back before anything is measured.
        subprocess.run([sys.executable, str(HERE / "corpus.py"), name], check=True)
    train_tokenizer()
    for question in asked:
        if question.format == "jsonl.zst":
            compress(RECORDED[question.corpus])
        reference(question)
    if args.setup:
        return

    this = session(args, all_peers=set(chosen) == set(PEERS))
    for question in asked:
        names = pipelines(question, chosen, peers_on_2gb=args.peers_on_2gb)
        if args.without_ours:
            names = [name for name in names if not PIPELINES[name].ours]
        entries = [Entry(PIPELINES[name], reason=failed.get(name, "")) for name in names]
        ask(question, entries, repeats=1 if args.quick else args.repeats, time_limit=args.cap)
        show(question, entries)
        keep(question, entries, this)
    for bar in tables_prepare.bars(tables_prepare.latest(read(RESULTS), this["session"])):
        print(f"{tables_prepare.WORDS[bar.passed]:12} {bar.promise}: {bar.measured}")
    if this["complete"]:
        tables_prepare.page(read(RESULTS), PAGE)
        print(f"\nthe table in {PAGE} is rewritten")


if __name__ == "__main__":
    main()
