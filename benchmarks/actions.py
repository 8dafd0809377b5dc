"""Vocabularies of actions to 40,000 tokens: `python benchmarks/actions.py --data ../shared/actionpiece/data`.

    exact      whole numbers, published counts: the default
    current    whole numbers, vanished pairs subtracted
    float64    the published file to the last bit
    spr        random segmentations of the training part, one thread, with the exact vocabulary

What counts is the time from the end of loading, and the peak memory of the whole process. Before any time is shown, the
golden vectors beside the data are learned in every mode and compared, and all runs of a question must learn the same.

With `--published FOLDER`, a checkout of the published implementation, its first merges are timed on the same data
and compared with ours; else it stands with the figures of `PUBLISHED`. `--batches` makes batches of examples instead,
after some histories were compared with the definition, and prints how fast.
"""

import hashlib
import statistics
import sys
from pathlib import Path

import tables
from measure import median_and_spread
from protocol import SCRATCH, SHARED, call, installed_version, worker
from session import Benchmark, choose
from tables import CPU_AND_PEAK, MACHINE, bar, ratio

DATA = ["beauty", "sports", "cds_hgn", "cds_like"]
MODES = ["exact", "current", "float64", "spr"]
VERBS = {"spr": "segment", "batches": "batches", "published": "published"}  # of all others: learn
PUBLISHED = {
    "beauty": "29 s to build, 345 s for the first 932 merges; 1.4 GB",
    "cds_like": "92 s to build, 26 s for the first merge, 267 s for ten; 5.8 GB",
}
THEIRS = "2-core Xeon of 2.8 GHz with other work on it, Python 3.11"


def ask_worker(verb, data, out, **options):
    return worker(sys.executable, "action_peers.py", "actions", verb, out, data=data, **options)


def inside(field):
    """Of what a run measured itself: median and spread."""
    return lambda line, _: tables.spread([(told | told["stats"])[field] for told in line["inside"]])


def rate(clock):
    return lambda line, _: f"{spr_rate(line, clock) / 1000:,.0f}k"


LEARNED = {
    **{"data": "{corpus}", "mode": "{question}"},
    "after loading s": inside("train_seconds"),
    "of it counting s": inside("count_seconds"),
    "first 932 merges s": inside("first_seconds"),
    "merges/s: first 1%, to 10%, 25%, 50%, 100%": lambda line, _: ", ".join(f"{one:,.0f}" for one in pace(line)),
    **{"process s": tables.column("seconds"), "peak MB": CPU_AND_PEAK["peak MB"], "runs": "{count}"},
}
SEGMENTED = {
    "data": "{corpus}",
    "SPR, one thread": lambda line, _: f"{line['inside'][0]['items']:,} items",
    **{"items/s": rate("seconds"), "items/s of CPU time": rate("cpu_seconds")},
}


class Actions(Benchmark):
    name, title, kinds, cap = "actions", "Bars of actions", DATA, 3600.0
    asked, must_be_default = "actions {corpus} {question}", ("only", "modes", "batches", "published")

    def flags(self, add):
        add("--data", type=Path, default=SHARED / "actionpiece/data", help="data sets")
        add("--modes", default=",".join(MODES), help=f"questions, of {','.join(MODES)}")
        add("--published", type=Path, help="folder with a checkout of the published implementation")
        add("--published-merges", type=int, default=10, help="merges to ask it for (default: 10)")
        add("--batches", action="store_true", help="only: how fast batches of examples are made")

    def questions(self):
        modes = ["batches"] if self.args.batches else choose(self.args.modes, MODES, "--modes")
        modes += ["published"] if self.args.published else []
        # The runs of SPR, batches and the published implementation are inside one process.
        how = {mode: {"threads": 1 + (mode != "spr")} | ({"repeats": 1} if mode in VERBS else {}) for mode in modes}
        asked = [{"corpus": name, "question": mode} for name in self.args.only for mode in modes]
        return [{**one, "vocab": 40_000, **how[one["question"]]} for one in asked]

    def set_up(self, asked):
        SCRATCH.mkdir(parents=True, exist_ok=True)
        compared = call(ask_worker("golden", self.args.data.parent / "golden", SCRATCH / "golden"))
        print(f"golden  {compared} lists of merges are as they should be", file=sys.stderr)

    def command(self, question, entry, out):
        mode = question["question"]
        asked = {"name": question["corpus"], "mode": mode, "vocab": question["vocab"], "first": 932}
        if mode == "published":
            asked |= {"published": self.args.published.resolve(), "merges": self.args.published_merges}
        return ask_worker(VERBS.get(mode, "learn"), self.args.data, out, **asked)

    def check(self, question, entry, out):
        told, mode = entry.told[-1], question["question"]
        if mode == "published":
            entry.note = f"first {told['merges']} merges: {told['seconds']:,.1f} s; ours are the same"
        elif mode == "batches":
            rates = [one | {"rate": one["count"] / statistics.median(one["seconds"])} for one in told]
            entry.note = "; ".join(map("{rate:,.0f} {what} a second, {threads} threads".format_map, rates))
        elif mode != "spr" and told["merges_sha256"] != entry.told[0]["merges_sha256"]:
            raise SystemExit(f"{question['corpus']}, {mode}: two runs learned other merges; no time is reported")

    def facts(self, question, entry):
        files = [self.args.data / f"{question['corpus']}.{kind}.gz" for kind in ("feat.json", "seq.txt")]
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
        return {"input": digest, "version": installed_version(), "inside": entry.told}

    def shown(self, records):
        """The last session that came to its end: a stopped one has not all questions."""
        asked = {(name, mode) for name in DATA for mode in MODES}
        sessions = tables.grouped(super().shown(records), "session").values()
        whole = [lines for lines in sessions if {(line["corpus"], line["question"]) for line in lines} == asked]
        return whole[-1] if whole else []

    def tables(self, records):
        spr = [line for line in records if line["question"] == "spr"]
        learning = [line for line in records if line not in spr]
        title = f"Vocabularies of actions, {records[0]['vocab']:,} tokens, 2 threads"
        about = (MACHINE + "; {session:.10}; load {machine[load_before]} before").format_map(records[0])
        yield tables.section(title, about, tables.table(learning, LEARNED))
        yield f"\n{tables.table(spr, SEGMENTED)}"
        figures = "; ".join(f"{name}: {figures}" for name, figures in PUBLISHED.items())
        yield f"\n{tables.wrapped(f'The published implementation, on a {THEIRS}: {figures}.')}\n"

    def bars(self, records):
        """The promises, on two cores."""
        found = {(one["corpus"], one["question"]): one for one in records if one["inside"] and tables.median(one)}

        def middle(name, mode, field="train_seconds"):
            record = found.get((name, mode))
            return statistics.median(told[field] for told in record["inside"]) if record else None

        bars = []
        for data, name, seconds, gigabytes in (("Beauty", "beauty", 5, 1), ("CDs-sized", "cds_like", 60, 3)):
            promise, record = f"{data} to 40,000, exact: at most", found.get((name, "exact"))
            peak = max(run["peak_bytes"] for run in record["runs"]) / 1e6 if record else None
            bars.append(bar(f"{promise} {seconds} s after loading", "{:.2f} s", middle(name, "exact"), most=seconds))
            words = "{:,.0f} MB, the whole process"
            bars.append(bar(f"{promise} {gigabytes} GB", words, peak, most=1000 * gigabytes))
        for name in ("beauty", "cds_like"):
            floats, exact = middle(name, "float64"), middle(name, "exact")
            promise, words = f"{name}, float64: at most 3x the time of exact", "{:.2f} s, {:.2f} s: {:.2f}x"
            bars.append(bar(promise, words, floats, exact, ratio(floats, exact), most=3))
        taken, spr = middle("beauty", "exact", "first_seconds"), found.get(("beauty", "spr"))
        first = "first 932 merges of Beauty: at least 300x as fast as the published implementation (345 s elsewhere)"
        words = "{:.2f} s with counting, which the 345 s are without: {:,.0f}x"
        segmenting = "SPR encoding, Beauty vocabulary: at least 200,000 items a second and core"
        return [
            *bars,
            bar(first, words, taken, ratio(345.0, taken), least=300),
            bar(segmenting, "{:,.0f}", spr_rate(spr) if spr else None, least=200_000),
        ]


def pace(record):
    """Merges a second between the milestones, counting left out; of the run in the middle."""
    told = sorted(record["inside"], key=lambda run: run["train_seconds"])
    run = told[len(told) // 2]
    before, rates = (0, run["stats"]["count_seconds"]), []
    for merges, seconds in run["milestones"]:
        rates.append((merges - before[0]) / max(seconds - before[1], 1e-3))
        before = (merges, seconds)
    return rates


def spr_rate(record, clock="seconds"):
    """Items a second."""
    return record["inside"][0]["items"] / median_and_spread(record["inside"][0][clock])[0]


if __name__ == "__main__":
    Actions().main()
