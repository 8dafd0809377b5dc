"""The tools that are compared: their pinned versions, their virtual environment, how each is called.

The peers live in `cache/venv`, apart from Piecemill's own environment, so that no version of theirs can change
ours. A tool that does not install is kept in the table with the reason. Start with `install` and `TOOLS`.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
VENV = HERE / "cache" / "venv"
PYTHON = VENV / "bin" / "python"
OURS = "piecemill"
HF = "tokenizers"


@dataclass(frozen=True, slots=True)
class Tool:
    """One trainer and what may be asked of it."""

    name: str
    version: str = ""
    splits: tuple[str, ...] = ("gpt2", "none")
    promises: str = "none"
    "`hf`: the merges must be HF's, in order. `none`: what differs is reported. `other rules`: not comparable."
    needs: tuple[str, ...] = ()
    "Installed first, for tools that build from source with what is there."

    @property
    def script(self) -> Path:
        return HERE / "peers" / f"run_{self.name.replace('-', '_')}.py"


TOOLS = {
    tool.name: tool
    for tool in [
        Tool(OURS, promises="hf"),
        Tool(HF, "0.23.3", promises="hf"),
        Tool("gigatoken", "0.10.0", splits=("gpt2",), promises="hf"),
        Tool("ffbpe", "0.1.10", promises="hf"),
        Tool("rustbpe", "0.1.0"),
        Tool("fast-bpe-rs", "0.6.1"),
        Tool("quickbpe", "2.1", needs=("numpy", "regex")),
        Tool("bpeasy", "0.1.6"),
        Tool("youtokentome", "1.0.6", promises="other rules", needs=("cython", "setuptools", "wheel")),
        Tool("sentencepiece", "0.2.2", promises="other rules"),
    ]
}


def install() -> dict[str, str]:
    """Set up the peers once; returns the reason for each that could not be installed."""
    marker = VENV / "installed.json"
    pins = {tool.name: tool.version for tool in TOOLS.values() if tool.name != OURS}
    if marker.exists():
        done = json.loads(marker.read_text())
        if done["pins"] == pins:
            return done["failed"]
    print(f"tools   installing {len(pins)} peers in {VENV}")
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    failed = {}
    for tool in TOOLS.values():
        if tool.name != OURS:
            reason = _install_one(tool)
            if reason:
                print(f"tools   {tool.name} {tool.version} does not install: {reason}")
                failed[tool.name] = reason
    marker.write_text(json.dumps({"pins": pins, "failed": failed}, indent=1))
    return failed


def _install_one(tool: Tool) -> str:
    steps = []
    if tool.needs:
        steps.append(["install", "--quiet", *tool.needs])
    steps.append(
        ["install", "--quiet", *(["--no-build-isolation"] if tool.needs else []), f"{tool.name}=={tool.version}"]
    )
    for step in steps:
        done = subprocess.run([str(PYTHON), "-m", "pip", *step], capture_output=True, text=True, check=False)
        if done.returncode:
            return (done.stderr.strip() or done.stdout.strip()).splitlines()[-1][:300]
    return _compile_quickbpe() if tool.name == "quickbpe" else ""


def _compile_quickbpe() -> str:
    """Its wheel carries libraries built against a newer C++ runtime than many machines have, and their source."""
    folder = next(VENV.glob("lib/python*/site-packages/QuickBPE/fastfuncs"))
    if shutil.which("make") is None or shutil.which("gcc") is None:
        return "its shipped library needs compiling here, and make or gcc is missing"
    done = subprocess.run(
        ["make", "--always-make", "bpe.so", "encode.so"], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stderr.strip()[-300:] if done.returncode else ""


def train_command(tool: Tool, *, corpus: Path, split: str, vocab: int, threads: int, out: Path) -> list[str]:
    """The process that is timed."""
    if tool.name == OURS:
        return [
            *[str(Path(sys.executable).parent / "piecemill"), "train", str(corpus), "--out", str(out)],
            *["--split", split, "--vocab-size", str(vocab), "--threads", str(threads), "--quiet"],
            # The peers read every file and know no special token.
            *["--hidden", "--no-gitignore", "--no-special-tokens"],
        ]
    return [
        *[str(PYTHON), str(tool.script), "train", "--corpus", str(corpus), "--out", str(out)],
        *["--split", split, "--vocab", str(vocab), "--threads", str(threads)],
    ]


def merges(tool: Tool, out: Path) -> list[list[str]]:
    """What it learned, in order, as hex; empty where nothing comparable exists. Not timed."""
    # Ours is read with the same parser as HF's: it is the same file format, and that is part of the claim.
    interpreter = sys.executable if tool.name == OURS else str(PYTHON)
    subprocess.run([interpreter, str(tool.script), "merges", "--out", str(out)], check=True)
    return json.loads((out / "merges.json").read_text())


def version(tool: Tool) -> str:
    if tool.name != OURS:
        return tool.version
    from importlib.metadata import version as installed

    return installed(OURS)
