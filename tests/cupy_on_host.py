"""What the GPU engine uses of CuPy, on the host: kernels are compiled by the C++ compiler and run by cuda_on_host.h.

Memory of the device is memory of the host, and work on a stream is done at once, except what is recorded for a graph.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

HERE = Path(__file__).parent
SANITIZE = os.environ.get("PIECEMILL_SANITIZE", "")
"As of -fsanitize=; the sanitizer's library must be preloaded."


class Array:
    """An array of the "device": not one of numpy, so that the two are told apart."""

    def __init__(self, array):
        self.array = array

    @property
    def data(self):
        return SimpleNamespace(ptr=self.array.ctypes.data)

    def __getattr__(self, name):
        return getattr(self.array, name)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, key):
        return Array(self.array[key])

    def __setitem__(self, key, value):
        self.array[key] = value.array

    def view(self, dtype):
        return Array(self.array.view(dtype))

    def copy(self):
        return Array(self.array.copy())

    def set(self, values):
        self.array[...] = values

    def get(self):
        return self.array.copy()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def zeros(count, dtype):
    return Array(np.zeros(count, dtype))


def empty(count, dtype):
    return Array(np.full(count, 0xA5, np.dtype(dtype)))


def asarray(array):
    return array if isinstance(array, Array) else Array(np.array(array))


def asnumpy(array):
    return array.get()


def from_dlpack(array):
    """The bytes, in memory of the same shape, when the current stream has done its work."""
    given = np.from_dlpack(array)
    step = given.strides[0]
    return _later(given, np.zeros(len(given) * step, np.uint8)[::step])


def ascontiguousarray(array):
    return _later(array.array, np.zeros(array.shape, array.dtype))


def _later(given, made):
    Stream.null.waiting.append(lambda: np.copyto(made, given))
    return Array(made)


class Stream:
    """Does what it is given at once, or records it."""

    recorded = None

    def __init__(self, non_blocking=False):
        self.ptr, self.waiting = 0, []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def begin_capture(self):
        Stream.recorded = []

    def end_capture(self):
        steps, Stream.recorded = Stream.recorded, None
        return SimpleNamespace(launch=lambda stream: [step() for step in steps])

    def wait_event(self, event):
        pass

    def synchronize(self):
        while self.waiting:
            self.waiting.pop(0)()


Stream.null = Stream()


def submit(step):
    if Stream.recorded is None:
        step()
    else:
        Stream.recorded.append(step)


class Event:
    def __init__(self, disable_timing=False):
        pass

    def record(self, stream):
        pass

    def synchronize(self):
        pass


class RawModule:
    """The kernels as a library of this machine. Every other one runs threads and blocks from the last to the first."""

    made = 0
    folder = None

    def __init__(self, code, options):
        RawModule.made += 1
        self.backwards = RawModule.made % 2 == 0
        compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
        RawModule.folder = RawModule.folder or tempfile.TemporaryDirectory()
        flags = ["-O1", "-g", "-w", "-shared", "-fPIC", "-fno-strict-aliasing", *options]
        flags += [f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all"] if SANITIZE else []
        place = Path(RawModule.folder.name) / hashlib.sha256("\n".join([code, *flags]).encode()).hexdigest()
        if not place.with_suffix(".so").exists():
            place.with_suffix(".cpp").write_text('#include "cuda_on_host.h"\n' + code)
            made = [str(place.with_suffix(suffix)) for suffix in (".cpp", ".so")]
            subprocess.run([compiler, *flags, f"-I{HERE}", made[0], "-o", made[1]], check=True)
        self.library = ctypes.CDLL(str(place.with_suffix(".so")))

    def get_function(self, name):
        kernel = ctypes.cast(getattr(self.library, name), ctypes.c_void_p)

        def launch(grid, block, given):
            values = [one.data.ptr if isinstance(one, Array) else int(one) for one in given]
            arguments = (ctypes.c_uint64 * 6)(*values)
            submit(lambda: self.library.launch(kernel, grid[0], block[0], arguments, self.backwards))

        return launch


def module():
    """CuPy, for `sys.modules`."""
    cuda, cupy = ModuleType("cupy.cuda"), ModuleType("cupy")
    cuda.Stream, cuda.Event, cuda.alloc_pinned_memory = Stream, Event, bytearray
    cuda.get_current_stream = lambda: Stream.null
    cuda.runtime = SimpleNamespace(
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        memcpyDeviceToDevice=3,
        memcpyAsync=lambda to, source, size, kind, stream: submit(lambda: ctypes.memmove(to, source, size)),
        memsetAsync=lambda to, value, size, stream: submit(lambda: ctypes.memset(to, value, size)),
        deviceSynchronize=lambda: None,
        pointerGetAttributes=lambda pointer: SimpleNamespace(type=0),
        getDeviceCount=lambda: 0,
        CUDARuntimeError=RuntimeError,
    )
    cupy.cuda = cuda
    for each in (zeros, empty, asarray, asnumpy, ascontiguousarray, from_dlpack, RawModule):
        setattr(cupy, each.__name__, each)
    cupy.uint8 = np.uint8
    return cupy
