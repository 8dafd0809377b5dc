"""The training loop: steps, readings, validations, checkpoints, and the end conditions.

In the steady state the host only launches: it takes a batch from the feeder, launches a step, and every `read_every`
steps reads the values of the previous group. It synchronizes with the device only for a validation, for a checkpoint
and at the end.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from transformers import LlamaForCausalLM

from piecemill.errors import PretrainError, Stopped
from piecemill.loading import Batches
from piecemill.loading.torch import batches
from piecemill.pretraining import checkpoint
from piecemill.pretraining.folder import OLDER, RESULT, RunFolder, checkpoints
from piecemill.pretraining.guard import Guard
from piecemill.pretraining.model import flops_per_token, peak_flops
from piecemill.pretraining.plan import Resolved
from piecemill.pretraining.readings import Readings, StepGroup
from piecemill.pretraining.result import OnProgress, Pace, PretrainProgress
from piecemill.pretraining.step import Batch, Step, build_optimizer, learning_rate
from piecemill.shards import Shards
from piecemill.shards.folder import TOKENIZER


class Trainer:
    """One call of a run."""

    def __init__(
        self,
        resolved: Resolved,
        model: LlamaForCausalLM,
        rows: Shards,
        validation_rows: Shards | None,
        folder: RunFolder,
        device: torch.device,
        on_progress: OnProgress,
    ) -> None:
        plan = resolved.plan
        self.resolved, self.plan, self.folder, self.on_progress = resolved, plan, folder, on_progress
        self.model = model.to(device)
        self.device = device
        gpu = device.type == "cuda"
        self.device_name = torch.cuda.get_device_name(device) if gpu else "cpu"
        self.optimizer = build_optimizer(model, weight_decay=plan.weight_decay, fused=gpu)
        self.guard = Guard(rows.vocab_size, warmup=resolved.warmup)
        self.rows, self.validation_rows = rows, validation_rows
        self.done = 0
        self.resumed = False
        self._loader_state: dict[str, Any] | None = None
        self._take_up()
        self.step = Step(
            self.model,
            self.optimizer,
            vocab_size=rows.vocab_size,
            clip=plan.clip,
            accumulation=plan.grad_accumulation,
            compiled=gpu if plan.compile is None else plan.compile,
            attention=plan.attention if gpu else "auto",
        )
        self.flops_per_token = flops_per_token(self.model, resolved.window)
        self.peak = peak_flops(self.device_name)
        self._validation = self._validation_batches()
        self._last_loss: float | None = None
        self._last_validation: float | None = None
        self._first_reading = True
        self._feeder_cpu = 0.0

    def _take_up(self) -> None:
        """Resume from the newest checkpoint, if there is one."""
        found = checkpoints(self.folder.path)
        if not found:
            self.folder.rewind(-1)
            return
        opened = checkpoint.open_checkpoint(found[-1])
        opened.load_model(self.model)
        opened.load_optimizer(self.model, self.optimizer)
        state = opened.state()
        try:
            self.done, self._loader_state = state["step"], state["loader"]
            self.guard.load_state_dict(state["guard"])
            samples = self.done * self.resolved.batch_size * self.plan.grad_accumulation
            if state["loader"]["samples"] != samples:
                raise ValueError(f"{self.done:,} steps take {samples:,} rows, not {state['loader']['samples']!r:.40}")
        except (LookupError, TypeError, ValueError) as error:
            raise PretrainError(f"{found[-1]}: its state was changed ({error}). {OLDER}") from None
        self.folder.rewind(self.done)
        checkpoint.delete_old(self.folder.path)  # a run may have been killed before it did
        self.resumed = True

    def run(self) -> None:
        """Train until the last step, the time limit, Ctrl-C or divergence."""
        if self.done >= self.resolved.steps:
            return
        (self.folder.path / RESULT).unlink(missing_ok=True)  # of the call before
        deadline = None if self.plan.minutes is None else time.monotonic() + self.plan.minutes * 60
        feed = self._feed(self.rows, seed=self.plan.seed, epochs=None)
        try:
            if self._loader_state is not None:
                feed.load_state_dict(self._loader_state)
            if self.done == 0:
                self._validate()
            with _signals() as stopped_by:
                self._loop(feed, deadline, stopped_by)
        finally:
            feed.close()

    def _loop(self, feed: Any, deadline: float | None, stopped_by: Callable[[], int | None]) -> None:
        resolved = self.resolved
        readings = Readings(self.device, self.plan.read_every)
        readings.start(self.done + 1)
        saved = self.done
        source: Iterator[Batch] = iter(feed)

        def next_batch() -> Batch:
            batch: Batch = readings.waiting(lambda: next(source))
            return batch

        while True:
            lr = learning_rate(
                self.done,
                steps=resolved.steps,
                warmup=resolved.warmup,
                peak=resolved.lr,
                floor=resolved.lr * self.plan.min_lr,
            )
            complete = readings.add_step(*self.step(next_batch, lr))
            self.done += 1
            signalled = stopped_by()
            last = self.done >= resolved.steps
            out_of_time = deadline is not None and time.monotonic() >= deadline
            ending = last or out_of_time or signalled is not None
            validating = last or self.done % resolved.eval_every == 0
            saving = ending or self.done % resolved.checkpoint_every == 0
            if validating or saving:
                self._record(readings.drain(), feed)
                if validating:
                    self._validate()
                if saving and saved != self.done:
                    saved = self.done
                    self._save(feed)
                if signalled is not None:
                    raise Stopped(
                        f"stopped after step {self.done:,} of {resolved.steps:,}, with a checkpoint; run the same "
                        f"command again to go on with {self.folder.path}",
                        signalled,
                    )
                if ending:
                    return
                readings.start(self.done + 1)
            elif complete:
                self._record(readings.close(), feed)

    def _record(self, found: list[StepGroup], feed: Any) -> None:
        """Record the values, pass them to the guard and report progress."""
        resolved = self.resolved
        for reading in found:
            tokens = len(reading.losses) * resolved.step_tokens
            last = reading.first + len(reading.losses) - 1
            feeder_cpu = float(feed.stats.cpu)
            self.folder.write(
                "pace",
                last,
                tokens=tokens,
                seconds=reading.seconds,
                waited=reading.waited,
                process_cpu=reading.process_cpu,
                main_cpu=reading.main_cpu,
                feeder_cpu=feeder_cpu - self._feeder_cpu,
                first=self._first_reading,
            )
            self._feeder_cpu, self._first_reading = feeder_cpu, False
            for number, (loss, norm) in enumerate(zip(reading.losses, reading.norms, strict=True)):
                at = reading.first + number
                self.folder.write("train", at, tokens=at * resolved.step_tokens, loss=loss, norm=norm)
                self.guard.train(at, loss, norm)
            self._last_loss = reading.losses[-1]
            self._tell(last, Pace(tokens=tokens, seconds=reading.seconds, waited=reading.waited))

    def _tell(self, step: int, pace: Pace) -> None:
        resolved, speed = self.resolved, pace.tokens_per_second
        left = (resolved.steps - step) * resolved.step_tokens
        self.on_progress(
            PretrainProgress(
                step=step,
                steps=resolved.steps,
                tokens=step * resolved.step_tokens,
                loss=self._last_loss,
                validation=self._last_validation,
                tokens_per_second=speed,
                utilisation=pace.utilisation(self.flops_per_token, self.peak),
                waited=pace.waited_share,
                seconds_left=left / speed if speed else None,
            )
        )

    def _validate(self) -> None:
        if not self._validation:
            return
        loss = float(self.step.validate(self._validation))
        self._last_validation = loss
        self.folder.write("val", self.done, tokens=self.done * self.resolved.step_tokens, loss=loss)
        self.guard.validation(self.done, loss)

    def _validation_batches(self) -> list[Batch]:
        """The same ones in every validation and every call: the first of a fixed order, on the device."""
        if self.validation_rows is None:
            return []
        with self._feed(self.validation_rows, seed=0, epochs=1) as feed:
            return [
                {name: batch[name].clone() for name in ("input_ids", "labels")}
                for batch in islice(feed, self.plan.eval_batches)
            ]

    def _feed(self, rows: Shards, *, seed: int, epochs: int | None) -> Batches[Any]:
        window, size = self.resolved.window, self.resolved.batch_size
        return batches(rows, window=window, batch_size=size, seed=seed, epochs=epochs, device=str(self.device))

    def _save(self, feed: Any) -> None:
        state = {"loader": feed.state_dict(), "guard": self.guard.state_dict()}
        self.folder.sync()
        checkpoint.save(self.folder.path, self.done, self.model, self.optimizer, state, self.rows.folder / TOKENIZER)


@contextmanager
def _signals() -> Iterator[Callable[[], int | None]]:
    """Inside, the first Ctrl-C or SIGTERM only sets a flag, so that the step completes; the second ends at once."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def note(number: int, _: object) -> None:
        if noted:
            raise KeyboardInterrupt(number)
        noted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: noted[0] if noted else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
