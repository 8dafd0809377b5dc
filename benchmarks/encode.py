"""Encoding text in memory, against everybody who does: `python benchmarks/encode.py`, or with `--quick`.

    bulk     every vocabulary on every corpus: cold, warm, memory, with one thread and with two
    regex    a pretokenizer that no library knows by name, one thread
    short    one string of 50 characters: microseconds of encode and of decode
    scaling  a gigabyte with more and more threads; for a machine with many cores (see `carry_encode.py`)

Ids are compared on every document, in every run: other ids than the home library's are shown instead of a time.
Libraries get the whole corpus in one call, and blocks of 8 MiB; the faster form of the first round is repeated. Records
go to `results-encode.jsonl`; only `--table` rewrites the page.

All libraries (`peers/encode_peers.py`) live in one environment, except the candidate of `tokenizers` 1.0: a package can
be there only once. On a machine without a package index a folder of unpacked wheels takes its place (`--carried`).
"""

import hashlib
import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tables_encode
from corpus import FLAT, RECORDED, Corpus, corpus
from encode_peers import Encoder
from encode_vocabularies import NAMED, SHARED, VOCABULARIES, Vocabulary, vocabulary
from protocol import CACHE, HERE, OURS, SCRATCH, Entry, call, environment, installed_version, make_corpora, worker
from session import Benchmark, choose
from tables_encode import CORPORA
from worker import texts

VENVS = CACHE / "venvs-encode"
STRINGS = CACHE / "strings-50.json"
CARRIED = "carried-1000mb"
REGEX_CORPORA = ["python-20mb", "english-4mb"]
BLOCK = 8 << 20
DIGEST = 8  # bytes of hash for each document
ENCODERS = Encoder.tools
BESIDE = ("numpy==2.4.6", "awkward==2.14.0")


def pin(encoder: type[Encoder]) -> str:
    return f"{encoder.package or encoder.name}=={encoder.version}"


def install(names: Sequence[str]) -> dict[str, str]:
    """Set the environments up once; returns the reason for each library that cannot be used."""
    failed = {}
    for one in sorted({ENCODERS[name].environment for name in names}):
        members = [encoder for encoder in ENCODERS.values() if encoder.environment == one and encoder.name != OURS]
        beside = BESIDE if one == "peers" else BESIDE[:1]
        reason = environment(VENVS / one, [*map(pin, members), *beside])
        failed |= {encoder.name: reason for encoder in members if reason}
    return failed


def python(name: str) -> Path:
    return VENVS / ENCODERS[name].environment / "bin" / "python"


@dataclass(frozen=True, slots=True)
class Question:
    """What every library has to do."""

    name: str
    vocabulary: Vocabulary
    corpus: str
    threads: int = 1

    def __str__(self) -> str:
        return f"{self.name} {self.vocabulary.name} {self.corpus} threads={self.threads}"

    @property
    def input(self) -> Corpus:
        """What the text is, and its hash."""
        if self.name == "short":
            return Corpus(self.corpus, 0, 0, hashlib.sha256(STRINGS.read_bytes()).hexdigest())
        if self.corpus in RECORDED:
            return RECORDED[self.corpus]
        return Corpus(**json.loads((FLAT / f"{CARRIED}.json").read_text()))  # made on this machine

    def forms(self, name: str) -> tuple[str, ...]:
        if self.name == "short":
            return ("",)
        small = self.corpus in RECORDED and RECORDED[self.corpus].bytes < BLOCK
        return ("whole",) if small else ENCODERS[name].forms


def questions(
    only: Sequence[str], vocabularies: Sequence[str], corpora: Sequence[str] | None, threads: Sequence[int]
) -> list[Question]:
    asked = []
    for name in vocabularies:
        made = VOCABULARIES[name]
        if "bulk" in only and name in NAMED:
            asked += [Question("bulk", made, one, count) for one in corpora or CORPORA for count in threads]
        if "regex" in only and name not in NAMED:
            asked += [Question("regex", made, one) for one in corpora or REGEX_CORPORA]
        if "short" in only and name in NAMED:
            asked.append(Question("short", made, "strings of 50 characters"))
        if "scaling" in only and name == "cl100k":
            asked += [Question("scaling", made, CARRIED, count) for count in threads]
    return asked


class Encode(Benchmark):
    name, title, cap, results = "encode", "Bars of encoding", 300.0, HERE / "results-encode.jsonl"
    kinds, only = ("bulk", "regex", "short", "scaling"), "bulk,regex,short"
    peers, rewrites_page = tuple(name for name in ENCODERS if name != OURS), False
    # By the seconds of its first process: slow libraries say enough with one.
    repeats = ((6, 5), (15, 3), (float("inf"), 1))

    def flags(self, add) -> None:
        add("--vocabs", default=",".join(VOCABULARIES), help="vocabularies, separated by commas")
        add("--corpora", help="corpora of `bulk` and `regex`, separated by commas")
        add("--threads", default="1,2", help="numbers of threads of `bulk` and `scaling` (default: 1,2)")
        add("--vocabs-from", type=Path, default=SHARED, help="folder of vocabularies (../shared/vocabs)")
        add("--carried", type=Path, help="folder that carry_encode.py made: no environments, no index")

    def questions(self) -> list[Question]:
        args = self.args
        self.session["quick"], args.carried = args.quick, args.carried and args.carried.resolve()
        corpora = choose(args.corpora, list(RECORDED), "--corpora")
        corpora = corpora or (["english-4mb", "cjk-8mb"] if args.quick else None)
        threads = [int(count) for count in args.threads.split(",")]
        return questions(args.only, choose(args.vocabs, list(VOCABULARIES), "--vocabs"), corpora, threads)

    def entries(self, question: Question) -> list[Entry]:
        asked = [(name, form) for name in (OURS, *self.args.peers) for form in question.forms(name)]
        return [Entry(name, form, facts={"differing": None}) for name, form in asked]

    def set_up(self, asked: list[tuple]) -> dict[str, str]:
        failed, missing = {}, {}
        if not self.args.carried:
            failed = install([OURS, *self.args.peers, *{question.vocabulary.home for question, _ in asked}])
            used = [question.corpus for question, _ in asked if question.corpus in RECORDED]
            make_corpora(["english-40mb", *used], "--flat")
            for name in dict.fromkeys(question.vocabulary.name for question, _ in asked):
                if reason := vocabulary(name, python("tokenizers"), self.args.vocabs_from):
                    print(f"{name}: skipped: {reason}")
                    missing[name] = reason
        asked[:] = [one for one in asked if one[0].vocabulary.name not in missing]
        if "short" in self.args.only and not STRINGS.exists():
            make_strings()
        return failed

    def version(self, name: str) -> str:
        """What is pinned; of ours and of what the other machine has by itself what is installed."""
        if name != OURS and (self.args.carried is None or name in ("gigatoken", "tokenizers-1.0rc")):
            return ENCODERS[name].version
        return installed_version(ENCODERS[name].package or name)

    def process(self, question: Question, name: str, out: Path, **changes: object) -> list[str]:
        scaling, carried = question.name == "scaling", self.args.carried
        sites = {OURS: HERE.parent / "python", "tokenizers-1.0rc": carried / "site-candidate"} if carried else {}
        asked: dict[str, object] = {
            "vocabulary": question.vocabulary.folder,
            "text": STRINGS if question.name == "short" else FLAT / question.corpus,
            **{"threads": question.threads, "form": "whole", "once": scaling},
            "block": question.threads * BLOCK if scaling else BLOCK,
            "site": str(sites.get(name, carried / "site")) if carried else "",
        }
        interpreter = sys.executable if name == OURS or carried else python(name)
        verb = "short" if question.name == "short" else "bulk"
        return worker(interpreter, "encode_peers.py", name, verb, out, **asked | changes)

    def command(self, question: Question, entry: Entry, out: Path) -> list[str]:
        return self.process(question, entry.tool, out, form=entry.how)

    def ask(self, question: Question, entries: Sequence[Entry]) -> None:
        self.wanted, self.asked = self.reference(question), entries
        super().ask(question, entries)

    def check(self, question: Question, entry: Entry, out: Path) -> None:
        judge(entry, (out / "ids").read_bytes(), self.wanted)

    def compare(self, question: Question, entries: Sequence[Entry]) -> list[Entry]:
        return [one for one in entries if one is faster_form(entries, one.tool, question)]

    def reference(self, question: Question) -> dict:
        """A hash of the ids of each document by the home library; made once for each input, vocabulary and version."""
        made, cores = question.vocabulary, len(os.sched_getaffinity(0))
        name = f"{question.input.sha256[:16]}-{made.about['sha256'][:16]}-{made.home}-{self.version(made.home)}"
        ids, told = (CACHE / "reference-encode" / f"{name}.{suffix}" for suffix in ("ids", "json"))
        if not ids.exists():
            print(f"encode  reference of {made.name} on {question.corpus} by {made.home}", file=sys.stderr)
            out, more = SCRATCH / "reference", {"threads": cores, "once": True, "form": "blocks", "block": BLOCK}
            ids.parent.mkdir(parents=True, exist_ok=True)
            out.mkdir(parents=True, exist_ok=True)
            told.write_text(json.dumps(call(self.process(question, made.home, out, **more))))
            (out / "ids").rename(ids)
        return {"ids": ids.read_bytes(), "texts": json.loads(told.read_text()).get("texts")}

    def facts(self, question: Question, entry: Entry) -> dict:
        """With all runs, and what each measured itself."""
        made, words = question.input, question.vocabulary
        best, told = faster_form(self.asked, entry.tool, question), entry.told + [{}] * len(entry.runs)
        runs = [asdict(run) | inside for run, inside in zip(entry.runs, told, strict=False)]
        return {
            **{"load": round(os.getloadavg()[0], 2), "question": question.name, "vocabulary": words.name},
            **{"vocabulary_sha256": words.about["sha256"], "home": f"{words.home} {self.version(words.home)}"},
            **{"corpus": question.corpus, "input": made.sha256, "text_bytes": made.bytes, "documents": made.documents},
            **{"threads": question.threads, "version": self.version(entry.tool), "call": ENCODERS[entry.tool].call},
            **{"form": entry.how, "chosen": entry is best or best is None},
            "runs": [{key: value for key, value in run.items() if value != ""} for run in runs],
        }

    def line(self, entry: Entry, record: dict) -> str:
        return tables_encode.short_cell(record) if record["question"] == "short" else tables_encode.bulk_cell(record)

    def shown(self, records: Sequence[dict]) -> list[dict]:
        return [record for record in records if record.get("benchmark") == self.name and not record.get("quick")]

    bars, tables = staticmethod(tables_encode.bars), staticmethod(tables_encode.tables)


def judge(entry: Entry, found: bytes, wanted: dict) -> None:
    """Count the documents with other ids, and see whether strings come back the same from decoding."""
    ids = wanted["ids"]
    count = max(len(found), len(ids)) // DIGEST
    places = range(0, count * DIGEST, DIGEST)
    different = entry.facts["differing"] = sum(found[i : i + DIGEST] != ids[i : i + DIGEST] for i in places)
    if different:
        entry.reason = f"other ids in {different:,} of {count:,}"
    elif entry.told[-1].get("texts") != wanted.get("texts"):
        entry.reason = "other text after decoding"


def faster_form(entries: Sequence[Entry], tool: str, question: Question) -> Entry | None:
    """The form of that library with the faster first run; None if none finished."""
    done = [entry for entry in entries if entry.tool == tool and entry.finished]
    clock = tables_encode.clock(question.name, question.threads)
    return done[0] if len(done) == 1 else min(done, key=lambda entry: entry.told[0]["cold"][clock], default=None)


def make_strings(source: str = "english-40mb", length: int = 50, warm_up: int = 1000, asked: int = 10_000) -> None:
    """Different strings of `length` characters, cut from documents at random places."""
    documents = [text for text in texts(corpus(source).jsonl) if len(text) > 10 * length]
    generator = random.Random(0)
    found: dict[str, None] = {}
    while len(found) < warm_up + asked:
        text = generator.choice(documents)
        start = generator.randrange(len(text) - length)
        # Without the spaces at both ends, which not every decoder gives back.
        piece = text[start : start + length]
        if piece == piece.strip():
            found[piece] = None
    STRINGS.write_text(json.dumps({"warm up": list(found)[:warm_up], "asked": list(found)[warm_up:]}))


if __name__ == "__main__":
    Encode().main()
