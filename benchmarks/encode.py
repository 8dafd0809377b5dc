"""Encoding text in memory, against everybody who does: `python benchmarks/encode.py`, or with `--quick`.

    bulk     every vocabulary on every corpus: cold, warm, memory, with one thread and with two
    regex    a pretokenizer that no library knows by name, one thread
    short    one string of 50 characters: microseconds of encode and of decode
    scaling  a gigabyte with more and more threads; for a machine with many cores (see `carry.py`)

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
from dataclasses import asdict
from itertools import product
from pathlib import Path

import encode_page
from corpus import FLAT, RECORDED, Corpus, corpus
from encode_page import CORPORA
from encode_peers import Encoder
from encode_vocabularies import NAMED, VOCABULARIES, vocabulary
from protocol import CACHE, HERE, SCRATCH, Entry, call, environment, installed_version, make_corpora, once_made, worker
from session import Benchmark, choose
from tables import OURS
from worker import texts

VENVS = CACHE / "venvs-encode"
STRINGS = CACHE / "strings-50.json"
CARRIED = "carried-1000mb"
REGEX_CORPORA = ["python-20mb", "english-4mb"]
BLOCK = 8 << 20
DIGEST = 8  # bytes of hash for each document
ENCODERS = Encoder.tools
BESIDE = ("numpy==2.4.6", "awkward==2.14.0")


def pin(encoder):
    return f"{encoder.package or encoder.name}=={encoder.version}"


def install(names):
    """Set the environments up once; returns the reason for each library that cannot be used."""
    failed = {}
    for one in sorted({ENCODERS[name].environment for name in names}):
        members = [encoder for encoder in ENCODERS.values() if encoder.environment == one and encoder.name != OURS]
        beside = BESIDE if one == "peers" else BESIDE[:1]
        reason = environment(VENVS / one, [*map(pin, members), *beside])
        failed |= {encoder.name: reason for encoder in members if reason}
    return failed


def text_of(question):
    """What is encoded, and its hash."""
    if question["question"] == "short":
        return Corpus(question["corpus"], 0, 0, hashlib.sha256(STRINGS.read_bytes()).hexdigest())
    if question["corpus"] in RECORDED:
        return RECORDED[question["corpus"]]
    return Corpus(**json.loads((FLAT / f"{CARRIED}.json").read_text()))  # made on this machine


class Encode(Benchmark):
    name, title, cap, results = "encode", "Bars of encoding", 300.0, HERE / "results-encode.jsonl"
    kinds, only = ("bulk", "regex", "short", "scaling"), "bulk,regex,short"
    peers, rewrites_page = tuple(name for name in ENCODERS if name != OURS), False
    asked = "{question} {vocabulary} {corpus} threads={threads}"
    # By the seconds of its first process: slow libraries say enough with one.
    repeats = ((6, 5), (15, 3), (float("inf"), 1))
    bars, tables = staticmethod(encode_page.bars), staticmethod(encode_page.page)

    def flags(self, add):
        add("--vocabs", default=",".join(VOCABULARIES), help="vocabularies, separated by commas")
        add("--corpora", help="corpora of `bulk` and `regex`, separated by commas")
        add("--threads", default="1,2", help="numbers of threads of `bulk` and `scaling` (default: 1,2)")
        add("--carried", type=Path, help="folder that carry.py made: no environments, no index")

    def questions(self):
        args = self.args
        self.session["quick"], args.carried = args.quick, args.carried and args.carried.resolve()
        corpora = choose(args.corpora, list(RECORDED), "--corpora") or (["english-4mb", "cjk-8mb"] * args.quick)
        names = choose(args.vocabs, list(VOCABULARIES), "--vocabs")
        named, others = ([name for name in names if (name in NAMED) is told] for told in (True, False))
        threads = [int(count) for count in args.threads.split(",")]
        asked = {
            "bulk": product(named, corpora or CORPORA, threads),
            "regex": product(others, corpora or REGEX_CORPORA, [1]),
            "short": product(named, [encode_page.STRINGS], [1]),
            "scaling": product({"cl100k"}.intersection(names), [CARRIED], threads),
        }
        fields = ("question", "vocabulary", "corpus", "threads")
        return [dict(zip(fields, (kind, *one), strict=True)) for kind in args.only for one in asked[kind]]

    def entries(self, question):
        made, forms = RECORDED.get(question["corpus"]), ("",) if question["question"] == "short" else None
        forms = ("whole",) if made and made.bytes < BLOCK else forms  # that is a block already
        asked = [(name, form) for name in (OURS, *self.args.peers) for form in forms or ENCODERS[name].forms]
        return [Entry(name, form, facts={"differing": None}) for name, form in asked]

    def set_up(self, asked):
        failed, missing = {}, {}
        if not self.args.carried:
            names = list(dict.fromkeys(question["vocabulary"] for question, _ in asked))
            failed = install([OURS, *self.args.peers, *(VOCABULARIES[name].home for name in names)])
            used = [question["corpus"] for question, _ in asked if question["corpus"] in RECORDED]
            make_corpora(["english-40mb", *used], "--flat")
            missing = {name: reason for name in names if (reason := vocabulary(name))}
            for name, reason in missing.items():
                print(f"{name}: skipped: {reason}")
        asked[:] = [one for one in asked if one[0]["vocabulary"] not in missing]
        if "short" in self.args.only and not STRINGS.exists():
            make_strings()
        return failed

    def version(self, name):
        """What is pinned; of ours and of what the other machine has by itself what is installed."""
        if name != OURS and (self.args.carried is None or name in ("gigatoken", "tokenizers-1.0rc")):
            return ENCODERS[name].version
        return installed_version(ENCODERS[name].package or name)

    def process(self, question, name, out, **changes):
        kind, threads, carried = question["question"], question["threads"], self.args.carried
        sites = {OURS: HERE.parent / "python", "tokenizers-1.0rc": carried / "site-candidate"} if carried else {}
        here = name == OURS or carried
        asked = {
            "vocabulary": VOCABULARIES[question["vocabulary"]].folder,
            "text": STRINGS if kind == "short" else FLAT / question["corpus"],
            **{"threads": threads, "form": "whole", "once": kind == "scaling"},
            "block": threads * BLOCK if kind == "scaling" else BLOCK,
            "site": str(sites.get(name, carried / "site")) if carried else "",
        }
        python = sys.executable if here else VENVS / ENCODERS[name].environment / "bin" / "python"
        return worker(python, "encode_peers.py", name, "short" if kind == "short" else "bulk", out, **asked | changes)

    def command(self, question, entry, out):
        return self.process(question, entry.tool, out, form=entry.how)

    def ask(self, question, entries):
        self.wanted, self.entries_asked = self.reference(question), entries
        super().ask(question, entries)

    def check(self, question, entry, out):
        judge(entry, (out / "ids").read_bytes(), self.wanted)

    def compare(self, question, entries):
        return [one for one in entries if one is faster_form(entries, one.tool, question)]

    def reference(self, question):
        """A hash of the ids of each document by the home library; made once for each input, vocabulary and version."""
        made = VOCABULARIES[question["vocabulary"]]
        parts = (text_of(question).sha256[:16], made.about["sha256"][:16], made.home, self.version(made.home))
        ids, told = (CACHE / "reference-encode" / f"{'-'.join(parts)}.{suffix}" for suffix in ("ids", "json"))

        def make():
            out, more = SCRATCH / "reference", {"threads": len(os.sched_getaffinity(0)), "once": True, "block": BLOCK}
            answer = call(self.process(question, made.home, out, form="blocks", **more))
            (out / "ids").rename(ids)
            return answer

        what = f"encode  reference of {made.name} on {question['corpus']} by {made.home}"
        return {"texts": once_made(told, what, make).get("texts"), "ids": ids.read_bytes()}

    def facts(self, question, entry):
        """With all runs, and what each measured itself."""
        made, words = text_of(question), VOCABULARIES[question["vocabulary"]]
        best = faster_form(self.entries_asked, entry.tool, question)
        told = entry.told + [{}] * len(entry.runs)
        runs = [asdict(run) | inside for run, inside in zip(entry.runs, told, strict=False)]
        return {
            **{"load": round(os.getloadavg()[0], 2), "vocabulary_sha256": words.about["sha256"]},
            **{"home": f"{words.home} {self.version(words.home)}", "input": made.sha256, "text_bytes": made.bytes},
            **{"documents": made.documents, "version": self.version(entry.tool), "call": ENCODERS[entry.tool].call},
            **{"form": entry.how, "chosen": entry is best or best is None},
            "runs": [{key: value for key, value in run.items() if value != ""} for run in runs],
        }

    def line(self, entry, record):
        return encode_page.short_cell(record) if record["question"] == "short" else encode_page.bulk_cell(record)

    def shown(self, records):
        return [record for record in records if record.get("benchmark") == self.name and not record.get("quick")]


def judge(entry, found, wanted):
    """Count the documents with other ids, and see whether strings come back the same from decoding."""
    ids = wanted["ids"]
    count = max(len(found), len(ids)) // DIGEST
    places = range(0, count * DIGEST, DIGEST)
    different = entry.facts["differing"] = sum(found[i : i + DIGEST] != ids[i : i + DIGEST] for i in places)
    if different:
        entry.reason = f"other ids in {different:,} of {count:,}"
    elif entry.told[-1].get("texts") != wanted.get("texts"):
        entry.reason = "other text after decoding"


def faster_form(entries, tool, question):
    """The form of that library with the faster first run; None if none finished."""
    done = [entry for entry in entries if entry.tool == tool and entry.finished]
    clock = encode_page.clock(question["question"], question["threads"])
    return done[0] if len(done) == 1 else min(done, key=lambda entry: entry.told[0]["cold"][clock], default=None)


def make_strings(source="english-40mb", length=50, warm_up=1000, asked=10_000):
    """Different strings of `length` characters, cut from documents at random places."""
    documents = [text for text in texts(corpus(source).jsonl) if len(text) > 10 * length]
    generator, found = random.Random(0), {}
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
