"""Facts about pretraining runs and vocabularies of actions, as sections of a report."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from piecemill.reporting.corpus import PreparedCorpus
from piecemill.reporting.vocabulary import section, table

_POINTS = 120
_RECENT = 50  # as in the summary of a run


def run_section(path: Path, facts: Mapping[str, Any], corpora: Sequence[PreparedCorpus]) -> dict[str, Any]:
    """Loss, pace and waiting of a run; with its shards, also bits per byte."""
    from piecemill.pretraining.folder import read_metrics

    losses: dict[str, list[list[float]]] = {"train": [], "val": []}
    for record in read_metrics(path):
        if record["kind"] in losses and isinstance(record["loss"], float):
            losses[record["kind"]].append([record["step"], record["loss"]])
    result, plan = facts["result"] or {}, facts["plan"]
    last = losses["val"][-1][1] if losses["val"] else None
    recent = [loss for _, loss in losses["train"][-_RECENT:]]
    train = sum(recent) / len(recent) if recent else None
    sizes = _bytes_per_token(plan, corpora)
    unigram = plan.get("unigram_entropy")
    figures = {
        "steps": facts["steps"],
        "complete": facts["complete"],
        "ended_by_the_guard": None if facts["result"] is None else facts["guard"] is not None,
        "parameters": plan.get("model", {}).get("parameters"),
        "training_loss_in_nats_per_token": train,
        "training_loss_in_bits_per_byte": _bits_per_byte(train, sizes.get("train")),
        "validation_loss_in_nats_per_token": last,
        "validation_loss_in_bits_per_byte": _bits_per_byte(last, sizes.get("val")),
        "loss_of_a_model_that_knows_nothing": plan.get("chance"),
        "loss_of_a_model_that_knows_how_frequent_tokens_are": unigram,
        "better_than_knowing_how_frequent_tokens_are": None if last is None or unigram is None else last < unigram,
        "tokens_per_second": result.get("tokens_per_second"),
        "peak_flops_share": result.get("utilisation"),
        "waiting_for_batches_share": result.get("waited_share"),
        "processor_cores": result.get("process_cores"),
        "device": result.get("device"),
    }
    series = [
        {"name": {"train": "training", "val": "validation"}[kind], "points": _thinned(points)}
        for kind, points in losses.items()
        if points
    ]
    curve = {"title": "Loss", "x": "step", "y": "nats per token", "series": series}
    return section(
        "run",
        f"Pretraining run {path.name}",
        "A run proves shards and tokenizer if its validation loss falls below that of a model that only knows how "
        "frequent each token is.",
        figures={name: value for name, value in figures.items() if value is not None},
        tables=[] if facts["guard"] is None else [table("Guard", [{"reason": facts["guard"]}])],
        curves=[curve] if series else [],
    )


def _bytes_per_token(plan: Mapping[str, Any], corpora: Sequence[PreparedCorpus]) -> dict[str, float]:
    """Of the splits that a run was trained and validated on; empty without its corpus."""
    for corpus in corpora:
        for shards in corpus.splits.values():
            if shards.identity == plan["data"].get("identity"):
                found = {"train": shards, "val": corpus.splits.get(plan["options"].get("val_split"))}
                return {kind: one.text_bytes / one.tokens for kind, one in found.items() if one and one.tokens}
    return {}


def _bits_per_byte(loss: float | None, bytes_per_token: float | None) -> float | None:
    return None if loss is None or bytes_per_token is None else loss / math.log(2) / bytes_per_token


def _thinned(points: Sequence[Sequence[float]]) -> list[list[float]]:
    """Means of neighbours, so that at most `_POINTS` are left."""
    step = -(-len(points) // _POINTS)
    groups = [points[at : at + step] for at in range(0, len(points), step)]
    return [[group[-1][0], round(sum(loss for _, loss in group) / len(group), 5)] for group in groups]


def actions_section(path: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Columns, merges and weights of a vocabulary of actions, and how histories use it, if they were given."""
    use = facts["use"]
    tables = [
        table("Columns", [{"column": name, "values": count} for name, count in facts["columns"].items()]),
        table(
            "First merges",
            [
                {
                    "token": one["token"],
                    "weight": float(one["weight"]),
                    "where": one["where"],
                    "features": "  ".join(f"{column}={value}" for column, value in one["features"]),
                }
                for one in facts["tokens"]
            ],
            bar="weight",
        ),
    ]
    if use is not None:
        rows = [{"segmentation": "by weight", **use["weighed"], "share_across": None}]
        rows += [{"segmentation": f"random, epochs: {one['epochs']}", **one} for one in use["random"]]
        keys = ("segmentation", "share_used", "tokens_per_action", "share_across")
        tables.append(table("Use", [{key: row.get(key) for key in keys} for row in rows]))
    return section(
        "actions",
        f"Vocabulary of actions {path.name}",
        "A token is merged inside an item or across two items; where its uses begin and end shows which.",
        figures={key: facts[key] for key in ("vocab_size", "merges", "items") if facts[key] is not None}
        | ({} if use is None else {key: use[key] for key in ("histories", "actions", "features_per_action")}),
        tables=tables,
    )
