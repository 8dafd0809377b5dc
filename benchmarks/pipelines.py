"""The pipelines that are compared by `prepare.py` and `strategies.py`: pinned versions, environments, commands.

Each lives in an environment of its own under `cache/venvs-prepare`: they do not agree on the versions of what they
stand on (mosaicml-streaming needs a transformers before 5, and with it an older `tokenizers`). A tool that does not
install is kept in the table with the reason. Start with `install` and `PIPELINES`.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from environments import environment

HERE = Path(__file__).parent
VENVS = HERE / "cache" / "venvs-prepare"
OURS = "piecemill"
YARDSTICK = "gigatoken"
TOKENIZERS, SENTENCEPIECE = "0.23.3", "0.2.2"
# One release of torch for all who need it; torchvision is pinned with it, or pip takes a newer torch for its sake.
TORCH = ("torch==2.13.0", "torchvision==0.28.0")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One way from documents to tokens on disk."""

    name: str
    version: str = ""
    tokenizers: str = TOKENIZERS
    "The HF `tokenizers` it stands on."
    needs: tuple[str, ...] = ("numpy", "pyarrow")
    "What its script imports besides, and pins of what it asks for."
    reads_whole_files: bool = False
    "Whether a worker takes whole files, so that the corpus must be given in as many."

    @property
    def script(self) -> Path:
        return HERE / "peers_prepare" / f"run_{self.name.replace('-', '_')}.py"

    @property
    def python(self) -> Path:
        return VENVS / self.name / "bin" / "python"

    @property
    def packages(self) -> list[str]:
        return [f"{self.name}=={self.version}", f"tokenizers=={self.tokenizers}", *self.needs]


PIPELINES = {
    pipeline.name: pipeline
    for pipeline in [
        Pipeline(OURS),
        Pipeline(YARDSTICK, "0.10.0", needs=(f"sentencepiece=={SENTENCEPIECE}", "numpy", "pyarrow")),
        Pipeline("datasets", "5.2.0"),
        Pipeline("datatrove", "0.10.1", needs=("orjson", "numpy", "pyarrow"), reads_whole_files=True),
        Pipeline("megatron-core", "0.16.1", needs=(TORCH[0], "numpy", "pyarrow")),
        Pipeline("litdata", "0.2.76", needs=(*TORCH, "numpy", "pyarrow")),
        Pipeline("mosaicml-streaming", "0.13.0", tokenizers="0.22.2", needs=(*TORCH, "numpy", "pyarrow")),
    ]
}
PEERS = [name for name in PIPELINES if name not in (OURS, YARDSTICK)]
# Where the reference is made, shards are read by numpy, and libraries are asked: it has all three of them.
PYTHON = PIPELINES[YARDSTICK].python


def install(names: list[str]) -> dict[str, str]:
    """Set up the environments of `names` once; returns the reason for each that could not be installed."""
    failed = {}
    for pipeline in (PIPELINES[name] for name in names):
        reason = environment(VENVS / pipeline.name, pipeline.packages)
        if reason:
            print(f"tools   {pipeline.name} {pipeline.version} does not install: {reason}")
            failed[pipeline.name] = reason
    return failed


def prepare_command(
    pipeline: Pipeline, *, inputs: list[Path], tokenizer: Path, workers: int, memory: str, out: Path
) -> list[str]:
    """The process that is timed."""
    if pipeline.name == OURS:
        return [
            *[str(Path(sys.executable).parent / "piecemill"), "prepare", *map(str, inputs)],
            *["--tokenizer", str(tokenizer.parent), "--out", str(out), "--workers", str(workers)],
            *["--memory", memory, "--eos", "<|endoftext|>", "--quiet"],
        ]
    return [
        *[str(pipeline.python), str(pipeline.script), "prepare", "--input", *map(str, inputs)],
        *["--tokenizer", str(tokenizer), "--workers", str(workers), "--out", str(out)],
    ]


def produced(pipeline: Pipeline, out: Path) -> dict:
    """The digest of what it wrote. Not timed."""
    # Ours is read by numpy in an environment without Piecemill: nothing of it is needed.
    python = PYTHON if pipeline.name == OURS else pipeline.python
    command = [str(python), str(pipeline.script), "tokens", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{pipeline.name}: what it wrote could not be read back:\n{done.stderr[-2000:]}")
    return json.loads((out / "digest.json").read_text())


def version(pipeline: Pipeline) -> str:
    if pipeline.name != OURS:
        return pipeline.version
    from importlib.metadata import version as installed

    return installed(OURS)
