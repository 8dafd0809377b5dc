"""What asking differently costs: `python benchmarks/strategies.py`.

The same 20 MB of Python files through HF `tokenizers`, SentencePiece and gigatoken: one document at a time, in
batches, with threads, with processes, as one concatenated string; and through `piecemill prepare`. Documents a
second count encoding alone, with the text in memory; for `prepare` they count the whole process, from
the file to the shards. Ids are compared before any time is shown: all ways of one library must give the same, and
gigatoken those of HF. Only the concatenated string may not: there is no border between its documents.

Every run is appended to `results.jsonl`; complete sessions rewrite the table in `docs/benchmarks.md`.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from asking import PAGE, RESULTS, parser, session
from corpus import CACHE, RECORDED
from measure import Run, append, measure, median_and_spread, read, record
from pipelines import (
    HERE,
    OURS,
    PIPELINES,
    PYTHON,
    SENTENCEPIECE,
    TOKENIZERS,
    YARDSTICK,
    install,
    prepare_command,
    produced,
    version,
)
from prepare import SCRATCH, TOKENIZER, WORKERS, Question, reference, train_tokenizer
from tables import rewrite, spread, why_not

SCRIPT = HERE / "peers_prepare" / "run_strategy.py"
MODEL = CACHE / "sentencepiece-16384.model"
LIBRARIES = ["tokenizers", "sentencepiece", "gigatoken"]
JOINED = "one concatenated string"
STRATEGIES = ["one by one", "batches, one thread", "batches", "threads", "processes", JOINED]


@dataclass(slots=True)
class Entry:
    """One way of asking one library."""

    library: str
    strategy: str
    runs: list[Run] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    "Of encoding alone; of `prepare` the whole process."
    digest: dict = field(default_factory=dict)
    reason: str = ""
    agreement: str = ""

    @property
    def finished(self) -> bool:
        return bool(self.runs) and not self.reason and all(run.outcome == "ok" for run in self.runs)


def run_once(entry: Entry, corpus: str, time_limit: float) -> None:
    out = SCRATCH / "strategy"
    shutil.rmtree(out, ignore_errors=True)
    source = RECORDED[corpus].jsonl
    print(f"strategies {corpus}  {entry.library}: {entry.strategy}, run {len(entry.runs) + 1}", file=sys.stderr)
    if entry.library == OURS:
        command = prepare_command(
            PIPELINES[OURS], inputs=[source], tokenizer=TOKENIZER, workers=WORKERS, memory="2GiB", out=out
        )
    else:
        model = MODEL if entry.library == "sentencepiece" else TOKENIZER
        command = [
            *[str(PYTHON), str(SCRIPT), "encode", "--library", entry.library, "--strategy", entry.strategy],
            *["--input", str(source), "--model", str(model), "--workers", str(WORKERS), "--out", str(out)],
        ]
    log = SCRATCH / "strategy.log"
    entry.runs.append(measure(command, threads=WORKERS, log=log, time_limit=time_limit, tree=True))
    if entry.finished and entry.library == OURS:
        entry.seconds.append(entry.runs[-1].seconds)
        entry.digest = entry.digest or produced(PIPELINES[OURS], out)
    elif entry.finished:
        found = json.loads((out / "inside.json").read_text())
        entry.seconds.append(found.pop("seconds"))
        entry.digest = found
    shutil.rmtree(out, ignore_errors=True)


def compare(entries: Sequence[Entry], prepared: dict | None) -> None:
    """Say how the ids compare; a difference where none may be ends the benchmark."""
    done = {(entry.library, entry.strategy): entry for entry in entries if entry.finished}
    for (library, strategy), entry in done.items():
        if library == OURS:
            wanted = prepared
        else:
            judge = done.get(("tokenizers" if library == "gigatoken" else library, STRATEGIES[0]))
            wanted = judge.digest if judge else None
        if wanted is None:
            entry.agreement = "nothing to compare with"
        elif strategy == JOINED:
            more = entry.digest["tokens"] - wanted["tokens"]
            entry.agreement = f"documents run together: {more:+,} tokens"
        elif entry.digest["ordered"] == wanted["ordered"]:
            entry.agreement = "same ids"
        else:
            raise SystemExit(f"{library}, {strategy}: other ids than one document at a time. No time is reported.")


def keep(entries: Sequence[Entry], corpus: str, session: dict) -> None:
    for entry in entries:
        line = record(
            entry.runs,
            benchmark="strategies",
            **session,
            corpus=corpus,
            input=RECORDED[corpus].sha256,
            documents=RECORDED[corpus].documents,
            workers=WORKERS,
            memory_measured="sum of all processes, sampled",
            library=entry.library,
            version=library_version(entry.library),
            strategy=entry.strategy,
            reason=entry.reason,
            agreement=entry.agreement,
            digest=entry.digest,
            inside_seconds=entry.seconds,
        )
        append(RESULTS, line)


def library_version(library: str) -> str:
    others = {"tokenizers": TOKENIZERS, "sentencepiece": SENTENCEPIECE}
    return others.get(library) or version(PIPELINES[library])


def table(records: Sequence[dict]) -> str:
    """The last complete session: documents a second, against one at a time by the same library, and memory."""
    ours = [one for one in records if one.get("benchmark") == "strategies" and one["complete"]]
    if not ours:
        return "No complete session has been recorded yet.\n"
    ours = [one for one in ours if one["session"] == ours[-1]["session"]]
    first, machine_ = ours[0], ours[0]["machine"]
    lines = [
        f"\n{first['corpus']}, {first['documents']:,} documents, {first['workers']} workers or threads; "
        f"{machine_['processor']}, {machine_['cores']} cores; {first['session'][:10]}; input {first['input'][:16]}\n\n"
        "| library | asked | documents/s | x one by one | peak MB | runs | ids |\n|---|---|---|---|---|---|---|\n"
    ]
    base = {one["library"]: middle(one) for one in ours if one["strategy"] == STRATEGIES[0]}
    for one in ours:
        cells = [f"{one['library']} {one['version']}", one["strategy"]]
        if middle(one) is None:
            cells += [one["reason"] or why_not(one), "", ""]
        else:
            rates = [one["documents"] / seconds for seconds in one["inside_seconds"]]
            single = base.get(one["library"])
            ratio = f"{single / middle(one):.2f}" if single else ""
            cells += [per_second(rates), ratio, spread(one["runs"], "peak_bytes", 1e6)]
        lines.append(f"| {' | '.join([*cells, str(len(one['runs'])), one['agreement']])} |\n")
    return "".join(lines) + "\n"


def middle(one: dict) -> float | None:
    """The median of the seconds that count, or None if it did not finish."""
    good = one["runs"] and not one["reason"] and all(run["outcome"] == "ok" for run in one["runs"])
    return median_and_spread(one["inside_seconds"])[0] if good else None


def per_second(rates: Sequence[float]) -> str:
    return "{:,.0f} ({:,.0f}-{:,.0f})".format(*median_and_spread(rates))


def show(entries: Sequence[Entry], documents: int) -> None:
    for entry in entries:
        if entry.finished:
            rates = per_second([documents / seconds for seconds in entry.seconds])
            peak = median_and_spread([run.peak_bytes for run in entry.runs])[0]
            text = f"{rates} documents/s  peak {peak / 1e6:,.0f} MB  {entry.agreement}"
        elif entry.runs and not entry.reason:
            text = f"{entry.runs[-1].outcome}  {entry.runs[-1].message[-300:]}"
        else:
            text = entry.reason
        print(f"  {entry.library:14} {entry.strategy:24} {text}", flush=True)


def main() -> None:
    args = parser(__doc__, cap=600).parse_args()
    if args.table:
        rewrite(PAGE, "strategies", table(read(RESULTS)))
        return

    corpus = "python-5mb" if args.quick else "python-20mb"
    failed = install([YARDSTICK])
    if failed:
        raise SystemExit("the libraries could not be installed")
    for name in ("python-127mb", "python-5mb", corpus):
        subprocess.run([sys.executable, str(HERE / "corpus.py"), name], check=True)
    train_tokenizer()
    if not MODEL.exists():
        source = RECORDED["python-5mb"].jsonl
        command = [str(PYTHON), str(SCRIPT), "train", "--input", str(source), "--model", str(MODEL)]
        subprocess.run(command, check=True)

    this = session(args)
    entries = [Entry(library, strategy) for library in LIBRARIES for strategy in STRATEGIES]
    if not args.without_ours:
        entries.append(Entry(OURS, "prepare, from the file to shards"))
    for count in range(1 if args.quick else args.repeats or 5):
        pending = [entry for entry in entries if entry.finished or (not count and not entry.reason)]
        for entry in pending:
            run_once(entry, corpus, args.cap)
        if not count:
            prepared = None if args.without_ours else reference(Question("strategies", corpus, "jsonl", "2GiB"))
            compare(entries, prepared)
    show(entries, RECORDED[corpus].documents)
    keep(entries, corpus, this)
    if this["complete"]:
        rewrite(PAGE, "strategies", table(read(RESULTS)))
        print(f"\nthe table in {PAGE} is rewritten")


if __name__ == "__main__":
    main()
