"""Loading batches, against everybody who does: `python benchmarks/load.py`, or with `--quick`.

The tokens of 127 MB of Python, batches of 8 and 32 rows of 1,024 and 2,048 tokens in shuffled order, with 0 to 2
workers (processes for the peers, threads for Piecemill), on two cores. Every loader has the tokens in its own format
and gives what it gives to a training loop in main memory. Each run is a process (`peers/load_peers.py`) that takes
batches for some seconds of each kind; the first batches, imports and opening are not counted.

Before any time is shown, an epoch of rows is compared with rows cut by numpy; a difference of ours ends the benchmark,
one of a peer takes its times out of the table. The ceiling is a bare numpy gather of the same rows from memory. Every
run is appended to `results.jsonl`; complete sessions rewrite the table in `docs/benchmarks.md`.

The peers live in the environments of `pipelines.py`. Two of those have no torch, which weighs gigabytes; they and
Piecemill's own borrow that of litdata, which comes behind everything they have themselves.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import pipelines
import protocol
import tables
from corpus import RECORDED
from measure import median_and_spread
from peers.worker import digest_rows
from protocol import CACHE, OURS, PIECEMILL, Entry, Session, call
from tables import Bar

CEILING = "numpy-gather"
WITH_TORCH = "litdata"
KINDS = ["8x1024", "8x2048", "32x1024", "32x2048"]
WINDOWS = [1024, 2048]
CORES = 2


@dataclass(frozen=True, slots=True)
class Loader:
    """One way from tokens on disk to batches."""

    name: str
    environment: str = ""
    "The pipeline in whose environment it runs, if it is not that of its name."
    writes: Sequence[int] = ()
    "The windows for which it has its own files; nothing if it reads the tokens as they are."
    stride_is_window: bool = False
    "Whether rows begin every `window` tokens, as ours do, rather than every window + 1."
    workers: tuple[int, ...] = (0, 1, 2)
    replaces: bool = False
    "Whether it draws with replacement, so that an epoch is not all rows."

    @property
    def pipeline(self) -> pipelines.Pipeline:
        return pipelines.PIPELINES[self.environment or self.name]

    @property
    def version(self) -> str:
        return "" if self.environment else pipelines.version(self.pipeline)

    def command(self, verb: str, tokens: Path, **options: object) -> list[str]:
        """A worker with the tokens, its own folder beside them, and torch."""
        python = sys.executable if self.name == OURS else self.pipeline.python
        torch = next(pipelines.PIPELINES[WITH_TORCH].environment.glob("lib/python*/site-packages"))
        folder, answer = tokens.parent / self.name, tokens.parent / "answer.json"
        asked = {"tokens": tokens, "out": folder, "site_behind": torch, **options}
        return protocol.worker(python, "load_peers.py", self.name, verb, answer, **asked)


LOADERS = {
    loader.name: loader
    for loader in [
        Loader(OURS, stride_is_window=True),
        Loader(CEILING, WITH_TORCH, stride_is_window=True, workers=(0,)),
        Loader("litdata", writes=WINDOWS),
        Loader("mosaicml-streaming", writes=WINDOWS),
        Loader("datasets", writes=WINDOWS),
        Loader("datatrove", writes=WINDOWS[:1]),
        Loader("torch-memmap", WITH_TORCH, stride_is_window=True),
        Loader("nanogpt-loop", WITH_TORCH, workers=(0,), replaces=True),
    ]
}
PEERS = [name for name in LOADERS if name not in (OURS, CEILING)]
# The bar names these; the other two have no format of their own.
LIBRARIES = ("litdata", "mosaicml-streaming", "datasets", "datatrove")


def make_tokens(corpus: str) -> Path:
    """Our shards of a corpus, and the same tokens in one array. Made once."""
    folder = CACHE / "load" / corpus
    if not (folder / "tokens.npy").exists():
        command = [PIECEMILL, "prepare", str(RECORDED[corpus].jsonl), "--out", str(folder / OURS), "--quiet"]
        command += ["--tokenizer", str(pipelines.TOKENIZER.parent), "--eos", "<|endoftext|>"]
        subprocess.run(command, check=True)
        parts = [np.load(path) for path in sorted((folder / OURS / "all").glob("*.tokens.npy"))]
        np.save(folder / ".tokens.npy", np.concatenate(parts))
        os.replace(folder / ".tokens.npy", folder / "tokens.npy")
    return folder / "tokens.npy"


def wanted_rows(tokens: np.ndarray, window: int, stride: int) -> dict:
    count = (len(tokens) - window - 1) // stride + 1
    rows = np.lib.stride_tricks.sliding_window_view(tokens, window + 1)[: (count - 1) * stride + 1 : stride]
    return digest_rows([rows])


def check(loader: Loader, tokens: Path) -> tuple[str, str]:
    """Write the loader's own files, once. Then how its rows compare with those of numpy, or why it has no time."""
    stream = np.load(tokens)
    try:
        for window in loader.writes:
            marker = tokens.parent / loader.name / f"{window}.done"
            if not marker.exists():
                print(f"load    writing {loader.name} {window}", file=sys.stderr)
                shutil.rmtree(marker.with_suffix(""), ignore_errors=True)  # what a stopped one left
                call(loader.command("write", tokens, window=window))
                marker.touch()
        for window in WINDOWS:
            found = call(loader.command("check", tokens, window=window, batch=8, workers=0))
            if loader.replaces:
                whole = stream.tobytes()
                if not all(found_in(whole, np.array(row, stream.dtype).tobytes()) for row in found["some"]):
                    return "", f"rows of {window} that are not in the tokens"
                continue
            want = wanted_rows(stream, window, window if loader.stride_is_window else window + 1)
            if (found["rows"], found["sha256"]) != (want["rows"], want["sha256"]):
                return "", f"other rows of {window}: {found['rows']:,}, expected {want['rows']:,}"
    except RuntimeError as error:
        return "", str(error)
    return "rows of the tokens, drawn with replacement" if loader.replaces else "same rows", ""


def found_in(whole: bytes, row: bytes) -> bool:
    at = whole.find(row)
    while at >= 0 and at % 2:
        at = whole.find(row, at + 1)
    return at >= 0


def time_once(entry: Entry, tokens: Path, seconds: float, cap: float) -> None:
    command = LOADERS[entry.tool].command("time", tokens, ask=KINDS, workers=int(entry.how), seconds=seconds)
    if not entry.run("load   ", command, threads=CORES, cap=cap, tree=True, answer=Path(command[-1])):
        last = entry.runs[-1]
        entry.reason = entry.reason or f"{last.outcome}: {last.message[-200:]}"


# Tables


def latest(records: Sequence[dict]) -> list[dict]:
    """The records of the last session; only complete ones where there are any."""
    return tables.last_session(
        tables.complete(records, "load") or [line for line in records if line.get("benchmark") == "load"]
    )


def speeds(record: dict, kind: str) -> list[float]:
    """Tokens a second in every run."""
    return [answer[kind]["tokens"] / answer[kind]["seconds"] for answer in record["answers"]]


def speed(record: dict, kind: str) -> float | None:
    """The median; None of a loader that has other rows or did not finish."""
    found = speeds(record, kind)
    return median_and_spread(found)[0] if found and not record["reason"] else None


def kinds_of(records: Sequence[dict]) -> list[str]:
    return list(next((answer for record in records for answer in record["answers"]), {}))


def best(records: Sequence[dict], tools: Sequence[str], kind: str) -> tuple[float, str]:
    """The fastest of some loaders, with the workers that suit it; 0 if there is none."""
    found = [(speed(record, kind) or 0, record["tool"]) for record in records if record["tool"] in tools]
    return max(found, default=(0, ""))


def bars(records: Sequence[dict]) -> list[Bar]:
    """The promises of loading, on two cores, each for the kind of batch where it is closest."""
    return [
        _closest(records, LIBRARIES, 2, f"at least 2x the fastest of {', '.join(LIBRARIES[:-1])} and {LIBRARIES[-1]}"),
        _closest(records, (CEILING,), 0.7, "at least 0.7x a bare numpy gather of the same rows"),
    ]


def _closest(records: Sequence[dict], others: Sequence[str], least: float, words: str) -> Bar:
    found = []
    for kind in kinds_of(records):
        (ours, _), (other, tool) = best(records, (OURS,), kind), best(records, others, kind)
        if ours and other:
            measured = f"{kind}: {ours / 1e6:,.0f} M/s, {tool} {other / 1e6:,.0f} M/s: {ours / other:.2f}x"
            found.append((ours / other, measured))
    ratio, measured = min(found, key=lambda each: each[0], default=(None, ""))
    return Bar(f"tokens a second, shuffled: {words}", measured, None if ratio is None else ratio >= least)


def render(records: Sequence[dict]) -> str:
    if not any(record.get("benchmark") == "load" for record in records):
        return "\nNot measured yet.\n"
    records = latest(records)
    first, kinds, rows = records[0], kinds_of(records), []
    for record in sorted(records, key=lambda each: -(speed(each, kinds[-1]) or 0)):
        cells = [record["reason"].replace("\n", " "), *[""] * (len(kinds) - 1)]
        if not record["reason"]:
            cells = [_cell(record, kind) for kind in kinds]
        rows.append([tables.titled(record), str(record["workers"]), *cells, record["agreement"]])
    return (
        tables.bars_table("Bars of loading", bars(records))
        + f"\n## load: {first['tokens']:,} tokens of {first['corpus']}, shuffled\n\n"
        f"{tables.machine(first)}; {first['session'][:10]}; "
        f"input {first['input'][:16]}; load before {first['machine']['load_before']}\n\n"
        "Batch x window: million tokens a second, median (lowest-highest), and nanoseconds of processor time of each."
        f"\n\n{tables.table(['loader', 'workers', *kinds, 'rows'], rows)}\n"
    )


def _cell(record: dict, kind: str) -> str:
    spent = [answer[kind]["cpu_seconds"] / answer[kind]["tokens"] * 1e9 for answer in record["answers"]]
    return f"{tables.spread(speeds(record, kind), 1e6, digits=0)}, {median_and_spread(spent)[0]:.1f} ns"


def main() -> None:
    flags = protocol.parser(__doc__, peers=PEERS)
    flags.add_argument("--seconds", type=float, default=2, help="of each kind of batch in a run (default: 2)")
    args = flags.parse_args()
    if args.table:
        return protocol.write_page("load", render, args.results)
    chosen = protocol.choose(args.peers, PEERS, "--peers")
    corpus = "python-5mb" if args.quick else "python-127mb"
    if args.dry_run:
        loaders = [f"{name} with {n} workers" for name in [OURS, CEILING, *chosen] for n in LOADERS[name].workers]
        return protocol.dry_run(args, [(f"load {corpus}", loaders)])
    failed = pipelines.install(list(dict.fromkeys([WITH_TORCH, *(LOADERS[name].pipeline.name for name in chosen)])))
    pipelines.make_inputs([corpus])
    tokens = make_tokens(corpus)
    session = Session("load", args, complete=args.seconds >= 2 and set(chosen) == set(PEERS))
    entries = []
    for loader in (LOADERS[name] for name in [OURS, CEILING, *chosen]):
        reason, agreement = failed.get(loader.pipeline.name, ""), ""
        if not reason:
            agreement, reason = check(loader, tokens)
        if reason and loader.name in (OURS, CEILING):
            raise SystemExit(f"{loader.name}: {reason}. No time is reported.")
        print(f"load    {loader.name}: {reason or agreement}", file=sys.stderr)
        entries += [Entry(loader.name, str(workers), reason, agreement) for workers in loader.workers]
    once = partial(time_once, tokens=tokens, seconds=0.5 if args.quick else args.seconds, cap=args.cap)
    protocol.ask(entries, once, repeats=1 if args.quick else args.repeats or 3)
    stream = np.load(tokens)
    for entry in entries:
        session.keep(
            entry,
            question="load",
            corpus=corpus,
            input=hashlib.sha256(stream.tobytes()).hexdigest(),
            tokens=len(stream),
            version=LOADERS[entry.tool].version,
            workers=int(entry.how),
            answers=entry.told,
        )
    print(render(session.records()))
    session.finish(render)


if __name__ == "__main__":
    main()
