"""Preparing a corpus, against everybody who does: `python benchmarks/prepare.py`, or with `--quick`.

    127mb   8,238 Python files in one JSONL; Piecemill, Piecemill before its redesign, and all pipelines, three of them
            also with `tokenizers` 1.0 and with gigatoken
    2gb     two billion bytes of code and other text, as JSONL, Parquet and .jsonl.zst; Piecemill, with 2 GiB and with
            1 GiB, and gigatoken's own encode_batch in memory as the yardstick
    dedup   the same JSONL, in which no document occurs twice; Piecemill with and without `--dedup exact`
    ray     the same JSONL; Piecemill with threads, and on Ray clusters of one, two and four nodes on this machine

Each pipeline is a separate process with two workers, from the file to tokens on disk, all with one tokenizer of
50,257 entries. What it wrote is read back and compared with HF `tokenizers` before any time is shown; a
difference of ours ends the benchmark, one of a peer takes its time out of the table.
`--setup` makes all that is not measured (corpora, environments, references) and ends.
Memory is that of all processes together. Every run is appended to `results.jsonl`; complete sessions rewrite the
table in `docs/benchmarks.md`, which shows the last complete session of each question.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pipelines
import protocol
import tables
from corpus import RECORDED, compress
from measure import median_and_spread
from pipelines import BEFORE, PIPELINES, SCRATCH, WORKERS, YARDSTICK, reference
from protocol import CACHE, Entry, Session, choose
from tables import OURS, Bar, at_most, bar, median, of

KINDS = ["127mb", "2gb", "dedup", "ray"]
GIB = 2**30
LARGE, FORMATS = "mixed-2000mb", ("jsonl", "parquet", "jsonl.zst")


@dataclass(frozen=True, slots=True)
class Question:
    """What every pipeline has to do."""

    question: str
    corpus: str
    format: str
    memory: str

    def __str__(self) -> str:
        return f"{self.question} {self.corpus}.{self.format} workers={WORKERS} memory={self.memory}"

    @property
    def input(self) -> Path:
        made = RECORDED[self.corpus]
        return {"parquet": made.parquet, "jsonl.zst": made.zst, "jsonl": made.jsonl}[self.format]


def questions(only: Sequence[str], quick: bool) -> list[Question]:
    large = "python-5mb" if quick else LARGE
    asked = []
    if "127mb" in only:
        asked.append(Question("127mb", "python-5mb" if quick else "python-127mb", "jsonl", "2GiB"))
    if "2gb" in only:
        for kind in ("jsonl", "jsonl.zst") if quick else FORMATS:
            asked += [Question("2gb", large, kind, memory) for memory in ("2GiB", "1GiB")]
    return [*asked, *(Question(name, large, "jsonl", "2GiB") for name in ("dedup", "ray") if name in only)]


def asked_of(question: Question, peers: list[str]) -> list[str]:
    """Which pipelines are measured, ours first."""
    if question.question == "dedup":
        return [OURS, pipelines.DEDUP.name]
    if question.question == "ray":
        return [OURS, *(pipeline.name for pipeline in pipelines.RAY)]
    if question.question == "127mb":
        return [OURS, BEFORE, YARDSTICK, *peers]
    return [OURS, YARDSTICK] if question.memory == "2GiB" else [OURS]  # the limit is ours alone


def run_once(question: Question, cap: float, entry: Entry) -> None:
    pipeline, out = PIPELINES[entry.tool], SCRATCH / entry.tool
    shutil.rmtree(out, ignore_errors=True)
    inputs = parts(question) if pipeline.reads_whole_files else [question.input]
    if entry.tool == YARDSTICK and question.format == "jsonl.zst":
        inputs = [RECORDED[question.corpus].jsonl]  # how it comes into memory is not measured
    with pipelines.cluster(pipeline, WORKERS) as address:
        command = pipelines.prepare_command(pipeline, inputs, out=out, memory=question.memory, address=address)
        # What the last one wrote is on its way to the disk; nobody shall wait for another's bytes.
        os.sync()
        answer = pipelines.answer_of(out) if entry.tool == YARDSTICK else None
        ended = entry.run(f"prepare {question}", command, threads=WORKERS, cap=cap, tree=True, answer=answer)
    if ended:
        wrote = [path for path in out.rglob("*") if path.is_file() and not path.is_symlink()]
        entry.facts["output_bytes"] = sum(path.stat().st_size for path in wrote)  # caches and logs too
        entry.note = f"wrote {entry.facts['output_bytes'] / 1e6:,.1f} MB"
        if entry.tool == YARDSTICK:
            entry.facts["inside_seconds"].append(entry.told[-1]["seconds"])
            entry.note = f"encode alone {median_and_spread(entry.facts['inside_seconds'])[0]:.2f} s"
        if not entry.facts["digest"]:
            entry.facts["digest"] = pipelines.produced(pipeline, out)
            judge(question, entry, reference(question.corpus))
    shutil.rmtree(out, ignore_errors=True)


def judge(question: Question, entry: Entry, wanted: dict) -> None:
    """Say how the tokens compare; other tokens than the reference's have no time."""
    found = entry.facts["digest"]
    if found["ordered"] == wanted["ordered"]:
        entry.agreement = "same tokens"
    elif found["unordered"] == wanted["unordered"] and not entry.ours:
        entry.agreement = "same tokens, documents in another order"
    else:
        entry.reason = entry.agreement = (
            f"other tokens: {found['documents']:,} documents, {found['tokens']:,} tokens; "
            f"expected {wanted['documents']:,}, {wanted['tokens']:,}"
        )
        if entry.ours:
            raise SystemExit(f"{question}: ours has {entry.agreement}. No time is reported.")


def parts(question: Question) -> list[Path]:
    """The corpus in a file for each worker, cut between documents. Not timed."""
    folder = CACHE / "parts" / f"{question.corpus}-{question.format}"
    paths = [folder / f"{number}.{question.format}" for number in range(WORKERS)]
    if not all(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = [path.with_suffix(".part") for path in paths]
        cut_lines(question.input, unfinished)
        for path, made in zip(paths, unfinished, strict=True):
            made.rename(path)
    return paths


def cut_lines(source: Path, targets: list[Path]) -> None:
    """Cut a file of lines into files of about the same size; together they are the same bytes."""
    size = source.stat().st_size
    with source.open("rb") as lines:
        for number, target in enumerate(targets):
            with target.open("wb") as part:
                while lines.tell() < size * (number + 1) // len(targets) and (line := lines.readline()):
                    part.write(line)


def facts(question: Question, entry: Entry) -> dict:
    made, pipeline = RECORDED[question.corpus], PIPELINES[entry.tool]
    return asdict(question) | {
        **{"input": made.sha256, "text_bytes": made.bytes, "workers": WORKERS},
        **{"version": pipelines.version(pipeline), "tokenizers": pipeline.tokenizers},
        "memory_measured": "sum of all processes, sampled",
    }


# Tables


def latest(records: Sequence[dict]) -> dict[tuple, list[dict]]:
    """Of each question the records of the last complete session, fastest first."""
    groups = tables.grouped(tables.complete(records, "prepare"), "question", "corpus", "format", "memory")
    return {key: tables.fastest_first(tables.last_session(group)) for key, group in groups.items()}


def speed(record: dict | None) -> float | None:
    """Bytes of text a second: of the yardstick for its call alone, of the others from start to end of the process."""
    if record is None or median(record) is None:
        return None
    inside = record["inside_seconds"]
    return record["text_bytes"] / (median_and_spread(inside)[0] if inside else median(record))


def render(records: Sequence[dict]) -> str:
    groups = latest(records)
    return tables.bars_table("Bars of preparing", bars(groups)) + "".join(map(table, groups.values())) + "\n"


def table(group: Sequence[dict]) -> str:
    """One question: median (lowest-highest) of each, and how many times our time it took."""
    about = {"dedup": ", without and with dedup", "ray": ", with threads and on Ray"}
    first, ours, rows = group[0], median(of(group, OURS)), []
    for record in group:
        wall, ratio, cpu, peak = tables.measured(record, ours)
        rate, wrote = "", ""
        if median(record) is not None:
            rate, wrote = f"{speed(record) / 1e6:,.1f}", f"{record['output_bytes'] / 1e6:,.1f}"
            if record["tool"] == YARDSTICK:
                # Its wall time is no answer to the question: reading and saving were not its task.
                wall, ratio, cpu, peak, wrote = "encode_batch in memory alone", "", "", "", ""
        cells = [tables.titled(record), wall, ratio, rate, cpu, peak, wrote]
        rows.append([*cells, str(len(record["runs"])), record["agreement"]])
    header = ["pipeline", "wall s", "x ours", "MB/s of text", "CPU s", "peak MB", "wrote MB", "runs", "tokens"]
    return (
        f"\n## prepare: {first['corpus']}.{first['format']}, {first['workers']} workers, "
        f"ours with {first['memory']}{about.get(first['question'], '')}\n\n"
        f"{tables.machine(first)}; {first['session'][:10]}; "
        f"input {first['input'][:16]}, {first['text_bytes'] / 1e6:,.0f} MB of text\n\n"
    ) + tables.table(header, rows)


def bars(groups: dict[tuple, list[dict]]) -> list[Bar]:
    """The promises of preparing, on two cores."""
    small = groups.get(("127mb", "python-127mb", "jsonl", "2GiB"), [])
    others = [line for line in small if not line["tool"].startswith(OURS) and line["tool"] != YARDSTICK]
    default, ours = [line for line in others if "+" not in line["tool"]], of(small, OURS)
    found = [
        at_most("127 MB JSONL: at most 0.75x the time of the version before", ours, of(small, BEFORE), 0.75),
        _fastest("each other pipeline with its default library", 15, ours, default),
        _fastest("each with the fastest library it accepts", 3, ours, others),
    ]
    large = {key[2:]: group for key, group in groups.items() if key[:2] == ("2gb", LARGE)}
    found += [_yardstick(kind, large.get((kind, "2GiB"), [])) for kind in FORMATS]
    for memory, limit in (("2GiB", 2 * GIB), ("1GiB", GIB)):
        found += [_peak(kind, memory, limit, of(large.get((kind, memory), []), OURS)) for kind in FORMATS]
    for question, tool, words, limit in (
        ("dedup", f"{OURS}+dedup", "dedup of no duplicates: at most 1.25x the time of none", 1.25),
        ("ray", f"{OURS}+ray-1-node", "Ray on one machine: at most 1.15x the time of threads", 1.15),
    ):
        group = groups.get((question, LARGE, "jsonl", "2GiB"), [])
        found.append(at_most(f"2 GB jsonl, {words}", of(group, tool), of(group, OURS), limit))
    return found


def _fastest(whom: str, times: int, ours: dict | None, others: Sequence[dict]) -> Bar:
    """The fastest of the others decides: who is that much faster than it is so than each."""
    other = tables.fastest(others)
    return bar(
        f"127 MB JSONL: at least {times}x as fast as {whom}",
        [median(ours), median(other)],
        lambda ours, best: (f"{ours:.2f} s, {other['tool']} {best:.2f} s: {best / ours:.1f}x", best / ours >= times),
    )


def _yardstick(kind: str, group: Sequence[dict]) -> Bar:
    return bar(
        f"2 GB {kind}: at least 1.0x the bytes a second of gigatoken's encode_batch in memory",
        [speed(of(group, OURS)), speed(of(group, YARDSTICK))],
        lambda ours, other: (
            f"{ours / 1e6:,.1f} MB/s, {other / 1e6:,.1f} MB/s: {ours / other:.2f}x",
            ours / other >= 1,
        ),
    )


def _peak(kind: str, memory: str, limit: int, ours: dict | None) -> Bar:
    def judge(middle: float) -> tuple[str, bool]:
        # The highest run and not the median: a limit is a limit.
        peak = max(run["peak_bytes"] for run in ours["runs"])
        return f"{peak / GIB:.2f} GiB, median {middle / GIB:.2f}", peak <= limit

    promise = f"2 GB {kind} with --memory {memory}: all processes together at most {limit // GIB} GiB"
    return bar(promise, [median(ours, "peak_bytes")], judge)


def main() -> None:
    flags = protocol.parser(__doc__, kinds=KINDS, peers=pipelines.PEERS, cap=1800)
    flags.add_argument("--setup", action="store_true", help="make all that is not measured, and end")
    args = flags.parse_args()
    if args.table:
        return protocol.write_page("prepare", render, args.results)
    only, chosen = choose(args.only, KINDS, "--only"), choose(args.peers, pipelines.PEERS, "--peers")
    asked = questions(only, args.quick)
    if args.dry_run:
        tools = ((question, asked_of(question, chosen)) for question in asked)
        return protocol.dry_run(args, tools, "set up, not measured" if args.setup else "")
    failed = pipelines.install([YARDSTICK, *([BEFORE, *chosen] if "127mb" in only else [])])
    pipelines.make_inputs([question.corpus for question in asked])
    for question in asked:
        if question.format == "jsonl.zst":
            compress(RECORDED[question.corpus])
        reference(question.corpus)
    if args.setup:
        return
    session = Session("prepare", args, complete=set(chosen) == set(pipelines.PEERS))
    for question in asked:
        names = asked_of(question, chosen)
        entries = [Entry(name, reason=failed.get(name, "")) for name in names]
        for entry in entries:
            entry.facts = {"digest": {}, "output_bytes": 0, "inside_seconds": []}
        session.ask(question, entries, partial(run_once, question, args.cap), partial(facts, question))
    protocol.show_bars(bars(latest([line | {"complete": True} for line in session.records()])))
    session.finish(render)


if __name__ == "__main__":
    main()
