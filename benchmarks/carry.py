"""What a GPU machine without a network needs to train on the Python corpus: `python benchmarks/carry.py`.

    carry/shards.tar.xz     shards of python-127mb with a vocabulary of 50,257, both made here: train 95%, val 5%
    carry/sample.jsonl.xz   a cut of the same documents as text, for the loop that tokenizes as it goes
    carry/site/             what the command line and the tests import beside numpy, torch and transformers; pure Python

Beside the folder, the compiled core of the package must travel: python/piecemill/_core.abi3.so. There:

    python3 -c "import tarfile; tarfile.open('carry/shards.tar.xz').extractall('data', filter='data')"
    export PYTHONPATH=python:carry/site
    python3 -m piecemill pretrain data/shards --size 370m --out data/run

It takes two or three minutes, nearly all of it packing.
"""

import argparse
import lzma
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from corpus import corpus, texts

HERE = Path(__file__).parent
PACKAGES = ("cyclopts", "pytest")
LIMIT = 64 * 2**20
SAMPLE_BYTES = 16_000_000
VOCABULARY = 50_257


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE.parent / "carry", help="folder to make (default: carry)")
    parser.add_argument("--corpus", default="python-127mb", help="one of benchmarks/corpus.py (default: python-127mb)")
    parser.add_argument("--jsonl", type=Path, help="instead: this JSONL file, field `text`")
    args = parser.parse_args()
    jsonl = args.jsonl or corpus(args.corpus).jsonl
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    shards = make_shards(jsonl, args.out / "shards")
    pack(shards, args.out / "shards.tar.xz")
    sample(jsonl, args.out / "sample.jsonl.xz")
    install(args.out / "site")
    core = HERE.parent / "python" / "piecemill" / "_core.abi3.so"
    size = core.stat().st_size + sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file())
    print(f"carry   {args.out} and {core.name}: {size / 2**20:.1f} MiB of {LIMIT / 2**20:.0f}")
    if size > LIMIT:
        raise SystemExit("carry   that is more than may travel")


def make_shards(jsonl: Path, out: Path) -> Path:
    """The vocabulary, then the shards, each in about a second or two."""
    from piecemill import prepare, train_bpe

    tokenizer = train_bpe(jsonl, vocab_size=VOCABULARY)
    summary = prepare(jsonl, tokenizer, out=out, splits="train=95,val=5", dedup="exact")
    print(f"carry   {summary}")
    return out


def pack(folder: Path, target: Path) -> None:
    """Into a .tar.xz that does not depend on when and by whom; the folder goes."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime = info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with lzma.open(target, "wb", preset=6) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                tar.add(path, f"{folder.name}/{path.relative_to(folder)}", filter=plain)
    shutil.rmtree(folder)
    print(f"carry   {target.name}: {target.stat().st_size / 2**20:.1f} MiB")


def sample(jsonl: Path, target: Path) -> None:
    """The first documents, up to `SAMPLE_BYTES` of text."""
    import json

    taken = 0
    with lzma.open(target, "wt", encoding="utf-8", preset=6) as lines:
        for text in texts(jsonl):
            lines.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            taken += len(text.encode())
            if taken >= SAMPLE_BYTES:
                break
    print(f"carry   {target.name}: {target.stat().st_size / 2**20:.1f} MiB")


def install(target: Path) -> None:
    """Pure Python packages, so that they run under whichever version is there."""
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(target), *PACKAGES],
        check=True,
    )
    shutil.rmtree(target / "bin", ignore_errors=True)
    binary = sorted(target.rglob("*.so"))
    if binary:
        raise SystemExit(f"carry   {binary[0]}: compiled for this Python, not for another")


if __name__ == "__main__":
    main()
