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
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tables
from measure import median_and_spread
from piecemill.actions.training import MERGE_COST
from protocol import HERE, SCRATCH, Entry, call, installed_version, worker
from session import Benchmark, choose
from tables import Bar, bar, ratio

TRACES = HERE.parent / "tests" / "recorded_actions.json"
DATA = ["beauty", "sports", "cds_hgn", "cds_like"]
MODES = ["exact", "current", "float64", "spr"]
LEAST_TRACED = 5.0  # seconds: in a shorter run nobody can be wrong about the time left
PUBLISHED = {
    "beauty": "29 s to build, 345 s for the first 932 merges; 1.4 GB",
    "cds_like": "92 s to build, 26 s for the first merge, 267 s for ten; 5.8 GB",
}
THEIRS = "2-core Xeon of 2.8 GHz with other work on it, Python 3.11"


@dataclass(frozen=True, slots=True)
class Question:
    corpus: str
    question: str
    vocab: int = 40_000
    threads: int = 2
    repeats: int | None = None

    def __str__(self) -> str:
        return f"actions {self.corpus} {self.question}"


class Actions(Benchmark):
    name, title, kinds, cap = "actions", "Bars of actions", DATA, 3600.0
    must_be_default = ("only", "modes", "batches", "published")

    def flags(self, add) -> None:
        add("--data", type=Path, default=HERE.parent.parent / "shared/actionpiece/data", help="data sets")
        add("--modes", default=",".join(MODES), help=f"questions, of {','.join(MODES)}")
        add("--published", type=Path, help="folder with a checkout of the published implementation")
        add("--published-merges", type=int, default=10, help="merges to ask it for (default: 10)")
        add("--batches", action="store_true", help="only: how fast batches of examples are made")
        add("--traces", action="store_true", help=f"write {TRACES.name}, for the test of the time left")

    def questions(self) -> list[Question]:
        modes = ["batches"] if self.args.batches else choose(self.args.modes, MODES, "--modes")
        modes += ["published"] if self.args.published else []
        # Of these one process: their runs are inside.
        inside = {"spr": {"threads": 1, "repeats": 1}, "batches": {"repeats": 1}, "published": {"repeats": 1}}
        return [Question(name, mode, **inside.get(mode, {})) for name in self.args.only for mode in modes]

    def ask_worker(self, verb: str, data: Path, out: Path, **options: object) -> list[str]:
        return worker(sys.executable, "action_peers.py", "actions", verb, out, data=data, **options)

    def set_up(self, asked) -> None:
        SCRATCH.mkdir(parents=True, exist_ok=True)
        compared = call(self.ask_worker("golden", self.args.data.parent / "golden", SCRATCH / "golden"))
        print(f"golden  {compared} lists of merges are as they should be", file=sys.stderr)
        self.traces: list[dict] = []

    def command(self, question: Question, entry: Entry, out: Path) -> list[str]:
        asked = {"name": question.corpus, "mode": question.question, "vocab": question.vocab, "first": 932}
        if question.question == "published":
            asked |= {"published": self.args.published.resolve(), "merges": self.args.published_merges}
        verb = {"spr": "segment", "batches": "batches", "published": "published"}.get(question.question, "learn")
        return self.ask_worker(verb, self.args.data, out, **asked)

    def check(self, question: Question, entry: Entry, out: Path) -> None:
        told = entry.told[-1]
        if question.question == "published":
            entry.note = f"first {told['merges']} merges: {told['seconds']:,.1f} s; ours are the same"
        elif question.question == "batches":
            rates = [f"{one['count'] / statistics.median(one['seconds']):,.0f} {one['what']}" for one in told]
            entry.note = "; ".join(
                f"{rate} a second, {one['threads']} threads" for rate, one in zip(rates, told, strict=True)
            )
        elif question.question != "spr":
            if told["merges_sha256"] != entry.told[0]["merges_sha256"]:
                raise SystemExit(f"{question}: two runs learned different merges; no time is reported")
            trace = {key: told.pop(key) if key == "trace" else told[key] for key in ("merges", "trace")}
            if self.args.traces and len(entry.told) == 1 and told["train_seconds"] > LEAST_TRACED:
                self.traces.append(
                    {"run": f"{question.corpus}, {question.question}", "merge_cost": MERGE_COST, **trace}
                )
                TRACES.write_text(json.dumps(self.traces, separators=(",", ":")) + "\n", encoding="utf-8")

    def facts(self, question: Question, entry: Entry) -> dict:
        files = [self.args.data / f"{question.corpus}.{kind}.gz" for kind in ("feat.json", "seq.txt")]
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
        asked = {key: value for key, value in asdict(question).items() if key != "repeats"}
        return {**asked, "input": digest, "version": installed_version(), "inside": entry.told}

    def shown(self, records: Sequence[dict]) -> list[dict]:
        """The last session that came to its end: a stopped one has not all questions."""
        asked = {(name, mode) for name in DATA for mode in MODES}
        sessions = tables.grouped(super().shown(records), "session").values()
        whole = [lines for lines in sessions if {(line["corpus"], line["question"]) for line in lines} == asked]
        return whole[-1] if whole else []

    def tables(self, records: Sequence[dict]) -> list[str]:
        first = records[0]

        def inside(field: str):
            return lambda line: tables.spread([(told | told["stats"])[field] for told in line["inside"]])

        def rate(clock: str):
            return lambda line: f"{spr_rate(line, clock) / 1000:,.0f}k"

        data, mode = {"data": tables.field("corpus")}, {"mode": tables.field("question")}
        learned = {
            "after loading s": inside("train_seconds"),
            "of it counting s": inside("count_seconds"),
            "first 932 merges s": inside("first_seconds"),
            "merges/s: first 1%, to 10%, 25%, 50%, 100%": lambda line: ", ".join(f"{one:,.0f}" for one in pace(line)),
            "process s": tables.column("seconds"),
            "peak MB": tables.column("peak_bytes", 1e6),
        }
        items = {"SPR, one thread": lambda line: f"{line['inside'][0]['items']:,} items"}
        segmented = items | {"items/s": rate("seconds"), "items/s of CPU time": rate("cpu_seconds")}
        title = f"Vocabularies of actions, {first['vocab']:,} tokens, 2 threads"
        about = f"{tables.machine(first)}; {first['session'][:10]}; load {first['machine']['load_before']} before"
        figures = "; ".join(f"{name}: {figures}" for name, figures in PUBLISHED.items())
        spr = [line for line in records if line["question"] == "spr"]
        learning = [line for line in records if line not in spr]
        return [
            tables.section(title, about, tables.table(learning, data | mode, learned, tables.RUNS)),
            f"\n{tables.table(spr, data, segmented)}",
            f"\n{tables.wrapped(f'The published implementation, on a {THEIRS}: {figures}.')}\n",
        ]

    def bars(self, records: Sequence[dict]) -> list[Bar]:
        """The promises, on two cores."""
        found = {(line["corpus"], line["question"]): line for line in records if finished(line)}

        def middle(name: str, mode: str, field: str = "train_seconds") -> float | None:
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
        return [
            *bars,
            bar(
                "first 932 merges of Beauty: at least 300x as fast as the published implementation (345 s elsewhere)",
                "{:.2f} s with counting, which the 345 s are without: {:,.0f}x",
                *(taken, ratio(345.0, taken)),
                least=300,
            ),
            bar(
                "SPR encoding, Beauty vocabulary: at least 200,000 items a second and core",
                "{:,.0f}",
                spr_rate(spr) if spr else None,
                least=200_000,
            ),
        ]


def finished(record: dict) -> bool:
    return bool(record["inside"]) and tables.median(record) is not None


def pace(record: dict) -> list[float]:
    """Merges a second between the milestones, counting left out; of the run in the middle."""
    inside = sorted(record["inside"], key=lambda run: run["train_seconds"])
    run = inside[len(inside) // 2]
    before, rates = (0, run["stats"]["count_seconds"]), []
    for merges, seconds in run["milestones"]:
        rates.append((merges - before[0]) / max(seconds - before[1], 1e-3))
        before = (merges, seconds)
    return rates


def spr_rate(record: dict, clock: str = "seconds") -> float:
    """Items a second."""
    return record["inside"][0]["items"] / median_and_spread(record["inside"][0][clock])[0]


if __name__ == "__main__":
    Actions().main()
