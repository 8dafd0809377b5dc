"""The pipelines of `prepare.py`, `strategies.py` and `load.py`: environments, commands, the reference, Ray clusters.

Each peer (`peers/prepare_peers.py`) lives in a separate environment: they do not agree on the versions of what they
stand on. `datasets+gigatoken` is `datasets` with the encoder of gigatoken, in a second environment. `piecemill-before`
is Piecemill before `prepare` became a function of tasks, built from its commit. Start with `PIPELINES`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from corpus import RECORDED
from prepare_peers import PipelinePeer
from protocol import (
    CACHE,
    HERE,
    OURS,
    PIECEMILL,
    SCRATCH,
    call,
    environment,
    failure,
    installed_version,
    make_corpora,
    once_made,
    worker,
)

VENVS = CACHE / "venvs-prepare"
BUILT = CACHE / "piecemill-3727113"
TOKENIZER = CACHE / "tokenizer-50257" / "tokenizer.json"
WORKERS = 2
BEFORE, COMMIT_BEFORE = "piecemill-before", "3727113869ba31ee46ca87e42382257858a0ee4e"
YARDSTICK, CANDIDATE = "gigatoken", "1.0.0rc3"
TOOLS = PipelinePeer.tools


def pipeline(package, variant="", *options, nodes=0, prestart=True):
    """One way from documents to tokens on disk, on a Ray cluster of `nodes`, with its worker processes if `prestart`.

    `variant` is of a peer the library that encodes, where it is not the default one; of ours it names the options.
    """
    tool = TOOLS[OURS if package == BEFORE else package]  # the same files, so the same reader
    version = COMMIT_BEFORE[:7] if package == BEFORE else tool.version or installed_version()
    tokenizers = CANDIDATE if variant and "tokenizers-1.0" in tool.faster else tool.tokenizers
    pins = [f"{package}=={version}", f"tokenizers=={tokenizers}"]
    pins += [f"gigatoken=={TOOLS['gigatoken'].version}"] if variant else []
    # Our files are read by numpy in an environment without Piecemill: nothing of it is needed.
    place = YARDSTICK if tool.name == OURS else f"{package}-faster" if variant else package
    return SimpleNamespace(
        name=f"{package}+{variant}" if variant else package,
        **{
            "package": package,
            "tool": tool,
            "version": version,
            "tokenizers": tokenizers,
            "environment": VENVS / place,
        },
        **{"python": VENVS / place / "bin" / "python", "packages": [*pins, *tool.needs, "numpy", "pyarrow"]},
        **{"library": "gigatoken" if variant == "gigatoken" else "tokenizers", "options": options},
        **{"nodes": nodes, "prestart": prestart},
    )


DEDUP = pipeline(OURS, "dedup", "--dedup", "exact")
RAY = [
    pipeline(OURS, variant, "--executor", "ray", nodes=nodes, prestart=not variant.endswith("no-workers"))
    for variant, nodes in (("ray-1-node", 1), ("ray-1-node-no-workers", 1), ("ray-2-nodes", 2), ("ray-4-nodes", 4))
]
_OTHERS = [tool for name, tool in TOOLS.items() if name not in ("reference", OURS, YARDSTICK)]
_PEERS = [pipeline(tool.name, variant) for tool in _OTHERS for variant in ("", *tool.faster)]
PEERS = [one.name for one in _PEERS]
PIPELINES = {one.name: one for one in [pipeline(OURS), DEDUP, *RAY, pipeline(BEFORE), pipeline(YARDSTICK), *_PEERS]}
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
    return failure([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", BUILT, source])


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
            *["--workers" if before else "--threads", str(WORKERS), "--memory", memory, "--eos", "<|endoftext|>"],
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
    return once_made(target, f"prepare reference for {corpus}", lambda: call(make))
