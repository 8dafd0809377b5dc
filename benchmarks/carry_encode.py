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
import multiprocessing
import shutil
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import carry
from corpus import FLAT, respelled, write_flat
from encode import CARRIED, ENCODERS, pin
from encode_vocabularies import VOCABULARIES, vocabulary
from worker import texts

VOCABULARY = "cl100k"
_base: list[str] = []


def pack(out, python):
    carry.pack_text(["python-20mb", "english-40mb"], carry.new_folder(out) / "text.jsonl.xz")
    if reason := vocabulary(VOCABULARY):
        raise SystemExit(f"carry   {VOCABULARY}: {reason}")
    shutil.copytree(VOCABULARIES[VOCABULARY].folder, out / VOCABULARY)
    carry.install(out / "site", carry.SITE, python)
    carry.install(out / "site-candidate", [pin(ENCODERS["tokenizers-1.0rc"])], python)
    carry.check_size(out)


def unpack(folder):
    """The vocabulary and a gigabyte of text, where `encode.py` looks for them."""
    shutil.copytree(folder / VOCABULARY, VOCABULARIES[VOCABULARY].folder, dirs_exist_ok=True)
    made = write_gigabyte(folder / "text.jsonl.xz", 1_000_000_000)
    print(f"carry   {made.documents:,} documents, {made.bytes:,} bytes, {made.sha256[:16]}")


def write_gigabyte(jsonl, size):
    """Repetitions of the text up to `size` bytes, in the flat form, and what they are beside them."""
    times = -(-size // sum(len(text.encode()) for text in texts(jsonl)))
    with multiprocessing.get_context("spawn").Pool(initializer=_start, initargs=(jsonl,)) as pool:
        made = write_flat(CARRIED, within(chain.from_iterable(pool.imap(_repetition, range(times))), size))
    (FLAT / f"{CARRIED}.json").write_text(json.dumps(asdict(made)))
    return made


def within(documents, size):
    """The first documents, up to `size` bytes together."""
    for text in documents:
        size -= len(text)
        if size < 0:
            return
        yield text


def _start(jsonl):
    _base[:] = texts(jsonl)


def _repetition(number):
    return [text.encode() for text in respelled(_base, number)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=carry.CARRY, help="folder to make (default: carry)")
    parser.add_argument("--python", default="3.12", help="Python of the other machine (default: 3.12)")
    parser.add_argument("--unpack", type=Path, metavar="FOLDER", help="on the other machine: make the text")
    args = parser.parse_args()
    if args.unpack:
        unpack(args.unpack)
    else:
        pack(args.out, args.python)
