"""What feeding costs a training step on a GPU, for `pretrain.py`.

Three ways to the same step, taking turns in segments of some steps, after a warm-up that compiles everything:

    feeder     `piecemill.loading.torch.batches`, shuffled windows from shards
    resident   one batch that lies on the GPU already: the step alone
    naive      a line of JSONL, HF's tokenizer, one document at a time, a blocking copy, and a look at every loss

Times come from events on the GPU, as in `piecemill.pretraining.readings`. Then the feeder's loop runs once more with
torch set to raise whenever the host waits for the GPU.
"""

import math
import statistics
import sys
from itertools import count

from worker import texts


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
        self.text = None
        if args.jsonl.suffix == ".jsonl":
            tokenizer = load_tokenizer(args.shards / "tokenizer", engine="cuda" if gpu else None)
            self.text = text_batches(args.jsonl, tokenizer, **rows, seed=1, device=args.device)

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
        ways = {"feeder": lambda: next(bench.feed), "resident": lambda: bench.resident}
        if bench.text is not None:
            ways["text"] = lambda: next(bench.text)
        for way in ways.values():
            bench.segment(way, steps=5)
        segments = {name: [] for name in (*ways, "naive")}
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
        if bench.text is not None:
            bench.text.close()
    seconds = {name: statistics.median(map(per_step, found)) for name, found in segments.items()}
    share = {  # of the seconds of all segments of a way
        way: {name: sum(each[name] for each in found) / sum(each["seconds"] for each in found) for name in found[0]}
        for way, found in segments.items()
    }
    fed, alone, peak = share["feeder"], share["resident"], bench.peak
    return {
        "device": bench.device_name,
        "versions": {"torch": bench.torch.__version__, "cuda": bench.torch.version.cuda},
        **{name: getattr(args, name) for name in ("size", "window", "batch_size", "attention")},
        **{"parameters": bench.parameters, "vocab": bench.rows.vocab_size, "input": bench.rows.identity},
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
        **{"steps_that_never_waited": quiet, "segments": segments},
    }


def per_step(segment):
    return segment["seconds"] / segment["steps"]
