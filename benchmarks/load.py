"""Loading batches, against everybody who does: `python benchmarks/load.py`, or with `--quick`.

The tokens of 127 MB of Python, batches of 8 and 32 rows of 1,024 and 2,048 tokens in shuffled order, with 0 to 2
workers (processes for the peers, threads for Piecemill), on two cores. The ceiling is a bare numpy gather of the same
rows from memory. Before any time is shown, an epoch of rows is compared with rows cut by numpy; a difference of ours
ends the benchmark, one of a peer takes its times out of the table.

The loaders (`peers/load_peers.py`) live in the environments of `prepare.py`. Two of those have no torch, which weighs
gigabytes; they and Piecemill's own borrow that of litdata, which comes behind everything they have themselves.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import prepare
import tables
from corpus import RECORDED
from load_peers import Loader
from measure import median_and_spread
from prepare import PIPELINES
from protocol import CACHE, OURS, PIECEMILL, Entry, call, worker
from session import Benchmark
from worker import digest

CEILING, WITH_TORCH = "numpy-gather", "litdata"
KINDS = ["8x1024", "8x2048", "32x1024", "32x2048"]
LOADERS = Loader.tools
# The bar names these; the other peers have no format of their own.
LIBRARIES = tuple(name for name, loader in LOADERS.items() if loader.writes)


def pipeline(loader):
    return PIPELINES[loader.environment or loader.name]


def command(loader, verb, tokens, **options):
    """A worker with the tokens, its own folder beside them, and torch."""
    python = sys.executable if loader.name == OURS else pipeline(loader).python
    torch = next(PIPELINES[WITH_TORCH].environment.glob("lib/python*/site-packages"))
    asked = {"tokens": tokens, "site_behind": torch, **options}
    return worker(python, "load_peers.py", loader.name, verb, tokens.parent / loader.name, **asked)


def speeds(record, kind):
    """Million tokens a second in every run."""
    return [answer[kind]["tokens"] / answer[kind]["seconds"] / 1e6 for answer in record["answers"]]


def speed(record, kind):
    """The median; None of a loader that has other rows or did not finish."""
    return median_and_spread(speeds(record, kind))[0] if tables.median(record) else None


def figure(kind):
    def cell(record, _):
        spent = [answer[kind]["cpu_seconds"] / answer[kind]["tokens"] * 1e9 for answer in record["answers"]]
        return f"{tables.spread(speeds(record, kind), digits=0)}, {median_and_spread(spent)[0]:.1f} ns"

    return cell


class Load(Benchmark):
    name, title, label, tree = "load", "Bars of loading", "{0.tool} with {0.how} workers", True
    peers = tuple(name for name in LOADERS if name not in (OURS, CEILING))
    asked, must_be_default, repeats = "load {corpus}", ("peers", "seconds"), ((float("inf"), 3),)
    heading = "load: {tokens:,} tokens of {corpus}, shuffled"
    about = (
        tables.MACHINE + "; {session:.10}; input {input:.16}; load before {machine[load_before]}\n\n"
        "Batch x window: million tokens a second, median (lowest-highest), and nanoseconds of processor time of each."
    )

    def flags(self, add):
        add("--seconds", type=float, default=2, help="of each kind of batch in a run (default: 2)")

    def questions(self):
        return [{"question": "load", "corpus": "python-5mb" if self.args.quick else "python-127mb"}]

    def entries(self, question):
        names = (OURS, CEILING, *self.args.peers)
        return [Entry(name, str(workers)) for name in names for workers in LOADERS[name].workers]

    def set_up(self, asked):
        ((question, entries),) = asked
        used = {entry.tool: LOADERS[entry.tool] for entry in entries}
        failed = prepare.set_up([WITH_TORCH, *(pipeline(one).name for one in used.values())], [question["corpus"]])
        self.tokens, compared = make_tokens(question["corpus"]), {}
        for name, loader in used.items():
            reason = failed.get(pipeline(loader).name, "")
            agreement, reason = compared[name] = ("", reason) if reason else check(loader, self.tokens)
            print(f"load    {name}: {reason or agreement}", file=sys.stderr)
            if reason and name in (OURS, CEILING):
                raise SystemExit(f"{name}: {reason}. No time is reported.")
        for entry in entries:
            entry.agreement, entry.reason = compared[entry.tool]
        stream = np.load(self.tokens)
        question |= {"input": hashlib.sha256(stream).hexdigest(), "tokens": len(stream)}

    def command(self, question, entry, out):
        asked = {"ask": KINDS, "workers": int(entry.how), "seconds": 0.5 if self.args.quick else self.args.seconds}
        return command(LOADERS[entry.tool], "time", self.tokens, epochs=None, **asked)

    def facts(self, question, entry):
        loader = LOADERS[entry.tool]
        version = "" if loader.environment else pipeline(loader).version
        return {"version": version, "workers": int(entry.how), "answers": entry.told}

    def shown(self, records):
        return tables.last_session(super().shown(records))

    def groups(self, records):
        kinds = kinds_of(records)
        figures = {kind: figure(kind) for kind in kinds}
        self.columns = {"loader": "{titled}", "workers": "{workers}", **figures, "rows": "{agreement}"}
        return {"": sorted(records, key=lambda line: -(speed(line, kinds[-1]) or 0))}

    def bars(self, records):
        """The promises of loading, on two cores, each for the kind of batch where it is closest."""
        named = f"{', '.join(LIBRARIES[:-1])} and {LIBRARIES[-1]}"
        return [
            closest(records, LIBRARIES, 2, f"at least 2x the fastest of {named}"),
            closest(records, (CEILING,), 0.7, "at least 0.7x a bare numpy gather of the same rows"),
        ]


def kinds_of(records):
    return list(next((answer for record in records for answer in record["answers"]), {}))


def closest(records, others, least, words):
    """Ours over the fastest of `others`, each with the workers that suit it."""

    def best(tools, kind):
        found = [(speed(line, kind), line["tool"]) for line in records if line["tool"] in tools and speed(line, kind)]
        return max(found, default=(0, ""))

    found = []
    for kind in kinds_of(records):
        (ours, _), (other, tool) = best((OURS,), kind), best(others, kind)
        if ours and other:
            found.append((ours / other, f"{kind}: {ours:,.0f} M/s, {tool} {other:,.0f} M/s: {{:.2f}}x"))
    ratio, measured = min(found, key=lambda one: one[0], default=(None, ""))
    return tables.bar(f"tokens a second, shuffled: {words}", measured, ratio, least=least)


def make_tokens(corpus):
    """Our shards of a corpus, and the same tokens in one array. Made once."""
    folder = CACHE / "load" / corpus
    if not (folder / "tokens.npy").exists():
        command = [PIECEMILL, "prepare", str(RECORDED[corpus].jsonl), "--out", str(folder / OURS), "--quiet"]
        command += ["--tokenizer", str(prepare.TOKENIZER.parent), "--eos", "<|endoftext|>"]
        subprocess.run(command, check=True)
        parts = [np.load(path) for path in sorted((folder / OURS / "all").glob("*.tokens.npy"))]
        np.save(folder / ".tokens.npy", np.concatenate(parts))
        os.replace(folder / ".tokens.npy", folder / "tokens.npy")
    return folder / "tokens.npy"


def wanted_rows(tokens, window, stride):
    count = (len(tokens) - window - 1) // stride + 1
    return np.lib.stride_tricks.sliding_window_view(tokens, window + 1)[: (count - 1) * stride + 1 : stride]


def check(loader, tokens: Path):
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
            want = digest(wanted_rows(stream, window, window if loader.stride_is_window else window + 1))
            if found["unordered"] != want["unordered"]:
                return "", f"other rows of {window}: {found['documents']:,}, expected {want['documents']:,}"
    except RuntimeError as error:
        return "", str(error)
    return "rows of the tokens, drawn with replacement" if loader.replaces else "same rows", ""


def found_in(whole, row):
    at = whole.find(row)
    while at >= 0 and at % 2:
        at = whole.find(row, at + 1)
    return at >= 0


if __name__ == "__main__":
    Load().main()
