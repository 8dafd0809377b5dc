"""Records of `pretrain.py` to tables: the page between its markers, and the bars with pass or fail.

Of each question the last record counts. Start with `page`.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tables import WORDS, Bar, rewrite

WAYS = {
    "resident": "one batch that lies on the GPU: the step alone",
    "feeder": "**piecemill**, shuffled windows from shards",
    "naive": "HF tokenizer in the loop, one document at a time",
}


def latest(records: Sequence[dict], question: str) -> dict | None:
    found = [
        record for record in records if (record.get("benchmark"), record.get("question")) == ("pretrain", question)
    ]
    return found[-1] if found else None


def page(records: Sequence[dict], path: Path) -> None:
    rewrite(path, "pretrain", render(records))


def render(records: Sequence[dict]) -> str:
    feeding, training = latest(records, "feeding"), latest(records, "training")
    parts = ["\n## Bars of loading and pretraining on a GPU\n\n| bar | measured | |\n|---|---|---|\n"]
    parts += [f"| {bar.promise} | {bar.measured} | {WORDS[bar.passed]} |\n" for bar in bars(feeding, training)]
    parts += [feeding_table(feeding)] if feeding else []
    parts += [training_table(training)] if training else []
    return "".join(parts) + "\n"


def bars(feeding: dict | None, training: dict | None) -> list[Bar]:
    none = "not measured"
    found = [Bar("step with our loader at most 1.01x the step on a resident batch", none, None)]
    found += [Bar("GPU waiting for data at most 1% of the time", none, None)]
    found += [Bar("CPU of feeding at most 15% of a core beyond the training loop's own", none, None)]
    if feeding:
        ratio, waited = feeding["ratio"], feeding["waited_share"]["feeder"]
        cores = max(feeding["feeder_cpu_cores"], feeding["extra_cpu_cores"])
        found = [
            Bar(found[0].promise, f"{ratio:.4f}x", ratio <= 1.01),
            Bar(found[1].promise, f"{waited:.3%}", waited <= 0.01),
            Bar(
                found[2].promise,
                f"feeder threads {feeding['feeder_cpu_cores']:.1%}, whole process {feeding['extra_cpu_cores']:+.1%}",
                cores <= 0.15,
            ),
        ]
    share = training and training["utilisation"]
    found.append(
        Bar("370M in bf16: at least 40% of the GPU's peak", f"{share:.1%}" if share else none, share and share >= 0.4)
    )
    if training is None:
        return [*found, Bar("validation falls at every look and ends below 2.6 nats per token", none, None)]
    losses = [loss for _, loss in training["validation"]]
    falls = all(later < earlier for earlier, later in pairwise(losses))
    measured = (
        f"{'falls' if falls else 'does not fall'} at every look; {losses[-1]:.3f} at {training['tokens'] / 1e6:.0f} M"
    )
    return [
        *found,
        Bar("validation falls at every look and ends below 2.6 nats per token", measured, falls and losses[-1] < 2.6),
    ]


def feeding_table(record: dict) -> str:
    lines = [
        f"\n## A step of {record['parameters'] / 1e6:.0f}M parameters, {record['batch_size']} rows of "
        f"{record['window']:,} tokens, vocabulary {record['vocab']:,}\n\n"
        f"{_machine(record)}; medians of segments that took turns; attention: {record['attention']}; "
        f"{record['steps_that_never_waited']} steps with torch set to raise at any wait of the host: none raised\n\n"
        "| batches from | ms a step | x resident | tokens/s | of peak | GPU waiting | process, cores |\n"
        "|---|---|---|---|---|---|---|\n"
    ]
    alone = record["step_ms"]["resident"]
    for name, words in WAYS.items():
        ms, share = record["step_ms"][name], record["utilisation"][name]
        lines.append(
            f"| {words} | {ms:.2f} | {ms / alone:.4f} | {record['tokens_per_second'][name]:,.0f} | "
            f"{'not known' if share is None else f'{share:.1%}'} | {record['waited_share'][name]:.3%} | "
            f"{record['process_cpu_cores'][name]:.2f} |\n"
        )
    return "".join(lines)


def training_table(record: dict) -> str:
    share = record["utilisation"]
    lines = [
        f"\n## {record['parameters'] / 1e6:.0f}M parameters from scratch: {record['tokens'] / 1e6:.0f} M tokens in "
        f"{record['seconds'] / 60:.1f} minutes\n\n"
        f"{_machine(record)}; {record['train_tokens'] / 1e6:.1f} M tokens in the training split, so "
        f"{record['tokens'] / record['train_tokens']:.1f} epochs; learning rate {record['options']['lr']:g}, warm-up "
        f"{record['options']['warmup']} steps; {record['tokens_per_second']:,.0f} tokens/s, "
        f"{'share of peak not known' if share is None else f'{share:.1%} of peak'}, GPU waiting for data "
        f"{record['waited_share']:.3%}, feeder {record['feeder_cores']:.3f} cores. Chance is ln(V) = "
        f"{record['chance']:.2f}, unigrams {record['unigram_entropy']:.2f}.\n\n"
        "![loss over tokens](pretraining-370m.svg)\n\n"
        "| step | validation loss, nats per token |\n|---|---|\n"
    ]
    lines += [f"| {step:,} | {loss:.4f} |\n" for step, loss in record["validation"]]
    return "".join(lines)


def _machine(record: dict) -> str:
    machine = record["machine"]
    return f"{machine['device']}, torch {machine['torch']}; {record['session'][:10]}; input {record['input'][:16]}"
