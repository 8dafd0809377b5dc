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
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from corpus import corpus, texts

HERE = Path(__file__).parent
LIMIT = 64 * 2**20
SAMPLE_BYTES = 16_000_000


def install(target: Path, packages: list[str], *options: str) -> None:
    """Packages in a plain folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(target)]
    subprocess.run([*command, *options, *packages], check=True)
    shutil.rmtree(target / "bin", ignore_errors=True)


def check_size(folder: Path) -> None:
    """What travels with all that git tracks, and what may."""
    core = HERE.parent / "python" / "piecemill" / "_core.abi3.so"
    size = core.stat().st_size + sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"carry   {folder} and {core.name}: {size / 2**20:.1f} MiB of {LIMIT / 2**20:.0f}")
    if size > LIMIT:
        raise SystemExit("carry   that is more than may travel")


def main() -> None:
    from piecemill import prepare, train_bpe

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE.parent / "carry", help="folder to make (default: carry)")
    parser.add_argument("--corpus", default="python-127mb", help="one of benchmarks/corpus.py (default: python-127mb)")
    args = parser.parse_args()
    jsonl, out, taken = corpus(args.corpus).jsonl, args.out, 0
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    tokenizer = train_bpe(jsonl, vocab_size=50_257)
    made = prepare(jsonl, tokenizer, out=out / "shards", splits="train=95,val=5", dedup="exact")
    print(f"carry   {made.documents:,} documents, {made.tokens:,} tokens")
    with tarfile.open(out / "shards.tar.xz", "w:xz") as tar:
        tar.add(out / "shards", "shards")
    shutil.rmtree(out / "shards")
    with lzma.open(out / "sample.jsonl.xz", "wt", encoding="utf-8") as lines:
        for text in texts(jsonl):
            lines.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            taken += len(text.encode())
            if taken >= SAMPLE_BYTES:
                break
    install(out / "site", ["cyclopts", "pytest"])
    for binary in (out / "site").rglob("*.so"):
        raise SystemExit(f"carry   {binary}: compiled for this Python, not for another")
    check_size(out)


if __name__ == "__main__":
    main()
