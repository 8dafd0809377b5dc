"""Small corpora and a small tokenizer for the tests of `prepare`, and how to read a prepared folder without it."""

import json
import os
import random
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from piecemill.tokenizers import Tokenizer

WORDS = ["the", "a", "of", "to", "in", "def", "return", "self", "for", "not", "import", "class", "None", "x", "data"]
OUTSIDE = ("timing.json", ".sources.npy")
"Files that are no part of the promise: times of this machine."


def small_tokenizer() -> Tokenizer:
    """Bytes, a few merges, and an end of text."""
    from piecemill.training import train_bpe

    return train_bpe([" ".join(WORDS) * 3], vocab_size=300, pretokenizer="gpt2")


def texts(count: int, seed: int = 1, copies: float = 0.1) -> list[str]:
    """Texts of a few words to a few hundred, of which some are copies of earlier ones."""
    rng = random.Random(seed)
    made: list[str] = []
    for number in range(count):
        if made and rng.random() < copies:
            made.append(rng.choice(made))
        else:
            words = rng.choices(WORDS, k=rng.choice([1, 5, 30, 200]))
            made.append(f"{number} " + " ".join(words) + rng.choice(["", "\n", " é 😀"]))
    return made


def write_jsonl(path: Path, documents: list[str], **fields: list[object]) -> Path:
    """One line per document, with further fields."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for number, text in enumerate(documents):
            extra = {name: values[number] for name, values in fields.items()}
            file.write(json.dumps({**extra, "text": text}) + "\n")
    return path


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a prepared folder that the promise covers."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in OUTSIDE
    }


def split_documents(folder: Path, split: str) -> tuple[list[list[int]], np.ndarray]:
    """The ids of each document of a split, and the records; with numpy alone."""
    ids: list[list[int]] = []
    records = []
    for tokens in sorted((folder / split).glob("*.tokens.npy")):
        flat = np.load(tokens)
        ends = np.load(str(tokens).replace(".tokens.", ".ends."))
        ids += [part.tolist() for part in np.split(flat, ends[:-1])]
        records.append(np.load(str(tokens).replace(".tokens.", ".documents.")))
    return ids, np.concatenate(records) if records else np.empty(0)


def split_lengths(folder: Path, split: str) -> tuple[list[int], np.ndarray]:
    """How many ids each document of a split has, and the records."""
    ends, records = (
        [np.load(path) for path in sorted((folder / split).glob(f"*.{name}.npy"))] for name in ("ends", "documents")
    )
    return [length for each in ends for length in np.diff(each, prepend=0).tolist()], np.concatenate(records)


def split_texts(folder: Path, split: str, tokenizer: Tokenizer) -> list[str]:
    """The texts of a split, decoded; each must end with the end of text, which is taken off."""
    end = tokenizer.id_of("<|endoftext|>")
    found = []
    for ids in split_documents(folder, split)[0]:
        assert ids[-1] == end
        found.append(tokenizer.decode(ids[:-1]))
    return found


def entries(folder: Path) -> list[dict]:
    """What the entries of a folder say, in corpus order."""
    paths = sorted((folder / "entries").glob("*.json"))
    return [json.loads(path.read_text()) for path in paths]


def open_files(folder: Path) -> list[str]:
    """The names, below `folder`, of the files of which this process holds a descriptor; Linux only."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of another thread, which has closed it since
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [os.path.relpath(name, folder) for name in found if name.startswith(f"{folder}{os.sep}")]


@contextmanager
def failing_after(count: int, error: BaseException, ending: str = ".json"):
    """Makes the rename that would give the next file with this `ending` its name fail, after `count` have succeeded.

    With the default this is the entry after the first `count`: the run has made so many pieces.
    """
    real, lock, seen = os.replace, threading.Lock(), 0

    def replace(source, target):
        nonlocal seen
        if "/entries/" in str(target) and str(target).endswith(ending):
            with lock:
                seen += 1
                if seen > count:
                    raise error
        real(source, target)

    os.replace = replace
    try:
        yield
    finally:
        os.replace = real


def change_keeping_time(path: Path, data: bytes) -> None:
    """Other content, same time of change."""
    times = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
