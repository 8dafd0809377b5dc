"""Checkpoints: one folder each, written atomically; the newest two are kept.

`model.safetensors` and `config.json` are what `transformers` opens; `optimizer.safetensors` holds AdamW's moments by
the names of the parameters; `state.json` has the step, the states of loader and guard, and the checksums of both files
of tensors. Files are synced before the folder is renamed, and older folders are deleted only after that.
"""

import errno
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from piecemill.errors import PretrainError
from piecemill.files import hash_file, new_folder
from piecemill.pretraining.folder import CHECKPOINTS, OLDER, STATE, check_tensors, checkpoints, read_record
from piecemill.pretraining.step import load_optimizer, optimizer_tensors
from piecemill.tokenizers import Tokenizer, load_tokenizer
from piecemill.tokenizers.saving import VOCABULARIES

MODEL, OPTIMIZER, CONFIG = "model.safetensors", "optimizer.safetensors", "config.json"
KEEP = 2
_TIED = "lm_head.weight"


def save(
    out: Path,
    step: int,
    model: LlamaForCausalLM,
    optimizer: torch.optim.AdamW,
    state: dict[str, Any],
    tokenizer: Path | None = None,
) -> Path:
    """Write the checkpoint of `step` under `out`, and delete all but the last two.

    `tokenizer` is a folder whose files go with it, so that `transformers` opens both from one place.
    """
    folder = out / CHECKPOINTS
    folder.mkdir(exist_ok=True)
    for left in folder.glob(".step-*.part"):  # of a run that was killed while it saved
        shutil.rmtree(left, ignore_errors=True)
    target = folder / f"step-{step:08}"
    with new_folder(target) as part:
        if tokenizer is not None and tokenizer.is_dir():
            shutil.copytree(tokenizer, part, dirs_exist_ok=True)
        try:
            save_file(weights(model), part / MODEL, {"format": "pt"})
            save_file(optimizer_tensors(model, optimizer), part / OPTIMIZER)
        except SafetensorError as error:  # also for a full disk
            raise OSError(errno.EIO, f"the checkpoint could not be written: {error}", str(target)) from error
        checksums = {name: hash_file(part / name) for name in (MODEL, OPTIMIZER)}
        (part / STATE).write_text(json.dumps({"step": step, **state, "checksums": checksums}) + "\n", encoding="utf-8")
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(part)
        shutil.rmtree(target, ignore_errors=True)
    delete_old(out)
    return target


def delete_old(out: Path) -> None:
    """Delete all checkpoints but the newest ones."""
    for old in checkpoints(out)[:-KEEP]:
        shutil.rmtree(old)


def weights(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """The weights by name, a tied one once."""
    found = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        found.pop(_TIED, None)
    return found


@dataclass(frozen=True, slots=True)
class Opened:
    """A folder with a model in it."""

    folder: Path
    config: LlamaConfig

    def load_model(self, model: LlamaForCausalLM) -> None:
        """Put the weights into `model`, which has this config."""
        found = self._tensors(MODEL)
        missing, unknown = model.load_state_dict(found, strict=False)
        if unknown or set(missing) - ({_TIED} if self.config.tie_word_embeddings else set()):
            raise PretrainError(
                f"{self.folder / MODEL}: {len(missing)} weights are missing and {len(unknown)} unknown, the first "
                f"{(*missing, *unknown)[0]!r}. Expected those of the Llama in {CONFIG} beside it."
            )

    def load_optimizer(self, model: LlamaForCausalLM, optimizer: torch.optim.AdamW) -> None:
        """Put AdamW's moments back."""
        load_optimizer(model, optimizer, self._tensors(OPTIMIZER), self.state()["step"])

    def _tensors(self, name: str) -> dict[str, torch.Tensor]:
        check_tensors(self.folder, name)
        try:
            tensors: dict[str, torch.Tensor] = load_file(self.folder / name)
        except (OSError, SafetensorError) as error:
            raise PretrainError(f"{self.folder / name}: cannot be read ({error}). {OLDER}") from error
        return tensors

    def tokenizer_identity(self) -> str | None:
        """`Tokenizer.identity` of the shards it was trained on, or of the tokenizer beside it; None if not known."""
        if (self.folder / STATE).is_file():
            recorded = self.state().get("loader", {}).get("tokenizer")
            if recorded is not None:
                return str(recorded)
        beside = self.tokenizer()
        return None if beside is None else beside.identity

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer beside the model, if there is one."""
        if not any((self.folder / name).is_file() for name in VOCABULARIES):
            return None
        return load_tokenizer(self.folder)

    def state(self) -> dict[str, Any]:
        state = read_record(self.folder, STATE)
        if type(state.get("step")) is not int:
            raise PretrainError(f"{self.folder / STATE}: step is {state.get('step')!r:.60}; expected a number.")
        return state


def open_checkpoint(folder: Path) -> Opened:
    """The model in `folder`: a checkpoint, any folder with a Llama of `transformers`, or the newest one of a run."""
    if checkpoints(folder):
        folder = checkpoints(folder)[-1]
    for name in (CONFIG, MODEL):
        if not (folder / name).is_file():
            raise PretrainError(
                f"{folder}: there is no {name}. Name a run of `piecemill pretrain`, one of its checkpoints, or a "
                f"folder with {CONFIG} and {MODEL}."
            )
    kind = read_record(folder, CONFIG).get("model_type")
    if kind != "llama":
        raise PretrainError(f"{folder / CONFIG}: a {kind!r}; only 'llama' can be trained here. Name such a checkpoint.")
    try:
        return Opened(folder, LlamaConfig.from_pretrained(folder, attn_implementation="sdpa"))
    except Exception as error:  # noqa: BLE001 - whatever transformers raises of a value that it does not expect
        raise PretrainError(f"{folder / CONFIG}: cannot be read ({' '.join(str(error).split()):.200}).") from None
