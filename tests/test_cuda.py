"""The GPU engine without a GPU: splits compiled for the host, kernels compiled, the pipeline on a stand-in.

What runs on a GPU is in test_cuda_gpu.py.
"""

import ctypes
import glob
import random
import re
import shutil
import subprocess
import sysconfig
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import numpy as np
import pytest

import piecemill as pm
from pages import block
from piecemill import _core
from piecemill.tokenizers.engines import cuda
from piecemill.tokenizers.engines.cuda import CudaEngine, kernels, tables
from piecemill.tokenizers.engines.cuda.pipeline import Counts, Invalid, Words, cut_places, encode
from piecemill.tokenizers.engines.cuda.pool import Pool
from piecemill.tokenizers.engines.piecemill import build_of
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
    kinds, sure = np.zeros(len(text) + 256, np.uint8), np.zeros(len(text) + 1, np.uint8)
    place = lambda array: array.ctypes.data_as(ctypes.c_void_p)  # noqa: E731
    here = (place(ends), len(ends), place(pages[0]), place(pages[1]), place(kinds), place(sure))
    valid = library.classify(tables.SPLITS.index(split), text + bytes(64), len(text), *here)
    return valid, text, kinds, sure


def cut(library, pages, documents, split):
    valid, text, kinds, sure = classified(library, pages, documents, split)
    assert valid
    ends = np.zeros(len(text) + 1, np.uint32)
    kept, found = (array.ctypes.data_as(ctypes.c_void_p) for array in (kinds, sure))
    args = (text + bytes(64), kept, found, len(text), ends.ctypes.data_as(ctypes.c_void_p))
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
    length = rng.randint(0, 16) if rng.random() < 0.9 else rng.randint(0, 90)
    return "".join(rng.choice(some) for _ in range(length))


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
def test_long_runs_of_one_class_in_the_splits_of_the_gpu(on_host, pages, split):
    rng, letters = random.Random(4), ["a", "aB", "7", "7a", " ", "\n", " \n", "!", "é", "你", "\u0301", "7٣", "!/\n"]
    for _ in range(300):
        runs = ["".join(rng.choices(rng.choice(letters), k=rng.randint(1, 300))) for _ in range(rng.randint(2, 8))]
        documents = [run.encode() for run in runs] if rng.random() < 0.5 else ["".join(runs).encode()]
        ends, sure = cut(on_host, pages, documents, split)
        assert ends == wanted(documents, split), documents
        assert set(sure) <= {0, *ends}, documents


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


@pytest.mark.parametrize("split", tables.SPLITS)
def test_four_characters_at_once_surely_start_where_each_does(on_host, pages, split):
    index, blocks = pages
    ascii_classes = blocks.reshape(-1, 256)[index[0]].copy()
    place = ascii_classes.ctypes.data_as(ctypes.c_void_p)
    assert on_host.four_at_once(tables.SPLITS.index(split), place) == 0


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
        assert classified(on_host, pages, [b"x", text, b"y"])[0] == expected, text


# No line of the sources depends on the architecture, so one compiles all splits, and the others the two longest.
@pytest.mark.parametrize(
    ("architecture", "split"),
    [*(("sm_90", split) for split in tables.SPLITS)]
    + [(architecture, split) for architecture in ("sm_80", "sm_100") for split in ("o200k", "deepseek-v3")],
)
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


class StandIn:
    """A device that is none: it encodes with `_core.Encoder`, and leaves to the host what it is told to."""

    slots = 4

    def __init__(self, engine, *, most_bytes=200, most_documents=5, longest=9, trouble=None):
        self.engine, self.most_bytes, self.most_documents = engine, most_bytes, most_documents
        self.longest, self.trouble = longest, trouble or random.Random(0)
        self.added, self.batches, self.flushes, self.running = [], {}, 0, set()

    def look_for(self, added):
        self.added = added

    def wants_flush(self):
        return self.trouble.random() < 0.2

    def flush(self):
        assert not self.running, "a batch is between its phases"
        self.flushes += 1

    def ends_of(self, documents):
        return np.zeros(documents, np.int64)

    def upload(self, number, data, ends, start, bos, eos):
        assert 0 < len(ends) <= self.most_documents
        assert int(ends[-1]) - start <= self.most_bytes
        assert number not in self.running, "the slot holds a batch that was started"
        text = bytes(data[start : int(ends[-1])])
        self.batches[number] = {"text": text, "ends": ends - start, "bos": bos, "eos": eos, "patches": {}}

    def start(self, number):
        self.running.add(number)
        batch = self.batches[number]
        starts = [0, *batch["ends"][:-1].tolist()]
        batch["documents"] = [batch["text"][a:b] for a, b in zip(starts, batch["ends"].tolist(), strict=True)]

    def found(self, number):
        batch, random_one = self.batches[number], self.trouble
        try:
            for document in batch["documents"]:
                document.decode()
        except UnicodeDecodeError:
            return Counts(0, invalid=True)
        words, at = [], 0
        for document in batch["documents"]:
            ends = [0, *_core.split_text(document.decode(), "cl100k").tolist()]
            words += [(at + a, b - a) for a, b in pairwise(ends)]
            at += len(document)
        batch["words"] = words
        batch["longs"] = [word for word in words if word[1] > self.longest]
        batch["lost"] = [word for word in words if word[1] <= self.longest and random_one.random() < 0.05]
        with_added = [d for d, text in enumerate(batch["documents"]) if any(one in text for one in self.added)]
        return Counts(
            0,
            words=as_words(batch["longs"]),
            documents=np.array(with_added) if with_added else None,
            overflow=random_one.random() < 0.1,
        )

    def patch(self, number, at, ids, ends):
        starts = [0, *ends[:-1].tolist()]
        for place, a, b in zip(at.tolist(), starts, ends.tolist(), strict=True):
            self.batches[number]["patches"][place] = ids[a:b]

    def finish(self, number, *, again=False):
        batch = self.batches[number]
        if not again:
            self.running.remove(number)
            batch["flushes"] = self.flushes
        assert batch["flushes"] == self.flushes, "its words are no longer in the table"

    def give_up(self, number):
        self.running.remove(number)
        del self.batches[number]

    def done(self, number):
        batch = self.batches[number]
        missing = [word for word in batch["lost"] if word[0] not in batch["patches"]]
        if missing:
            if overflow := self.trouble.random() < 0.2:
                del self.batches[number]
            return Counts(0, words=as_words(missing), overflow=overflow)
        batch["ids"], batch["token_ends"] = self.results(batch)
        edges = (batch["bos"] is not None) + (batch["eos"] is not None)
        return Counts(len(batch["ids"]) - edges * len(batch["documents"]))

    def results(self, batch):
        ids, ends, words = [], [], dict(batch["words"])
        at = 0
        for document in batch["documents"]:
            ids += [] if batch["bos"] is None else [batch["bos"]]
            stop = at + len(document)
            while at < stop:
                length = words[at]
                assert length <= self.longest or at in batch["patches"], "a long word was not patched"
                own = self.engine.words().encode(batch["text"][at : at + length].decode(), "plain")
                ids += list(batch["patches"].get(at, own))
                at += length
            ids += [] if batch["eos"] is None else [batch["eos"]]
            ends.append(len(ids))
        return np.array(ids, np.uint32), np.array(ends, np.int64)

    def download(self, number, ids, ends):
        batch = self.batches.pop(number)
        ids[:] = batch["ids"]
        ends[:] = batch["token_ends"]

    def wait(self):
        pass


def as_words(words):
    if not words:
        return None
    return Words(*(np.array(column, np.uint32) for column in zip(*words, strict=True)))


class Memory:
    """Text and ids in lists."""

    def __init__(self, data):
        self.data, self.ids, self.tokens = data, np.zeros(4 * len(data) + 1000, np.uint32), 0

    def whole(self):
        return self.data

    def read(self, start, end):
        return self.data[start:end]

    def room(self, tokens):
        self.tokens += tokens
        return self.ids[self.tokens - tokens : self.tokens]

    def append_ids(self, ids):
        self.room(len(ids))[:] = ids


@pytest.fixture(scope="module")
def engine():
    tokenizer = pm.train_bpe(
        ["the cat sat on the mat, 's naïve 你好 1234 the"] * 9, vocab_size=330, pretokenizer="cl100k"
    )
    return CudaEngine(build_of(tokenizer.model))


def on_stand_in(engine, device, data, ends, *, special="plain", **edges):
    memory, added = Memory(data), engine.tables.looked_for(special)
    token_ends = encode(device, cuda._HostEncoder(engine, special, 1), memory, ends, memory, added=added, **edges)
    assert not device.running
    return memory.ids[: memory.tokens], token_ends


def flat(texts):
    data = np.frombuffer(b"".join(texts), np.uint8)
    return data, np.cumsum([len(text) for text in texts]).astype(np.int64)


@pytest.mark.parametrize("seed", range(40))
def test_the_pipeline_gives_the_ids_of_the_encoder_whatever_the_device_leaves(engine, seed):
    rng = random.Random(seed)
    pieces = ["the cat", " sat\n", "naïve ", "你好", "12345 ", "'s", "x" * 30, "<|endoftext|>", "", " \n\n "]
    texts = ["".join(rng.choice(pieces) for _ in range(rng.choice([0, 1, 5, 20, 150]))).encode() for _ in range(30)]
    data, ends = flat(texts)
    edges = rng.choice([{"bos": None, "eos": None}, {"bos": 7, "eos": None}, {"bos": 7, "eos": 8}])
    special = rng.choice(["plain", "parse", ["<|endoftext|>"]])
    device = StandIn(engine, trouble=rng, most_bytes=rng.choice([60, 200, 1000]))
    wanted = engine.encoder.encode_flat(data, ends, **edges, narrow=False, special=special, threads=1)
    found = on_stand_in(engine, device, data, ends, special=special, **edges)
    assert found[0].tolist() == wanted[0].tolist()
    assert found[1].tolist() == wanted[1].tolist()


def test_a_document_larger_than_a_batch_is_cut_where_words_surely_start():
    text = Memory(np.frombuffer(("word " * 50 + "x" * 20 + "\nline\n" * 9).encode(), np.uint8))
    cuts = cut_places(text, 0, len(text.data), 64)
    assert cuts[-1] == len(text.data)
    assert np.diff(cuts, prepend=0).max() <= 64
    assert all(chr(text.data[cut]) in " \n" for cut in cuts[:-1])
    assert cut_places(Memory(np.frombuffer(b"y" * 200, np.uint8)), 0, 200, 64) is None
    assert cut_places(Memory(np.frombuffer("你".encode() * 99, np.uint8)), 0, 297, 64) is None


def test_a_document_is_not_cut_inside_an_added_token():
    tokenizer = pm.train_bpe(["the cat sat on the mat"], vocab_size=270, special_tokens=["<two words>"])
    engine = CudaEngine(build_of(tokenizer.model))
    edges = {"bos": None, "eos": None}
    for before in range(80, 130):
        data, ends = flat([b"the" * before + b"<two words>" + b"cat" * 150])
        wanted = engine.encoder.encode_flat(data, ends, **edges, narrow=False, special="parse", threads=1)
        found = on_stand_in(engine, StandIn(engine, most_bytes=500), data, ends, special="parse", **edges)
        assert found[0].tolist() == wanted[0].tolist(), before


def test_invalid_utf8_ends_the_run_and_leaves_the_device_empty(engine):
    data, ends = flat([b"the cat " * 9, b"\xff", b"dog"])
    device = StandIn(engine)
    with pytest.raises(Invalid):
        on_stand_in(engine, device, data, ends, bos=None, eos=None)
    assert not device.running


def test_the_tables_hold_every_pair_and_every_whole_word(engine):
    made = engine.tables
    data, ends, ids, halves, itself = engine.encoder.symbols()
    pairs = {int(entry) >> 20: int(entry) & 0xFFFFF for entry in made.pairs[made.pairs != 0xFFFFFFFFFFFFFFFF]}
    count = len(ids)
    wanted = {(int(a) << 20 | int(b)): i for i, (a, b) in enumerate(halves.tolist()) if a < count and a != i}
    assert pairs == wanted
    for key, symbol in wanted.items():  # as the kernel probes
        at = (key * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) >> made.pair_shift
        while int(made.pairs[at]) >> 20 != key:
            assert made.pairs[at] != 0xFFFFFFFFFFFFFFFF
            at = (at + 1) % len(made.pairs)
        assert int(made.pairs[at]) & 0xFFFFF == symbol
    starts = [0, *made.word_ends[:-1].tolist()]
    words = [bytes(made.word_bytes[a:b]) for a, b in zip(starts, made.word_ends.tolist(), strict=True)]
    assert len(set(words)) == len(words) == int(itself.sum())
    symbol_starts = [0, *ends[:-1].tolist()]
    texts = [bytes(data[a:b]) for a, b in zip(symbol_starts, ends.tolist(), strict=True)]
    assert {word: int(i) for word, i in zip(words, made.word_ids, strict=True)}.items() <= dict(
        zip(texts, ids.tolist(), strict=True)
    ).items()


def test_without_a_gpu_the_processor_encodes_and_the_reason_is_given(tmp_path):
    if cuda.can_encode(pm.Tokenizer.from_merges(np.zeros((0, 2), np.uint32), pretokenizer="gpt2").model) is None:
        pytest.skip("this machine has a GPU")
    pm.Tokenizer.from_merges(np.zeros((0, 2), np.uint32), pretokenizer="gpt2").save(tmp_path / "tok")
    with pytest.warns(UserWarning, match="encodes instead"):
        tokenizer = pm.load_tokenizer(tmp_path / "tok", engine="cuda")
    assert tokenizer.engine.name == "piecemill"
    assert "cuda was requested" in tokenizer.engine.why


def test_what_the_gpu_cannot_do_is_said():
    none = pm.Tokenizer.from_merges(np.zeros((0, 2), np.uint32), pretokenizer="none")
    assert "none" in tables.why_not(build_of(none.model))
    own = pm.Tokenizer.from_merges(np.zeros((0, 2), np.uint32), pretokenizer=r"\w+|\W+")
    assert "pretokenizers" in tables.why_not(build_of(own.model))
    dna = pm.train_bpe(["ACGT" * 9], vocab_size=20, pretokenizer="gpt2", alphabet="ACGT", special_tokens=[])
    assert "some bytes" in tables.why_not(build_of(dna.model))
    named = pm.Tokenizer.from_merges(np.zeros((0, 2), np.uint32), pretokenizer="o200k")
    assert tables.why_not(build_of(named.model)) is None


def test_a_buffer_is_used_again_when_no_array_over_it_is_left():
    made = []

    def allocate(size):
        made.append(np.zeros(size, np.uint8))
        return made[-1]

    pool = Pool(allocate)
    ids = pool.lend(pool.take_buffer(1000), np.uint32, 5)
    ids[:] = range(5)
    part = ids[1:3].view(np.uint16).reshape(2, 2)
    del ids
    again = pool.lend(pool.take_buffer(1000), np.uint16, 3)  # the first one is still shown by `part`
    again[:] = 9
    assert part.tolist() == [[1, 0], [2, 0]]
    assert len(made) == 2
    del part
    third = pool.take_buffer(900)
    assert np.shares_memory(third, made[0])
    assert len(made) == 2
    assert len(pool.take_buffer(1)) == 64  # nothing is spare: `again` holds the other one
    assert again.tolist() == [9, 9, 9]


def fields_of(struct):
    """The fields of a struct of encode.cu, in order, with their number of elements."""
    source = re.sub(r"//[^\n]*", "", (KERNELS / "encode.cu").read_text())
    body = re.search(rf"struct {struct} {{(.*?)}};", source, re.DOTALL)[1]
    sizes = {"GROUPS": 4}
    found = []
    for line in filter(str.strip, body.split(";")):
        names = re.sub(r"^\s*(const )?\w+\s*\*?", "", line)
        for name in names.split(","):
            name, _, count = re.sub(r"[\s*]", "", name).partition("[")
            found.append((name, sizes.get(count.rstrip("]"), count.rstrip("]")) or 1))
    return [(name, int(count)) for name, count in found]


def test_records_of_the_host_are_those_of_the_kernels():
    for struct, record in (("Counts", kernels.COUNTS), ("Batch", kernels.BATCH)):
        fields = [(name, record[name].shape[0] if record[name].shape else 1) for name in record.names]
        assert fields_of(struct) == fields
    slot = [(name, 1) for name in kernels.SLOT.names if not name.startswith("winners")]
    at = kernels.SLOT.names.index("winners0")
    slot[at:at] = [("winners", 4)]
    slot[-1] = ("added_first", 4)
    assert fields_of("Slot") == slot
    source = (KERNELS / "encode.cu").read_text()
    assert f"TILE = {kernels.TILE};" in source
    assert re.search(rf"LONGEST = {kernels.LONGEST};", source)


def test_the_example_of_ids_on_the_device_calls_what_the_engine_has():
    tok = pm.train_bpe(["some text and more of it"] * 9, vocab_size=270)
    data, ends = np.frombuffer(b"some textand more of it", np.uint8), np.array([9, 23])
    options = {"bos": None, "eos": tok.id_of("<|endoftext|>"), "narrow": False, "special": "plain", "threads": 1}
    wanted = build_of(tok.model)().encode_flat(data, ends, **options)
    engine = create_autospec(CudaEngine, instance=True)  # checks the arguments
    engine.encode_on_device.return_value = wanted
    names = {"tok": SimpleNamespace(engine=engine, id_of=tok.id_of)}
    exec(block("docs/gpu.md", "import numpy"), names)
    assert names["tensor"].tolist() == wanted[0].tolist()
    given = engine.encode_on_device.call_args
    np.testing.assert_array_equal(given.args[0], data)
    assert (given.args[1].tolist(), given.kwargs) == ([9, 23], {"eos": options["eos"]})
