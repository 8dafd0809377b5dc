"""The loaders that `load.py` compares: which environment each runs in, and its commands.

The peers live in the environments of `pipelines.py`. Two of those have no torch, which weighs gigabytes; they and
Piecemill's own borrow that of litdata, which comes behind everything they have themselves. Start with `LOADERS`.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pipelines

HERE = Path(__file__).parent
OURS = "piecemill"
CEILING = "numpy-gather"
WITH_TORCH = "litdata"


@dataclass(frozen=True, slots=True)
class Loader:
    """One way from tokens on disk to batches."""

    name: str
    environment: str
    stride_is_window: bool = True
    "Whether rows begin every `window` tokens, as ours do, rather than every window + 1."
    writes: str = ""
    "What it has its own files for: every `window`, or `once`; nothing if it reads the tokens as they are."
    workers: tuple[int, ...] = (0, 1, 2)
    replaces: bool = False
    "Whether it draws with replacement, so that an epoch is not all rows."

    @property
    def script(self) -> Path:
        return HERE / "peers_load" / f"run_{self.name.replace('-', '_')}.py"

    @property
    def python(self) -> str:
        return sys.executable if self.name == OURS else str(pipelines.PIPELINES[self.environment].python)

    @property
    def version(self) -> str:
        if self.name == OURS:
            return pipelines.version(pipelines.PIPELINES[OURS])
        return pipelines.PIPELINES[self.environment].version if self.name == self.environment else ""


LOADERS = {
    loader.name: loader
    for loader in [
        Loader(OURS, OURS),
        Loader(CEILING, WITH_TORCH, workers=(0,)),
        Loader("litdata", "litdata", stride_is_window=False, writes="window"),
        Loader("mosaicml-streaming", "mosaicml-streaming", stride_is_window=False, writes="window"),
        Loader("datasets", "datasets", stride_is_window=False, writes="window"),
        Loader("datatrove", "datatrove", stride_is_window=False, writes="once"),
        Loader("torch-memmap", WITH_TORCH),
        Loader("nanogpt-loop", WITH_TORCH, workers=(0,), replaces=True),
    ]
}
PEERS = [name for name in LOADERS if name not in (OURS, CEILING)]
# The bar names these; the other two have no format of their own.
LIBRARIES = ("litdata", "mosaicml-streaming", "datasets", "datatrove")


def install(names: list[str]) -> dict[str, str]:
    """Set up what `names` run in; returns the reason for each that could not be installed."""
    needed = dict.fromkeys([WITH_TORCH, *(LOADERS[name].environment for name in names)])
    failed = pipelines.install([name for name in needed if name != OURS])
    return {name: failed[LOADERS[name].environment] for name in names if LOADERS[name].environment in failed}


def torch_site() -> str:
    """Where the torch of everybody is."""
    folder = pipelines.PIPELINES[WITH_TORCH].python.parents[1]
    return str(next(folder.glob("lib/python*/site-packages")))


def command(loader: Loader, do: str, *, tokens: Path, out: Path, **options: object) -> list[str]:
    flags = [str(part) for name, value in options.items() for part in (f"--{name}", *_listed(value))]
    return [loader.python, str(loader.script), do, "--tokens", str(tokens), "--out", str(out), *flags]


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


def run(arguments: list[str], what: str) -> None:
    """A command that is not timed; its last lines where it fails."""
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        raise RuntimeError(f"{what} failed: {(done.stderr or done.stdout).strip()[-300:]}")


def environment() -> dict[str, str]:
    return {**os.environ, "TORCH_SITE": torch_site()}
