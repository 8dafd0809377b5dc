"""What a machine without a network needs to measure encoding with many threads: `python benchmarks/carry_encode.py`.

    carry/text.jsonl.xz      python-20mb and english-40mb, one document a line
    carry/cl100k/            the vocabulary
    carry/site/              gigatoken with what it imports beside numpy, wheels unpacked for the Python of that machine
    carry/site-candidate/    the candidate of `tokenizers` 1.0

On that machine:

    python3 benchmarks/carry_encode.py --unpack carry
    python3 benchmarks/encode.py --only scaling --carried carry --threads 1,2,4,8,16 --repeats 3 --results OUT.jsonl

`--unpack` makes a gigabyte of the text, a process for each repetition of it: in each one word in eight is spelled
otherwise (`corpus.respelled`), so that words are new as in new text. Packing takes about a minute, unpacking less.
"""

import argparse
import json
import lzma
import multiprocessing
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import carry
from corpus import FLAT, Corpus, corpus, respelled, write_flat
from encode import BESIDE, CARRIED, ENCODERS, install, pin, python
from encode_vocabularies import FOLDER, VOCABULARIES, vocabulary
from worker import texts

TEXT = ("python-20mb", "english-40mb")
VOCABULARY = "cl100k"
SITES = {
    "site": [pin(ENCODERS["gigatoken"]), BESIDE[1], "awkward_cpp", "fsspec", "importlib_metadata", "packaging", "zipp"],
    "site-candidate": [pin(ENCODERS["tokenizers-1.0rc"])],
}
_base: list[str] = []


def pack(out: Path, python_version: str) -> None:
    with lzma.open(carry.new_folder(out) / "text.jsonl.xz", "wb", preset=6) as lines:
        for name in TEXT:
            lines.write(corpus(name).jsonl.read_bytes())
    install(["tokenizers"])
    if reason := vocabulary(VOCABULARY, python("tokenizers")):
        raise SystemExit(f"carry   {VOCABULARY}: {reason}")
    shutil.copytree(VOCABULARIES[VOCABULARY].folder, out / VOCABULARY)
    for site, packages in SITES.items():
        carry.install(out / site, packages, python_version)
    for unneeded in ("tests", "include", "header-only"):
        for folder in sorted(out.rglob(unneeded)):
            shutil.rmtree(folder, ignore_errors=True)
    carry.check_size(out)


def unpack(folder: Path) -> None:
    """The vocabulary and a gigabyte of text, where `encode.py` looks for them."""
    shutil.copytree(folder / VOCABULARY, FOLDER / VOCABULARY, dirs_exist_ok=True)
    made = write_gigabyte(folder / "text.jsonl.xz", 1_000_000_000)
    print(f"carry   {made.documents:,} documents, {made.bytes:,} bytes, {made.sha256[:16]}")


def write_gigabyte(jsonl: Path, size: int) -> Corpus:
    """Repetitions of the text up to `size` bytes, in the flat form, and what they are beside them."""
    times = -(-size // sum(len(text.encode()) for text in texts(jsonl)))
    with multiprocessing.get_context("spawn").Pool(initializer=_start, initargs=(jsonl,)) as pool:
        made = write_flat(CARRIED, within(chain.from_iterable(pool.imap(_repetition, range(times))), size))
    (FLAT / f"{CARRIED}.json").write_text(json.dumps(asdict(made)))
    return made


def within(documents: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The first documents, up to `size` bytes together."""
    for text in documents:
        size -= len(text)
        if size < 0:
            return
        yield text


def _start(jsonl: Path) -> None:
    _base[:] = texts(jsonl)


def _repetition(number: int) -> list[bytes]:
    return [text.encode() for text in respelled(_base, number)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=carry.CARRY, help="folder to make (default: carry)")
    parser.add_argument("--python", default="3.12", help="Python of the other machine (default: 3.12)")
    parser.add_argument("--unpack", type=Path, metavar="FOLDER", help="on the other machine: make the text")
    args = parser.parse_args()
    if args.unpack:
        unpack(args.unpack)
    else:
        pack(args.out, args.python)


if __name__ == "__main__":
    main()
