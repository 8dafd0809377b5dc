"""Batches on a device: gathered into pinned memory, copied on a side stream, handed over without synchronization.

    feeder thread   take a pinned slot (its last copy is done) -> gather into it -> start the copy -> record an event
    training loop   its stream waits for the event; it does not

Nothing here synchronises with the device, except that a feeder thread asks whether a slot's copy is done, and sleeps
if it is not: with two slots that is a copy begun a batch ago. The tensors belong to the side stream until the training
loop's stream is recorded on them, so memory goes round without a wait too.

The processor as a device does the same with slots and copies, and no streams; that is what tests run without a GPU.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from piecemill.loading.batching import Chunk, sequences


class Lane:
    """How tensors get to a device. This is the processor's: copies in main memory, the same steps without streams."""

    def slot(self, items: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory to gather into."""
        return torch.empty(items, dtype=dtype)

    def copies(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
        """Start copying; the copies, and what to wait for."""
        return [tensor.clone() for tensor in tensors], None

    def beside(self) -> AbstractContextManager[Any]:
        """Work submitted to the device in this context runs concurrently with the training loop."""
        return nullcontext()

    def done(self) -> Any:
        """An event to wait for: all work submitted so far is done."""
        return None

    def wait(self, event: Any) -> None:
        """Wait until copies are done. Called in feeder threads."""

    def hand_over(self, tensors: Sequence[torch.Tensor], event: Any) -> None:
        """Make copies safe to use in what the caller does next on the device."""


def lane_to(device: torch.device) -> Lane:
    """The lane of a device."""
    return Cuda(device) if device.type == "cuda" else Lane()


class Cuda(Lane):
    """Copies from pinned memory on a side stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream(self._device)

    def slot(self, items: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(items, dtype=dtype, pin_memory=True)

    def copies(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
        with torch.cuda.stream(self._stream):
            copied = [tensor.to(self._device, non_blocking=True) for tensor in tensors]
        return copied, self.done()

    def beside(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return context

    def done(self) -> Any:
        # Without `blocking`, the waiting thread spins on a core.
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)
        return event

    def wait(self, event: Any) -> None:
        if not event.query():
            event.synchronize()

    def hand_over(self, tensors: Sequence[torch.Tensor], event: Any) -> None:
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)


@dataclass(slots=True)
class _StagingSlot:
    """Memory for one batch, and the last copy out of it."""

    ids: torch.Tensor
    cuts: torch.Tensor
    part: torch.Tensor
    event: Any = None


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch being copied."""

    names: tuple[str, ...]
    tensors: list[torch.Tensor]
    event: Any
    longest: int


class DeviceDestination:
    """Batches as dicts of tensors on a device; each is a separate copy."""

    single = True

    def __init__(self, device: torch.device, *, slots: int) -> None:
        self._lane = lane_to(device)
        self._most = slots
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._made = 0
        self._free: queue.SimpleQueue[_StagingSlot] = queue.SimpleQueue()

    def room(self, rows: int, window: int, dtype: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Inputs and labels in a slot that no copy reads any more."""
        slot = self._slot(rows, rows * window, getattr(torch, dtype))
        self._mine.slot = slot
        ids = slot.ids[: 2 * rows * window].view(2, rows, window).numpy()
        return ids[0], ids[1]

    def _slot(self, rows: int, places: int, dtype: torch.dtype) -> _StagingSlot:
        if hasattr(self._mine, "slot"):  # gathering into it failed
            self._free.put(self._mine.slot)
            del self._mine.slot
        with self._lock:
            # The first batch is never smaller than a later one, but after a resume it may be the last.
            new = self._made < self._most
            self._made += new
        slot = None if new else self._free.get()
        if slot is None or len(slot.ids) < 4 * places:
            cuts, part = self._lane.slot(places + 1, torch.int32), self._lane.slot(rows, torch.int64)
            return _StagingSlot(self._lane.slot(4 * places, dtype), cuts, part)
        if slot.event is not None:
            self._lane.wait(slot.event)
        return slot

    def send(self, chunk: Chunk) -> SentBatch:
        """Start the copies of a batch; the slot is free for another when they are done."""
        slot: _StagingSlot = self._mine.slot
        del self._mine.slot
        names: tuple[str, ...] = ("input_ids", "labels")
        rows, window = chunk.columns["input_ids"].shape
        planes, longest = 2, 0
        sources = []
        if chunk.cuts is not None:
            names, planes = ("input_ids", "labels", "position_ids", "document_ids", "cu_seqlens"), 4
            ids = slot.ids[: 4 * rows * window].view(4, rows, window).numpy()
            ids[2], ids[3] = chunk.columns["position_ids"], chunk.columns["document_ids"]
            cuts, longest = sequences(chunk.cuts, 0, rows, window)
            np.copyto(slot.cuts[: len(cuts)].numpy(), cuts)
            sources = [slot.cuts[: len(cuts)]]
        if "part" in chunk.columns:
            np.copyto(slot.part[:rows].numpy(), chunk.columns["part"])
            names, sources = (*names, "part"), [*sources, slot.part[:rows]]
        copied, slot.event = self._lane.copies([slot.ids[: planes * rows * window], *sources])
        sent = SentBatch(names, [*copied[0].view(planes, rows, window).unbind(), *copied[1:]], slot.event, longest)
        self._free.put(slot)
        return sent

    def take_batches(self, sent: SentBatch) -> Iterator[dict[str, Any]]:
        """The batch, safe to use on the caller's stream."""
        self._lane.hand_over(sent.tensors, sent.event)
        batch: dict[str, Any] = dict(zip(sent.names, sent.tensors, strict=True))
        if "cu_seqlens" in batch:
            batch["max_seqlen"] = sent.longest
        return iter([batch])

    def close(self) -> None:
        """Release the slots. Torch keeps the slots of running copies alive until they are done."""
        with self._lock:
            self._made = 0
            self._free = queue.SimpleQueue()
