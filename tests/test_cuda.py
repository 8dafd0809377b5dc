"""The GPU engine without a GPU: splits compiled for the host, kernels compiled, the pipeline on a stand-in.

What runs on a GPU is in test_cuda_gpu.py.
"""

import ctypes
import glob
import random
import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from piecemill import _core
from piecemill.tokenizers.engines.cuda import kernels, tables
from piecemill.tokenizers.nasty import NASTY

KERNELS = Path(tables.__file__).parent / "kernels"


@pytest.fixture(scope="session")
def on_host(tmp_path_factory):
    """kernels/splits.h as a library of this machine."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("splits") / "splits.so"
    source = Path(__file__).parent / "splits_on_host.cpp"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, f"-I{KERNELS}", str(source), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.classify.restype = ctypes.c_bool
    return loaded


@pytest.fixture(scope="session")
def pages():
    blocks, index = np.unique((_core.code_points() & 15).reshape(-1, 256), axis=0, return_inverse=True)
    return np.ascontiguousarray(index.reshape(-1).astype(np.uint8)), np.ascontiguousarray(blocks.reshape(-1))


def classified(library, pages, documents, split="cl100k"):
    text = b"".join(documents)
    ends = np.cumsum([len(one) for one in documents]).astype(np.uint32)
    kinds, sure = np.zeros(len(text) + 64, np.uint8), np.zeros(len(text) + 1, np.uint8)
    place = lambda array: array.ctypes.data_as(ctypes.c_void_p)  # noqa: E731
    here = (place(ends), len(ends), place(pages[0]), place(pages[1]), place(kinds), place(sure))
    valid = library.classify(tables.SPLITS.index(split), text + bytes(64), len(text), *here)
    return valid, text, kinds, sure


def cut(library, pages, documents, split):
    valid, text, kinds, sure = classified(library, pages, documents, split)
    assert valid
    ends = np.zeros(len(text) + 1, np.uint32)
    args = (text + bytes(64), kinds.ctypes.data_as(ctypes.c_void_p), len(text), ends.ctypes.data_as(ctypes.c_void_p))
    count = library.words(tables.SPLITS.index(split), *args)
    return ends[:count].tolist(), np.flatnonzero(sure[: len(text)]).tolist()


def wanted(documents, split):
    ends, start = [], 0
    for document in documents:
        ends += (_core.split_text(document.decode(), split) + start).tolist()
        start += len(document)
    return ends


ALPHABETS = [
    "aaasStTlLvVeErRdDmM''''  \n\n\r\t\u00a0\u3000123४٣/!.-\u0301\u0300\u05d0你好ǅʰſéÉñЖж🎉\u200d\u2028・ー\x00\ue000",
    "'sStTrReEvVlLmMdD xXſ",
    "\r\n \t\u00a0\u2028/!a",
    "0123456789 ٣४½²a!",
    "\u0301\u0300\u0483\u20dd\u093e aZ!\n/",
    "你好世界・ー々\u3099\uff0c 1aZ!\n",
    "/\n\r!/. a'S9",
]


def any_text(rng):
    if rng.random() < 0.1:
        points = (rng.choice([0x80, 0x800, 0x10000, 0x110000]) for _ in range(rng.randrange(12)))
        return "".join(chr(c) for c in map(rng.randrange, points) if not 0xD800 <= c <= 0xDFFF)
    letters = rng.choice(ALPHABETS)
    some = rng.sample(letters, min(len(letters), rng.randint(1, 8))) if rng.random() < 0.7 else letters
    return "".join(rng.choice(some) for _ in range(rng.randint(0, 16)))


@pytest.mark.parametrize("split", tables.SPLITS)
def test_the_splits_of_the_gpu_are_those_of_the_scanners(on_host, pages, split):
    rng = random.Random(3)
    for _ in range(4000):
        documents = [one for _ in range(rng.choice([1, 1, 2, 3])) if (one := any_text(rng).encode())]
        if not documents:
            continue
        ends, sure = cut(on_host, pages, documents, split)
        expected = wanted(documents, split)
        assert ends == expected, documents
        # Words are found from each sure start on, so each must be the start of a word.
        assert set(sure) <= {0, *expected}, documents


@pytest.mark.parametrize("split", tables.SPLITS)
def test_the_splits_of_the_gpu_on_real_text(on_host, pages, split):
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [*sorted(library.glob("*.py"))[:60], library / "test" / "test_unicodedata.py"]
    documents = [file.read_bytes() for file in files if file.exists()]
    documents += [text.encode() for text in NASTY if text and text.isprintable()]
    ends, sure = cut(on_host, pages, documents, split)
    assert ends == wanted(documents, split)
    assert set(sure) <= {0, *ends}
    assert len(sure) > len(ends) / 2  # else one thread walks through all of it


def test_every_pair_of_characters_and_what_surely_starts(on_host, pages):
    """One character of every class before and after, in all contexts of one more character."""
    codes = _core.code_points() & 15
    of_class = [chr(int(np.flatnonzero(codes == kind)[-1])) for kind in range(13)]
    letters = [*of_class, " ", "'", "/", "s", "1", "\n", "a"]
    texts = [
        "".join(four).encode()
        for four in ((a, b, c, d) for a in letters for b in letters for c in letters for d in letters)
    ]
    for split in tables.SPLITS:
        ends, sure = cut(on_host, pages, texts, split)
        assert ends == wanted(texts, split), split
        assert set(sure) <= {0, *ends}, split


def test_invalid_utf8_is_seen_where_python_sees_it(on_host, pages):
    rng = random.Random(5)
    whole = "aé你🎉".encode()
    for _ in range(20_000):
        if rng.random() < 0.5:
            text = bytes(
                rng.choice(b"\x00a\x7f\x80\xbf\xc1\xc2\xdf\xe0\xed\xef\xf0\xf4\xf5\xa0\x9f\x90\x8f")
                for _ in range(rng.randint(1, 6))
            )
        else:
            text = whole[rng.randrange(len(whole)) :][: rng.randint(1, 6)]
        try:
            text.decode()
            expected = True
        except UnicodeDecodeError:
            expected = False
        assert classified(on_host, pages, [b"x", text, b"\x80"[:0] or b"y"])[0] == expected, text


@pytest.mark.parametrize("split", tables.SPLITS)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_kernels_compile(architecture, split):
    compile_kernels(architecture, split, narrow=split == "gpt2")


def compile_kernels(architecture, split, *, narrow):
    folders = glob.glob(f"{sysconfig.get_paths()['purelib']}/nvidia/*/lib")
    found = [path for folder in folders for path in glob.glob(f"{folder}/libnvrtc.so.*")]
    if not found:
        pytest.skip("NVRTC is not installed (it comes with torch for Linux)")
    for builtins in glob.glob(f"{Path(found[0]).parent}/libnvrtc-builtins.so.*"):
        ctypes.CDLL(builtins)
    nvrtc = ctypes.CDLL(found[0])
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), kernels.source().encode(), b"encode.cu", 0, None, None)
    flags = [f"--gpu-architecture={architecture}", *kernels.options(split, narrow=narrow)]
    given = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    result = nvrtc.nvrtcCompileProgram(program, len(flags), given)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert result == 0, log.value.decode()
