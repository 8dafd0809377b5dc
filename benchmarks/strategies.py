"""What asking differently costs: `python benchmarks/strategies.py`.

The same 20 MB of Python files through HF `tokenizers`, SentencePiece and gigatoken: one document at a time, in
batches, with threads, with processes, as one concatenated string; and through `piecemill prepare`. All ways of one
library must give the same ids, and gigatoken those of HF, or no time is shown. Only the concatenated string may not:
there is no border between its documents.
"""

import prepare
import tables
from corpus import RECORDED
from measure import median_and_spread
from prepare import PIPELINES, PYTHON, TOKENIZER, WORKERS
from prepare_peers import SENTENCEPIECE, Gigatoken, PipelinePeer
from protocol import CACHE, OURS, Entry, call, installed_version, worker
from session import Benchmark

MODEL = CACHE / "sentencepiece-16384" / "sentencepiece.model"
ONE, JOINED = "one by one", "one concatenated string"
STRATEGIES = [ONE, "batches, one thread", "batches", "threads", "processes", JOINED]
VERSIONS = {"tokenizers": PipelinePeer.tokenizers, "sentencepiece": SENTENCEPIECE, "gigatoken": Gigatoken.version}


def rates(line):
    """Documents a second, of each run."""
    return [line["documents"] / seconds for seconds in line["inside_seconds"]]


def gain(line, group):
    """Times as fast as the same library with one document at a time."""
    one = (other for other in group if (other["library"], other["strategy"]) == (line["library"], ONE))
    base = next((other for other in one if tables.median(other)), None)
    middle = [median_and_spread(record["inside_seconds"])[0] for record in (base, line) if record]
    return f"{middle[0] / middle[1]:.2f}" if base else ""


class Strategies(Benchmark):
    name, label, tree, repeats = "strategies", "{0.tool}: {0.how}", True, ((float("inf"), 5),)
    asked = "strategies {corpus}"
    about = (
        "{corpus}, {documents:,} documents, {workers} workers or threads; {machine[processor]}, {machine[cores]} "
        "cores; {session:.10}; input {input:.16}"
    )
    columns = {
        **{"library": "{library} {version}", "strategy": "{strategy}"},
        "documents/s": lambda line, _: tables.spread(rates(line), digits=0),
        "x one by one": gain,
        "peak MB": tables.CPU_AND_PEAK["peak MB"],
        **{"runs": "{count}", "ids": "{agreement}"},
    }

    def questions(self):
        made = RECORDED["python-5mb" if self.args.quick else "python-20mb"]
        return [{"corpus": made.name, "documents": made.documents, "input": made.sha256, "workers": WORKERS}]

    def entries(self, question):
        entries = [Entry(library, strategy) for library in VERSIONS for strategy in STRATEGIES]
        return [*entries, Entry(OURS, "prepare, from the file to shards")]

    def set_up(self, asked):
        if prepare.set_up([], ["python-5mb", asked[0][0]["corpus"]]):
            raise SystemExit("the libraries could not be installed")
        if not MODEL.exists():
            given = {"corpus": RECORDED["python-5mb"].jsonl, "split": "gpt2", "vocab": 16_384, "threads": WORKERS}
            call(worker(PYTHON, "train_peers.py", "sentencepiece", "train", MODEL.parent, **given))

    def command(self, question, entry, out):
        source = RECORDED[question["corpus"]].jsonl
        if entry.ours:
            return prepare.prepare_command(PIPELINES[OURS], [source], out)
        model = MODEL if entry.tool == "sentencepiece" else TOKENIZER
        asked = {"library": entry.tool, "strategy": entry.how, "model": model, "workers": WORKERS}
        return worker(PYTHON, "documents.py", "library", "encode", out, input=source, **asked)

    def check(self, question, entry, out):
        if entry.ours:
            entry.told[-1] = {"seconds": entry.runs[-1].seconds, **prepare.produced(PIPELINES[OURS], out)}
        digest = entry.facts["digest"] = dict(entry.told[-1])
        entry.note = f"{question['documents'] / digest.pop('seconds'):,.0f} documents/s"

    def compare(self, question, entries):
        compare(entries, prepare.reference(question["corpus"]))

    def facts(self, question, entry):
        version, inside = VERSIONS.get(entry.tool) or installed_version(), [told["seconds"] for told in entry.told]
        about = {"library": entry.tool, "version": version, "strategy": entry.how, "inside_seconds": inside}
        return {"memory_measured": "sum of all processes, sampled", **about}

    def groups(self, records):
        return {"": tables.last_session(records)}


def compare(entries, prepared):
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


if __name__ == "__main__":
    Strategies().main()
