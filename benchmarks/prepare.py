"""Preparing a corpus, against everybody who does: `python benchmarks/prepare.py`, or with `--quick`.

    127mb   8,238 Python files in one JSONL; Piecemill, Piecemill before its redesign, and all pipelines, three of them
            also with `tokenizers` 1.0 and with gigatoken
    2gb     two billion bytes of code and other text, as JSONL, Parquet and .jsonl.zst; Piecemill, with 2 GiB and with
            1 GiB, and gigatoken's own encode_batch in memory as the yardstick
    dedup   the same JSONL, in which no document occurs twice; Piecemill with and without `--dedup exact`
    ray     the same JSONL; Piecemill with threads, and on Ray clusters of one, two and four nodes on this machine

What a pipeline wrote is read back and compared with HF `tokenizers` before any time is shown; a difference of ours ends
the benchmark, one of a peer takes its time out of the table. The page shows the last complete session of each question.

Each peer (`peers/prepare_peers.py`) lives in a separate environment: they do not agree on the versions of what they
stand on. `datasets+gigatoken` is `datasets` with the encoder of gigatoken, in a second environment. `piecemill-before`
is Piecemill before `prepare` became a function of tasks, built from its commit. `strategies.py`, `load.py` and
`megatron.py` use these pipelines too. Start with `PIPELINES`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import protocol
import tables
from corpus import RECORDED, compress
from documents import EOS, lines_of, shares
from measure import median_and_spread
from prepare_peers import PipelinePeer
from protocol import CACHE, HERE, OURS, PIECEMILL, SCRATCH, Entry, call, environment, make_corpora, worker
from session import Benchmark
from tables import CPU_AND_PEAK, MACHINE, WALL, X_OURS, at_most, bar, median, of, ratio

GIB = 2**30
LARGE, FORMATS = "mixed-2000mb", ("jsonl", "parquet", "jsonl.zst")
ALSO = {"dedup": ", without and with dedup", "ray": ", with threads and on Ray"}
VENVS = CACHE / "venvs-prepare"
BUILT = CACHE / "piecemill-3727113"
TOKENIZER = CACHE / "tokenizer-50257" / "tokenizer.json"
WORKERS = 2
BEFORE, COMMIT_BEFORE = "piecemill-before", "3727113869ba31ee46ca87e42382257858a0ee4e"
YARDSTICK, CANDIDATE = "gigatoken", "1.0.0rc3"
TOOLS = PipelinePeer.tools


@dataclass
class Pipeline:
    """One way from documents to tokens on disk."""

    package: str
    variant: str = ""  # of a peer the library that encodes, where it is not the default; of ours it names the options
    options: tuple[str, ...] = ()
    nodes: int = 0  # of the Ray cluster on which it runs
    prestart: bool = True  # whether the worker processes of the cluster are started before anything is timed

    def __post_init__(self):
        before, peer = self.package == BEFORE, self.package not in (OURS, BEFORE)
        self.tool = tool = TOOLS[self.package if peer else OURS]  # the same files, so the same reader
        self.name = "+".join(filter(None, (self.package, self.variant)))
        self.version = COMMIT_BEFORE[:7] if before else tool.version or protocol.installed_version()
        # A second environment has the candidate, whatever library encodes, unless the pipeline cannot run with it.
        self.tokenizers = CANDIDATE if self.variant and "tokenizers-1.0" in tool.faster else tool.tokenizers
        self.library = "gigatoken" if self.variant == "gigatoken" else "tokenizers"
        pins = [f"{self.package}=={self.version}", f"tokenizers=={self.tokenizers}"]
        pins += [f"gigatoken=={TOOLS['gigatoken'].version}"] if self.variant else []
        self.packages = [*pins, *tool.needs, "numpy", "pyarrow"]
        # Our files are read by numpy in an environment without Piecemill: nothing of it is needed.
        self.environment = VENVS / (self.package + "-faster" * bool(self.variant) if peer else YARDSTICK)
        self.python = self.environment / "bin" / "python"


DEDUP = Pipeline(OURS, "dedup", ("--dedup", "exact"))
RAY = [
    Pipeline(OURS, variant, ("--executor", "ray"), nodes, prestart=not variant.endswith("no-workers"))
    for variant, nodes in (("ray-1-node", 1), ("ray-1-node-no-workers", 1), ("ray-2-nodes", 2), ("ray-4-nodes", 4))
]
_OTHERS = [tool for name, tool in TOOLS.items() if name not in ("reference", OURS, YARDSTICK)]
_PEERS = [Pipeline(tool.name, variant) for tool in _OTHERS for variant in ("", *tool.faster)]
PEERS = [one.name for one in _PEERS]
PIPELINES = {one.name: one for one in [Pipeline(OURS), DEDUP, *RAY, Pipeline(BEFORE), Pipeline(YARDSTICK), *_PEERS]}
# Where the reference is made, shards are read by numpy, and libraries are called: it has all three of them.
PYTHON = PIPELINES[YARDSTICK].python


def set_up(names: list[str], corpora: list[str]) -> dict[str, str]:
    """Environments, corpora, and the tokenizer of all, trained once; returns the reason for each that fails."""
    failed = {}
    for pipeline in (PIPELINES[name] for name in [YARDSTICK, *names] if name != OURS):
        reason = build_before() if pipeline.package == BEFORE else environment(pipeline.environment, pipeline.packages)
        if reason:
            print(f"tools   {pipeline.name} {pipeline.version} does not install: {reason}")
            failed[pipeline.name] = reason
    make_corpora(["python-127mb", *corpora])
    if not TOKENIZER.exists():
        command = [PIECEMILL, "train", str(RECORDED["python-127mb"].jsonl), "--out", str(TOKENIZER.parent), "--quiet"]
        subprocess.run([*command, "--pretokenizer", "gpt2", "--vocab-size", "50257"], check=True)
    return failed


def build_before() -> str:
    """Build the version before from its commit, to run in the environment of ours; returns the reason if that fails."""
    if (BUILT / "piecemill").exists():
        return ""
    print(f"tools   building {BEFORE}, commit {COMMIT_BEFORE[:7]}")
    shutil.rmtree(BUILT, ignore_errors=True)
    source = f"git+file://{HERE.parent}@{COMMIT_BEFORE}"
    return protocol.failure([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", BUILT, source])


@contextmanager
def cluster(pipeline, workers):
    """The address of a Ray cluster on this machine, started before anything is timed; without nodes there is none."""
    if not (nodes := pipeline.nodes):
        yield ""
        return
    command = [sys.executable, str(HERE / "peers" / "ray_cluster.py"), str(nodes), str(workers)]
    env = {**os.environ, "RAY_enable_worker_prestart": str(int(pipeline.prestart))}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        address = process.stdout.readline().strip() if process.stdout else ""
        if not address:
            raise SystemExit(f"the Ray cluster of {nodes} nodes did not start: see above")
        yield address  # leaving closes its input, on which it ends


def prepare_command(pipeline, inputs: list[Path], out: Path, memory="2GiB", address="") -> list[str]:
    """The process that is timed. `address` is that of the Ray cluster, for those that run on one."""
    if pipeline.tool.name == OURS:
        before = pipeline.package == BEFORE
        return [
            *(["env", f"PYTHONPATH={BUILT}"] if before else []),
            *[PIECEMILL, "prepare", *map(str, inputs), "--tokenizer", str(TOKENIZER.parent), "--out", str(out)],
            *["--workers" if before else "--threads", str(WORKERS), "--memory", memory, "--eos", EOS],
            *["--quiet", *pipeline.options, *(["--ray-address", address] if pipeline.nodes else [])],
        ]
    asked = {"input": inputs, "tokenizer": TOKENIZER, "workers": WORKERS, "library": pipeline.library}
    return worker(pipeline.python, "prepare_peers.py", pipeline.package, "prepare", out, **asked)


def produced(pipeline, out: Path) -> dict:
    """The digest of what it wrote. Not timed."""
    try:
        return call(worker(pipeline.python, "prepare_peers.py", pipeline.tool.name, "digest", out))
    except RuntimeError as error:
        raise SystemExit(f"{pipeline.name}: what it wrote could not be read back: {error}") from None


def reference(corpus: str) -> dict:
    """What HF `tokenizers` makes of the corpus; made once for each corpus and tokenizer."""
    asked = {"input": [RECORDED[corpus].jsonl], "tokenizer": TOKENIZER}
    make = worker(PYTHON, "prepare_peers.py", "reference", "digest", SCRATCH / "reference", **asked)
    made_with = hashlib.sha256(TOKENIZER.read_bytes()).hexdigest()[:16]
    target = CACHE / "reference" / f"{RECORDED[corpus].sha256[:16]}-{made_with}.json"
    return protocol.once_made(target, f"prepare reference for {corpus}", lambda: call(make))


# The benchmark


def new_question(question, corpus, format="jsonl", memory="2GiB"):
    return {"question": question, "corpus": corpus, "format": format, "memory": memory}


def parts(question):
    """The corpus in a file for each worker, cut between documents. Not timed."""
    kind, folder = question["format"], CACHE / "parts" / "{corpus}-{format}".format_map(question)
    paths = [folder / f"{number}.{kind}" for number in range(WORKERS)]
    if not all(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        for path, share in zip(paths, shares(RECORDED[question["corpus"]].file(kind), WORKERS), strict=True):
            path.with_suffix(".part").write_bytes(b"".join(lines_of(share)))
            path.with_suffix(".part").rename(path)
    return paths


def speed(record):
    """MB of text a second: of the yardstick for its call alone, of the others from start to end of the process."""
    if (taken := median(record)) is None:
        return None
    inside = record["inside_seconds"]
    return record["text_bytes"] / (median_and_spread(inside)[0] if inside else taken) / 1e6


def of_pipelines(columns, instead=""):
    """The wall time of the yardstick is no answer to the question: reading and saving were not its task."""

    def hidden(cell):
        return lambda line, group: instead if line["tool"] == YARDSTICK else cell(line, group)

    return {header: hidden(cell) for header, cell in columns.items()}


class Prepare(Benchmark):
    name, title, tree, cap = "prepare", "Bars of preparing", True, 1800.0
    kinds, peers, must_be_default = ("127mb", "2gb", "dedup", "ray"), PEERS, ("peers",)
    asked = f"{{question}} {{corpus}}.{{format}} workers={WORKERS} memory={{memory}}"
    by = ("question", "corpus", "format", "memory")
    heading = "prepare: {corpus}.{format}, {workers} workers, ours with {memory}{also}"
    about = MACHINE + "; {session:.10}; input {input:.16}, {megabytes:,.0f} MB of text"
    columns = {
        "pipeline": "{titled}",
        **of_pipelines(WALL, "encode_batch in memory alone"),
        **of_pipelines(X_OURS),
        "MB/s of text": lambda line, _: f"{speed(line):,.1f}",
        **of_pipelines({**CPU_AND_PEAK, "wrote MB": lambda line, _: f"{line['output_bytes'] / 1e6:,.1f}"}),
        **{"runs": "{count}", "tokens": "{agreement}"},
    }

    def flags(self, add):
        add("--setup", action="store_true", help="make all that is not measured, and end")

    def questions(self):
        quick = self.args.quick
        large, formats = ("python-5mb", ("jsonl", "jsonl.zst")) if quick else (LARGE, FORMATS)
        asked = [new_question("127mb", "python-5mb" if quick else "python-127mb")]
        asked += [new_question("2gb", large, kind, memory) for kind in formats for memory in ("2GiB", "1GiB")]
        asked += [new_question(name, large) for name in ("dedup", "ray")]
        return [question for question in asked if question["question"] in self.args.only]

    def entries(self, question):
        others = {
            "dedup": [DEDUP.name],
            "ray": [pipeline.name for pipeline in RAY],
            "127mb": [BEFORE, YARDSTICK, *self.args.peers],
            "2gb": [YARDSTICK] if question["memory"] == "2GiB" else [],  # the limit is ours alone
        }[question["question"]]
        return [Entry(name, facts={"digest": {}, "output_bytes": 0, "inside_seconds": []}) for name in (OURS, *others)]

    def set_up(self, asked):
        named = [BEFORE, *self.args.peers] if "127mb" in self.args.only else []
        failed = set_up(named, [question["corpus"] for question, _ in asked])
        for question, _ in asked:
            if question["format"] == "jsonl.zst":
                compress(RECORDED[question["corpus"]])
            reference(question["corpus"])
        return failed

    def once(self, question, entry):
        with cluster(PIPELINES[entry.tool], WORKERS) as self.address:
            os.sync()  # what the last one wrote is on its way to the disk; nobody shall wait for another's bytes
            super().once(question, entry)

    def command(self, question, entry, out):
        pipeline, made = PIPELINES[entry.tool], RECORDED[question["corpus"]]
        inputs = parts(question) if pipeline.tool.reads_whole_files else [made.file(question["format"])]
        if entry.tool == YARDSTICK and question["format"] == "jsonl.zst":
            inputs = [made.jsonl]  # how it comes into memory is not measured
        return prepare_command(pipeline, inputs, out, question["memory"], self.address)

    def check(self, question, entry, out):
        wrote = [path for path in out.rglob("*") if path.is_file() and not path.is_symlink()]
        entry.facts["output_bytes"] = sum(path.stat().st_size for path in wrote)  # caches and logs too
        entry.note = f"wrote {entry.facts['output_bytes'] / 1e6:,.1f} MB"
        if entry.tool == YARDSTICK:
            entry.facts["inside_seconds"].append(entry.told[-1]["seconds"])
            entry.note = f"encode alone {median_and_spread(entry.facts['inside_seconds'])[0]:.2f} s"
        if not entry.facts["digest"]:
            entry.facts["digest"] = produced(PIPELINES[entry.tool], out)
            judge(entry, reference(question["corpus"]))

    def facts(self, question, entry):
        pipeline, asked = PIPELINES[entry.tool], super().facts(question, entry)
        asked |= {"version": pipeline.version, "tokenizers": pipeline.tokenizers, "workers": WORKERS}
        measured = {"memory_measured": "sum of all processes, sampled"}
        return {**asked, **measured, "text_bytes": RECORDED[question["corpus"]].bytes}

    def groups(self, records):
        said = [{**one, "also": ALSO.get(one["question"], ""), "megabytes": one["text_bytes"] / 1e6} for one in records]
        return super().groups(said)

    def bars(self, records):
        """The promises of preparing, on two cores."""
        groups = self.groups(records)
        small = groups.get(("127mb", "python-127mb", "jsonl", "2GiB"), [])
        others = [line for line in small if not line["tool"].startswith(OURS) and line["tool"] != YARDSTICK]
        default, ours = [line for line in others if "+" not in line["tool"]], of(small, OURS)
        found = [at_most("127 MB JSONL: at most 0.75x the time of the version before", ours, of(small, BEFORE), 0.75)]
        for whom, times, among in (
            ("each other pipeline with its default library", 15, default),
            ("each with the fastest library it accepts", 3, others),
        ):  # who is that much faster than the fastest is so than each
            other = tables.fastest(among)
            name, mine, theirs = (other or {}).get("tool"), median(ours), median(other)
            promise, words = f"127 MB JSONL: at least {times}x as fast as {whom}", "{:.2f} s, {} {:.2f} s: {:.1f}x"
            found.append(bar(promise, words, mine, name, theirs, ratio(theirs, mine), least=times))
        for kind in FORMATS:
            group = groups.get(("2gb", LARGE, kind, "2GiB"), [])
            mine, theirs = speed(of(group, OURS)), speed(of(group, YARDSTICK))
            promise = f"2 GB {kind}: at least 1.0x the bytes a second of gigatoken's encode_batch in memory"
            words = "{:,.1f} MB/s, {:,.1f} MB/s: {:.2f}x"
            found.append(bar(promise, words, mine, theirs, ratio(mine, theirs), least=1))
        for limit in (2, 1):
            for kind in FORMATS:
                mine = of(groups.get(("2gb", LARGE, kind, f"{limit}GiB"), []), OURS)
                middle = median(mine, "peak_bytes", GIB)
                # The highest run and not the median: a limit is a limit.
                peak = max(run["peak_bytes"] for run in mine["runs"]) / GIB if middle else None
                promise = f"2 GB {kind} with --memory {limit}GiB: all processes together at most {limit} GiB"
                found.append(bar(promise, "{1:.2f} GiB, median {0:.2f}", middle, peak, most=limit))
        for question, tool, words, limit in (
            ("dedup", f"{OURS}+dedup", "dedup of no duplicates: at most 1.25x the time of none", 1.25),
            ("ray", f"{OURS}+ray-1-node", "Ray on one machine: at most 1.15x the time of threads", 1.15),
        ):
            group = groups.get((question, LARGE, "jsonl", "2GiB"), [])
            found.append(at_most(f"2 GB jsonl, {words}", of(group, tool), of(group, OURS), limit))
        return found


def judge(entry, wanted):
    """Say how the tokens compare; other tokens than the reference's have no time."""
    found, counts = entry.facts["digest"], "{documents:,} documents, {tokens:,} tokens"
    if found["ordered"] == wanted["ordered"]:
        entry.agreement = "same tokens"
    elif found["unordered"] == wanted["unordered"] and not entry.ours:
        entry.agreement = "same tokens, documents in another order"
    else:
        expected = f"{wanted['documents']:,}, {wanted['tokens']:,}"
        entry.reason = entry.agreement = f"other tokens: {counts.format_map(found)}; expected {expected}"
        if entry.ours:
            raise SystemExit(f"ours has {entry.agreement}. No time is reported.")


if __name__ == "__main__":
    Prepare().main()
