"""The pipelines that are compared by `prepare.py` and `strategies.py`: pinned versions, environments, commands.

Each lives in a separate environment under `cache/venvs-prepare`: they do not agree on the versions of what they
stand on (mosaicml-streaming needs a transformers before 5, and with it an older `tokenizers`). The three that most
people use are measured with their default library and with faster ones: `datasets+gigatoken` is `datasets` with the
encoder of gigatoken. `piecemill-before` is Piecemill before `prepare` became a function of tasks, built from its commit
into `cache/piecemill-before`. A tool that does not install is kept in the table with the reason.
Start with `install` and `PIPELINES`.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from corpus import RECORDED
from protocol import CACHE, HERE, OURS, PIECEMILL, call, environment, installed_version, make_corpora, worker

VENVS = CACHE / "venvs-prepare"
BUILT = CACHE / "piecemill-before"
SCRATCH = CACHE / "runs-prepare"
TOKENIZER = CACHE / "tokenizer-50257" / "tokenizer.json"
WORKERS = 2
BEFORE, COMMIT_BEFORE = "piecemill-before", "3727113869ba31ee46ca87e42382257858a0ee4e"
YARDSTICK = "gigatoken"
TOKENIZERS, CANDIDATE, GIGATOKEN, SENTENCEPIECE = "0.23.3", "1.0.0rc3", "0.10.0", "0.2.2"
# One release of torch for all who need it; torchvision is pinned with it, or pip takes a newer torch for its sake.
TORCH = ("torch==2.13.0", "torchvision==0.28.0")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One way from documents to tokens on disk."""

    package: str
    version: str = ""
    tokenizers: str = TOKENIZERS
    "The HF `tokenizers` in its environment."
    needs: tuple[str, ...] = ("numpy", "pyarrow")
    "What its script imports besides, and pins of what it asks for."
    reads_whole_files: bool = False
    "Whether a worker takes whole files, so that the corpus must be given in as many."
    variant: str = ""
    "Of a peer the library that encodes, where it is not the default one; of ours the options."
    options: tuple[str, ...] = ()
    nodes: int = 0
    "Nodes of the Ray cluster it runs on."
    prestart: bool = True
    "Whether the worker processes of that cluster are started with it."

    @property
    def name(self) -> str:
        return f"{self.package}+{self.variant}" if self.variant else self.package

    @property
    def environment(self) -> Path:
        return VENVS / (f"{self.package}-faster" if self.variant else self.package)

    @property
    def python(self) -> Path:
        # Our files are read by numpy in an environment without Piecemill: nothing of it is needed.
        return (VENVS / YARDSTICK if self.package in (OURS, BEFORE) else self.environment) / "bin" / "python"

    @property
    def packages(self) -> list[str]:
        return [f"{self.package}=={self.version}", f"tokenizers=={self.tokenizers}", *self.needs]


def faster(default: Pipeline, tokenizers: str, variant: str = "gigatoken") -> Pipeline:
    """The pipeline in a second environment, with gigatoken, and with these `tokenizers`."""
    return replace(default, variant=variant, tokenizers=tokenizers, needs=(f"gigatoken=={GIGATOKEN}", *default.needs))


_datasets = Pipeline("datasets", "5.2.0")
_datatrove = Pipeline("datatrove", "0.10.1", needs=("orjson", "numpy", "pyarrow"), reads_whole_files=True)
_megatron = Pipeline("megatron-core", "0.16.1", needs=(TORCH[0], "numpy", "pyarrow"))
DEDUP = Pipeline(OURS, variant="dedup", options=("--dedup", "exact"))
_ray = Pipeline(OURS, variant="ray-1-node", options=("--executor", "ray"), nodes=1)
RAY = [
    _ray,
    replace(_ray, variant="ray-1-node-no-workers", prestart=False),
    *(replace(_ray, variant=f"ray-{nodes}-nodes", nodes=nodes) for nodes in (2, 4)),
]
PIPELINES = {
    pipeline.name: pipeline
    for pipeline in [
        Pipeline(OURS),
        DEDUP,
        *RAY,
        Pipeline(BEFORE, COMMIT_BEFORE[:7]),
        Pipeline(YARDSTICK, GIGATOKEN, needs=(f"sentencepiece=={SENTENCEPIECE}", "numpy", "pyarrow")),
        _datasets,
        faster(_datasets, CANDIDATE, "tokenizers-1.0"),
        faster(_datasets, CANDIDATE),
        # It imports `tokenizers.processors`, which 1.0 does not have.
        _datatrove,
        faster(_datatrove, TOKENIZERS),
        _megatron,
        faster(_megatron, CANDIDATE, "tokenizers-1.0"),
        faster(_megatron, CANDIDATE),
        Pipeline("litdata", "0.2.76", needs=(*TORCH, "numpy", "pyarrow")),
        Pipeline("mosaicml-streaming", "0.13.0", tokenizers="0.22.2", needs=(*TORCH, "numpy", "pyarrow")),
    ]
}
PEERS = [name for name, pipeline in PIPELINES.items() if pipeline.package not in (OURS, BEFORE, YARDSTICK)]
# Where the reference is made, shards are read by numpy, and libraries are called: it has all three of them.
PYTHON = PIPELINES[YARDSTICK].python


def install(names: list[str]) -> dict[str, str]:
    """Set up what `names` need, once; returns the reason for each that could not be installed."""
    failed = {}
    for pipeline in (PIPELINES[name] for name in names):
        reason = build_before() if pipeline.package == BEFORE else environment(pipeline.environment, pipeline.packages)
        if reason:
            print(f"tools   {pipeline.name} {pipeline.version} does not install: {reason}")
            failed[pipeline.name] = reason
    return failed


def build_before() -> str:
    """Build the version before from its commit, to run in the environment of ours; returns the reason if that fails."""
    extension = BUILT / "python" / "piecemill" / "_core.abi3.so"
    if extension.exists():
        return ""
    print(f"tools   building {BEFORE}, commit {COMMIT_BEFORE[:7]}")
    BUILT.mkdir(parents=True, exist_ok=True)
    archive = BUILT / "source.tar"
    for step in (
        ["git", "-C", str(HERE.parent), "archive", f"--output={archive}", COMMIT_BEFORE],
        ["tar", "-xf", str(archive)],
        ["cargo", "build", "--release", "--quiet"],
    ):
        with_extension = os.environ | {"PYO3_BUILD_EXTENSION_MODULE": "1"}
        done = subprocess.run(step, cwd=BUILT, env=with_extension, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip()[-300:]
    shutil.copy(BUILT / "target" / "release" / "libpiecemill.so", extension)
    return ""


@contextmanager
def cluster(pipeline: Pipeline, workers: int) -> Iterator[str]:
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


def prepare_command(
    pipeline: Pipeline, inputs: list[Path], *, out: Path, memory: str = "2GiB", address: str = ""
) -> list[str]:
    """The process that is timed. `address` is that of the Ray cluster, for those that run on one."""
    if pipeline.package in (OURS, BEFORE):
        return [
            *(["env", f"PYTHONPATH={BUILT / 'python'}"] if pipeline.package == BEFORE else []),
            *[PIECEMILL, "prepare", *map(str, inputs), "--tokenizer", str(TOKENIZER.parent), "--out", str(out)],
            *["--workers" if pipeline.package == BEFORE else "--threads", str(WORKERS), "--memory", memory],
            *["--eos", "<|endoftext|>", "--quiet", *pipeline.options],
            *(["--ray-address", address] if pipeline.nodes else []),
        ]
    asked = {"input": inputs, "tokenizer": TOKENIZER, "workers": WORKERS, "out": out}
    library = "gigatoken" if pipeline.variant == "gigatoken" else "tokenizers"
    script, answer = "prepare_peers.py", answer_of(out)
    return worker(pipeline.python, script, pipeline.package, "prepare", answer, library=library, **asked)


def answer_of(out: Path) -> Path:
    """Where the answer of a worker goes: beside its folder, whose bytes are counted."""
    return out.with_name(f"{out.name}.json")


def produced(pipeline: Pipeline, out: Path) -> dict:
    """The digest of what it wrote. Not timed."""
    package = OURS if pipeline.package == BEFORE else pipeline.package  # the same files, so the same reader
    try:
        return call(worker(pipeline.python, "prepare_peers.py", package, "digest", answer_of(out), out=out))
    except RuntimeError as error:
        raise SystemExit(f"{pipeline.name}: what it wrote could not be read back: {error}") from None


def version(pipeline: Pipeline) -> str:
    return installed_version() if pipeline.package == OURS else pipeline.version


def reference(corpus: str) -> dict:
    """What HF `tokenizers` makes of the corpus; made once for each corpus and tokenizer."""
    made_with = hashlib.sha256(TOKENIZER.read_bytes()).hexdigest()[:16]
    target = CACHE / "reference" / f"{RECORDED[corpus].sha256[:16]}-{made_with}.json"
    if not target.exists():
        print(f"prepare reference for {corpus}", file=sys.stderr)
        target.parent.mkdir(parents=True, exist_ok=True)
        asked = {"input": [RECORDED[corpus].jsonl], "tokenizer": TOKENIZER}
        call(worker(PYTHON, "prepare_peers.py", "reference", "digest", target, **asked))
    return json.loads(target.read_text())


def make_inputs(corpora: list[str]) -> None:
    """The corpora, and the tokenizer of all pipelines, trained once from the 127 MB."""
    make_corpora(["python-127mb", *corpora])
    SCRATCH.mkdir(parents=True, exist_ok=True)
    if not TOKENIZER.exists():
        command = [PIECEMILL, "train", str(RECORDED["python-127mb"].jsonl), "--out", str(TOKENIZER.parent), "--quiet"]
        subprocess.run([*command, "--pretokenizer", "gpt2", "--vocab-size", "50257"], check=True)
