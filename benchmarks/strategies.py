"""What asking differently costs: `python benchmarks/strategies.py`.

The same 20 MB of Python files through HF `tokenizers`, SentencePiece and gigatoken: one document at a time, in
batches, with threads, with processes, as one concatenated string; and through `piecemill prepare`. Documents a
second count encoding alone, with the text in memory; for `prepare` they count the whole process, from
the file to the shards. Ids are compared before any time is shown: all ways of one library must give the same, and
gigatoken those of HF. Only the concatenated string may not: there is no border between its documents.

Every run is appended to `results.jsonl`; complete sessions rewrite the table in `docs/benchmarks.md`.
"""

import shutil
from collections.abc import Sequence

import pipelines
import protocol
import tables
from corpus import RECORDED
from measure import median_and_spread
from pipelines import PIPELINES, PYTHON, SCRATCH, TOKENIZER, WORKERS, YARDSTICK
from protocol import CACHE, OURS, Entry, Session, ask, worker

SCRIPT = "strategy_peers.py"
MODEL = CACHE / "sentencepiece-16384.model"
JOINED = "one concatenated string"
STRATEGIES = ["one by one", "batches, one thread", "batches", "threads", "processes", JOINED]
VERSIONS = {
    "tokenizers": pipelines.TOKENIZERS,
    "sentencepiece": pipelines.SENTENCEPIECE,
    "gigatoken": PIPELINES[YARDSTICK].version,
}


def run_once(entry: Entry, corpus: str, cap: float) -> None:
    out, answer, source = SCRATCH / "strategy", SCRATCH / "strategy.json", RECORDED[corpus].jsonl
    shutil.rmtree(out, ignore_errors=True)
    if entry.ours:
        command = pipelines.prepare_command(PIPELINES[OURS], [source], out=out)
    else:
        model = MODEL if entry.tool == "sentencepiece" else TOKENIZER
        asked = {"library": entry.tool, "strategy": entry.how, "input": source, "model": model, "workers": WORKERS}
        command = worker(PYTHON, SCRIPT, "library", "encode", answer, **asked)
    what = f"strategies {corpus}"
    if entry.run(what, command, threads=WORKERS, cap=cap, tree=True, answer=None if entry.ours else answer):
        if entry.ours:
            entry.told[-1] = {"seconds": entry.runs[-1].seconds}
            entry.facts["digest"] = entry.facts.get("digest") or pipelines.produced(PIPELINES[OURS], out)
        else:
            entry.facts["digest"] = {name: value for name, value in entry.told[-1].items() if name != "seconds"}
    shutil.rmtree(out, ignore_errors=True)


def compare(entries: Sequence[Entry], prepared: dict) -> None:
    """Say how the ids compare; a difference where none may be ends the benchmark."""
    done = {(entry.tool, entry.how): entry for entry in entries if entry.finished}
    for (library, strategy), entry in done.items():
        base = done.get(("tokenizers" if library == "gigatoken" else library, STRATEGIES[0]))
        wanted = prepared if library == OURS else base and base.facts["digest"]
        if wanted is None:
            entry.agreement = "nothing to compare with"
        elif strategy == JOINED:
            more = entry.facts["digest"]["tokens"] - wanted["tokens"]
            entry.agreement = f"documents run together: {more:+,} tokens"
        elif entry.facts["digest"]["ordered"] == wanted["ordered"]:
            entry.agreement = "same ids"
        else:
            raise SystemExit(f"{library}, {strategy}: other ids than one document at a time. No time is reported.")


def keep(session: Session, entry: Entry, corpus: str) -> dict:
    made = RECORDED[corpus]
    return session.keep(
        entry,
        corpus=corpus,
        input=made.sha256,
        documents=made.documents,
        workers=WORKERS,
        memory_measured="sum of all processes, sampled",
        library=entry.tool,
        version=VERSIONS.get(entry.tool) or pipelines.version(PIPELINES[OURS]),
        strategy=entry.how,
        inside_seconds=[told["seconds"] for told in entry.told],
    )


def render(records: Sequence[dict]) -> str:
    """The last complete session: documents a second, against one at a time by the same library, and memory."""
    mine = tables.complete(records, "strategies")
    if not mine:
        return "No complete session has been recorded yet.\n"
    mine = tables.last_session(mine)
    first, machine = mine[0], mine[0]["machine"]
    return (
        f"\n{first['corpus']}, {first['documents']:,} documents, {first['workers']} workers or threads; "
        f"{machine['processor']}, {machine['cores']} cores; {first['session'][:10]}; input {first['input'][:16]}\n\n"
    ) + f"{table(mine)}\n"


def table(records: Sequence[dict]) -> str:
    base = {line["library"]: middle(line) for line in records if line["strategy"] == STRATEGIES[0]}
    rows = []
    for line in records:
        cells, single = [tables.why_not(line) if middle(line) is None else "", "", ""], base.get(line["library"])
        if middle(line) is not None:
            rates = [line["documents"] / seconds for seconds in line["inside_seconds"]]
            ratio = f"{single / middle(line):.2f}" if single else ""
            cells = [tables.spread(rates, digits=0), ratio, tables.spread_of(line["runs"], "peak_bytes", 1e6)]
        name = f"{line['library']} {line['version']}"
        rows.append([name, line["strategy"], *cells, str(len(line["runs"])), line["agreement"]])
    return tables.table(["library", "strategy", "documents/s", "x one by one", "peak MB", "runs", "ids"], rows)


def middle(line: dict) -> float | None:
    """The median of the seconds that count, or None if it did not finish."""
    return median_and_spread(line["inside_seconds"])[0] if tables.median(line) is not None else None


def main() -> None:
    args = protocol.parser(__doc__).parse_args()
    if args.table:
        return protocol.write_page("strategies", render, args.results)
    corpus = "python-5mb" if args.quick else "python-20mb"
    entries = [Entry(library, strategy) for library in VERSIONS for strategy in STRATEGIES]
    entries.append(Entry(OURS, "prepare, from the file to shards"))
    if args.dry_run:
        return protocol.dry_run(args, [(f"strategies {corpus}", [f"{one.tool}: {one.how}" for one in entries])])
    if pipelines.install([YARDSTICK]):
        raise SystemExit("the libraries could not be installed")
    pipelines.make_inputs(["python-5mb", corpus])
    if not MODEL.exists():
        source = RECORDED["python-5mb"].jsonl
        protocol.call(worker(PYTHON, SCRIPT, "library", "train", SCRATCH / "answer.json", input=source, model=MODEL))
    session, prepared = Session("strategies", args), pipelines.reference(corpus)
    ask(
        entries,
        lambda entry: run_once(entry, corpus, args.cap),
        repeats=1 if args.quick else args.repeats or 5,
        compare=lambda: compare(entries, prepared),
    )
    print(table([keep(session, entry, corpus) for entry in entries]))
    session.finish(render)


if __name__ == "__main__":
    main()
