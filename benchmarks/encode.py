"""Encoding text in memory, against everybody who does: `python benchmarks/encode.py`, or with `--quick`.

    bulk     every vocabulary on every corpus: cold, warm, memory, with one thread and with two
    regex    a pretokenizer that no library knows by name, one thread
    short    one string of 50 characters: microseconds of encode and of decode
    scaling  a gigabyte with more and more threads; for a machine with many cores (see `carry_encode.py`)

Each run is a separate process (`peers/encode_peers.py`), and a round goes through all libraries before the next
begins. Ids are compared on every document, in every run: other ids than the home library's are shown instead of a
time. Libraries get the whole corpus in one call, and blocks of 8 MiB; the faster form of the first round is repeated.
Every run is appended to `results-encode.jsonl`; `--table` rewrites the tables in `docs/benchmarks.md`.

All libraries live in one environment under `cache/venvs-encode`, except the candidate of `tokenizers` 1.0: a package
can be there only once. On a machine without a package index a folder of unpacked wheels takes its place (`--carried`).
"""

import hashlib
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import protocol
import tables_encode
from corpus import FLAT, RECORDED, Corpus, corpus, texts
from encode_vocabularies import NAMED, SHARED, VOCABULARIES, Vocabulary, vocabulary
from protocol import CACHE, HERE, OURS, Entry, Session, choose
from tables_encode import CORPORA

RESULTS = HERE / "results-encode.jsonl"
SCRATCH = CACHE / "runs-encode"
VENVS = CACHE / "venvs-encode"
STRINGS = CACHE / "strings-50.json"
KINDS = ["bulk", "regex", "short", "scaling"]
REGEX_CORPORA = ["python-20mb", "english-4mb"]
CARRIED = "carried-1000mb"
BLOCK = 8 << 20
DIGEST = 8
"Bytes of hash for each document."
# Runs of each, by the seconds of its first process: slow libraries say enough with one.
REPEATS = ((6, 5), (15, 3), (float("inf"), 1))


@dataclass(frozen=True, slots=True)
class Encoder:
    """One library, called in the fastest way it offers."""

    name: str
    version: str = ""
    call: str = ""
    package: str = ""
    "Its name on the package index, if that is another."
    forms: tuple[str, ...] = ("whole", "blocks")
    "The corpus in one call, or in calls of 8 MiB. Of slow ones only the first: there it makes no difference."
    environment: str = "peers"

    @property
    def pin(self) -> str:
        return f"{self.package or self.name}=={self.version}"

    @property
    def python(self) -> Path:
        return VENVS / self.environment / "bin" / "python"


ENCODERS = {
    made.name: made
    for made in [
        Encoder(OURS, call="encode_flat"),
        Encoder("gigatoken", "0.10.0", "encode_batch over an awkward array"),
        Encoder("tokenizers-1.0rc", "1.0.0rc3", "encode_batch", "tokenizers", environment="tokenizers-candidate"),
        Encoder("splintr-rs", "0.22.0", "encode_batch_flat"),
        Encoder("fastokens", "0.3.5", "encode_batch_flat"),
        Encoder("tiktoken", "0.14.0", "encode_ordinary_batch", forms=("whole",)),
        Encoder("tokenizers", "0.23.3", "encode_batch_fast", forms=("whole",)),
        Encoder("sentencepiece", "0.2.2", "encode with a list", forms=("whole",)),
    ]
}
PEERS = [name for name in ENCODERS if name != OURS]
BESIDE = ("numpy==2.4.6", "awkward==2.14.0")


def install(names: Sequence[str]) -> dict[str, str]:
    """Set the environments up once; returns the reason for each library that cannot be used."""
    failed = {}
    for one in sorted({ENCODERS[name].environment for name in names if name != OURS} | {"peers"}):
        members = [encoder for encoder in ENCODERS.values() if encoder.environment == one and encoder.name != OURS]
        beside = BESIDE if one == "peers" else BESIDE[:1]
        reason = protocol.environment(VENVS / one, [*(encoder.pin for encoder in members), *beside])
        failed |= {encoder.name: reason for encoder in members if reason}
    return failed


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the libraries are: in environments, or carried in a folder beside this interpreter."""

    carried: Path | None = None

    def python(self, name: str) -> str:
        return sys.executable if name == OURS or self.carried else str(ENCODERS[name].python)

    def site(self, name: str) -> str:
        """Where carried packages lie: the candidate of `tokenizers` apart from the release."""
        if self.carried is None:
            return ""
        places = {OURS: HERE.parent / "python", "tokenizers-1.0rc": self.carried / "site-candidate"}
        return str(places.get(name, self.carried / "site"))

    def version(self, name: str) -> str:
        """What is pinned; of ours and of what the other machine has by itself what is installed."""
        if name != OURS and (self.carried is None or name in ("gigatoken", "tokenizers-1.0rc")):
            return ENCODERS[name].version
        return protocol.installed_version(ENCODERS[name].package or name)

    def command(self, question: "Question", name: str, out: Path, **changes: object) -> list[str]:
        """The process that is measured."""
        scaling, verb = question.name == "scaling", "short" if question.name == "short" else "bulk"
        asked: dict[str, object] = {
            "vocabulary": question.vocabulary.folder,
            "text": question.source,
            "ids": out.with_suffix(".ids"),
            "threads": question.threads,
            "form": "whole",
            "once": scaling,
            "block": question.threads * BLOCK if scaling else BLOCK,
            "site": self.site(name),
            **changes,
        }
        return protocol.worker(self.python(name), "encode_peers.py", name, verb, out.with_suffix(".json"), **asked)


@dataclass(frozen=True, slots=True)
class Question:
    """What every library has to do."""

    name: str
    vocabulary: Vocabulary
    corpus: str
    threads: int

    def __str__(self) -> str:
        return f"{self.name} {self.vocabulary.name} {self.corpus} threads={self.threads}"

    @property
    def source(self) -> Path:
        return STRINGS if self.name == "short" else FLAT / self.corpus

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
        return ENCODERS[name].forms if self.input.bytes >= BLOCK else ("whole",)


def questions(
    only: Sequence[str], vocabularies: Sequence[str], corpora: Sequence[str] | None, threads: Sequence[int]
) -> list[Question]:
    asked = []
    for name in vocabularies:
        made = VOCABULARIES[name]
        if "bulk" in only and name in NAMED:
            asked += [Question("bulk", made, one, count) for one in corpora or CORPORA for count in threads]
        if "regex" in only and name not in NAMED:
            asked += [Question("regex", made, one, 1) for one in corpora or REGEX_CORPORA]
        if "short" in only and name in NAMED:
            asked.append(Question("short", made, "strings of 50 characters", 1))
        if "scaling" in only and name == "cl100k":
            asked += [Question("scaling", made, CARRIED, count) for count in threads]
    return asked


def run_once(question: Question, entry: Entry, machine: Machine, cap: float, wanted: dict) -> None:
    out = SCRATCH / "run"
    command = machine.command(question, entry.tool, out, form=entry.how)
    answer = out.with_suffix(".json")
    if entry.run(f"encode  {question}", command, threads=question.threads, cap=cap, answer=answer):
        judge(entry, out.with_suffix(".ids").read_bytes(), wanted)


def judge(entry: Entry, found: bytes, wanted: dict) -> None:
    """Count the documents with other ids, and see whether strings come back the same from decoding."""
    ids = wanted["ids"]
    count = max(len(found), len(ids)) // DIGEST
    places = range(0, count * DIGEST, DIGEST)
    different = sum(found[i : i + DIGEST] != ids[i : i + DIGEST] for i in places)
    entry.facts["differing"] = different
    if different:
        entry.reason = f"other ids in {different:,} of {count:,}"
    elif entry.told[-1].get("texts") != wanted.get("texts"):
        entry.reason = "other text after decoding"


def faster_form(entries: Sequence[Entry], tool: str, question: Question) -> Entry | None:
    """The form of that library with the faster first run; None if none finished."""
    done = [entry for entry in entries if entry.tool == tool and entry.finished]
    clock = tables_encode.clock(question.name, question.threads)
    return done[0] if len(done) == 1 else min(done, key=lambda entry: entry.told[0]["cold"][clock], default=None)


def reference(question: Question, machine: Machine) -> dict:
    """A hash of the ids of each document by the home library; made once for each input, vocabulary and version."""
    made, cores = question.vocabulary, len(os.sched_getaffinity(0))
    name = f"{question.input.sha256[:16]}-{made.about['sha256'][:16]}-{made.home}-{machine.version(made.home)}"
    ids, told = (CACHE / "reference-encode" / f"{name}.{suffix}" for suffix in ("ids", "json"))
    if not ids.exists():
        print(f"encode  reference of {made.name} on {question.corpus} by {made.home}", file=sys.stderr)
        ids.parent.mkdir(parents=True, exist_ok=True)
        out, more = SCRATCH / "reference", {"threads": cores, "once": True, "form": "blocks", "block": BLOCK}
        protocol.call(machine.command(question, made.home, out, **more))
        out.with_suffix(".json").rename(told)
        out.with_suffix(".ids").rename(ids)
    return {"ids": ids.read_bytes(), "texts": json.loads(told.read_text()).get("texts")}


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


def keep(session: Session, question: Question, entries: Sequence[Entry], machine: Machine) -> Iterator[dict]:
    """A line of the results for each library and form, with all its runs and what each measured itself."""
    made, home = question.input, question.vocabulary.home
    for entry in entries:
        best = faster_form(entries, entry.tool, question)
        told = entry.told + [{}] * len(entry.runs)
        runs = [asdict(run) | inside for run, inside in zip(entry.runs, told, strict=False)]
        yield session.keep(
            entry,
            load=round(os.getloadavg()[0], 2),
            question=question.name,
            vocabulary=question.vocabulary.name,
            vocabulary_sha256=question.vocabulary.about["sha256"],
            home=f"{home} {machine.version(home)}",
            corpus=question.corpus,
            input=made.sha256,
            text_bytes=made.bytes,
            documents=made.documents,
            threads=question.threads,
            version=machine.version(entry.tool),
            call=ENCODERS[entry.tool].call,
            form=entry.how,
            chosen=entry is best or best is None,
            runs=[{key: value for key, value in run.items() if value != ""} for run in runs],
        )


def main() -> None:
    flags = protocol.parser(__doc__, kinds=KINDS, peers=PEERS, cap=300, results=RESULTS)
    flags.set_defaults(only="bulk,regex,short")
    flags.add_argument("--vocabs", default=",".join(VOCABULARIES), help="vocabularies, separated by commas")
    flags.add_argument("--corpora", help="corpora of `bulk` and `regex`, separated by commas")
    flags.add_argument("--threads", default="1,2", help="numbers of threads of `bulk` and `scaling` (default: 1,2)")
    flags.add_argument("--vocabs-from", type=Path, default=SHARED, help="folder of vocabularies (../shared/vocabs)")
    flags.add_argument("--carried", type=Path, help="folder that carry_encode.py made: no environments, no index")
    args = flags.parse_args()
    if args.table:
        return protocol.write_page("encode", tables_encode.render, args.results)
    only, peers = choose(args.only, KINDS, "--only"), choose(args.peers, PEERS, "--peers")
    corpora = choose(args.corpora, list(RECORDED), "--corpora") if args.corpora else None
    if args.quick:
        corpora = corpora or ["english-4mb", "cjk-8mb"]
    threads = [int(count) for count in args.threads.split(",")]
    asked = questions(only, choose(args.vocabs, list(VOCABULARIES), "--vocabs"), corpora, threads)
    names = [OURS, *peers]
    if args.dry_run:
        return protocol.dry_run(args, ((question, names) for question in asked))
    machine = Machine(args.carried and args.carried.resolve())
    SCRATCH.mkdir(parents=True, exist_ok=True)
    missing, failed = {}, {}
    if not args.carried:
        failed = install([*names, *{question.vocabulary.home for question in asked}])
        protocol.make_corpora(["english-40mb", *(one.corpus for one in asked if one.corpus in RECORDED)], "--flat")
        for name in dict.fromkeys(question.vocabulary.name for question in asked):
            missing[name] = vocabulary(name, ENCODERS["tokenizers"].python, args.vocabs_from)
    if "short" in only and not STRINGS.exists():
        make_strings()
    session = Session("encode", args)
    session.facts["quick"] = args.quick
    wrong = []
    for question in asked:
        how = "us of encode / decode" if question.name == "short" else "MB/s in a new process / cold / warm"
        print(f"\n{question}: {how}")
        if missing.get(question.vocabulary.name):
            print(f"  skipped: {missing[question.vocabulary.name]}")
            continue
        wanted = reference(question, machine)
        entries = [
            Entry(name, form, reason=failed.get(name, ""), facts={"differing": None})
            for name in names
            for form in question.forms(name)
        ]
        protocol.ask(
            entries,
            lambda entry, asked=question, wanted=wanted: run_once(asked, entry, machine, args.cap, wanted),
            repeats=1 if args.quick else args.repeats,
            wanted=REPEATS,
            compare=lambda asked=question, of=entries: [one for one in of if one is faster_form(of, one.tool, asked)],
        )
        for line in keep(session, question, entries, machine):
            cell = tables_encode.short_cell(line) if question.name == "short" else tables_encode.bulk_cell(line)
            print(f"  {line['tool']:18} {line['form']:7} {cell}", flush=True)
        wrong += [f"{question}: {entry.reason}" for entry in entries if entry.ours and entry.reason]
    protocol.show_bars(tables_encode.bars(session.records()))
    if wrong:
        raise SystemExit("ours gives no time:\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main()
