"""`pretrain`: shards -> a model, a curve and figures, in one call or in several.

This module checks arguments before anything is written, resumes an earlier run, and writes the results at the end. The
training loop is in `trainer`.
"""

import math
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never

import numpy as np
from numpy.typing import NDArray

from piecemill._core import __version__
from piecemill.errors import Diverged, PlanError, PretrainError, Stopped, TokenizerError
from piecemill.files import local_folder, replace_file
from piecemill.plans import FROM_PLAN, did_you_mean, option, with_keywords
from piecemill.pretraining.curve import draw, require_matplotlib
from piecemill.pretraining.folder import RESULT, SAMPLE, RunFolder, checkpoints, read_metrics
from piecemill.pretraining.plan import Mode, PretrainPlan, Resolved, Size
from piecemill.pretraining.result import OnProgress, PretrainSummary, pace_of
from piecemill.shards import Shards, open_shards
from piecemill.shards.folder import read_plan
from piecemill.shards.reader import counted

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM

    from piecemill.pretraining.checkpoint import Opened
    from piecemill.pretraining.trainer import Trainer
    from piecemill.tokenizers import Tokenizer

_LAST = 50
_COMPARED, _COMPARED_TOKENS = 200, 4096


@did_you_mean
def pretrain(
    shards: str | PathLike[str],
    *,
    out: str | PathLike[str],
    plan: PretrainPlan | None = None,
    on_progress: OnProgress | None = None,
    size: Size | None = FROM_PLAN,
    mode: Mode = FROM_PLAN,
    init: str | PathLike[str] | None = FROM_PLAN,
    steps: int | None = FROM_PLAN,
    tokens: int | None = FROM_PLAN,
    minutes: float | None = FROM_PLAN,
    window: int | None = FROM_PLAN,
    batch_size: int | None = FROM_PLAN,
    grad_accumulation: int = FROM_PLAN,
    lr: float | None = FROM_PLAN,
    min_lr: float = FROM_PLAN,
    warmup: int | None = FROM_PLAN,
    weight_decay: float = FROM_PLAN,
    clip: float = FROM_PLAN,
    seed: int = FROM_PLAN,
    split: str | None = FROM_PLAN,
    val_split: str | None = FROM_PLAN,
    eval_every: int | None = FROM_PLAN,
    eval_batches: int = FROM_PLAN,
    read_every: int = FROM_PLAN,
    checkpoint_every: int | None = FROM_PLAN,
    device: str = FROM_PLAN,
    compile: bool | None = FROM_PLAN,
    attention: Literal["auto", "flash", "cudnn"] = FROM_PLAN,
    curve: bool = FROM_PLAN,
    sample_tokens: int = FROM_PLAN,
    **unknown: Never,
) -> PretrainSummary:
    """Train a Llama-style decoder on prepared `shards` under `out`; called again after a stop, it goes on where it was.

    Keywords from `size` on are the fields of `PretrainPlan`, which says what each means and its default; they override
    those of `plan`. Raises `Diverged` when the loss diverges, with the curve drawn and the last good checkpoint kept.
    `docs/pretraining.md` has the rules.
    """
    plan, path = with_keywords(plan, PretrainPlan, locals(), unknown), local_folder(shards, "pretraining")
    plan = plan.with_splits(read_plan(path)["splits"])
    _require_libraries(plan)
    resolved = plan.resolved()
    rows, validation_rows = _open(path, resolved)
    device = _device(plan.device)
    try:
        folder = RunFolder(Path(out))
        try:
            return _run(resolved, rows, validation_rows, folder, device, on_progress or (lambda _: None))
        finally:
            folder.release()
    except OSError as error:
        kept = checkpoints(Path(out))
        state = f"{kept[-1]} is whole" if kept else "There is no checkpoint yet"
        raise PretrainError(
            f"{error.filename or out}: {error.strerror or error}. {state}: free some space or fix the cause, "
            "and run the same command again to go on."
        ) from error


def _run(
    resolved: Resolved,
    rows: Shards,
    validation_rows: Shards | None,
    folder: RunFolder,
    device: "torch.device",
    on_progress: OnProgress,
) -> PretrainSummary:
    from piecemill.pretraining.model import parameter_count
    from piecemill.pretraining.trainer import Trainer

    model = _model(resolved, rows)
    folder.begin(
        {
            "piecemill": __version__,
            "options": resolved.output(),
            "data": {
                "tokenizer": rows.tokenizer_identity,
                "identity": rows.identity,
                "vocab_size": rows.vocab_size,
                "tokens": rows.tokens,
            },
            "model": {"parameters": parameter_count(model), "config": model.config.to_diff_dict()},
            "chance": math.log(rows.vocab_size),
            "unigram_entropy": unigram_entropy(rows),
        }
    )
    trainer = Trainer(resolved, model, rows, validation_rows, folder, device, on_progress)
    before = trainer.done
    try:
        trainer.run()
    except (Diverged, Stopped) as ended:
        guard = str(ended) if isinstance(ended, Diverged) else None
        folder.result(_summary(trainer, None, guard=guard).to_dict())
        if guard is not None and resolved.plan.curve:
            draw(folder.path)
        raise
    complete_before = trainer.done == before and (folder.path / RESULT).exists()  # which is written last
    sample = None if complete_before else _sample(trainer, validation_rows or rows)
    summary = _summary(trainer, sample, complete_before=complete_before)
    if resolved.plan.curve:
        draw(folder.path)
    if not complete_before:
        folder.result(summary.to_dict())
    return summary


def _sample(trainer: "Trainer", shards: Shards) -> tuple[str, str] | None:
    from piecemill.pretraining.step import sample_text

    plan = trainer.plan
    if not plan.sample_tokens or trainer.done < trainer.resolved.steps:
        return None
    prompt, made = sample_text(trainer.step, shards, tokens=plan.sample_tokens, seed=plan.seed)
    replace_file(trainer.folder.path / SAMPLE, f"{prompt}\n--- and the model goes on:\n{made}\n".encode())
    return prompt, made


def _summary(
    trainer: "Trainer", sample: tuple[str, str] | None, *, complete_before: bool = False, guard: str | None = None
) -> PretrainSummary:
    stored = trainer.folder.plan()
    records = list(read_metrics(trainer.folder.path))
    finite = [record for record in records if isinstance(record.get("loss"), float)]
    losses = [record["loss"] for record in finite if record["kind"] == "train"][-_LAST:]
    pace = pace_of(records)
    return PretrainSummary(
        out=trainer.folder.path,
        steps=trainer.done,
        steps_wanted=trainer.resolved.steps,
        tokens=trainer.done * trainer.resolved.step_tokens,
        seconds=sum(record["seconds"] for record in records if record["kind"] == "pace"),
        train_loss=sum(losses) / len(losses) if losses else None,
        validation=tuple((record["step"], record["loss"]) for record in finite if record["kind"] == "val"),
        chance=stored["chance"],
        unigram_entropy=stored["unigram_entropy"],
        parameters=stored["model"]["parameters"],
        flops_per_token=trainer.flops_per_token,
        device=trainer.device_name,
        peak_flops=trainer.peak,
        tokens_per_second=pace.tokens_per_second,
        utilisation=pace.utilisation(trainer.flops_per_token, trainer.peak),
        waited_share=pace.waited_share,
        process_cores=pace.cores("process"),
        main_cores=pace.cores("main"),
        feeder_cores=pace.cores("feeder"),
        resumed=trainer.resumed,
        complete_before=complete_before,
        guard=guard,
        sample=sample,
    )


def _open(path: Path, resolved: Resolved) -> tuple[Shards, Shards | None]:
    plan = resolved.plan
    rows = _long_enough(path, str(plan.split), resolved.window, ".")
    if plan.val_split == "none":
        return rows, None
    if plan.val_split not in rows.splits:
        raise PlanError(
            f"{path}: there is no split {plan.val_split!r}, only {', '.join(rows.splits)}. Prepare with "
            f"{option('splits', 'train=90,val=10')}, name another {option('val_split')}, or pass "
            f"{option('val_split', 'none')} to train without validation."
        )
    way_out = f". Choose a smaller one, or {option('val_split', 'none')}."
    return rows, _long_enough(path, str(plan.val_split), resolved.window, way_out)


def _long_enough(path: Path, split: str, window: int, way_out: str) -> Shards:
    rows = open_shards(path, split)
    if rows.tokens <= window:
        raise PlanError(
            f"{path}: split {split!r} has {rows.tokens:,} tokens, too few for a row of {option('window', window)}"
            f"{way_out}"
        )
    return rows


def _model(resolved: Resolved, rows: Shards) -> "LlamaForCausalLM":
    from piecemill.pretraining import checkpoint
    from piecemill.pretraining.model import build, config

    plan = resolved.plan
    if plan.init is None:
        shape = config(plan.size or "tiny", vocab_size=rows.vocab_size, eos=rows.eos, window=resolved.window)
        return build(shape, seed=plan.seed)
    opened = checkpoint.open_checkpoint(plan.init)
    if opened.config.vocab_size < rows.vocab_size:
        raise PretrainError(
            f"{opened.folder} has {opened.config.vocab_size:,} tokens, the shards {rows.vocab_size:,}: not the same "
            "tokenizer. Prepare shards with the one that the checkpoint was trained with."
        )
    _check_tokenizer(opened, rows)
    if opened.config.max_position_embeddings < resolved.window:
        raise PlanError(
            f"{option('window', resolved.window)}: {opened.folder} was made for "
            f"{opened.config.max_position_embeddings:,} positions. Choose a smaller one."
        )
    model = build(opened.config, seed=plan.seed)
    opened.load_model(model)
    return model


def _check_tokenizer(opened: "Opened", rows: Shards) -> None:
    """PretrainError if the checkpoint was trained with another tokenizer than the one that made the shards."""
    mine = rows.tokenizer_identity
    theirs = opened.tokenizer_identity()
    if mine is None or theirs is None or theirs == mine:
        return
    beside = opened.tokenizer()
    # The same tokenizer written by another library has another identity, and gives the same ids.
    if beside is not None and _same_ids(beside, rows):
        return
    raise PretrainError(
        f"{opened.folder} was trained with the tokenizer {theirs}, {rows} was made with {mine}: the same id is another "
        "token. Prepare shards with the tokenizer of the checkpoint, or train from scratch."
    )


def _same_ids(theirs: "Tokenizer", rows: Shards) -> bool:
    """Whether both tokenizers give the same ids for the texts of some documents."""
    mine = rows.tokenizer()
    chosen = sorted({round(n * (len(rows) - 1) / _COMPARED) for n in range(_COMPARED + 1)})
    texts = [mine.decode(rows[n][:_COMPARED_TOKENS]) for n in chosen]
    try:
        return mine.special_tokens == theirs.special_tokens and all(
            mine.encode(text).tolist() == theirs.encode(text).tolist() for text in texts
        )
    except TokenizerError:  # one has an alphabet, or integers, in which not every text is
        return False


def _require_libraries(plan: PretrainPlan) -> None:
    missing = []
    for name in ("torch", "transformers", "safetensors"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise PretrainError(f"pretraining needs {', '.join(missing)}: pip install 'piecemill[pretrain]'.")
    if plan.curve:
        require_matplotlib()


def _device(name: str) -> "torch.device":
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise PlanError(f"{option('device', name)}: expected auto, cpu, cuda or cuda:N.") from None
    if device.type not in ("cpu", "cuda"):
        raise PlanError(f"{option('device', name)}: expected auto, cpu, cuda or cuda:N.")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise PlanError(
                f"{option('device', name)}: torch sees no CUDA device. Pass {option('device', 'cpu')}, or fix it."
            )
        if device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        torch.cuda.set_device(device)
        if not torch.cuda.is_bf16_supported():
            raise PlanError(
                f"{option('device', name)}: this GPU has no bf16, which training uses. Pass {option('device', 'cpu')}."
            )
    return device


def unigram_entropy(shards: Shards) -> float:
    """The loss, in nats per token, of the best model that sees no context: it only knows token frequencies."""
    return entropy(counted(shards))


def entropy(counts: NDArray[np.integer[Any]]) -> float:
    """Entropy of a distribution given as counts, in nats.

    >>> round(entropy(np.array([1, 1, 0, 2])) / float(np.log(2)), 6)
    1.5
    """
    seen = counts[counts > 0]
    shares = seen / seen.sum()
    return float(-(shares * np.log(shares)).sum()) + 0.0
