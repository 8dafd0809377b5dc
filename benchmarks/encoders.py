"""The libraries that `encode.py` compares: pinned versions, environments, and the process that is timed.

All live in one environment under `cache/venvs-encode`, except the candidate of `tokenizers` 1.0: a package can be there
only once. One that does not install is kept in the table with the reason. On a machine without a package index a folder
of unpacked wheels takes the place of the environments (`carried`). Start with `install` and `command`.
"""

import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
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
    def module(self) -> str:
        return (self.package or self.name).removesuffix("-rs")

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


def _site(name: str) -> list[str]:
    """Where carried packages of one library lie: the candidate of `tokenizers` apart from the release."""
    if _carried is None:
        return []
    places = {OURS: HERE.parent / "python", "tokenizers-1.0rc": _carried / "site-candidate"}
    return ["--site", str(places.get(name, _carried / "site"))]


def _missing(name: str) -> str:
    code = f"import sys; sys.path.insert(0, {_site(name)[1]!r}); import {ENCODERS[name].module}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return found.stderr.strip().splitlines()[-1] if found.returncode else ""


def python(name: str) -> str:
    return sys.executable if name == OURS or _carried is not None else str(ENCODERS[name].python)


def command(name: str, do: str, *, vocabulary: Path, source: Path, out: Path, options: list[str]) -> list[str]:
    """The process that is measured."""
    return [python(name), str(SCRIPT), do, name, str(vocabulary), str(source), str(out), *options, *_site(name)]


@cache
def version(name: str) -> str:
    """What is pinned; of ours and of what the other machine has by itself what is installed."""
    if name != OURS and (_carried is None or name in ("gigatoken", "tokenizers-1.0rc")):
        return ENCODERS[name].version
    try:
        return installed(ENCODERS[name].package or name)
    except PackageNotFoundError:
        return "of this checkout"
