"""Encoding on an NVIDIA GPU: byte-level BPE with the named pretokenizers, the same ids as `_core.Encoder`.

`pipeline` cuts documents into batches and lets the host encode what the device cannot; `device` holds memory, kernels
and streams; `tables` are the arrays that kernels/encode.cu reads; kernels/splits.h cuts words. Docs: docs/gpu.md.
"""

import threading
from functools import partial
from importlib.util import find_spec
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from piecemill._core import Encoder, __version__
from piecemill.tokenizers.engines import Encoded, EncodeOptions, Parse, alphabet_of
from piecemill.tokenizers.engines.cuda.pipeline import Invalid, encode
from piecemill.tokenizers.engines.cuda.tables import tables_of, why_not
from piecemill.tokenizers.engines.json_settings import Left
from piecemill.tokenizers.engines.piecemill import build_of
from piecemill.tokenizers.models.byte_bpe import ByteBPE
from piecemill.tokenizers.models.ranks import Ranks
from piecemill.tokenizers.models.tokenizer_json import TokenizerJson

name = "cuda"
reads = (ByteBPE, Ranks, TokenizerJson)

AnyModel = ByteBPE | Ranks | TokenizerJson

_SHORT = 1 << 16
"Texts of fewer bytes than this are encoded by the host: a batch takes longer than they do."


def can_encode(model: AnyModel) -> str | None:
    """Why this tokenizer or this machine cannot: None if it can."""
    if alphabet_of(model):
        return "the GPU does not look for bytes outside an alphabet, and this tokenizer has one"
    if find_spec("cupy") is None:
        return "CuPy is not installed (pip install 'piecemill[cuda]')"
    from piecemill.tokenizers.engines.cuda.device import missing

    if (reason := missing()) is not None:
        return reason
    try:
        return why_not(build_of(model))
    except Left as left:
        return str(left)


def exact(model: AnyModel) -> bool:
    """Always: tests compare its ids with those of Piecemill's own encoder."""
    return True


def load(model: AnyModel) -> "CudaEngine":
    """The engine; the kernels are compiled at the first call."""
    return CudaEngine(build_of(model))


class CudaEngine:
    """One vocabulary on one GPU. Threads may share it; they take turns."""

    name = name
    why = ""
    version = __version__

    def __init__(self, build: partial[Encoder], **device: Any) -> None:
        self.encoder = build()
        self.tables = tables_of(build, self.encoder)
        self._build, self._options = build, device
        self._lock = threading.Lock()
        self._devices: dict[bool, Any] = {}
        self._words: Encoder | None = None

    def encode(self, text: str, special: Parse) -> NDArray[np.uint32]:
        """The ids of one text: by the host, which is quicker for one."""
        return self.encoder.encode(text, special)

    def encode_flat(
        self, data: NDArray[np.uint8], ends: NDArray[np.int64], **options: Unpack[EncodeOptions]
    ) -> Encoded:
        """As `_core.Encoder.encode_flat`, from and to host memory; `threads` are for what the host encodes.

        With pinned memory (`pinned`) text goes straight to the device.
        """
        if len(data) < _SHORT or not _fit(data, ends):
            return self.encoder.encode_flat(data, ends, **options)
        from piecemill.tokenizers.engines.cuda.memory import HostSink, HostText

        try:
            with self._lock:
                device = self._device(narrow=options["narrow"])
                sink = HostSink(len(data), np.uint16 if options["narrow"] else np.uint32)
                token_ends = self._run(device, HostText(data), ends, sink, options)
                return sink.ids(), token_ends
        except Invalid:
            return self.encoder.encode_flat(data, ends, **options)  # its error has the position

    def encode_on_device(
        self,
        data: Any,
        ends: NDArray[np.int64],
        *,
        bos: int | None = None,
        eos: int | None = None,
        narrow: bool = False,
        special: Parse = "plain",
        threads: int = 0,
    ) -> tuple[Any, Any]:
        """Ids and ends as CuPy arrays, which torch and others take over by DLPack (`torch.from_dlpack`).

        `data` is on the host (numpy) or on the device (anything with `__dlpack__`), `ends` on the host.
        """
        import cupy

        from piecemill.tokenizers.engines.cuda.memory import DeviceSink, DeviceText, HostText

        options: EncodeOptions = {"bos": bos, "eos": eos, "narrow": narrow, "special": special, "threads": threads}
        text = HostText(data) if isinstance(data, np.ndarray) else DeviceText(cupy.from_dlpack(data))
        if not _fit(text.whole(), ends) or not len(text.whole()):
            ids, token_ends = self.encoder.encode_flat(text.read(0, len(text.whole())), ends, **options)
            return cupy.asarray(ids), cupy.asarray(token_ends)
        try:
            with self._lock:
                device = self._device(narrow=narrow)
                sink = DeviceSink(len(text.whole()), np.uint16 if narrow else np.uint32)
                token_ends = self._run(device, text, ends, sink, options)
                return sink.ids(), cupy.asarray(token_ends)
        except Invalid:
            self.encoder.encode_flat(text.read(0, len(text.whole())), ends, **options)
            raise

    def _run(self, device: Any, text: Any, ends: NDArray[np.int64], sink: Any, options: EncodeOptions) -> Any:
        host = _HostEncoder(self, options["special"], options["threads"])
        added = self.tables.looked_for(options["special"])
        return encode(device, host, text, ends, sink, bos=options["bos"], eos=options["eos"], added=added)

    def _device(self, *, narrow: bool) -> Any:
        if narrow not in self._devices:
            from piecemill.tokenizers.engines.cuda.device import CudaDevice

            self._devices.clear()  # one width at a time: each takes gigabytes
            self._devices[narrow] = CudaDevice(self.tables, narrow=narrow, **self._options)
        return self._devices[narrow]

    def words(self) -> Encoder:
        """An encoder for which each text is one word."""
        if self._words is None:
            self._words = self._build.func(*self._build.args, split=[], whole_words=self._build.keywords["whole_words"])
        return self._words


class _HostEncoder:
    """What the host encodes for one call."""

    def __init__(self, engine: CudaEngine, special: Parse, threads: int) -> None:
        self._engine, self._special, self._threads = engine, special, threads

    def words(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        return self._engine.words().encode_flat(
            data, ends, bos=None, eos=None, narrow=False, special="plain", threads=self._threads
        )

    def documents(
        self, data: NDArray[np.uint8], ends: NDArray[np.int64], bos: int | None, eos: int | None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        return self._engine.encoder.encode_flat(
            np.ascontiguousarray(data),
            ends,
            bos=bos,
            eos=eos,
            narrow=False,
            special=self._special,
            threads=self._threads,
        )


def _fit(data: Any, ends: NDArray[np.int64]) -> bool:
    """Whether `ends` are what the device may rely on; else the encoder says what is wrong."""
    if not len(ends) or data.dtype != np.uint8 or data.ndim != 1 or ends.dtype != np.int64:
        return False
    return bool(ends[0] >= 0 and ends[-1] == len(data) and (np.diff(ends) >= 0).all())
