"""Loading batches, against everybody who does: `python benchmarks/load.py`, or with `--quick`.

The tokens of 127 MB of Python, batches of 8 and 32 rows of 1,024 and 2,048 tokens in shuffled order, with 0 to 2
workers (processes for the peers, threads for Piecemill), on two cores. Every loader has the tokens in its own format
and gives what it gives to a training loop in main memory. Each run is a process that takes batches for some seconds of
each kind; the first batches, imports and opening are not counted.

Before any time is shown, an epoch of rows is compared with rows cut by numpy; a difference of ours ends the benchmark,
one of a peer takes its times out of the table. The ceiling is a bare numpy gather of the same rows from memory. Every
run is appended to `results.jsonl`; complete sessions rewrite the table in `docs/benchmarks.md`.
"""

import argparse
import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import tables_load
from asking import PAGE, RESULTS, choose, commit
from corpus import CACHE, RECORDED
from loaders import CEILING, LOADERS, OURS, PEERS, Loader, command, environment, install, run
from measure import Run, append, machine, measure, read, record
from peers_load.loop import digest
from prepare import TOKENIZER, train_tokenizer

HERE = Path(__file__).parent
KINDS = ["8x1024", "8x2048", "32x1024", "32x2048"]
WINDOWS = sorted({int(kind.partition("x")[2]) for kind in KINDS})
CORES = 2


@dataclass(slots=True)
class Entry:
    """One loader with so many workers: its runs, and what each answered."""

    loader: Loader
    workers: int
    reason: str = ""
    agreement: str = ""
    runs: list[Run] = field(default_factory=list)
    answers: list[dict] = field(default_factory=list)


def folder_of(corpus: str) -> Path:
    return CACHE / "load" / corpus


def make_tokens(corpus: str) -> Path:
    """Our shards of a corpus, and the same tokens in one array. Made once."""
    folder = folder_of(corpus)
    if not (folder / "tokens.npy").exists():
        tool = [str(Path(sys.executable).parent / "piecemill"), "prepare", str(RECORDED[corpus].jsonl)]
        options = [
            "--tokenizer",
            str(TOKENIZER.parent),
            "--out",
            str(folder / OURS),
            "--eos",
            "<|endoftext|>",
            "--quiet",
        ]
        subprocess.run([*tool, *options], check=True)
        parts = [np.load(path) for path in sorted((folder / OURS / "all").glob("*.tokens.npy"))]
        np.save(folder / ".tokens.npy", np.concatenate(parts))
        os.replace(folder / ".tokens.npy", folder / "tokens.npy")
    return folder / "tokens.npy"


def write(loader: Loader, tokens: Path) -> str:
    """Bring the tokens into a loader's own format, once; the reason if it cannot be done."""
    out = tokens.parent / loader.name
    for window in {"window": WINDOWS, "once": WINDOWS[:1], "": []}[loader.writes]:
        marker = out / f"{window}.done"
        if marker.exists():
            continue
        if loader.writes == "window":
            shutil.rmtree(out / str(window), ignore_errors=True)
        print(f"load    writing {loader.name} {window}", file=sys.stderr)
        try:
            run(command(loader, "write", tokens=tokens, out=out, window=window), f"writing {loader.name}")
        except RuntimeError as error:
            return str(error)
        marker.write_text("")
    return ""


def wanted_rows(tokens: np.ndarray, window: int, stride: int) -> dict:
    count = (len(tokens) - window - 1) // stride + 1
    rows = np.lib.stride_tricks.sliding_window_view(tokens, window + 1)[: (count - 1) * stride + 1 : stride]
    return digest([rows])


def check(loader: Loader, tokens: Path) -> tuple[str, str]:
    """How a loader's rows compare with those of numpy, and if they do not, the reason why it has no time."""
    stream = np.load(tokens)
    for window in WINDOWS:
        answer = tokens.parent / "answer.json"
        asked = {"window": window, "batch": 8, "workers": 0, "answer": answer}
        try:
            run(
                command(loader, "check", tokens=tokens, out=tokens.parent / loader.name, **asked),
                f"checking {loader.name}",
            )
        except RuntimeError as error:
            return "", str(error)
        found = json.loads(answer.read_text())
        if loader.replaces:
            whole = stream.tobytes()
            if not all(found_in(whole, np.array(row, stream.dtype).tobytes()) for row in found["some"]):
                return "", f"rows of {window} that are not in the tokens"
            continue
        want = wanted_rows(stream, window, window if loader.stride_is_window else window + 1)
        if (found["rows"], found["sha256"]) != (want["rows"], want["sha256"]):
            return "", f"other rows of {window}: {found['rows']:,}, expected {want['rows']:,}"
    return "rows of the tokens, drawn with replacement" if loader.replaces else "same rows", ""


def found_in(whole: bytes, row: bytes) -> bool:
    at = whole.find(row)
    while at >= 0 and at % 2:
        at = whole.find(row, at + 1)
    return at >= 0


def time_once(entry: Entry, tokens: Path, seconds: float) -> None:
    answer = tokens.parent / "answer.json"
    answer.unlink(missing_ok=True)
    loader = entry.loader
    asked = {"ask": KINDS, "workers": entry.workers, "seconds": seconds, "answer": answer}
    print(f"load    {loader.name}, {entry.workers} workers, run {len(entry.runs) + 1}", file=sys.stderr)
    arguments = command(loader, "time", tokens=tokens, out=tokens.parent / loader.name, **asked)
    log = tokens.parent / f"{loader.name}.log"
    done = measure(arguments, threads=CORES, log=log, time_limit=600, tree=True)
    entry.runs.append(done)
    if done.outcome == "ok":
        entry.answers.append(json.loads(answer.read_text()))
    else:
        entry.reason = f"{done.outcome}: {done.message[-200:]}"


def keep(entries: list[Entry], corpus: str, tokens: Path, session: dict) -> None:
    sha256 = hashlib.sha256(np.load(tokens).tobytes()).hexdigest()
    for entry in entries:
        line = record(
            entry.runs,
            benchmark="load",
            **session,
            question="load",
            corpus=corpus,
            input=sha256,
            tokens=len(np.load(tokens, mmap_mode="r")),
            tool=entry.loader.name,
            version=entry.loader.version,
            workers=entry.workers,
            reason=entry.reason,
            agreement=entry.agreement,
            answers=entry.answers,
        )
        append(RESULTS, line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="5 MB, one short run each, no table")
    parser.add_argument("--peers", default=",".join(PEERS), help="peers, separated by commas (default: all)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--seconds", type=float, default=2, help="of each kind of batch in a run (default: 2)")
    parser.add_argument("--table", action="store_true", help="measure nothing, rewrite the table from the results")
    args = parser.parse_args()
    if args.table:
        tables_load.page(read(RESULTS), PAGE)
        return
    if args.quick:
        args.repeats, args.seconds = 1, 0.5
    chosen = choose(args.peers, PEERS, "--peers")
    corpus = "python-5mb" if args.quick else "python-127mb"
    names = [OURS, CEILING, *chosen]
    failed = install(names)
    os.environ |= environment()
    for name in dict.fromkeys(["python-127mb", corpus]):
        subprocess.run([sys.executable, str(HERE / "corpus.py"), name], check=True)
    train_tokenizer()
    tokens = make_tokens(corpus)
    entries = []
    for loader in (LOADERS[name] for name in names):
        reason, agreement = failed.get(loader.name, "") or write(loader, tokens), ""
        if not reason:
            agreement, reason = check(loader, tokens)
        if reason and loader.name in (OURS, CEILING):
            raise SystemExit(f"{loader.name}: {reason}. No time is reported.")
        print(f"load    {loader.name}: {reason or agreement}", file=sys.stderr)
        entries += [Entry(loader, workers, reason, agreement) for workers in loader.workers]
    for turn in range(args.repeats):
        # Another one starts each round, so that nobody always runs after the same neighbour.
        pending = [entry for entry in entries if not entry.reason]
        for entry in pending[turn:] + pending[:turn]:
            time_once(entry, tokens, args.seconds)
    complete = not args.quick and args.repeats >= 3 and args.seconds >= 2 and set(chosen) == set(PEERS)
    session = {
        "session": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "complete": complete,
        "commit": commit(),
        "machine": machine(),
    }
    keep(entries, corpus, tokens, session)
    found = [each for each in read(RESULTS) if each["session"] == session["session"]]
    print(tables_load.render(found))
    if complete:
        tables_load.page(read(RESULTS), PAGE)
        print(f"the table in {PAGE} is rewritten")


if __name__ == "__main__":
    main()
