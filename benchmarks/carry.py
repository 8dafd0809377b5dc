"""Measuring on a machine without a network: folders that travel there, and records that come back.

`python benchmarks/carry.py` makes the folder for encoding with many threads; `pretrain.py` and `encode_gpu.py` make
theirs. Beside each, the compiled core of the package must travel: python/piecemill/_core.abi3.so.

    carry/text.jsonl.xz      python-20mb and english-40mb, one document a line
    carry/cl100k/            the vocabulary
    carry/site/              gigatoken with what it imports beside numpy, wheels unpacked for the Python of that machine
    carry/site-candidate/    the candidate of `tokenizers` 1.0

On that machine:

    python3 benchmarks/carry.py --unpack carry
    python3 benchmarks/encode.py --only scaling --carried carry --threads 1,2,4,8,16 --repeats 3 --results OUT.jsonl

`--unpack` repeats the text up to a gigabyte, with other words each time (`corpus.repeated`). Each takes about a minute.
"""

import argparse
import json
import lzma
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from corpus import FLAT, corpus, repeated, write_flat
from encode import BESIDE, CARRIED, ENCODERS, pin
from encode_vocabularies import VOCABULARIES, vocabulary
from session import RESULTS, Benchmark, append
from worker import texts

CARRY = Path(__file__).parent.parent / "carry"
LIMIT = 64 * 2**20
VOCABULARY = "cl100k"  # of encoding with many threads
# What the libraries of `encode.py` import beside numpy.
SITE = [pin(ENCODERS["gigatoken"]), BESIDE[1], "awkward_cpp", "fsspec", "importlib_metadata", "packaging", "zipp"]


def new_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def pack_text(names: list[str], target: Path) -> None:
    with lzma.open(target, "wb", preset=6) as lines:
        for name in names:
            lines.write(corpus(name).jsonl.read_bytes())


def install(target: Path, packages: list[str], python: str = "") -> None:
    """Packages in a plain folder; for another Python wheels alone, so that nothing is compiled, and no dependencies."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(target)]
    wheels = ["--no-deps", "--only-binary", ":all:", "--python-version", python] if python else []
    wheels += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64"] if python else []
    subprocess.run([*command, *wheels, *packages], check=True)
    for unneeded in ("bin", *(path for name in ("tests", "include", "header-only") for path in target.rglob(name))):
        shutil.rmtree(target / unneeded, ignore_errors=True)


def check_size(folder: Path) -> None:
    """What travels with all that git tracks, and what may."""
    core = CARRY.parent / "python" / "piecemill" / "_core.abi3.so"
    size = core.stat().st_size + sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"carry   {folder} and {core.name}: {size / 2**20:.1f} MiB of {LIMIT / 2**20:.0f}")
    if size > LIMIT:
        raise SystemExit("carry   that is more than may travel")


class RemoteBenchmark(Benchmark):
    """A benchmark that one call on another machine measures; `--take` keeps its records here and rewrites the page.

    A subclass has `flags`, with `--pack`; `pack(args)`; `measure(args)`, which returns a record; bars and tables.
    """

    def start(self, arguments=None) -> None:
        parser = self.parser()
        self.flags(parser.add_argument)
        parser.add_argument("--out", type=Path, help="folder for the record")
        parser.add_argument("--commit", default="", help="what is being measured, where there is no git")
        parser.add_argument("--take", type=Path, help="keep the records of this folder and rewrite the page")
        parser.add_argument("--table", action="store_true", help="rewrite the page")
        self.args = parser.parse_args(arguments)
        if not (self.args.pack or self.args.take or self.args.table or self.args.out):
            parser.error("name --out, or --pack, --take or --table")

    def main(self) -> None:
        self.start()
        args = self.args
        if args.pack:
            self.pack(args)
        elif args.take or args.table:
            for path in sorted(args.take.glob(f"{self.name}*.json")) if args.take else []:
                append(RESULTS, json.loads(path.read_text(encoding="utf-8")))
                print(f"kept {path}")
            self.write_page(RESULTS)
        else:
            args.out.mkdir(parents=True, exist_ok=True)
            record = self.measure(args)
            path = args.out / f"{self.name}-{record['question']}.json"
            path.write_text(json.dumps(record) + "\n", encoding="utf-8")
            print(f"wrote {path}")


def pack(out, python):
    pack_text(["python-20mb", "english-40mb"], new_folder(out) / "text.jsonl.xz")
    if reason := vocabulary(VOCABULARY):
        raise SystemExit(f"carry   {VOCABULARY}: {reason}")
    shutil.copytree(VOCABULARIES[VOCABULARY].folder, out / VOCABULARY)
    install(out / "site", SITE, python)
    install(out / "site-candidate", [pin(ENCODERS["tokenizers-1.0rc"])], python)
    check_size(out)


def unpack(folder, size=1_000_000_000):
    """The vocabulary and `size` bytes of text, where `encode.py` looks for them."""
    shutil.copytree(folder / VOCABULARY, VOCABULARIES[VOCABULARY].folder, dirs_exist_ok=True)
    made = write_flat(CARRIED, repeated(list(texts(folder / "text.jsonl.xz")), size))
    (FLAT / f"{CARRIED}.json").write_text(json.dumps(asdict(made)))
    print(f"carry   {made.documents:,} documents, {made.bytes:,} bytes, {made.sha256[:16]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=CARRY, help="folder to make (default: carry)")
    parser.add_argument("--python", default="3.12", help="Python of the other machine (default: 3.12)")
    parser.add_argument("--unpack", type=Path, metavar="FOLDER", help="on the other machine: make the text")
    args = parser.parse_args()
    if args.unpack:
        unpack(args.unpack)
    else:
        pack(args.out, args.python)
