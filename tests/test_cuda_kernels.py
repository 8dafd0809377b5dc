"""The kernels and `device.py` without a GPU: compiled for the host and run on a stand-in for CuPy (cupy_on_host.py).

Arrays have the sizes that `device.py` gives them, so that the sanitizers see what the kernels read and write beyond.
"""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cupy_on_host
import piecemill as pm
from adversarial import ALPHABETS, adversarial
from piecemill.errors import PiecemillError
from piecemill.tokenizers.engines import cuda
from piecemill.tokenizers.engines.cuda import CudaEngine, tables
from piecemill.tokenizers.engines.piecemill import build_of

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
SMALL = {"most_bytes": 1 << 16, "most_documents": 600, "table_bits": 15, "pool_words": 1 << 19}
TINY = {"most_bytes": 1 << 13, "most_documents": 64, "table_bits": 12, "pool_words": 1 << 14}

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.fixture(autouse=True, scope="module")
def _cupy():
    """The stand-in for CuPy, for the modules that import it."""
    with pytest.MonkeyPatch.context() as patch:
        cupy = cupy_on_host.module()
        patch.setitem(sys.modules, "cupy", cupy)
        patch.setitem(sys.modules, "cupy.cuda", cupy.cuda)
        for name in ("device", "memory"):
            patch.delitem(sys.modules, f"{cuda.__name__}.{name}", raising=False)
            patch.delattr(cuda, name, raising=False)
        patch.setattr(cuda, "_SHORT", 0)
        yield
        for name in ("device", "memory"):
            sys.modules.pop(f"{cuda.__name__}.{name}", None)
            vars(cuda).pop(name, None)


def flat(documents):
    return np.frombuffer(b"".join(documents), np.uint8), np.cumsum([len(one) for one in documents]).astype(np.int64)


@pytest.fixture(scope="module")
def text():
    """Thousands of short documents, which begin at all places of what a thread reads; long words; and Python."""
    rng, less = random.Random(6), 5 if cupy_on_host.SANITIZE else 1  # sanitizers take five times as long
    short = ["".join(rng.choices(rng.choice(ALPHABETS), k=rng.randint(0, 40))).encode() for _ in range(3_000 // less)]
    return flat([*short, *rng.sample(adversarial(0), 80 // less), Path(__file__).read_bytes() * (1 if less > 1 else 3)])


def build_with(pretokenizer):
    text = Path(__file__).read_text() + "naïve 你好 1234 🎉 "
    return build_of(pm.train_bpe([text], vocab_size=700, pretokenizer=pretokenizer).model)


def check(engine, data, ends, **more):
    options = {"bos": None, "eos": None, "narrow": False, "special": "plain", "threads": 1, **more}
    wanted = engine.encoder.encode_flat(data, ends, **options)
    found = [each.get() for each in engine.encode_on_device(data, ends, **options)]  # it does not hide `Invalid`
    assert found[0].dtype == wanted[0].dtype
    np.testing.assert_array_equal(found[1], wanted[1])
    np.testing.assert_array_equal(found[0], wanted[0])


@pytest.mark.parametrize("pretokenizer", tables.SPLITS)
def test_the_kernels_give_the_ids_of_the_encoder(pretokenizer, text):
    engine = CudaEngine(build_with(pretokenizer), **SMALL)
    for more in ({}, {"bos": 1, "eos": 2}):
        check(engine, *text, **more)


def test_a_vocabulary_that_looks_whole_words_up_first(text, shared):
    path = shared / "vocabs" / "cl100k_base.tiktoken"
    build = build_of(pm.load_tokenizer(path, pretokenizer="cl100k").model)
    check(CudaEngine(build, **SMALL | {"table_bits": 19}), *text)


@pytest.mark.parametrize("pretokenizer", ["gpt2", "o200k"])
def test_tiny_tables_and_pools_are_flushed_and_exact(pretokenizer, text):
    engine = CudaEngine(build_with(pretokenizer), **TINY)
    check(engine, *text, eos=3)
    assert engine._device(narrow=False).flushes > 0


def test_keys_that_collide_are_resolved_by_the_host(text):
    engine = CudaEngine(build_with("cl100k"), weak_hash=True, **SMALL)
    for _ in range(2):
        check(engine, *text)


def test_keys_that_collide_while_the_table_is_flushed():
    rng = random.Random(7)
    word = lambda length: "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=length))  # noqa: E731
    known = [word(5) for _ in range(200)]
    some = [lambda: rng.choice(known), lambda: rng.choice(known), lambda: word(5), lambda: word(rng.choice([20, 21]))]
    count = 40 if cupy_on_host.SANITIZE else 100
    documents = [" ".join(rng.choice(some)() for _ in range(200)).encode() for _ in range(count)]
    engine = CudaEngine(build_with("cl100k"), weak_hash=True, **TINY | {"pool_words": 1 << 16})
    for _ in range(2):
        check(engine, *flat(documents))
    assert engine._device(narrow=False).flushes > 0


def test_narrow_ids(text):
    check(CudaEngine(build_with("gpt2"), **SMALL), *text, narrow=True, bos=5)


@pytest.mark.parametrize("special", ["parse", "plain", ["<|endoftext|>"]])
def test_special_tokens_in_texts(special):
    rng = random.Random(1)
    pieces = [b"the cat", b" sat\n", b"<|endoftext|>", b"<|endoftext", "é".encode()]
    documents = [b"".join(rng.choices(pieces, k=rng.randint(0, 60))) for _ in range(300)]
    check(CudaEngine(build_with("cl100k"), **SMALL), *flat(documents), special=special, bos=1, eos=2)


def test_documents_that_normalizing_changes():
    build = build_with("gpt2")
    build.keywords["normalizer"] = [("nfc",)]
    build.keywords["added"] = [("e\u0301x", 700, 1 << 1)]  # looked for in normalized text
    texts = ["Ame\u0301lie café \u212b" * 9, "plain" * 900, "\u05b1\u05b0" * 5, "", "the éxit" * 9, "e\u0301x", "x"]
    check(CudaEngine(build, **SMALL), *flat([text.encode() for text in texts]))


def test_documents_larger_than_a_batch():
    words = b" ".join(b"word%d" % number for number in range(5_000))
    documents = [b"small", words, b"y" * 20_000, "你".encode() * 9_000, words + b"<|endoftext|>" + words, b"last"]
    engine = CudaEngine(build_with("cl100k"), **TINY)
    for more in ({}, {"special": "parse"}, {"bos": 1, "eos": 2}):
        check(engine, *flat(documents), **more)


def test_text_that_is_not_utf8_is_an_error_as_of_the_encoder():
    engine = CudaEngine(build_with("gpt2"), **TINY)
    for bad in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"a\x80"):
        data, ends = flat([b"fine " * 5_000, b"x" + bad + b"y", b"fine " * 5_000])
        with pytest.raises(PiecemillError) as wanted:
            engine.encoder.encode_flat(data, ends, bos=None, eos=None, narrow=False, special="plain", threads=1)
        with pytest.raises(PiecemillError) as found:
            engine.encode_flat(data, ends, bos=None, eos=None, narrow=False, special="plain", threads=1)
        assert str(found.value) == str(wanted.value)
    check(engine, *flat([b"and then it goes on " * 900]))


def test_ids_from_and_to_all_kinds_of_memory(text):
    data, ends = text
    engine = CudaEngine(build_with("o200k"), **SMALL)
    options = {"bos": None, "eos": 7, "narrow": False, "special": "plain", "threads": 1}
    wanted, wanted_ends = engine.encoder.encode_flat(data, ends, **options)
    apart = np.repeat(data, 2)[::2]
    for given in (data, apart, cupy_on_host.asarray(data), cupy_on_host.Array(apart)):
        ids, token_ends = engine.encode_on_device(given, ends, eos=7)
        np.testing.assert_array_equal(ids.get(), wanted)
        np.testing.assert_array_equal(token_ends.get(), wanted_ends)
    ids, token_ends = engine.encode_flat(data, ends, **options)
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_array_equal(token_ends, wanted_ends)


@pytest.mark.long
@pytest.mark.skipif(bool(cupy_on_host.SANITIZE), reason="this is the run that the test starts")
def test_the_sanitizers_find_nothing():
    library = subprocess.run([COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(library).is_file():
        pytest.skip("no AddressSanitizer")
    environment = os.environ | {
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
        "PIECEMILL_SANITIZE": "address,undefined",
    }
    some = "o200k or while"  # all of them take minutes
    command = [sys.executable, "-m", "pytest", __file__, "-qxs", "-p", "no:cacheprovider", "-k", some]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
