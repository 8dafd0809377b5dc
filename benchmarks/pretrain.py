"""What feeding costs a training step on a GPU, and what it cost before: one call on a machine with one.

    python benchmarks/pretrain.py --pack carry            # here: shards, a sample of the text, what the command imports
    export PYTHONPATH=python:carry/site                   # there, which has torch, transformers and numpy
    python3 -c "import tarfile; tarfile.open('carry/shards.tar.xz').extractall('data', filter='data')"
    python3 benchmarks/pretrain.py data/shards --jsonl carry/sample.jsonl.xz --out OUT
    python3 -m piecemill pretrain data/shards --size 370m --out RUN
    python3 benchmarks/pretrain.py --run RUN --out OUT
    python benchmarks/pretrain.py --take OUT              # here: keeps the records, rewrites the page

`peers/pretrain_peers.py` measures our feeder, a batch that lies on the GPU, and a loop that tokenizes as it goes.
"""

import json
import lzma
import shutil
import tarfile
from itertools import pairwise
from pathlib import Path

import carry
import tables
from carry import RemoteBenchmark
from corpus import corpus
from session import header
from tables import bar, grid

WAYS = {
    "resident": "one batch that lies on the GPU: the step alone",
    "feeder": "**piecemill**, shuffled windows from shards",
    "text": "**piecemill**, text that is encoded on the GPU on the way (`text_batches`)",
    "naive": "HF tokenizer in the loop, one document at a time",
}
OURS_ALONE = {"tool": "piecemill", "runs": []}  # nothing here is a process that is measured from outside


class Pretrain(RemoteBenchmark):
    name, title = "pretrain", "Bars of loading and pretraining on a GPU"

    def flags(self, add):
        add("shards", nargs="?", type=Path, help="a folder written by `piecemill prepare`")
        add("--pack", type=Path, metavar="FOLDER", help="make the folder that travels; takes two or three minutes")
        add("--jsonl", type=Path, help="documents for the naive loop: .jsonl, .jsonl.gz or .jsonl.xz")
        add("--size", default="370m", help="of the model (default: 370m)")
        add("--window", type=int, default=2048, help="tokens in a row (default: 2048)")
        add("--batch-size", type=int, default=32, help="rows in a step (default: 32)")
        add("--attention", default="auto", help="kernels: auto or cudnn (default: auto)")
        add("--segment", type=int, default=12, help="steps in a segment (default: 12)")
        add("--rounds", type=int, default=7, help="segments of each kind (default: 7)")
        add("--device", default="cuda", help="default: cuda")
        add("--run", type=Path, help="a run of `piecemill pretrain`, to be written as a record")

    def pack(self, args):
        """Shards of python-127mb with a vocabulary of 50,257, both made here, and a cut of the documents as text."""
        from piecemill import prepare, train_bpe

        jsonl, out, taken = corpus("python-127mb").jsonl, carry.new_folder(args.pack), 0
        made = prepare(
            jsonl, train_bpe(jsonl, vocab_size=50_257), out=out / "shards", splits="train=95,val=5", dedup="exact"
        )
        print(f"carry   {made.documents:,} documents, {made.tokens:,} tokens")
        with tarfile.open(out / "shards.tar.xz", "w:xz") as tar:
            tar.add(out / "shards", "shards")
        shutil.rmtree(out / "shards")
        with lzma.open(out / "sample.jsonl.xz", "wb") as sample, jsonl.open("rb") as lines:
            while taken < 16_000_000:
                taken += sample.write(next(lines))
        carry.install(out / "site", ["cyclopts", "pytest"])
        for binary in (out / "site").rglob("*.so"):
            raise SystemExit(f"carry   {binary}: compiled for this Python, not for another")
        carry.check_size(out)

    def measure(self, args):
        if args.run is None and (args.shards is None or args.jsonl is None):
            raise SystemExit("name SHARDS, --jsonl and --out; or --run and --out; or --take")
        record = self.training(args) if args.run else self.feeding(args)
        shown = {name: value for name, value in record.items() if name not in ("segments", "curve")}
        print(json.dumps(shown, indent=1))
        return record

    def feeding(self, args):
        from pretrain_peers import feeding

        told = feeding(args)
        where = {"device": told.pop("device"), **told.pop("versions")}
        return {**header("pretrain", commit=args.commit, **where), **OURS_ALONE, "question": "feeding", **told}

    def training(self, args):
        """A run as `piecemill pretrain` left it, with its validations and a thinned curve."""
        import torch

        result, plan = (
            json.loads((args.run / f"{name}.json").read_text(encoding="utf-8")) for name in ("result", "plan")
        )
        metrics = [json.loads(line) for line in (args.run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        losses = [(record["tokens"], record["loss"]) for record in metrics if record["kind"] == "train"]
        where = {"device": result["device"], "torch": torch.__version__, "cuda": torch.version.cuda}
        data, options = plan["data"], plan["options"]
        return {
            **{**header("pretrain", commit=args.commit, **where), **OURS_ALONE, "question": "training"},
            **{"size": options["size"], "vocab": data["vocab_size"], "input": data["identity"]},
            **{"train_tokens": data["tokens"], "options": options, "curve": losses[:: max(1, len(losses) // 200)]},
            **{name: value for name, value in result.items() if name not in ("out", "flops_per_token")},
        }

    def bars(self, records):
        fed, trained = latest(records, "feeding"), latest(records, "training")
        losses = [loss for _, loss in trained.get("validation", [])]
        down = all(later < earlier for earlier, later in pairwise(losses)) if losses else None
        falls = f"{'falls' if down else 'does not fall'} at every look; {{:.3f}} at {{:.0f}} M"
        reached = (losses[-1], trained["tokens"] / 1e6, down and losses[-1] < 2.6) if losses else [None]
        own, more = fed.get("feeder_cpu_cores"), fed.get("extra_cpu_cores")
        beyond = "at most 15% of a core beyond the training loop's own"
        step = "at most 1.01x the step on a resident batch"
        waited, share = fed.get("waited_share", {}).get("feeder"), trained.get("utilisation")
        most = None if None in (own, more) else max(own, more)
        words = "feeder threads {:.1%}, whole process {:+.1%}"
        return [
            bar(f"step with our loader {step}", "{:.4f}x", fed.get("ratio"), most=1.01),
            bar("GPU waiting for data at most 1% of the time", "{:.3%}", waited, most=0.01),
            bar(f"CPU of feeding {beyond}", words, own, more, most, most=0.15),
            bar(f"step with `text_batches` {step}", "{:.4f}x", fed.get("text_ratio"), most=1.01),
            bar(f"CPU of `text_batches` {beyond}", "whole process {:+.1%}", fed.get("text_cpu_cores"), most=0.15),
            bar("370M in bf16: at least 40% of the GPU's peak", "{:.1%}", share, least=0.4),
            bar("validation falls at every look and ends below 2.6 nats per token", falls, *reached, least=1),
        ]

    def tables(self, records):
        for question, table in (("feeding", feeding_table), ("training", training_table)):
            if record := latest(records, question):
                yield table(record)


GPU = "{machine[device]}, torch {machine[torch]}; {session:.10}; input {input:.16}; "
STEP = "A step of {millions:.0f}M parameters, {batch_size} rows of {window:,} tokens, vocabulary {vocab:,}"
STEPS = (
    "medians of segments that took turns; attention: {attention}; {steps_that_never_waited} steps with torch set to "
    "raise at any wait of the host: none raised"
)
FROM_SCRATCH = "{millions:.0f}M parameters from scratch: {seen:.0f} M tokens in {minutes:.1f} minutes"
TRAINING = (
    "{there:.1f} M tokens in the training split, so {epochs:.1f} epochs; learning rate {options[lr]:g}, warm-up "
    "{options[warmup]} steps; {tokens_per_second:,.0f} tokens/s, {share}, GPU waiting for data {waited_share:.3%}, "
    "feeder {feeder_cores:.3f} cores. Chance is ln(V) = {chance:.2f}, unigrams {unigram_entropy:.2f}."
)


def latest(records, question):
    return next((line for line in reversed(records) if line["question"] == question), {})


def feeding_table(record):
    steps, said = record["step_ms"], {**record, "millions": record["parameters"] / 1e6}
    rows = []
    for name in (name for name in WAYS if name in steps):
        share = record["utilisation"][name]
        cells = [WAYS[name], f"{steps[name]:.2f}", f"{steps[name] / steps['resident']:.4f}"]
        cells += [f"{record['tokens_per_second'][name]:,.0f}", "not known" if share is None else f"{share:.1%}"]
        rows.append([*cells, f"{record['waited_share'][name]:.3%}", f"{record['process_cpu_cores'][name]:.2f}"])
    columns = ["batches from", "ms a step", "x resident", "tokens/s", "of peak", "GPU waiting", "process, cores"]
    return tables.section(STEP.format_map(said), (GPU + STEPS).format_map(said), grid(columns, rows))


def training_table(record):
    share, tokens, there = record["utilisation"], record["tokens"], record["train_tokens"]
    said = {
        **{**record, "millions": record["parameters"] / 1e6, "minutes": record["seconds"] / 60, "seen": tokens / 1e6},
        **{"there": there / 1e6, "epochs": tokens / there},
        "share": "share of peak not known" if share is None else f"{share:.1%} of peak",
    }
    rows = [[f"{step:,}", f"{loss:.4f}"] for step, loss in record["validation"]]
    table = "![loss over tokens](pretraining-370m.svg)\n\n" + grid(["step", "validation loss, nats per token"], rows)
    return tables.section(FROM_SCRATCH.format_map(said), (GPU + TRAINING).format_map(said), table)


if __name__ == "__main__":
    Pretrain().main()
