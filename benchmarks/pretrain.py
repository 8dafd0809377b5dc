"""What feeding costs a training step on a GPU, and what it cost before: one call on a machine with one.

    python benchmarks/pretrain.py SHARDS --jsonl sample.jsonl.xz --out records/     measures, writes records/*.json
    python benchmarks/pretrain.py --run RUN --out records/                          a run of `piecemill pretrain`
    python benchmarks/pretrain.py --take records/                                   keeps them, rewrites the page

Three ways to the same step, taking turns in segments of some steps, after a warm-up that compiles everything:

    feeder     `piecemill.loading.torch.batches`, shuffled windows from shards
    resident   one batch that lies on the GPU already: the step alone
    naive      a line of JSONL, HF's tokenizer, one document at a time, a blocking copy, and a look at every loss

Times come from events on the GPU, as in `piecemill.pretraining.readings`. Then the feeder's loop runs once more with
torch set to raise whenever the host waits for the GPU. Nothing but torch, transformers and numpy is needed there.
"""

import argparse
import datetime
import gzip
import json
import lzma
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import tables
from measure import machine
from protocol import HERE, RESULTS, append, write_page
from tables import Bar, bar

WAYS = {
    "resident": "one batch that lies on the GPU: the step alone",
    "feeder": "**piecemill**, shuffled windows from shards",
    "naive": "HF tokenizer in the loop, one document at a time",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shards", nargs="?", type=Path, help="a folder written by `piecemill prepare`")
    parser.add_argument("--jsonl", type=Path, help="documents for the naive loop: .jsonl, .jsonl.gz or .jsonl.xz")
    parser.add_argument("--out", type=Path, help="folder for the records")
    parser.add_argument("--size", default="370m", help="of the model (default: 370m)")
    parser.add_argument("--window", type=int, default=2048, help="tokens in a row (default: 2048)")
    parser.add_argument("--batch-size", type=int, default=32, help="rows in a step (default: 32)")
    parser.add_argument("--attention", default="auto", help="kernels: auto or cudnn (default: auto)")
    parser.add_argument("--segment", type=int, default=12, help="steps in a segment (default: 12)")
    parser.add_argument("--rounds", type=int, default=7, help="segments of each kind (default: 7)")
    parser.add_argument("--device", default="cuda", help="default: cuda")
    parser.add_argument("--commit", default="", help="what is being measured, where there is no git")
    parser.add_argument("--run", type=Path, help="a run of `piecemill pretrain`, to be written as a record")
    parser.add_argument("--take", type=Path, help="append the records of this folder to the results; rewrite the page")
    parser.add_argument("--table", action="store_true", help="rewrite the page from results.jsonl")
    args = parser.parse_args()
    if args.take or args.table:
        for path in sorted(args.take.glob("pretrain-*.json")) if args.take else []:
            append(RESULTS, json.loads(path.read_text(encoding="utf-8")))
            print(f"kept {path}")
        write_page("pretrain", render, RESULTS)
        return
    if args.out is None or (args.run is None and (args.shards is None or args.jsonl is None)):
        parser.error("name SHARDS, --jsonl and --out; or --run and --out; or --take")
    args.out.mkdir(parents=True, exist_ok=True)
    record = training_record(args.run, args.commit) if args.run else feeding_record(args)
    path = args.out / f"pretrain-{record['question']}.json"
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in record.items() if name not in ("segments", "curve")}, indent=1))
    print(f"wrote {path}")


def header(question: str, commit: str, device: str) -> dict:
    """What every record begins with. `runs` is empty: nothing here is a process of its own."""
    import torch

    return {
        "benchmark": "pretrain",
        "question": question,
        "tool": "piecemill",
        "session": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "complete": True,
        "commit": commit,
        "machine": machine() | {"device": device, "torch": torch.__version__, "cuda": torch.version.cuda},
        "runs": [],
    }


# The three ways


class Bench:
    """One model, one step, and the ways to feed it."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        from piecemill.loading.torch import batches
        from piecemill.pretraining.model import build, config, flops_per_token, parameter_count, peak_flops
        from piecemill.pretraining.optimizer import build_optimizer
        from piecemill.pretraining.step import Step
        from piecemill.shards import open_shards

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

    def segment(self, next_batch: Callable[[], dict], *, look: bool = False, steps: int | None = None) -> dict:
        """Some steps in a row; seconds, waiting and processor time of them. `look` reads every loss at once."""
        from piecemill.pretraining.readings import Readings

        steps = steps or self.args.segment
        readings = Readings(self.device, steps)
        cpu = float(self.feed.stats.cpu)
        readings.start(1)
        for _ in range(steps):
            # A rate as at the end of a warm-up would be; what is learned does not matter, that it stays finite does.
            loss, norm = self.step(lambda: readings.waiting(next_batch), 1e-4)
            readings.put(loss, norm)
            if look:
                loss.item()
        (reading,) = readings.drain()
        if not all(map(math.isfinite, reading.losses)):
            raise SystemExit(f"losses are not numbers: {reading.losses}; no time is reported")
        seen = {name: getattr(reading, name) for name in ("seconds", "waited", "process_cpu")}
        return {"steps": steps, **seen, "feeder_cpu": float(self.feed.stats.cpu) - cpu}

    def naive(self) -> Callable[[], dict]:
        """Tokenize in the loop, as many scripts do."""
        from transformers import PreTrainedTokenizerFast

        torch, args = self.torch, self.args
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(args.shards / "tokenizer" / "tokenizer.json"))
        eos = self.rows.eos
        documents, held = texts(args.jsonl), []

        def next_batch() -> dict:
            while len(held) < self.tokens + 1:
                held.extend(tokenizer(next(documents))["input_ids"])
                if eos is not None:
                    held.append(eos)
            flat = torch.tensor(held[: self.tokens + 1])
            del held[: self.tokens]
            inputs, labels = (each.reshape(args.batch_size, args.window) for each in (flat[:-1], flat[1:]))
            return {"input_ids": inputs.to(self.device), "labels": labels.to(self.device)}

        return next_batch

    def without_waiting(self, steps: int = 20) -> int:
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


def feeding_record(args: argparse.Namespace) -> dict:
    bench = Bench(args)
    try:
        ways = {"feeder": lambda: next(bench.feed), "resident": lambda: bench.resident}
        for way in ways.values():
            bench.segment(way, steps=5)
        segments: dict[str, list[dict]] = {name: [] for name in (*ways, "naive")}
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
        bench.feed.close()
    seconds = {name: statistics.median(map(per_step, found)) for name, found in segments.items()}
    share = {  # of the seconds of all segments of a way
        way: {name: sum(each[name] for each in found) / sum(each["seconds"] for each in found) for name in found[0]}
        for way, found in segments.items()
    }
    fed, alone, peak = share["feeder"], share["resident"], bench.peak
    return header("feeding", args.commit, bench.device_name) | {
        "size": args.size,
        "parameters": bench.parameters,
        "vocab": bench.rows.vocab_size,
        "input": bench.rows.identity,
        "window": args.window,
        "batch_size": args.batch_size,
        "attention": args.attention,
        "step_ms": {name: 1e3 * value for name, value in seconds.items()},
        "ratio": seconds["feeder"] / seconds["resident"],
        "waited_share": {way: found["waited"] for way, found in share.items()},
        "extra_cpu_cores": fed["process_cpu"] - alone["process_cpu"],
        "feeder_cpu_cores": fed["feeder_cpu"],
        "process_cpu_cores": {way: found["process_cpu"] for way, found in share.items()},
        "utilisation": {name: peak and bench.tokens * bench.flops / value / peak for name, value in seconds.items()},
        "tokens_per_second": {name: bench.tokens / value for name, value in seconds.items()},
        "steps_that_never_waited": quiet,
        "segments": segments,
    }


def per_step(segment: dict) -> float:
    return segment["seconds"] / segment["steps"]


def texts(path: Path) -> Iterator[str]:
    """The documents of a JSONL file, over and over."""
    opened = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    while True:
        with opened(path, "rb") as lines:
            for line in lines:
                yield json.loads(line)["text"]


# A run of the command


def training_record(run: Path, commit: str) -> dict:
    """A run as `piecemill pretrain` left it, with its validations and a thinned curve."""
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [(record["tokens"], record["loss"]) for record in metrics if record["kind"] == "train"]
    every = max(1, len(losses) // 200)
    kept = {name: value for name, value in result.items() if name not in ("out", "flops_per_token")}
    return header("training", commit, result["device"]) | {
        "size": plan["options"]["size"],
        "vocab": plan["data"]["vocab_size"],
        "input": plan["data"]["identity"],
        "train_tokens": plan["data"]["tokens"],
        "options": plan["options"],
        "curve": losses[::every],
        **kept,
    }


# Tables


def latest(records: Sequence[dict], question: str) -> dict | None:
    mine = [line for line in tables.complete(records, "pretrain") if line["question"] == question]
    return mine[-1] if mine else None


def render(records: Sequence[dict]) -> str:
    feeding, training = latest(records, "feeding"), latest(records, "training")
    parts = [tables.bars_table("Bars of loading and pretraining on a GPU", bars(feeding, training))]
    parts += [feeding_table(feeding)] if feeding else []
    parts += [training_table(training)] if training else []
    return "".join(parts) + "\n"


def bars(feeding: dict | None, training: dict | None) -> list[Bar]:
    fed, trained = feeding or {}, training or {}

    def falls(validation: list) -> tuple[str, bool]:
        losses = [loss for _, loss in validation]
        down = all(later < earlier for earlier, later in pairwise(losses))
        words = f"{'falls' if down else 'does not fall'} at every look; {losses[-1]:.3f}"
        return f"{words} at {trained['tokens'] / 1e6:.0f} M", down and losses[-1] < 2.6

    return [
        bar("step with our loader at most 1.01x the step on a resident batch", [fed.get("ratio")],
            lambda ratio: (f"{ratio:.4f}x", ratio <= 1.01)),
        bar("GPU waiting for data at most 1% of the time", [fed.get("waited_share", {}).get("feeder")],
            lambda waited: (f"{waited:.3%}", waited <= 0.01)),
        bar("CPU of feeding at most 15% of a core beyond the training loop's own",
            [fed.get("feeder_cpu_cores"), fed.get("extra_cpu_cores")],
            lambda own, more: (f"feeder threads {own:.1%}, whole process {more:+.1%}", max(own, more) <= 0.15)),
        bar("370M in bf16: at least 40% of the GPU's peak", [trained.get("utilisation")],
            lambda share: (f"{share:.1%}", share >= 0.4)),
        bar("validation falls at every look and ends below 2.6 nats per token", [trained.get("validation")], falls),
    ]  # fmt: skip


def feeding_table(record: dict) -> str:
    alone, rows = record["step_ms"]["resident"], []
    for name, words in WAYS.items():
        ms, share = record["step_ms"][name], record["utilisation"][name]
        cells = [words, f"{ms:.2f}", f"{ms / alone:.4f}", f"{record['tokens_per_second'][name]:,.0f}"]
        cells += ["not known" if share is None else f"{share:.1%}", f"{record['waited_share'][name]:.3%}"]
        rows.append([*cells, f"{record['process_cpu_cores'][name]:.2f}"])
    header = ["batches from", "ms a step", "x resident", "tokens/s", "of peak", "GPU waiting", "process, cores"]
    return (
        f"\n## A step of {record['parameters'] / 1e6:.0f}M parameters, {record['batch_size']} rows of "
        f"{record['window']:,} tokens, vocabulary {record['vocab']:,}\n\n"
        f"{gpu(record)}; medians of segments that took turns; attention: {record['attention']}; "
        f"{record['steps_that_never_waited']} steps with torch set to raise at any wait of the host: none raised\n\n"
    ) + tables.table(header, rows)


def training_table(record: dict) -> str:
    share = record["utilisation"]
    rows = [[f"{step:,}", f"{loss:.4f}"] for step, loss in record["validation"]]
    return (
        f"\n## {record['parameters'] / 1e6:.0f}M parameters from scratch: {record['tokens'] / 1e6:.0f} M tokens in "
        f"{record['seconds'] / 60:.1f} minutes\n\n"
        f"{gpu(record)}; {record['train_tokens'] / 1e6:.1f} M tokens in the training split, so "
        f"{record['tokens'] / record['train_tokens']:.1f} epochs; learning rate {record['options']['lr']:g}, warm-up "
        f"{record['options']['warmup']} steps; {record['tokens_per_second']:,.0f} tokens/s, "
        f"{'share of peak not known' if share is None else f'{share:.1%} of peak'}, GPU waiting for data "
        f"{record['waited_share']:.3%}, feeder {record['feeder_cores']:.3f} cores. Chance is ln(V) = "
        f"{record['chance']:.2f}, unigrams {record['unigram_entropy']:.2f}.\n\n"
        "![loss over tokens](pretraining-370m.svg)\n\n"
    ) + tables.table(["step", "validation loss, nats per token"], rows)


def gpu(record: dict) -> str:
    where = record["machine"]
    return f"{where['device']}, torch {where['torch']}; {record['session'][:10]}; input {record['input'][:16]}"


if __name__ == "__main__":
    # The package as it lies here: on a lent machine it is not installed.
    sys.path.insert(0, str(HERE.parent / "python"))
    main()
