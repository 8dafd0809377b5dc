"""Loading batches, against everybody who does: `python benchmarks/load.py`, or with `--quick`.

The tokens of 127 MB of Python, batches of 8 and 32 rows of 1,024 and 2,048 tokens in shuffled order, with 0 to 2
workers (processes for the peers, threads for Piecemill), on two cores. The ceiling is a bare numpy gather of the same
rows from memory. Before any time is shown, an epoch of rows is compared with rows cut by numpy; a difference of ours
ends the benchmark, one of a peer takes its times out of the table.

The loaders (`peers/load_peers.py`) live in the environments of `pipelines.py`. Two of those have no torch, which weighs
gigabytes; they and Piecemill's own borrow that of litdata, which comes behind everything they have themselves.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import pipelines
import tables
from corpus import RECORDED
from load_peers import Loader
from measure import median_and_spread
from pipelines import PIPELINES
from protocol import CACHE, OURS, PIECEMILL, Entry, call, worker
from session import Benchmark
from tables import Bar
from worker import digest_rows

CEILING, WITH_TORCH = "numpy-gather", "litdata"
KINDS = ["8x1024", "8x2048", "32x1024", "32x2048"]
LOADERS = Loader.tools
# The bar names these; the other peers have no format of their own.
LIBRARIES = tuple(name for name, loader in LOADERS.items() if loader.writes)


def pipeline(loader: type[Loader]) -> pipelines.Pipeline:
    return PIPELINES[loader.environment or loader.name]


def command(loader: type[Loader], verb: str, tokens: Path, **options: object) -> list[str]:
    """A worker with the tokens, its own folder beside them, and torch."""
    python = sys.executable if loader.name == OURS else pipeline(loader).python
    torch = next(PIPELINES[WITH_TORCH].environment.glob("lib/python*/site-packages"))
    asked = {"tokens": tokens, "site_behind": torch, **options}
    return worker(python, "load_peers.py", loader.name, verb, tokens.parent / loader.name, **asked)


class Load(Benchmark):
    name, title, label, tree = "load", "Bars of loading", "{0.tool} with {0.how} workers", True
    peers = tuple(name for name in LOADERS if name not in (OURS, CEILING))
    must_be_default, repeats = ("peers", "seconds"), ((float("inf"), 3),)

    def flags(self, add) -> None:
        add("--seconds", type=float, default=2, help="of each kind of batch in a run (default: 2)")

    def questions(self) -> list[str]:
        return ["load python-5mb" if self.args.quick else "load python-127mb"]

    def entries(self, question: str) -> list[Entry]:
        names = (OURS, CEILING, *self.args.peers)
        return [Entry(name, str(workers)) for name in names for workers in LOADERS[name].workers]

    def set_up(self, asked) -> None:
        (question, entries) = asked[0]
        corpus, used = question.split()[1], {entry.tool: LOADERS[entry.tool] for entry in entries}
        failed = pipelines.set_up([WITH_TORCH, *(pipeline(one).name for one in used.values())], [corpus])
        self.tokens = make_tokens(corpus)
        compared = {}
        for name, loader in used.items():
            reason = failed.get(pipeline(loader).name, "")
            compared[name] = ("", reason) if reason else check(loader, self.tokens)
            agreement, reason = compared[name]
            print(f"load    {name}: {reason or agreement}", file=sys.stderr)
            if reason and name in (OURS, CEILING):
                raise SystemExit(f"{name}: {reason}. No time is reported.")
        for entry in entries:
            entry.agreement, entry.reason = compared[entry.tool]
        stream = np.load(self.tokens)
        self.about = {"corpus": corpus, "input": hashlib.sha256(stream).hexdigest(), "tokens": len(stream)}

    def command(self, question: str, entry: Entry, out: Path) -> list[str]:
        asked = {"ask": KINDS, "workers": int(entry.how), "seconds": 0.5 if self.args.quick else self.args.seconds}
        return command(LOADERS[entry.tool], "time", self.tokens, epochs=None, **asked)

    def facts(self, question: str, entry: Entry) -> dict:
        loader = LOADERS[entry.tool]
        version = "" if loader.environment else pipeline(loader).version
        asked = {"question": "load", **self.about, "version": version, "workers": int(entry.how)}
        return {**asked, "answers": entry.told}

    def bars(self, records: Sequence[dict]) -> list[Bar]:
        """The promises of loading, on two cores, each for the kind of batch where it is closest."""
        named = f"{', '.join(LIBRARIES[:-1])} and {LIBRARIES[-1]}"
        return [
            closest(records, LIBRARIES, 2, f"at least 2x the fastest of {named}"),
            closest(records, (CEILING,), 0.7, "at least 0.7x a bare numpy gather of the same rows"),
        ]

    def shown(self, records: Sequence[dict]) -> list[dict]:
        mine = super().shown(records)
        return tables.last_session(mine) if mine else []

    def tables(self, records: Sequence[dict]) -> list[str]:
        first, kinds = records[0], kinds_of(records)
        names = {"loader": tables.titled, "workers": tables.field("workers")}
        figures = {kind: lambda line, kind=kind: cell(line, kind) for kind in kinds}
        about = (
            f"{tables.machine(first)}; {first['session'][:10]}; "
            f"input {first['input'][:16]}; load before {first['machine']['load_before']}\n\n"
            "Batch x window: million tokens a second, median (lowest-highest), and nanoseconds of processor time "
            "of each."
        )
        title = f"load: {first['tokens']:,} tokens of {first['corpus']}, shuffled"
        ordered = sorted(records, key=lambda line: -(speed(line, kinds[-1]) or 0))
        table = tables.table(ordered, names, figures, {"rows": tables.field("agreement")})
        return [tables.section(title, about, table)]


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


def check(loader: type[Loader], tokens: Path) -> tuple[str, str]:
    """Write the loader's own files, once. Then how its rows compare with those of numpy, or why it has no time."""
    stream = np.load(tokens)
    try:
        for window in loader.writes:
            marker = tokens.parent / loader.name / f"{window}.done"
            if not marker.exists():
                print(f"load    writing {loader.name} {window}", file=sys.stderr)
                shutil.rmtree(marker.with_suffix(""), ignore_errors=True)  # what a stopped one left
                call(command(loader, "write", tokens, window=window))
                marker.touch()
        for window in (1024, 2048):
            found = call(command(loader, "check", tokens, window=window, batch=8, workers=0, epochs=1))
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


def kinds_of(records: Sequence[dict]) -> list[str]:
    return list(next((answer for record in records for answer in record["answers"]), {}))


def speeds(record: dict, kind: str) -> list[float]:
    """Million tokens a second in every run."""
    return [answer[kind]["tokens"] / answer[kind]["seconds"] / 1e6 for answer in record["answers"]]


def speed(record: dict, kind: str) -> float | None:
    """The median; None of a loader that has other rows or did not finish."""
    return median_and_spread(speeds(record, kind))[0] if tables.median(record) else None


def closest(records: Sequence[dict], others: Sequence[str], least: float, words: str) -> Bar:
    """Ours over the fastest of `others`, each with the workers that suit it."""

    def best(tools: Sequence[str], kind: str) -> tuple[float, str]:
        return max(
            ((speed(line, kind) or 0, line["tool"]) for line in records if line["tool"] in tools), default=(0, "")
        )

    found = []
    for kind in kinds_of(records):
        (ours, _), (other, tool) = best((OURS,), kind), best(others, kind)
        if ours and other:
            found.append((ours / other, f"{kind}: {ours:,.0f} M/s, {tool} {other:,.0f} M/s: {{:.2f}}x"))
    ratio, measured = min(found, key=lambda one: one[0], default=(None, ""))
    return tables.bar(f"tokens a second, shuffled: {words}", measured, ratio, least=least)


def cell(record: dict, kind: str) -> str:
    spent = [answer[kind]["cpu_seconds"] / answer[kind]["tokens"] * 1e9 for answer in record["answers"]]
    return f"{tables.spread(speeds(record, kind), digits=0)}, {median_and_spread(spent)[0]:.1f} ns"


if __name__ == "__main__":
    Load().main()
