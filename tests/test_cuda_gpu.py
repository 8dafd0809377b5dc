"""On a GPU: the ids of Piecemill's own encoder, whatever the text and however small the tables. Skipped without one.

Vocabularies are those of ../shared/vocabs, which is skipped with a reason where it is absent.
"""

import gzip
import random
import sysconfig
import threading
from pathlib import Path

import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="needs CuPy: pip install 'piecemill[cuda]'")

import piecemill as pm  # noqa: E402
from adversarial import adversarial  # noqa: E402
from pages import block, blocks  # noqa: E402
from piecemill.errors import PiecemillError  # noqa: E402
from piecemill.tokenizers.engines.cuda import CudaEngine, device  # noqa: E402
from piecemill.tokenizers.engines.piecemill import build_of  # noqa: E402

if (reason := device.missing()) is not None:
    pytest.skip(f"needs a CUDA device: {reason}", allow_module_level=True)

VOCABS = Path(__file__).parents[2] / "shared" / "vocabs"
FILES = {
    "gpt2": ("gpt2", None),
    "cl100k": ("cl100k_base.tiktoken", "cl100k"),
    "o200k": ("o200k_base.tiktoken", "o200k"),
    "qwen2": ("qwen.tiktoken.gz", "qwen2"),
    "qwen3.5": ("qwen3_6.tiktoken.gz", "qwen3.5"),
    "tekken": ("tekken.tiktoken.gz", "tekken"),
    "deepseek-v3": ("deepseek_v3.tokenizer.json.gz", None),
}
TINY = {"table_bits": 12, "pool_words": 1 << 14, "most_bytes": 1 << 16, "most_documents": 64}


def flat(documents):
    return np.frombuffer(b"".join(documents), np.uint8), np.cumsum([len(one) for one in documents]).astype(np.int64)


@pytest.fixture(scope="module")
def corpus():
    library = Path(sysconfig.get_paths()["stdlib"])
    python = [file.read_bytes() for file in sorted(library.rglob("*.py"))[:400]]
    return flat([*adversarial(1_500_000), *(one for one in python if _is_text(one))])


def _is_text(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vocabs")


@pytest.fixture(scope="module", params=FILES)
def build(request, folder):
    return build_named(request.param, folder)


def build_named(name, folder):
    file, split = FILES[name]
    path = VOCABS / file
    if not path.exists():
        pytest.skip("needs ../shared/vocabs")
    if path.name.endswith(".json.gz"):
        path, packed = folder / name / "tokenizer.json", path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.decompress(packed.read_bytes()))
    return build_of(pm.load_tokenizer(path, **({"pretokenizer": split} if split else {})).model)


def check(engine, data, ends, **more):
    options = {"bos": None, "eos": None, "narrow": False, "special": "plain", "threads": 0, **more}
    wanted = engine.encoder.encode_flat(data, ends, **options)
    found = engine.encode_flat(data, ends, **options)
    assert found[0].dtype == wanted[0].dtype
    np.testing.assert_array_equal(found[1], wanted[1])
    np.testing.assert_array_equal(found[0], wanted[0])


def test_ids_are_those_of_the_encoder(build, corpus):
    engine = CudaEngine(build)
    for _ in range(2):  # the second time from the table
        check(engine, *corpus)
    check(engine, *corpus, bos=1, eos=2)
    check(engine, *corpus, eos=2)


def test_tiny_tables_and_pools_are_flushed_and_exact(build, corpus):
    engine = CudaEngine(build, **TINY)
    check(engine, *corpus)
    check(engine, *corpus, bos=3)
    assert engine._device(narrow=False).flushes > 0


@pytest.mark.parametrize("sizes", [{"most_bytes": 1 << 20}, TINY], ids=["large", "flushed"])
@pytest.mark.parametrize("name", ["gpt2", "cl100k", "o200k"])
def test_keys_that_collide_are_resolved_by_the_host(name, sizes, folder, corpus):
    engine = CudaEngine(build_named(name, folder), weak_hash=True, **sizes)
    for _ in range(2):
        check(engine, *corpus)


def test_results_stay_what_they_are_while_others_are_made(folder):
    engine = CudaEngine(build_named("cl100k", folder))
    options = {"bos": None, "eos": None, "narrow": False, "special": "plain", "threads": 0}
    inputs = [flat([b"number %d " % number * 20_000]) for number in range(6)]
    results = [engine.encode_flat(*one, **options)[0][10:] for one in inputs]
    for one, ids in zip(inputs, results, strict=True):
        np.testing.assert_array_equal(ids, engine.encoder.encode_flat(*one, **options)[0][10:])


def test_narrow_ids(folder, corpus):
    check(CudaEngine(build_named("gpt2", folder)), *corpus, narrow=True, bos=5)


@pytest.mark.parametrize("special", ["parse", "plain", ["<|fim_prefix|>"]])
def test_special_tokens_in_texts(folder, special):
    rng = random.Random(1)
    pieces = [b"the cat", b" sat\n", b"<|endoftext|>", b"<|fim_prefix|>", b"<|endoftext", "é".encode()]
    documents = [b"".join(rng.choices(pieces, k=rng.randint(0, 60))) for _ in range(500)]
    engine = CudaEngine(build_named("cl100k", folder), most_bytes=1 << 16)
    check(engine, *flat(documents), special=special, bos=100257, eos=100258)


def test_documents_that_normalizing_changes(folder):
    documents = ["Ame\u0301lie e\u0301 café \u212b".encode() * 300, b"plain" * 9000, "नमस्ते".encode() * 200, b""]
    model = pm.Tokenizer.from_merges(np.zeros((0, 2), np.uint32), pretokenizer="gpt2").model
    build = build_of(model)
    build.keywords["normalizer"] = [("nfc",)]
    check(CudaEngine(build, most_bytes=1 << 17), *flat(documents))


def test_documents_larger_than_a_batch(folder):
    words = b" ".join(b"word%d" % number for number in range(40_000))
    documents = [b"small", words, b"y" * 300_000, "你".encode() * 90_000, words + b"<|endoftext|>" + words, b"last"]
    engine = CudaEngine(build_named("cl100k", folder), most_bytes=1 << 16)
    for more in ({}, {"special": "parse"}, {"bos": 1, "eos": 2}):
        check(engine, *flat(documents), **more)


def test_text_that_is_not_utf8_is_an_error_as_of_the_encoder(folder):
    engine = CudaEngine(build_named("gpt2", folder))
    for bad in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"a\x80"):
        data, ends = flat([b"fine " * 20_000, b"x" + bad + b"y", b"fine " * 20_000])
        options = {"bos": None, "eos": None, "narrow": False, "special": "plain", "threads": 1}
        with pytest.raises(PiecemillError) as wanted:
            engine.encoder.encode_flat(data, ends, **options)
        with pytest.raises(PiecemillError) as found:
            engine.encode_flat(data, ends, **options)
        assert str(found.value) == str(wanted.value)
    check(engine, *flat([b"and then it goes on " * 9_000]))


def test_ids_that_stay_on_the_device(folder, corpus):
    torch = pytest.importorskip("torch")
    data, ends = corpus
    engine = CudaEngine(build_named("o200k", folder))
    wanted, wanted_ends = engine.encoder.encode_flat(
        data, ends, bos=None, eos=7, narrow=False, special="plain", threads=0
    )
    there = torch.from_numpy(data.copy()).cuda()
    for make in (lambda: data, lambda: cupy.asarray(data), lambda: there, lambda: there.repeat_interleave(2)[::2]):
        ids, token_ends = engine.encode_on_device(make(), ends, eos=7)  # it does not hide `Invalid`
        np.testing.assert_array_equal(torch.from_dlpack(ids).cpu().numpy(), wanted)
        np.testing.assert_array_equal(token_ends.get(), wanted_ends)


def test_the_examples_of_the_page(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    pm.train_bpe(["some text and more of it"] * 9, vocab_size=270).save("tok")
    names = {}
    _, _, first = next(blocks("docs/gpu.md"))
    exec(first, names)
    assert names["tok"].engine.name == "cuda"
    wanted, _ = names["tok"].encode_batch(["some text", "and more of it"], eos=names["tok"].id_of("<|endoftext|>"))
    exec(block("docs/gpu.md", "import numpy"), names)
    assert names["tensor"].is_cuda
    np.testing.assert_array_equal(names["tensor"].cpu().numpy(), wanted)


def test_several_encoders_and_threads_at_once(folder, corpus):
    engines = [CudaEngine(build_named(name, folder), most_bytes=1 << 20) for name in ("gpt2", "cl100k")]
    failed = []

    def work(engine):
        try:
            for _ in range(3):
                check(engine, *corpus)
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(engine,)) for engine in engines * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


def test_batches_from_text_are_the_same_on_both(folder, tmp_path):
    torch = pytest.importorskip("torch")
    from piecemill.loading.torch import text_batches

    rng = random.Random(2)
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(" ".join(f"word{rng.randrange(999)}" for _ in range(60_000)))
    path, split = FILES["cl100k"]
    if not (VOCABS / path).exists():
        pytest.skip("needs ../shared/vocabs")
    here = pm.load_tokenizer(VOCABS / path, pretokenizer=split)
    there = pm.load_tokenizer(VOCABS / path, pretokenizer=split, engine="cuda")
    assert there.engine.name == "cuda"
    options = {"window": 512, "batch_size": 4, "epochs": 2, "seed": 5, "boundaries": True, "block_bytes": 1 << 18}
    mine = list(text_batches(tmp_path, there, device="cuda", **options))
    theirs = list(text_batches(tmp_path, here, **options))
    assert len(mine) == len(theirs) > 20
    for one, other in zip(mine, theirs, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            got = one[name].cpu() if isinstance(value, torch.Tensor) else one[name]
            assert torch.equal(got, value) if isinstance(value, torch.Tensor) else got == value, name


def test_prepare_reads_into_pinned_memory_and_writes_the_same_bytes(tmp_path, monkeypatch):
    path, split = FILES["cl100k"]
    if not (VOCABS / path).exists():
        pytest.skip("needs ../shared/vocabs")
    rng, source, seen = random.Random(3), tmp_path / "text.jsonl", []
    source.write_text(
        "".join(f'{{"text": "{" ".join(f"word{rng.randrange(9999)}" for _ in range(50))}"}}\n' for _ in range(30_000))
    )
    upload = device.CudaDevice._copy_in

    def seeing(self, slot, data):
        seen.append(device.is_pinned(data))
        upload(self, slot, data)

    monkeypatch.setattr(device.CudaDevice, "_copy_in", seeing)
    made = {}
    for engine in ("piecemill", "cuda"):
        out = tmp_path / engine
        pm.prepare(source, pm.load_tokenizer(VOCABS / path, pretokenizer=split, engine=engine), out=out)
        files = sorted(file for file in out.rglob("*") if file.is_file() and file.name != "timing.json")
        made[engine] = {str(file.relative_to(out)): file.read_bytes() for file in files}
    assert made["cuda"] == made["piecemill"]
    assert seen
    assert all(seen)
