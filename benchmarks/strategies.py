"""What asking differently costs: `python benchmarks/strategies.py`.

The same 20 MB of Python files through HF `tokenizers`, SentencePiece and gigatoken: one document at a time, in
batches, with threads, with processes, as one concatenated string; and through `piecemill prepare`. All ways of one
library must give the same ids, and gigatoken those of HF, or no time is shown. Only the concatenated string may not:
there is no border between its documents.
"""

from collections.abc import Sequence
from pathlib import Path

import pipelines
import tables
from corpus import RECORDED
from measure import median_and_spread
from pipelines import PIPELINES, PYTHON, TOKENIZER, WORKERS
from prepare_peers import SENTENCEPIECE, Gigatoken, PipelinePeer
from protocol import CACHE, OURS, SCRATCH, Entry, call, installed_version, worker
from session import Benchmark

SCRIPT = "strategy_peers.py"
MODEL = CACHE / "sentencepiece-16384.model"
ONE, JOINED = "one by one", "one concatenated string"
STRATEGIES = [ONE, "batches, one thread", "batches", "threads", "processes", JOINED]
VERSIONS = {"tokenizers": PipelinePeer.tokenizers, "sentencepiece": SENTENCEPIECE, "gigatoken": Gigatoken.version}


class Strategies(Benchmark):
    name, label, tree, repeats = "strategies", "{0.tool}: {0.how}", True, ((float("inf"), 5),)

    def questions(self) -> list[str]:
        return ["strategies python-5mb" if self.args.quick else "strategies python-20mb"]

    def entries(self, question: str) -> list[Entry]:
        entries = [Entry(library, strategy) for library in VERSIONS for strategy in STRATEGIES]
        return [*entries, Entry(OURS, "prepare, from the file to shards")]

    def set_up(self, asked) -> None:
        self.made = RECORDED[asked[0][0].split()[1]]
        if pipelines.set_up([], ["python-5mb", self.made.name]):
            raise SystemExit("the libraries could not be installed")
        if not MODEL.exists():
            given = {"input": RECORDED["python-5mb"].jsonl, "model": MODEL}
            call(worker(PYTHON, SCRIPT, "library", "train", SCRATCH / "strategies", **given))

    def command(self, question: str, entry: Entry, out: Path) -> list[str]:
        if entry.ours:
            return pipelines.prepare_command(PIPELINES[OURS], [self.made.jsonl], out)
        model = MODEL if entry.tool == "sentencepiece" else TOKENIZER
        asked = {"library": entry.tool, "strategy": entry.how, "model": model, "workers": WORKERS}
        return worker(PYTHON, SCRIPT, "library", "encode", out, input=self.made.jsonl, **asked)

    def check(self, question: str, entry: Entry, out: Path) -> None:
        if entry.ours:
            entry.told[-1] = {"seconds": entry.runs[-1].seconds, **pipelines.produced(PIPELINES[OURS], out)}
        digest = dict(entry.told[-1])
        entry.note = f"{self.made.documents / digest.pop('seconds'):,.0f} documents/s"
        entry.facts["digest"] = digest

    def compare(self, question: str, entries: Sequence[Entry]) -> None:
        compare(entries, pipelines.reference(self.made.name))

    def facts(self, question: str, entry: Entry) -> dict:
        return {
            **{"corpus": self.made.name, "input": self.made.sha256, "documents": self.made.documents},
            **{"workers": WORKERS, "memory_measured": "sum of all processes, sampled", "library": entry.tool},
            **{"version": VERSIONS.get(entry.tool) or installed_version(), "strategy": entry.how},
            "inside_seconds": [told["seconds"] for told in entry.told],
        }

    def tables(self, records: Sequence[dict]) -> list[str]:
        """Documents a second, against one at a time by the same library, and memory."""
        lines = tables.last_session(records)
        first, single = (
            lines[0],
            {line["library"]: middle(line) for line in lines if line["strategy"] == ONE and tables.median(line)},
        )

        names = {"library": lambda line: f"{line['library']} {line['version']}", "strategy": tables.field("strategy")}
        figures = {
            "documents/s": lambda line: tables.spread(
                [line["documents"] / one for one in line["inside_seconds"]], digits=0
            ),
            "x one by one": lambda line: (
                f"{single[line['library']] / middle(line):.2f}" if line["library"] in single else ""
            ),
            "peak MB": tables.column("peak_bytes", 1e6),
        }
        last = tables.RUNS | {"ids": tables.field("agreement")}
        where, workers = first["machine"], f"{first['workers']} workers or threads"
        about = (
            f"{first['corpus']}, {first['documents']:,} documents, {workers}; {where['processor']}, {where['cores']} "
            f"cores; {first['session'][:10]}; input {first['input'][:16]}"
        )
        return [tables.section("", about, tables.table(lines, names, figures, last))]


def compare(entries: Sequence[Entry], prepared: dict | None) -> None:
    """Say how the ids compare; a difference where none may be ends the benchmark."""
    done = {(entry.tool, entry.how): entry for entry in entries if entry.finished}
    for (library, strategy), entry in done.items():
        base = done.get(("tokenizers" if library == "gigatoken" else library, ONE))
        wanted, found = prepared if library == OURS else base and base.facts["digest"], entry.facts["digest"]
        if wanted is None:
            entry.agreement = "nothing to compare with"
        elif strategy == JOINED:
            entry.agreement = f"documents run together: {found['tokens'] - wanted['tokens']:+,} tokens"
        elif found["ordered"] == wanted["ordered"]:
            entry.agreement = "same ids"
        else:
            raise SystemExit(f"{library}, {strategy}: other ids than one document at a time. No time is reported.")


def middle(line: dict) -> float:
    """The median of the seconds that count."""
    return median_and_spread(line["inside_seconds"])[0]


if __name__ == "__main__":
    Strategies().main()
