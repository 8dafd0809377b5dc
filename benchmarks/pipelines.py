"""The pipelines of `prepare.py`, `strategies.py` and `load.py`: environments, commands, the reference, Ray clusters.

Each peer (`peers/prepare_peers.py`) lives in a separate environment: they do not agree on the versions of what they
stand on. `datasets+gigatoken` is `datasets` with the encoder of gigatoken, in a second environment. `piecemill-before`
is Piecemill before `prepare` became a function of tasks, built from its commit. Start with `PIPELINES`.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from corpus import RECORDED
from prepare_peers import PipelinePeer
from protocol import CACHE, HERE, OURS, PIECEMILL, SCRATCH, call, environment, installed_version, make_corpora, worker

VENVS = CACHE / "venvs-prepare"
BUILT = CACHE / "piecemill-before"
TOKENIZER = CACHE / "tokenizer-50257" / "tokenizer.json"
WORKERS = 2
BEFORE, COMMIT_BEFORE = "piecemill-before", "3727113869ba31ee46ca87e42382257858a0ee4e"
YARDSTICK, CANDIDATE = "gigatoken", "1.0.0rc3"
TOOLS = PipelinePeer.tools


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One way from documents to tokens on disk."""

    package: str
    variant: str = ""  # of a peer the library that encodes, where it is not the default one; of ours the options
    options: tuple[str, ...] = ()
    nodes: int = 0  # of the Ray cluster it runs on
    prestart: bool = True  # whether the worker processes of that cluster are started with it

    @property
    def name(self) -> str:
        return f"{self.package}+{self.variant}" if self.variant else self.package

    @property
    def tool(self) -> type[PipelinePeer]:
        return TOOLS[OURS if self.package == BEFORE else self.package]  # the same files, so the same reader

    @property
    def version(self) -> str:
        return COMMIT_BEFORE[:7] if self.package == BEFORE else self.tool.version or installed_version()

    @property
    def environment(self) -> Path:
        # Our files are read by numpy in an environment without Piecemill: nothing of it is needed.
        package = YARDSTICK if self.tool.name == OURS else self.package
        return VENVS / (f"{package}-faster" if self.variant and package == self.package else package)

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def tokenizers(self) -> str:
        return CANDIDATE if self.variant and "tokenizers-1.0" in self.tool.faster else self.tool.tokenizers

    @property
    def packages(self) -> list[str]:
        pins = [f"{self.package}=={self.version}", f"tokenizers=={self.tokenizers}"]
        pins += [f"gigatoken=={TOOLS['gigatoken'].version}"] if self.variant else []
        return [*pins, *self.tool.needs, "numpy", "pyarrow"]


_RAY = ("--executor", "ray")
DEDUP = Pipeline(OURS, "dedup", ("--dedup", "exact"))
RAY = [
    Pipeline(OURS, "ray-1-node", _RAY, 1),
    Pipeline(OURS, "ray-1-node-no-workers", _RAY, 1, prestart=False),
    *(Pipeline(OURS, f"ray-{nodes}-nodes", _RAY, nodes) for nodes in (2, 4)),
]
_PEERS = [
    Pipeline(name, variant)
    for name, tool in TOOLS.items()
    if name not in ("reference", OURS, YARDSTICK)
    for variant in ("", *tool.faster)
]
PEERS = [pipeline.name for pipeline in _PEERS]
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
    extension = BUILT / "python" / "piecemill" / "_core.abi3.so"
    if extension.exists():
        return ""
    print(f"tools   building {BEFORE}, commit {COMMIT_BEFORE[:7]}")
    BUILT.mkdir(parents=True, exist_ok=True)
    archive, with_extension = BUILT / "source.tar", os.environ | {"PYO3_BUILD_EXTENSION_MODULE": "1"}
    for step in (
        ["git", "-C", str(HERE.parent), "archive", f"--output={archive}", COMMIT_BEFORE],
        ["tar", "-xf", str(archive)],
        ["cargo", "build", "--release", "--quiet"],
    ):
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
    pipeline: Pipeline, inputs: list[Path], out: Path, memory: str = "2GiB", address: str = ""
) -> list[str]:
    """The process that is timed. `address` is that of the Ray cluster, for those that run on one."""
    before = pipeline.package == BEFORE
    if pipeline.tool.name == OURS:
        return [
            *(["env", f"PYTHONPATH={BUILT / 'python'}"] if before else []),
            *[PIECEMILL, "prepare", *map(str, inputs), "--tokenizer", str(TOKENIZER.parent), "--out", str(out)],
            *["--workers" if before else "--threads", str(WORKERS), "--memory", memory, "--eos", "<|endoftext|>"],
            *["--quiet", *pipeline.options, *(["--ray-address", address] if pipeline.nodes else [])],
        ]
    asked = {"input": inputs, "tokenizer": TOKENIZER, "workers": WORKERS}
    asked["library"] = "gigatoken" if pipeline.variant == "gigatoken" else "tokenizers"
    return worker(pipeline.python, "prepare_peers.py", pipeline.package, "prepare", out, **asked)


def produced(pipeline: Pipeline, out: Path) -> dict:
    """The digest of what it wrote. Not timed."""
    try:
        return call(worker(pipeline.python, "prepare_peers.py", pipeline.tool.name, "digest", out))
    except RuntimeError as error:
        raise SystemExit(f"{pipeline.name}: what it wrote could not be read back: {error}") from None


def reference(corpus: str) -> dict:
    """What HF `tokenizers` makes of the corpus; made once for each corpus and tokenizer."""
    made_with = hashlib.sha256(TOKENIZER.read_bytes()).hexdigest()[:16]
    target = CACHE / "reference" / f"{RECORDED[corpus].sha256[:16]}-{made_with}.json"
    if not target.exists():
        print(f"prepare reference for {corpus}", file=sys.stderr)
        target.parent.mkdir(parents=True, exist_ok=True)
        asked = {"input": [RECORDED[corpus].jsonl], "tokenizer": TOKENIZER}
        made = call(worker(PYTHON, "prepare_peers.py", "reference", "digest", SCRATCH / "reference", **asked))
        target.write_text(json.dumps(made))
    return json.loads(target.read_text())
