"""Batches as torch tensors, on the processor or a device; and a dataset for torch's own DataLoader.

Start with `batches`. `BatchDataset` is for code that needs a DataLoader, which is slower.
"""

from collections.abc import Iterator, Mapping
from inspect import signature
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import IterableDataset, get_worker_info

from piecemill.errors import PlanError
from piecemill.loading.batching import Batches, BatchPlan, Chunk, Numpy, split_batches
from piecemill.loading.mixing import Mixture, Weights
from piecemill.loading.order import OrderPlan
from piecemill.loading.text import windows_to
from piecemill.plans import check_names, did_you_mean
from piecemill.shards.windows import Rows, WindowSpec
from piecemill.sizes import plural

if TYPE_CHECKING:
    from piecemill.loading.stream import TextBatches
    from piecemill.tokenizers import Tokenizer


class Tensors(Numpy):
    """Batches as dicts of tensors in main memory: over the gathered arrays themselves, not copies."""

    def __init__(self, *, single: bool = False) -> None:
        super().__init__()
        self.single = single

    def take_batches(self, sent: Chunk) -> Iterator[dict[str, Any]]:
        sizes = [end - start for start, end in zip((0, *sent.ends), sent.ends, strict=False)]
        cut = {name: torch.from_numpy(array).split(sizes) for name, array in sent.columns.items()}
        for batch in split_batches(cut, sent):
            if "cu_seqlens" in batch:
                batch["cu_seqlens"] = torch.from_numpy(batch["cu_seqlens"])
            yield batch


@did_you_mean
def batches(
    rows: Rows | Mixture,
    *,
    device: str | torch.device = "cpu",
    window: int = 2048,
    overlap: int = 0,
    pack: bool = True,
    boundaries: bool = False,
    overlap_labels: bool = False,
    labels: Literal["shifted", "unshifted"] = "shifted",
    pad_id: int | None = None,
    batch_size: int = 8,
    seed: int = 0,
    epochs: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    order: OrderPlan = "shuffled",
    weights: Weights = "stored",
    drop_last: bool = False,
    threads: int = 1,
    dtype: Literal["int64", "int32"] = "int64",
) -> Batches[Any]:
    """As `piecemill.loading.batches`, which explains the options, with tensors on `device`: "cpu", "cuda" or "cuda:1".

    On a device, windows are gathered into pinned memory and copied on a side stream, ahead of the step; nothing
    synchronizes with the device. `cu_seqlens` is there too; `max_seqlen` is a Python number, as attention wants it.
    """
    options = {name: value for name, value in locals().items() if name not in ("rows", "device")}
    where = _known(device)
    if where.type == "cpu":
        return windows_to(Tensors(), rows, options)
    from piecemill.loading.device import DeviceDestination

    return windows_to(DeviceDestination(where, slots=threads + 1), rows, options)


@did_you_mean
def text_batches(
    source: object,
    tokenizer: "Tokenizer | str | PathLike[str]",
    *,
    device: str | torch.device = "cpu",
    window: int = 2048,
    batch_size: int = 8,
    seed: int = 0,
    epochs: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    order: Literal["shuffled", "sequential"] = "shuffled",
    boundaries: bool = False,
    labels: Literal["shifted", "unshifted"] = "shifted",
    pad_id: int | None = None,
    drop_last: bool = False,
    dtype: Literal["int64", "int32"] = "int64",
    threads: int = 1,
    eos: str = "auto",
    bos: str = "auto",
    **reading: Any,
) -> "TextBatches":
    """Batches straight from text, which is encoded on the way: no preparation step.

    The batches are those of `batches(..., order="sequential")` over shards that were prepared from the documents in the
    order of this epoch. With device="cuda" text is encoded on the GPU if it can be (`tokenizer.engine` says), and ids
    never leave it; else on the processor, with the same batches.

    source: a path, URL, glob, list of them, table or iterable of strings, as for `prepare`; `reading` are options of
        `open_source`: field, separator, include, exclude, block_bytes and others. A pattern that matches no file is a
        warning.
    tokenizer: where one is; or a `Tokenizer`, which encodes with its own engine (`load_tokenizer(..., engine="cuda")`).
    seed, order: "shuffled" reads the tasks of the source in an order that depends on (seed, epoch), and shuffles the
        documents of each block (`block_bytes`, 8 MiB) among themselves. "sequential" takes them as they are.
    window, batch_size, epochs, rank, world_size, boundaries, labels, pad_id, drop_last, dtype: as in `batches`.
    threads: 0 makes each batch when it is requested; 1 makes it ahead.
    eos, bos: tokens after and before each document, as in `prepare`: a text, "auto" or "none".
    """
    from piecemill.loading.stream import TextBatches
    from piecemill.sources import open_source

    known = signature(text_batches).parameters
    given = {name: value for name, value in locals().items() if name in known}
    check_names(reading, [*known, *signature(open_source).parameters])
    plan = BatchPlan(**{name: given[name] for name in BatchPlan.__slots__})
    cut = WindowSpec(**{name: given[name] for name in WindowSpec.__slots__ if name in known})
    return TextBatches(source, tokenizer, plan, cut, device=_known(device), dtype=dtype, edges=(bos, eos), **reading)


def _known(device: str | torch.device) -> torch.device:
    try:
        where = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        where = None
    if where is None or where.type not in ("cpu", "cuda"):
        raise PlanError(f"device={str(device)!r:.60}: expected cpu or cuda, or a torch.device of these.")
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        raise PlanError(f"device={str(device)!r}: torch finds {plural(torch.cuda.device_count(), 'GPU')} here.")
    return where


class BatchDataset(IterableDataset):  # type: ignore[misc] # torch is not there when types are checked
    """The batches as a dataset: `DataLoader(BatchDataset(rows, ...), batch_size=None, num_workers=n)`.

    Workers alternate, so the batches come in the same order for any number of them. `state_dict` and `load_state_dict`
    are those that StatefulDataLoader asks for; without workers they also serve a plain DataLoader.
    """

    def __init__(self, rows: Rows | Mixture, **options: Any) -> None:
        super().__init__()
        self._rows = rows
        # A worker is a process with a single thread, and may be a fork of one with many.
        self._options = {**options, "threads": 0}
        # Wrong options are an error here, not later in a worker process.
        windows_to(Tensors(single=True), rows, self._options).close()
        self._state: Mapping[str, Any] | None = None
        self._running: Batches[Any] | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        running = windows_to(Tensors(single=True), self._rows, self._options)
        state, self._state = self._state, None
        if state is not None:
            running.load_state_dict(state)
        # A state of this worker says where it goes on; one of the whole says where all of them do.
        own = state is not None and "workers" in state
        if own and state is not None and state["workers"] != workers:
            raise PlanError(
                f"num_workers={workers}: the state was taken with {state['workers']}. Use as many, or a state of "
                "`piecemill.loading.torch.batches`, which goes on with any number."
            )
        running.every(workers, 0 if own else worker)
        self._running = running
        return running

    def state_dict(self) -> dict[str, Any]:
        """The position of this worker's next batch."""
        if self._running is None:
            return dict(self._state or {})
        info = get_worker_info()
        return {**self._running.state_dict(), **({} if info is None else {"workers": info.num_workers})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of this dataset or of `batches` at the next iteration."""
        self._state, self._running = state or None, None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None}
