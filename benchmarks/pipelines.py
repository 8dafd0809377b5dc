"""The pipelines that are compared by `prepare.py` and `strategies.py`: pinned versions, environment, commands.

They live in `cache/venv-prepare`, all with the same `tokenizers`, so that what is compared is the pipeline and not
the release. A tool that does not install is kept in the table with the reason. Start with `install` and `PIPELINES`.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
VENV = HERE / "cache" / "venv-prepare"
PYTHON = VENV / "bin" / "python"
OURS = "piecemill"
YARDSTICK = "gigatoken"
SHARED = ("tokenizers==0.23.3", "torch==2.13.0")
"""Given with every install: a tool that cannot live with these fails, rather than changing them for the others."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One way from documents to tokens on disk."""

    name: str
    version: str = ""
    extras: str = ""
    needs: tuple[str, ...] = ()
    "What it imports and does not ask for."
    reads_whole_files: bool = False
    "Whether a worker takes whole files, so that the corpus must be given in as many."

    @property
    def script(self) -> Path:
        return HERE / "peers_prepare" / f"run_{self.name.replace('-', '_')}.py"


PIPELINES = {
    pipeline.name: pipeline
    for pipeline in [
        Pipeline(OURS),
        Pipeline(YARDSTICK, "0.10.0"),
        Pipeline("datasets", "5.2.0"),
        Pipeline("datatrove", "0.10.1", extras="[processing,io]", reads_whole_files=True),
        Pipeline("megatron-core", "0.16.1"),
        Pipeline("litdata", "0.2.76"),
        Pipeline("mosaicml-streaming", "0.13.0"),
        # Asked by strategies.py only.
        Pipeline("sentencepiece", "0.2.2"),
    ]
}
PEERS = [name for name in PIPELINES if name not in (OURS, YARDSTICK, "sentencepiece")]


def install() -> dict[str, str]:
    """Set up the environment once; returns the reason for each tool that could not be installed."""
    marker = VENV / "installed.json"
    pins = {pipeline.name: _wanted(pipeline) for pipeline in PIPELINES.values() if pipeline.name != OURS}
    if marker.exists():
        done = json.loads(marker.read_text())
        if done["pins"] == pins and done["shared"] == list(SHARED):
            return done["failed"]
    print(f"tools   installing {len(pins)} pipelines in {VENV}")
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    _pip(*SHARED, "numpy", "pyarrow", check=True)
    failed = {}
    for name, wanted in pins.items():
        reason = _pip(*wanted, *SHARED)
        if reason:
            print(f"tools   {name} does not install: {reason}")
            failed[name] = reason
    marker.write_text(json.dumps({"pins": pins, "shared": list(SHARED), "failed": failed}, indent=1))
    return failed


def _wanted(pipeline: Pipeline) -> list[str]:
    return [f"{pipeline.name}{pipeline.extras}=={pipeline.version}", *pipeline.needs]


def _pip(*packages: str, check: bool = False) -> str:
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return ""
    reason = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1][:300]
    if check:
        raise SystemExit(f"{' '.join(packages)}: could not be installed: {reason}")
    return reason


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
        *[str(PYTHON), str(pipeline.script), "prepare", "--input", *map(str, inputs)],
        *["--tokenizer", str(tokenizer), "--workers", str(workers), "--out", str(out)],
    ]


def produced(pipeline: Pipeline, out: Path) -> dict:
    """The digest of what it wrote. Not timed."""
    # Ours is read by numpy in the same environment as the others: nothing of Piecemill is needed for it.
    command = [str(PYTHON), str(pipeline.script), "tokens", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{pipeline.name}: what it wrote could not be read back:\n{done.stderr[-2000:]}")
    return json.loads((out / "digest.json").read_text())


def version(pipeline: Pipeline) -> str:
    if pipeline.name != OURS:
        return pipeline.version
    from importlib.metadata import version as installed

    return installed(OURS)
