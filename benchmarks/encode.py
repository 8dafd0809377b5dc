"""Encoding text in memory, against everybody who does: `python benchmarks/encode.py`, or with `--quick`.

    bulk     every vocabulary on every corpus: cold, warm, memory, with one thread and with two
    regex    a split that no library knows by name, one thread
    short    one string of 50 characters: microseconds of encode and of decode
    scaling  a gigabyte with more and more threads; for a machine with many cores (see `carry_encode.py`)

Each run is a process of its own (`peers_encode/run_encode.py`), and a round goes through all libraries before the next
begins. Ids are compared on every document, in every run: other ids than the home library's are shown instead of a
time. Libraries get the whole corpus in one call, and blocks of 8 MiB; the faster form of the first round is repeated.
Every run is appended to `results-encode.jsonl`; `--table` rewrites the tables in `docs/benchmarks.md`.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import encoders
import tables_encode
from asking import HERE, PAGE, choose, parser, rounds, session
from corpus import CACHE, RECORDED, Corpus, corpus, texts
from encode_vocabularies import SHARED, VOCABULARIES, Vocabulary, vocabulary
from encoders import ENCODERS, OURS, PEERS
from measure import Run, append, measure, median_and_spread, read

RESULTS = HERE / "results-encode.jsonl"
SCRATCH = CACHE / "runs-encode"
FLAT = CACHE / "flat"
STRINGS = CACHE / "strings-50.json"
CORPORA = ["python-127mb", "english-40mb", "english-4mb", "multilingual-30mb", "cjk-8mb", "base64-20mb"]
REGEX_CORPORA = ["python-20mb", "english-4mb"]
NAMED = [name for name, made in VOCABULARIES.items() if made.kind != "regex"]
CARRIED = "carried-1000mb"
BLOCK = 8 << 20
DIGEST = 8
"Bytes of hash for each document."
# Runs of each, by the seconds of its first process: slow libraries say enough with one.
REPEATS = ((6, 5), (15, 3), (float("inf"), 1))


@dataclass(frozen=True, slots=True)
class Question:
    """What every library is asked."""

    name: str
    vocabulary: Vocabulary
    corpus: str
    threads: int

    def __str__(self) -> str:
        return f"{self.name} {self.vocabulary.name} {self.corpus} threads={self.threads}"

    @property
    def source(self) -> Path:
        return STRINGS if self.name == "short" else FLAT / self.corpus


@dataclass(slots=True)
class Entry:
    """One library on one question, in one form: its runs so far."""

    tool: str
    form: str
    runs: list[Run] = field(default_factory=list)
    inside: list[dict] = field(default_factory=list)
    "What the process measured itself, of each run."
    reason: str = ""
    differing: int | None = None
    "Documents with other ids than the home library's."

    @property
    def finished(self) -> bool:
        return bool(self.runs) and not self.reason and all(run.outcome == "ok" for run in self.runs)


def questions(
    only: list[str], vocabularies: list[str], corpora: list[str] | None, threads: list[int]
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


def ask(question: Question, entries: list[Entry], *, repeats: int | None, time_limit: float) -> None:
    """Every library once in every form, compared, then the other rounds in the form that was faster."""
    wanted = reference(question)
    for entry in entries:
        if not entry.reason:
            run_once(question, entry, time_limit, wanted)
    chosen = [entry for entry in entries if entry is faster_form(entries, entry.tool, question)]
    rounds(chosen, lambda entry: run_once(question, entry, time_limit, wanted), repeats, REPEATS)


def faster_form(entries: Sequence[Entry], tool: str, question: Question) -> Entry | None:
    """The form of that library with the faster first run; None if none finished."""
    done = [entry for entry in entries if entry.tool == tool and entry.finished]
    if len(done) < 2:
        return done[0] if done else None
    clock = tables_encode.clock(question.name, question.threads)
    return min(done, key=lambda entry: entry.inside[0]["cold"][clock])


def run_once(question: Question, entry: Entry, time_limit: float, wanted: dict) -> None:
    print(f"encode  {question}  {entry.tool} {entry.form}, run {len(entry.runs) + 1}", file=sys.stderr)
    out = SCRATCH / "run"
    for suffix in (".json", ".ids"):
        out.with_suffix(suffix).unlink(missing_ok=True)
    options = []
    if question.name != "short":
        options = ["--threads", str(question.threads), "--form", entry.form]
        if question.name == "scaling":
            options += ["--once", "--block", str(question.threads * BLOCK)]
    folder = question.vocabulary.folder
    do = "short" if question.name == "short" else "bulk"
    command = encoders.command(entry.tool, do, vocabulary=folder, source=question.source, out=out, options=options)
    # Our own time is never capped: a miss must be seen in full.
    limit = 24 * 3600 if entry.tool == OURS else time_limit
    run = measure(command, threads=question.threads, log=SCRATCH / "run.log", time_limit=limit)
    if run.message.startswith("exit status 3"):
        entry.reason = run.message.removeprefix("exit status 3: ").splitlines()[-1]
        return
    entry.runs.append(run)
    if run.outcome == "ok":
        entry.inside.append(json.loads(out.with_suffix(".json").read_text()))
        judge(entry, out.with_suffix(".ids").read_bytes(), wanted)


def judge(entry: Entry, found: bytes, wanted: dict) -> None:
    """Count the documents with other ids, and see whether strings come back the same from decoding."""
    ids = wanted["ids"]
    count = max(len(found), len(ids)) // DIGEST
    places = range(0, count * DIGEST, DIGEST)
    entry.differing = sum(found[i : i + DIGEST] != ids[i : i + DIGEST] for i in places)
    if entry.differing:
        entry.reason = f"other ids in {entry.differing:,} of {count:,}"
    elif entry.inside[-1].get("texts") != wanted.get("texts"):
        entry.reason = "other text after decoding"


def reference(question: Question) -> dict:
    """A hash of the ids of each document by the home library; made once for each input, vocabulary and version."""
    made = question.vocabulary
    content = input_hash(question)
    name = f"{content[:16]}-{made.about['sha256'][:16]}-{made.home}-{encoders.version(made.home)}"
    target = CACHE / "reference-encode" / name
    if not target.with_name(f"{name}.ids").exists():
        print(f"encode  reference of {made.name} on {question.corpus} by {made.home}", file=sys.stderr)
        target.parent.mkdir(parents=True, exist_ok=True)
        cores = len(os.sched_getaffinity(0))
        short = question.name == "short"
        command = encoders.command(
            made.home,
            "short" if short else "bulk",
            vocabulary=made.folder,
            source=question.source,
            out=SCRATCH / "reference",
            options=[] if short else ["--threads", str(cores), "--once", "--form", "blocks"],
        )
        run = measure(command, threads=cores, log=SCRATCH / "reference.log", time_limit=3600)
        if run.outcome != "ok":
            raise SystemExit(f"{question}: {made.home} gives no reference: {run.outcome} {run.message}")
        for suffix in ("json", "ids"):
            (SCRATCH / f"reference.{suffix}").rename(target.with_name(f"{name}.{suffix}"))
    inside = json.loads(target.with_name(f"{name}.json").read_text())
    return {"ids": target.with_name(f"{name}.ids").read_bytes(), "texts": inside.get("texts")}


def flat(name: str) -> Corpus:
    """All documents of a corpus in one file, and where each ends in another: what every run reads."""
    import numpy as np

    made = corpus(name)
    if not (FLAT / f"{name}.bin").exists():
        FLAT.mkdir(parents=True, exist_ok=True)
        documents = [text.encode() for text in texts(made.jsonl)]
        np.save(FLAT / f"{name}.npy", np.cumsum([len(text) for text in documents], dtype=np.int64))
        (FLAT / f"{name}.part").write_bytes(b"".join(documents))
        (FLAT / f"{name}.part").rename(FLAT / f"{name}.bin")
    return made


def strings(source: str = "english-40mb", length: int = 50, warm_up: int = 1000, asked: int = 10_000) -> None:
    """Different strings of `length` characters, cut from documents at random places."""
    if STRINGS.exists():
        return
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


def input_hash(question: Question) -> str:
    if question.name == "short":
        return hashlib.sha256(STRINGS.read_bytes()).hexdigest()
    return RECORDED[question.corpus].sha256 if question.corpus in RECORDED else carried_facts().sha256


def carried_facts() -> Corpus:
    """The gigabyte that was made on this machine."""
    return Corpus(**json.loads((FLAT / f"{CARRIED}.json").read_text()))


def records(question: Question, entries: list[Entry], session: dict) -> Iterator[dict]:
    """A line of the results for each library and form, with all its runs."""
    made = None
    if question.name != "short":
        made = RECORDED.get(question.corpus) or carried_facts()
    for entry in entries:
        runs = []
        for run, inside in zip(entry.runs, entry.inside + [{}] * len(entry.runs), strict=False):
            runs.append({key: value for key, value in (asdict(run) | inside).items() if value != ""})
        best = faster_form(entries, entry.tool, question)
        yield {
            "benchmark": "encode",
            **session,
            "load": round(os.getloadavg()[0], 2),
            "question": question.name,
            "vocabulary": question.vocabulary.name,
            "vocabulary_sha256": question.vocabulary.about["sha256"],
            "home": f"{question.vocabulary.home} {encoders.version(question.vocabulary.home)}",
            "corpus": question.corpus,
            "input": input_hash(question),
            "text_bytes": made.bytes if made else 0,
            "documents": made.documents if made else 0,
            "threads": question.threads,
            "tool": entry.tool,
            "version": encoders.version(entry.tool),
            "call": ENCODERS[entry.tool].call,
            "form": entry.form,
            "chosen": entry is best or best is None,
            "reason": entry.reason,
            "differing": entry.differing,
            "runs": runs,
        }


def show(question: Question, lines: Sequence[dict]) -> None:
    print(f"\n{question}")
    for line in lines:
        names = ("encode", "decode") if question.name == "short" else ("cold", "warm")
        measured = {name: tables_encode.figures(line, name) for name in names}
        if line["reason"] or not measured[names[0]]:
            words = tables_encode.why_not(line)
        else:
            unit = "us" if question.name == "short" else "MB/s"
            words = "  ".join(
                f"{name} {middle:7.2f} {unit} ({low:.2f}-{high:.2f})"
                for name, found in measured.items()
                if found
                for middle, low, high in [median_and_spread(found)]
            )
            words += f"  {tables_encode.growth(line) / 1e6:6.1f} MB" if question.name != "short" else ""
            words += f"  {len(line['runs'])} runs"
        print(f"  {line['tool']:18} {line['form']:7} {words}", flush=True)


def main() -> None:
    kinds = ["bulk", "regex", "short", "scaling"]
    flags = parser(__doc__, kinds=kinds, peers=PEERS, cap=300)
    flags.set_defaults(only="bulk,regex,short")
    flags.add_argument("--vocabs", default=",".join(VOCABULARIES), help="vocabularies, separated by commas")
    flags.add_argument("--corpora", help="corpora of `bulk` and `regex`, separated by commas")
    flags.add_argument("--threads", default="1,2", help="numbers of threads of `bulk` and `scaling` (default: 1,2)")
    flags.add_argument(
        "--vocabs-from", type=Path, default=SHARED, help="folder of vocabularies (default: ../shared/vocabs)"
    )
    flags.add_argument("--carried", type=Path, help="folder that carry_encode.py made: no environments, no index")
    flags.add_argument("--results", type=Path, default=RESULTS, help="file the records are appended to")
    args = flags.parse_args()
    if args.table:
        tables_encode.page(read(args.results), PAGE)
        return

    only = choose(args.only, kinds, "--only")
    peers = choose(args.peers, PEERS, "--peers")
    corpora = choose(args.corpora, list(RECORDED), "--corpora") if args.corpora else None
    if args.quick:
        corpora = corpora or ["english-4mb", "cjk-8mb"]
    threads = [int(count) for count in args.threads.split(",")]
    asked = questions(only, choose(args.vocabs, list(VOCABULARIES), "--vocabs"), corpora, threads)
    names = ([] if args.without_ours else [OURS]) + peers
    if args.carried:
        encoders.carried(args.carried)
    failed = encoders.install([*names, *{question.vocabulary.home for question in asked}])
    SCRATCH.mkdir(parents=True, exist_ok=True)
    # In a process of its own, so that its memory is given back before anything is measured.
    for name in dict.fromkeys(["english-40mb", *(question.corpus for question in asked)]):
        if name in RECORDED and not args.carried:
            subprocess.run([sys.executable, "-c", f"import encode; encode.flat({name!r})"], cwd=HERE, check=True)
    if "short" in only:
        strings()

    this = session(args) | {"quick": args.quick}
    missing: dict[str, str] = {}
    for name in dict.fromkeys(question.vocabulary.name for question in asked):
        if not args.carried:
            missing[name] = vocabulary(name, ENCODERS["tokenizers"].python, args.vocabs_from)
    wrong = []
    for question in asked:
        if missing.get(question.vocabulary.name):
            print(f"\n{question}\n  skipped: {missing[question.vocabulary.name]}")
            continue
        forms = {name: ENCODERS[name].forms for name in names}
        if question.name == "short":
            forms = dict.fromkeys(names, ("",))
        elif question.name != "scaling" and RECORDED[question.corpus].bytes < BLOCK:
            forms = dict.fromkeys(names, ("whole",))
        entries = [Entry(name, form, reason=failed.get(name, "")) for name in names for form in forms[name]]
        ask(question, entries, repeats=1 if args.quick else args.repeats, time_limit=args.cap)
        lines = list(records(question, entries, this))
        for line in lines:
            append(args.results, line)
        show(question, lines)
        wrong += [f"{question}: {entry.reason}" for entry in entries if entry.tool == OURS and entry.reason]
    for bar in tables_encode.bars([line for line in read(args.results) if line["session"] == this["session"]]):
        print(f"{tables_encode.WORDS[bar.passed]:12} {bar.promise}: {bar.measured}")
    if wrong:
        raise SystemExit("ours gives no time:\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main()
