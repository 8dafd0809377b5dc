"""Virtual environments for the tools that are compared, so that no version of theirs can change ours.

An environment is made once for each list of packages. Start with `environment`.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path


def environment(folder: Path, packages: list[str]) -> str:
    """Make `folder` a virtual environment with exactly these packages asked for; returns the reason if that fails."""
    marker = folder.parent / f"{folder.name}.json"
    done = json.loads(marker.read_text()) if marker.exists() else {}
    if done.get("packages") != packages:
        print(f"tools   installing {' '.join(packages)}")
        done = {"packages": packages, "failed": _make(folder, packages)}
        marker.write_text(json.dumps(done, indent=1))
    return done["failed"]


def _make(folder: Path, packages: list[str]) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or done.stdout.strip()).splitlines()[-1][:300] if done.returncode else ""
