"""The libraries that `encode.py` compares: pinned versions, environments, and the process that is timed.

All live in one environment under `cache/venvs-encode`, except the candidate of `tokenizers` 1.0: a package can be there
only once. One that does not install is kept in the table with the reason. On a machine without a package index a folder
of unpacked wheels takes the place of the environments (`carried`). Start with `install` and `command`.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from environments import environment

HERE = Path(__file__).parent
VENVS = HERE / "cache" / "venvs-encode"
SCRIPT = HERE / "peers_encode" / "run_encode.py"
OURS = "piecemill"


@dataclass(frozen=True, slots=True)
class Encoder:
    """One library, called in the fastest way it offers."""

    name: str
    version: str = ""
    call: str = ""
    package: str = ""
    "Its name on the package index, if that is another."
    forms: tuple[str, ...] = ("whole", "blocks")
    "The corpus in one call, or in calls of 8 MiB. Of slow ones only the first: there it makes no difference."
    environment: str = "peers"

    @property
    def pin(self) -> str:
        return f"{self.package or self.name}=={self.version}"

    @property
    def python(self) -> Path:
        return VENVS / self.environment / "bin" / "python"


ENCODERS = {
    made.name: made
    for made in [
        Encoder(OURS, call="encode_flat"),
        Encoder("gigatoken", "0.10.0", "encode_batch over an awkward array"),
        Encoder(
            "tokenizers-1.0rc", "1.0.0rc3", "encode_batch", package="tokenizers", environment="tokenizers-candidate"
        ),
        Encoder("splintr-rs", "0.22.0", "encode_batch_flat"),
        Encoder("fastokens", "0.3.5", "encode_batch_flat"),
        Encoder("tiktoken", "0.14.0", "encode_ordinary_batch", forms=("whole",)),
        Encoder("tokenizers", "0.23.3", "encode_batch_fast", forms=("whole",)),
        Encoder("sentencepiece", "0.2.2", "encode with a list", forms=("whole",)),
    ]
}
PEERS = [name for name in ENCODERS if name != OURS]
BESIDE = ("numpy==2.4.6", "awkward==2.14.0")
_carried: Path | None = None


def install(names: list[str]) -> dict[str, str]:
    """Set the environments up once; returns the reason for each library that cannot be used."""
    if _carried is not None:
        return {name: reason for name in names if (reason := _missing(name))}
    failed = {}
    asked = {ENCODERS[name].environment for name in names if name != OURS} | {"peers"}
    for one in sorted(asked):
        members = [encoder for encoder in ENCODERS.values() if encoder.environment == one and encoder.name != OURS]
        beside = BESIDE if one == "peers" else BESIDE[:1]
        reason = environment(VENVS / one, [*(encoder.pin for encoder in members), *beside])
        failed |= {encoder.name: reason for encoder in members if reason}
    return failed


def carried(folder: Path) -> None:
    """Use this interpreter for all, with the packages in `folder` before its own."""
    global _carried
    _carried = folder.resolve()
    paths = [str(_carried / "site"), str(HERE.parent / "python"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)


def _missing(name: str) -> str:
    module = {"tokenizers-1.0rc": "not_carried", "splintr-rs": "splintr"}.get(name, name)
    found = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False)
    return "not carried to this machine" if found.returncode else ""


def python(name: str) -> str:
    return sys.executable if name == OURS or _carried is not None else str(ENCODERS[name].python)


def command(name: str, do: str, *, vocabulary: Path, source: Path, out: Path, options: list[str]) -> list[str]:
    """The process that is measured."""
    return [python(name), str(SCRIPT), do, name, str(vocabulary), str(source), str(out), *options]


def version(name: str) -> str:
    """What is pinned; of ours and of carried ones what is installed."""
    if name != OURS and _carried is None:
        return ENCODERS[name].version
    package = ENCODERS[name].package or name
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python(name), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "of this checkout"
