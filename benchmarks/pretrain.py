"""What feeding costs a training step on a GPU, and what it cost before: one call on a machine with one.

    python benchmarks/pretrain.py --pack carry            # here: shards, a sample of the text, what the command imports
    export PYTHONPATH=python:carry/site                   # there, which has torch, transformers and numpy
    python3 -c "import tarfile; tarfile.open('carry/shards.tar.xz').extractall('data', filter='data')"
    python3 benchmarks/pretrain.py data/shards --jsonl carry/sample.jsonl.xz --out OUT
    python3 -m piecemill pretrain data/shards --size 370m --out RUN
    python3 benchmarks/pretrain.py --run RUN --out OUT
    python benchmarks/pretrain.py --take OUT              # here: keeps the records, rewrites the page

The ways to feed a step take turns in segments of some steps, after a warm-up that compiles everything. Times come from
events on the GPU, as in `piecemill.pretraining.readings`. Then the feeder's loop runs once more with torch set to raise
whenever the host waits for the GPU.
"""

import json
import lzma
import math
import shutil
import statistics
import sys
import tarfile
from itertools import count, pairwise
from pathlib import Path

import carry
import tables
from carry import RemoteBenchmark
from corpus import corpus
from session import header
from tables import bar, grid
from worker import texts

WAYS = {
    "resident": "one batch that lies on the GPU: the step alone",
    "feeder": "**piecemill**, shuffled windows from shards",
    "text": "**piecemill**, text that is encoded on the GPU on the way (`text_batches`)",
    "naive": "HF tokenizer in the loop, one document at a time",  # with a blocking copy, and a look at every loss
}


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
        device, record = training(args.run) if args.run else feeding(args)
        import torch

        print(json.dumps({**record, "segments": "", "curve": ""}, indent=1))
        where = {"device": device, "torch": torch.__version__, "cuda": torch.version.cuda}
        # Nothing here is a process that is measured from outside, so there are no runs.
        return {**header("pretrain", commit=args.commit, **where), "tool": "piecemill", "runs": [], **record}

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


# Measuring, on the other machine


def training(run):
    """A run as `piecemill pretrain` left it, with its validations and a thinned curve."""
    result, plan = (json.loads((run / f"{name}.json").read_text(encoding="utf-8")) for name in ("result", "plan"))
    metrics = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    losses = [(record["tokens"], record["loss"]) for record in metrics if record["kind"] == "train"]
    data, options = plan["data"], plan["options"]
    return result["device"], {
        "question": "training",
        "size": options["size"],
        "vocab": data["vocab_size"],
        "input": data["identity"],
        "train_tokens": data["tokens"],
        "options": options,
        "curve": losses[:: max(1, len(losses) // 200)],
        **{name: value for name, value in result.items() if name not in ("out", "flops_per_token")},
    }


class Bench:
    """One model, one step, and the ways to feed it."""

    def __init__(self, args):
        import torch

        from piecemill.loading.torch import batches, text_batches
        from piecemill.pretraining.model import build, config, flops_per_token, parameter_count, peak_flops
        from piecemill.pretraining.step import Step, build_optimizer
        from piecemill.shards import open_shards
        from piecemill.tokenizers import load_tokenizer

        self.args, self.torch = args, torch
        self.rows = open_shards(args.shards, "train")
        self.device = torch.device(args.device)
        gpu = self.device.type == "cuda"
        shape = config(args.size, vocab_size=self.rows.vocab_size, eos=self.rows.eos, window=args.window)
        model = build(shape, seed=0).to(self.device)
        optimizer = build_optimizer(model, weight_decay=0.1, fused=gpu)
        self.step = Step(model, optimizer, vocab_size=self.rows.vocab_size, compiled=gpu)
        self.step.attention = args.attention
        self.parameters, self.flops = parameter_count(model), flops_per_token(model, args.window)
        self.device_name = torch.cuda.get_device_name(self.device) if gpu else "cpu"
        self.peak = peak_flops(self.device_name)
        self.tokens = args.window * args.batch_size
        rows = {"window": args.window, "batch_size": args.batch_size}
        self.feed = batches(self.rows, **rows, seed=1, epochs=None, device=args.device)
        self.resident = {name: tensor.clone() for name, tensor in next(self.feed).items()}
        # As text the documents are read as they are: the loop that tokenizes takes packed ones too.
        self.opened = [self.feed]
        self.ways = {"feeder": lambda: next(self.feed), "resident": lambda: self.resident}
        if args.jsonl.suffix == ".jsonl":
            tokenizer = load_tokenizer(args.shards / "tokenizer", engine="cuda" if gpu else None)
            self.opened.append(text_batches(args.jsonl, tokenizer, **rows, seed=1, device=args.device))
            self.ways["text"] = lambda: next(self.opened[1])

    def segment(self, next_batch, *, look=False, steps=None):
        """Some steps in a row; seconds, waiting and processor time of them. `look` reads every loss at once."""
        from piecemill.pretraining.readings import Readings

        steps = steps or self.args.segment
        readings = Readings(self.device, steps)
        cpu = float(self.feed.stats.cpu)
        readings.start(1)
        for _ in range(steps):
            # A rate as at the end of a warm-up would be; what is learned does not matter, that it stays finite does.
            loss, norm = self.step(lambda: readings.waiting(next_batch), 1e-4)
            readings.add_step(loss, norm)
            if look:
                loss.item()
        (reading,) = readings.drain()
        if not all(map(math.isfinite, reading.losses)):
            raise SystemExit(f"losses are not numbers: {reading.losses}; no time is reported")
        seen = {name: getattr(reading, name) for name in ("seconds", "waited", "process_cpu")}
        return {"steps": steps, **seen, "feeder_cpu": float(self.feed.stats.cpu) - cpu}

    def naive(self):
        """Tokenize in the loop, as many scripts do."""
        from transformers import PreTrainedTokenizerFast

        torch, args = self.torch, self.args
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(args.shards / "tokenizer" / "tokenizer.json"))
        eos = self.rows.eos
        documents, held = (text for _ in count() for text in texts(args.jsonl)), []

        def next_batch():
            while len(held) < self.tokens + 1:
                held.extend(tokenizer(next(documents))["input_ids"])
                if eos is not None:
                    held.append(eos)
            flat = torch.tensor(held[: self.tokens + 1])
            del held[: self.tokens]
            inputs, labels = (each.reshape(args.batch_size, args.window) for each in (flat[:-1], flat[1:]))
            return {"input_ids": inputs.to(self.device), "labels": labels.to(self.device)}

        return next_batch

    def without_waiting(self, steps=20):
        """Steps that ran with torch set to raise at each wait of the host for the GPU; 0 where there is none."""
        if self.device.type != "cuda":
            return 0
        self.torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(steps):
                self.step(lambda: next(self.feed), 1e-4)
        finally:
            self.torch.cuda.set_sync_debug_mode("default")
        self.torch.cuda.synchronize()
        return steps


def feeding(args):
    """All segments of each way, and what follows from them."""
    bench = Bench(args)
    try:
        ways = bench.ways
        for way in ways.values():
            bench.segment(way, steps=5)
        segments = {name: [] for name in ways}
        for number in range(args.rounds):
            # Turn about, so that a drift of clocks or heat hits both.
            for name in sorted(ways, reverse=number % 2 == 1):
                segments[name].append(bench.segment(ways[name]))
            last = [f"{name} {1e3 * per_step(segments[name][-1]):.2f} ms" for name in ways]
            print(f"round {number + 1}: {', '.join(last)}", file=sys.stderr, flush=True)
        quiet = bench.without_waiting()
        naive = bench.naive()
        bench.segment(naive, look=True, steps=2)
        segments["naive"] = [bench.segment(naive, look=True, steps=6) for _ in range(3)]
    finally:
        for each in bench.opened:
            each.close()
    seconds = {name: statistics.median(map(per_step, found)) for name, found in segments.items()}
    share = {  # of the seconds of all segments of a way
        way: {name: sum(each[name] for each in found) / sum(each["seconds"] for each in found) for name in found[0]}
        for way, found in segments.items()
    }
    fed, alone, peak = share["feeder"], share["resident"], bench.peak
    return bench.device_name, {
        "question": "feeding",
        **{name: getattr(args, name) for name in ("size", "window", "batch_size", "attention")},
        "parameters": bench.parameters,
        "vocab": bench.rows.vocab_size,
        "input": bench.rows.identity,
        "step_ms": {name: 1e3 * value for name, value in seconds.items()},
        "ratio": seconds["feeder"] / seconds["resident"],
        "text_ratio": seconds["text"] / seconds["resident"] if "text" in seconds else None,
        "text_cpu_cores": share["text"]["process_cpu"] - alone["process_cpu"] if "text" in share else None,
        "waited_share": {way: found["waited"] for way, found in share.items()},
        "extra_cpu_cores": fed["process_cpu"] - alone["process_cpu"],
        "feeder_cpu_cores": fed["feeder_cpu"],
        "process_cpu_cores": {way: found["process_cpu"] for way, found in share.items()},
        "utilisation": {name: peak and bench.tokens * bench.flops / value / peak for name, value in seconds.items()},
        "tokens_per_second": {name: bench.tokens / value for name, value in seconds.items()},
        "steps_that_never_waited": quiet,
        "segments": segments,
    }


def per_step(segment):
    return segment["seconds"] / segment["steps"]


if __name__ == "__main__":
    Pretrain().main()
