"""What feeding costs a training step on a GPU, and what it cost before: one call on a machine with one.

    python benchmarks/pretrain.py SHARDS --jsonl sample.jsonl.xz --out records/     measures, writes records/*.json
    python benchmarks/pretrain.py --run RUN --out records/                          a run of `piecemill pretrain`
    python benchmarks/pretrain.py --take records/                                   keeps them, rewrites the page

`peers/pretrain_peers.py` measures our feeder, a batch that lies on the GPU, and a loop that tokenizes as it goes.
Nothing but torch, transformers and numpy is needed there.
"""

import argparse
import datetime
import json
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import tables
from measure import machine
from protocol import HERE, RESULTS, append, worker, write_page
from tables import Bar, bar

WAYS = {
    "resident": "one batch that lies on the GPU: the step alone",
    "feeder": "**piecemill**, shuffled windows from shards",
    "text": "**piecemill**, text that is encoded on the GPU on the way (`text_batches`)",
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
    record = training_record(args) if args.run else feeding_record(args)
    path = args.out / f"pretrain-{record['question']}.json"
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in record.items() if name not in ("segments", "curve")}, indent=1))
    print(f"wrote {path}")


def header(question: str, commit: str, about: dict) -> dict:
    """What every record begins with. `runs` is empty: nothing here is a process that is measured from outside."""
    return {
        "benchmark": "pretrain",
        "question": question,
        "tool": "piecemill",
        "session": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "complete": True,
        "commit": commit,
        "machine": machine() | about,
        "runs": [],
    }


def feeding_record(args: argparse.Namespace) -> dict:
    names = ("shards", "jsonl", "size", "window", "batch_size", "attention", "segment", "rounds", "device")
    options = {name: getattr(args, name) for name in names}
    # The package as it lies here: on a lent machine it is not installed.
    site, answer = HERE.parent / "python", args.out / "answer.json"
    command = worker(sys.executable, "pretrain_peers.py", "piecemill", "feeding", answer, site=site, **options)
    subprocess.run(command, check=True)
    told = json.loads(answer.read_text(encoding="utf-8"))
    about = {"device": told.pop("device"), **told.pop("versions")}
    return header("feeding", args.commit, about) | told


def training_record(args: argparse.Namespace) -> dict:
    """A run as `piecemill pretrain` left it, with its validations and a thinned curve."""
    import torch

    run = args.run
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [(record["tokens"], record["loss"]) for record in metrics if record["kind"] == "train"]
    every = max(1, len(losses) // 200)
    kept = {name: value for name, value in result.items() if name not in ("out", "flops_per_token")}
    about = {"device": result["device"], "torch": torch.__version__, "cuda": torch.version.cuda}
    return header("training", args.commit, about) | {
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
        bar("step with `text_batches` at most 1.01x the step on a resident batch", [fed.get("text_ratio")],
            lambda ratio: (f"{ratio:.4f}x", ratio <= 1.01)),
        bar("CPU of `text_batches` at most 15% of a core beyond the training loop's own", [fed.get("text_cpu_cores")],
            lambda more: (f"whole process {more:+.1%}", more <= 0.15)),
        bar("370M in bf16: at least 40% of the GPU's peak", [trained.get("utilisation")],
            lambda share: (f"{share:.1%}", share >= 0.4)),
        bar("validation falls at every look and ends below 2.6 nats per token", [trained.get("validation")], falls),
    ]  # fmt: skip


def feeding_table(record: dict) -> str:
    alone, rows = record["step_ms"]["resident"], []
    for name, words in WAYS.items():
        if name not in record["step_ms"]:
            continue
        ms, share = record["step_ms"][name], record["utilisation"][name]
        cells = [words, f"{ms:.2f}", f"{ms / alone:.4f}", f"{record['tokens_per_second'][name]:,.0f}"]
        cells += ["not known" if share is None else f"{share:.1%}", f"{record['waited_share'][name]:.3%}"]
        rows.append([*cells, f"{record['process_cpu_cores'][name]:.2f}"])
    header = ["batches from", "ms a step", "x resident", "tokens/s", "of peak", "GPU waiting", "process, cores"]
    title = (
        f"A step of {record['parameters'] / 1e6:.0f}M parameters, {record['batch_size']} rows of "
        f"{record['window']:,} tokens, vocabulary {record['vocab']:,}"
    )
    about = (
        f"{gpu(record)}; medians of segments that took turns; attention: {record['attention']}; "
        f"{record['steps_that_never_waited']} steps with torch set to raise at any wait of the host: none raised"
    )
    return f"\n## {title}\n\n{textwrap.fill(about, 100)}\n\n" + tables.table(header, rows)


def training_table(record: dict) -> str:
    share = record["utilisation"]
    rows = [[f"{step:,}", f"{loss:.4f}"] for step, loss in record["validation"]]
    title = (
        f"{record['parameters'] / 1e6:.0f}M parameters from scratch: {record['tokens'] / 1e6:.0f} M tokens in "
        f"{record['seconds'] / 60:.1f} minutes"
    )
    about = (
        f"{gpu(record)}; {record['train_tokens'] / 1e6:.1f} M tokens in the training split, so "
        f"{record['tokens'] / record['train_tokens']:.1f} epochs; learning rate {record['options']['lr']:g}, warm-up "
        f"{record['options']['warmup']} steps; {record['tokens_per_second']:,.0f} tokens/s, "
        f"{'share of peak not known' if share is None else f'{share:.1%} of peak'}, GPU waiting for data "
        f"{record['waited_share']:.3%}, feeder {record['feeder_cores']:.3f} cores. Chance is ln(V) = "
        f"{record['chance']:.2f}, unigrams {record['unigram_entropy']:.2f}."
    )
    figure = "![loss over tokens](pretraining-370m.svg)"
    table = tables.table(["step", "validation loss, nats per token"], rows)
    return f"\n## {title}\n\n{textwrap.fill(about, 100)}\n\n{figure}\n\n{table}"


def gpu(record: dict) -> str:
    where = record["machine"]
    return f"{where['device']}, torch {where['torch']}; {record['session'][:10]}; input {record['input'][:16]}"


if __name__ == "__main__":
    main()
