"""One GPU, one vocabulary: memory, kernels and streams. `CudaDevice` does what `Device` in pipeline.py asks for.

Each slot holds a batch from upload to download. The kernels of a batch are launched in two phases on the main stream,
with the first phase of the next batch between them; meanwhile longer new words are merged on a side stream, and the
host encodes the words that it has to. Copies in and out have streams of their own.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime
from numpy.typing import NDArray

from piecemill.errors import TokenizerError
from piecemill.plans import option
from piecemill.tokenizers.engines.cuda import kernels
from piecemill.tokenizers.engines.cuda.pipeline import Counts, Words
from piecemill.tokenizers.engines.cuda.tables import NONE, Tables

_PADDING = 4096
_FULL = 0.4
"A table with a larger share of used entries is emptied."


class _Slot:
    """One batch on the device, and what the host has of it."""

    def __init__(self, arrays: dict[str, Any], record: NDArray[Any], most_bytes: int) -> None:
        self.arrays, self.record = arrays, record
        self.pointer = cupy.zeros(kernels.SLOT.itemsize, cupy.uint8)
        self.counts = pinned(kernels.COUNTS.itemsize).view(kernels.COUNTS)
        self.text = pinned(most_bytes)
        self.ends = pinned(8 * len(arrays["ends"])).view(np.int64)
        self.in_, self.first, self.side, self.second, self.out = (
            cupy.cuda.Event(disable_timing=True) for _ in range(5)
        )
        self.batch = pinned(kernels.BATCH.itemsize).view(kernels.BATCH)
        self.kept: list[Any] = []
        self.graphs: dict[str, Any] = {}


class CudaDevice:
    """The engine's device: see `Device`."""

    slots = 4

    def __init__(
        self,
        tables: Tables,
        *,
        narrow: bool,
        most_bytes: int = 16 << 20,
        most_documents: int = 1 << 20,
        table_bits: int = 24,
        pool_words: int = 1 << 26,
        weak_hash: bool = False,
    ) -> None:
        self.most_bytes = n = -(-most_bytes // kernels.TILE) * kernels.TILE
        self.most_documents = most_documents
        self._tables = tables
        module = cupy.RawModule(
            code=kernels.source(), options=kernels.options(tables.split, narrow=narrow, weak_hash=weak_hash)
        )
        self._kernel = {name: module.get_function(name) for name in _KERNELS}
        self._main, self._side, self._in, self._out = (cupy.cuda.Stream(non_blocking=True) for _ in range(4))
        self._threads = ThreadPoolExecutor(4, "piecemill-copy")
        self._id = np.dtype(np.uint16 if narrow else np.uint32)
        tiles, bits = n // kernels.TILE + 2, (n + _PADDING) // 32 + 64
        rounds = -(-tiles // 16384) * 16384  # kernel `offsets` reads this many at a time
        space = _Space()
        shared = {
            "kinds": space(n + _PADDING, np.uint8),
            "sure": space(bits, np.uint32),
            "class_index": cupy.asarray(tables.class_index),
            "class_blocks": cupy.asarray(tables.class_blocks),
            "table": space(4 << table_bits, np.uint64),
            "pool": space(pool_words, np.uint32),
            "pairs": cupy.asarray(tables.pairs),
            "byte_pairs": cupy.asarray(tables.byte_pairs),
            "symbol_of_byte": cupy.asarray(tables.symbol_of_byte),
            "id_of_symbol": cupy.asarray(tables.id_of_symbol),
            "misses": space(2 * (n // 3), np.uint32),
            "winners0": space(4 * (n // 3), np.uint32),
            "life": space(4, np.uint32),
            "added": space(1, np.uint8),
            "added_ends": space(1, np.uint32),
        }
        self._slots = []
        for _ in range(self.slots):
            flags = space(
                2 * bits + kernels.COUNTS.itemsize // 4 + most_documents // 4 + 1, np.uint32
            )  # cleared as one
            own = {
                "batch": space(kernels.BATCH.itemsize, np.uint8),
                "text": space(n + _PADDING, np.uint8),
                "ends": space(most_documents, np.int64),
                "flags": flags,
                "documents": flags[:bits],
                "words": flags[bits : 2 * bits],
                "counts": flags[2 * bits : 2 * bits + kernels.COUNTS.itemsize // 4],
                "found": flags[2 * bits + kernels.COUNTS.itemsize // 4 :].view(cupy.uint8),
                "winners1": space(4 * (n // 16 + 1), np.uint32),
                "winners2": space(4 * (n // 33 + 1), np.uint32),
                "winners3": space(4 * (n // 65 + 1), np.uint32),
                "longs": space(2 * (n // (kernels.LONGEST + 1) + 1), np.uint32),
                "unresolved": space(2 * (n // 16), np.uint32),
                "tile_missed": space(tiles, np.uint8),
                "tile_first": space(tiles, np.uint32),
                "tile_count": space(rounds, np.uint32),
                "tile_base": space(rounds, np.uint32),
                "document_offset": space(n + 1, np.uint16),
                "staged": space(n + kernels.TILE, self._id),
                "out": space(n + 2 * most_documents, self._id),
                "direct_count": space(n + 1, np.uint32),
                "direct": space(n + 1, np.uint32),
                "raw_ends": space(most_documents, np.int64),
                "token_ends": space(most_documents, np.int64),
            }
            record = np.zeros((), kernels.SLOT)
            for name, array in {**shared, **own}.items():
                if name in kernels.POINTERS:
                    record[name] = array.data.ptr
            record["table_mask"] = (1 << table_bits) - 1
            record["pool_words"] = pool_words
            record["pair_shift"], record["pair_mask"] = tables.pair_shift, len(tables.pairs) - 1
            record["most_misses"], record["most_unresolved"] = n // 3, n // 16
            slot = _Slot(own, record, n)
            record["reported"] = slot.counts.ctypes.data
            self._slots.append(slot)
        self._shared = shared
        self.device_bytes = space.bytes + sum(
            array.nbytes for array in vars(tables).values() if hasattr(array, "nbytes")
        )
        self._words = [cupy.asarray(a) for a in (tables.word_bytes, tables.word_ends, tables.word_ids)]
        self._full = min(0.9, _FULL + len(tables.word_ids) / (1 << table_bits)) * (1 << table_bits)
        self._pool_full = pool_words // 2
        self._added: list[bytes] | None = None
        self.flushes = -1
        self._want_flush = True
        self.look_for([])
        self.flush()
        if (missing := self._not_there()) > 0:
            raise TokenizerError(
                f"{missing} tokens that only a whole word can be have no place in the word table of the GPU; "
                f"use {option('engine', 'piecemill')}, or a larger table."
            )

    # What the pipeline calls, in this order

    def look_for(self, added: Sequence[bytes]) -> None:
        """Leave documents with one of these texts to the host, from the next batch on."""
        if self._added == list(added):
            return
        self._main.synchronize()  # a call that failed may have left kernels running that read what changes here
        self._added = list(added)
        lengths = [len(text) for text in added]
        self._shared["added"] = cupy.asarray(np.frombuffer(b"".join(added) or b"\0", np.uint8))
        self._shared["added_ends"] = cupy.asarray(np.cumsum(lengths or [0]).astype(np.uint32))
        first = np.zeros(4, np.uint64)
        for text in added:
            first[text[0] >> 6] |= np.uint64(1) << np.uint64(text[0] & 63)
        for slot in self._slots:
            for name in ("added", "added_ends"):
                slot.record[name] = self._shared[name].data.ptr
            slot.record["added_count"], slot.record["added_first"] = len(added), first
            slot.pointer.set(np.frombuffer(slot.record.tobytes(), np.uint8))
        cupy.cuda.get_current_stream().synchronize()  # the streams here do not wait for that one

    def wants_flush(self) -> bool:
        """Whether the word table should be emptied, when no batch is between its phases."""
        return self._want_flush

    def flush(self) -> None:
        """Empty the word table but for the vocabulary."""
        slot = self._slots[0]
        count = np.uint32(len(self._tables.word_ids))
        must = np.uint32(self._tables.must_be_there)
        with self._main:
            self._kernel["clear_table"]((1056,), (256,), (slot.pointer,))
            # First those that must be there: with a full table, the others are merged when they occur.
            if must:
                self._kernel["preload"]((264,), (256,), (slot.pointer, *self._words, np.uint32(0), must))
                self._must = slot.arrays["counts"].copy()
            self._kernel["preload"]((264,), (256,), (slot.pointer, *self._words, must, count))
        self.flushes += 1
        self._want_flush = False

    def ends_of(self, documents: int) -> NDArray[np.int64]:
        """Pinned memory for ends."""
        return pinned(8 * documents).view(np.int64)

    def upload(
        self, number: int, data: Any, ends: NDArray[np.int64], start: int, bos: int | None, eos: int | None
    ) -> None:
        """Upload a batch, whose documents end at `ends` and whose first byte is at `start`."""
        slot = self._slots[number]
        size, count = int(ends[-1]) - start, len(ends)
        self._in.wait_event(slot.second)
        slot.in_.synchronize()  # the last upload from these buffers
        slot.batch[0] = (size, count, *(NONE if token is None else token for token in (bos, eos)), start)
        slot.ends[:count] = ends
        slot.kept = [data]
        self._copy_in(slot, data[start : start + size])
        self._to_device(slot, "ends", slot.ends[:count])
        self._to_device(slot, "batch", slot.batch)
        slot.in_.record(self._in)

    def start(self, number: int) -> None:
        """Begin the first phase of the batch that was uploaded."""
        slot = self._slots[number]
        self._main.wait_event(slot.in_)
        if not slot.graphs:
            self._capture(slot)
        slot.graphs["first"].launch(self._main)
        slot.first.record(self._main)
        self._side.wait_event(slot.first)
        slot.graphs["side"].launch(self._side)
        slot.side.record(self._side)
        slot.graphs["short"].launch(self._main)

    def _capture(self, slot: _Slot) -> None:
        """What is launched for every batch, recorded once; kernels end early where a batch is smaller."""
        tiles, flags = self.most_bytes // kernels.TILE + 1, slot.arrays["flags"]
        by_document, by_tile = self.most_documents // 256 + 1, tiles // 8 + 1

        def clear() -> None:
            runtime.memsetAsync(flags.data.ptr, 0, flags.nbytes, self._main.ptr)

        report = ("report", 1, 32)
        plans: dict[str, list[Any]] = {
            "first": [
                *(clear, ("mark_documents", by_document, 256), ("classify", tiles // 4 + 1, 256)),
                *(("split", by_tile, 256), ("look_up", by_tile, 256), ("admit", 1, 1), ("claim", 528, 256), report),
            ],
            "short": [("merge_short", 1320, 128)],
            "side": [("merge_warp", 528, 128), ("merge_64", 396, 64), ("merge_32", 792, 64)],
            "again": [
                *(("look_up_again", by_tile, 256), ("offsets", 1, 1024), ("document_ends", by_document, 256)),
                *(("compact", by_tile, 256), report),
            ],
        }
        plans["second"] = [("publish", 264, 128), *plans["again"]]
        for name, steps in plans.items():
            with self._main:
                self._main.begin_capture()
                for step in steps:
                    if callable(step):
                        step()
                    else:
                        kernel, blocks, threads = step
                        self._kernel[kernel]((blocks,), (threads,), (slot.pointer,))
                slot.graphs[name] = self._main.end_capture()

    def found(self, number: int) -> Counts:
        """Wait for the list of words that the host encodes; what the first phase found."""
        slot = self._slots[number]
        slot.first.synchronize()
        counts = slot.counts[0]
        documents = None
        if counts["found"]:
            documents = cupy.asnumpy(slot.arrays["found"][: int(slot.batch["documents"][0])]).nonzero()[0]
        return Counts(
            tokens=0,
            words=self._listed(slot, "longs", int(counts["longs"])),
            documents=documents,
            invalid=bool(counts["invalid"]),
            overflow=int(counts["misses"]) > int(slot.record["most_misses"]),
        )

    def patch(self, number: int, at: NDArray[np.uint32], ids: NDArray[np.uint32], ends: NDArray[np.int64]) -> None:
        """Give the ids of the words at these places."""
        slot = self._slots[number]
        words, count = pinned(8 * len(at)).view(np.uint32), np.uint32(len(at))
        words[0::2], words[1::2] = at, ends
        sent = pinned(4 * len(ids)).view(np.uint32)
        sent[:] = ids
        with self._main:
            arrays = cupy.empty(len(words), np.uint32), cupy.empty(len(sent), np.uint32)
            for here, there in zip((words, sent), arrays, strict=True):
                size = here.nbytes
                runtime.memcpyAsync(there.data.ptr, here.ctypes.data, size, runtime.memcpyHostToDevice, self._main.ptr)
            self._kernel["patch"]((264,), (128,), (slot.pointer, arrays[0], count, arrays[1]))
        slot.kept += [words, sent, *arrays]

    def finish(self, number: int, *, again: bool = False) -> None:
        """Begin the second phase; `again` after a patch for words that it did not find."""
        slot = self._slots[number]
        self._main.wait_event(slot.side)
        self._main.wait_event(slot.out)
        if again:
            at = slot.arrays["counts"].data.ptr + kernels.COUNTS.fields["unresolved"][1]  # type: ignore[index]
            runtime.memsetAsync(at, 0, 4, self._main.ptr)
        slot.graphs["again" if again else "second"].launch(self._main)
        slot.second.record(self._main)

    def give_up(self, number: int) -> None:
        """The host encodes this batch: end it without results."""
        slot = self._slots[number]
        self._main.wait_event(slot.side)
        with self._main:
            self._kernel["publish"]((264,), (128,), (slot.pointer,))
            self._kernel["offsets"]((1,), (1024,), (slot.pointer,))  # gives back what was admitted
        slot.second.record(self._main)

    def done(self, number: int) -> Counts:
        """Wait for the second phase."""
        slot = self._slots[number]
        slot.second.synchronize()
        counts = slot.counts[0]
        self._want_flush |= bool(counts["used"] > self._full or counts["pool_used"] > self._pool_full)
        unresolved = int(counts["unresolved"])
        return Counts(
            tokens=int(counts["tokens"]),
            words=self._listed(slot, "unresolved", min(unresolved, int(slot.record["most_unresolved"]))),
            overflow=unresolved > int(slot.record["most_unresolved"]),
        )

    def download(self, number: int, ids: Any, ends: Any) -> None:
        """Copy the ids and the ends of the documents, in tokens of this batch, to arrays of the host or the device."""
        slot = self._slots[number]
        self._out.wait_event(slot.second)
        for name, to in (("out", ids), ("token_ends", ends)):
            here = to.ctypes.data if isinstance(to, np.ndarray) else to.data.ptr
            if to.nbytes:
                kind = runtime.memcpyDeviceToHost if isinstance(to, np.ndarray) else runtime.memcpyDeviceToDevice
                runtime.memcpyAsync(here, slot.arrays[name].data.ptr, to.nbytes, kind, self._out.ptr)
        slot.out.record(self._out)
        slot.kept = []

    def wait(self) -> None:
        """Until all downloads are there."""
        self._out.synchronize()

    # Parts of them

    def _copy_in(self, slot: _Slot, data: Any) -> None:
        to = slot.arrays["text"].data.ptr
        if not isinstance(data, np.ndarray):
            runtime.memcpyAsync(to, data.data.ptr, data.nbytes, runtime.memcpyDeviceToDevice, self._in.ptr)
            return
        if not is_pinned(data):
            cuts = np.linspace(0, len(data), 5).astype(int) if len(data) > 1 << 20 else [0, len(data)]
            parts = [slice(*ends) for ends in pairwise(cuts)]
            list(self._threads.map(lambda part: np.copyto(slot.text[part], data[part]), parts))
            data = slot.text[: len(data)]
        self._to_device(slot, "text", data)

    def _to_device(self, slot: _Slot, name: str, data: NDArray[Any]) -> None:
        to = slot.arrays[name].data.ptr
        runtime.memcpyAsync(to, data.ctypes.data, data.nbytes, runtime.memcpyHostToDevice, self._in.ptr)

    def _listed(self, slot: _Slot, name: str, count: int) -> Words | None:
        if not count:
            return None
        listed = cupy.asnumpy(slot.arrays[name][: 2 * count]).reshape(-1, 2)
        return Words(listed[:, 0], listed[:, 1])

    def _not_there(self) -> int:
        if not self._tables.must_be_there:
            return 0
        self._main.synchronize()
        return int(cupy.asnumpy(self._must).view(kernels.COUNTS)[0]["unresolved"])


_KERNELS = (
    *("mark_documents", "classify", "split", "look_up", "admit", "claim", "merge_short", "merge_32", "merge_64"),
    *("merge_warp", "publish", "patch", "look_up_again", "offsets", "document_ends", "compact", "report"),
    *("clear_table", "preload"),
)


class _Space:
    """Device memory, counted."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, count: int, dtype: Any) -> Any:
        array = cupy.zeros(count, dtype)
        self.bytes += array.nbytes
        return array


def pinned(size: int) -> NDArray[np.uint8]:
    """Host memory that copies to and from the device go straight to."""
    memory = cupy.cuda.alloc_pinned_memory(max(size, 1))
    return np.frombuffer(memory, np.uint8, size)


def is_pinned(array: NDArray[Any]) -> bool:
    """Whether the memory of an array is pinned."""
    attributes = runtime.pointerGetAttributes(array.ctypes.data)
    return bool(attributes.type == 1)  # cudaMemoryTypeHost


def missing() -> str | None:
    """Why no GPU can be used here."""
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return f"no GPU was found ({error})"
    if not count:
        return "no GPU was found"
    major, minor = divmod(int(cupy.cuda.Device().compute_capability), 10)
    return None if major >= 8 else f"the GPU has compute capability {major}.{minor}; 8.0 or newer is needed"
