"""`check` tells broken from not lossless: sound shards of any tokenizer are sound."""

import json

import numpy as np
import pytest

import piecemill as pm
from corpora import small_tokenizer
from piecemill.shards.check import check_shards

tokenizers = pytest.importorskip("tokenizers")

TEXTS = ["Hello world", "the Cat sat  on the mat", "naïve café", "\u2581 is a lower block", "x y\tz"]


def wordpiece(path):
    words = ["[UNK]", "hello", "world", "the", "cat", "sat", "on", "mat", "##s", "caf", "##e", "naive", "x", "y", "z"]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]")
    )
    made.normalizer = tokenizers.normalizers.BertNormalizer()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece()
    made.save(str(path))


def llama(path):
    vocab = (
        {"<unk>": 0} | {f"<0x{byte:02X}>": 1 + byte for byte in range(256)} | {"\u2581": 257, "a": 258, "\u2581a": 259}
    )
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [("\u2581", "a")], byte_fallback=True, unk_token="<unk>"))
    prepend, spaces = tokenizers.normalizers.Prepend("\u2581"), tokenizers.normalizers.Replace(" ", "\u2581")
    made.normalizer = tokenizers.normalizers.Sequence([prepend, spaces])
    steps = tokenizers.decoders
    made.decoder = steps.Sequence(
        [steps.Replace("\u2581", " "), steps.ByteFallback(), steps.Fuse(), steps.Strip(" ", 1, 0)]
    )
    made.save(str(path))


def lowercase_bytes(path):
    small_tokenizer().save(path.parent / "bytes")
    data = json.loads((path.parent / "bytes/tokenizer.json").read_text())
    path.write_text(json.dumps(data | {"normalizer": {"type": "Lowercase"}}))


@pytest.mark.parametrize("make", [wordpiece, llama, lowercase_bytes])
def test_sound_shards_of_a_tokenizer_that_is_not_lossless_are_sound(tmp_path, make):
    make(tmp_path / "tokenizer.json")
    tok = pm.load_tokenizer(tmp_path / "tokenizer.json")
    assert not tok.exact
    pm.prepare(TEXTS, tok, out=tmp_path / "out", eos="none")
    found = check_shards(tmp_path / "out")
    assert found.problems == []
    assert found.decoded + found.encoded_again + found.not_compared == len(TEXTS)
    assert found.encoded_again or make is llama
    assert found.sound
    assert ("could not be compared" in str(found)) == bool(found.not_compared)


def test_a_file_that_changed_is_a_problem_whatever_the_tokenizer(tmp_path):
    wordpiece(tmp_path / "tokenizer.json")
    pm.prepare(TEXTS, tmp_path / "tokenizer.json", out=tmp_path / "out", eos="none")
    (path,) = (tmp_path / "out/all").glob("*.tokens.npy")
    array = np.load(path, mmap_mode="r+")
    array[0] ^= 1
    array.flush()
    found = check_shards(tmp_path / "out")
    assert not found.sound
    assert "was changed: xxh3" in str(found.problems[0])


def test_what_is_exact_is_compared_with_the_text_alone(tmp_path):
    small_tokenizer().save(tmp_path / "tok")
    assert pm.load_tokenizer(tmp_path / "tok").exact
    hf = tokenizers.Tokenizer.from_file(str(tmp_path / "tok/tokenizer.json"))
    hf.add_tokens(["naïve"])
    hf.save(str(tmp_path / "more.json"))
    tok = pm.load_tokenizer(tmp_path / "more.json")
    assert tok.exact
    pm.prepare(TEXTS, tok, out=tmp_path / "out")
    found = check_shards(tmp_path / "out")
    assert (found.problems, found.decoded) == ([], len(TEXTS))


def test_one_cause_is_one_line(tmp_path):
    tok = small_tokenizer()
    pm.prepare([f"text {n}" for n in range(300)], tok, out=tmp_path / "out", splits="a=1,b=1")
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    (tmp_path / "out/plan.json").write_text(json.dumps(plan | {"eos": 7}, indent=2) + "\n")
    found = check_shards(tmp_path / "out")
    lines = str(found).splitlines()
    assert len(lines) == 2  # plan.json itself, and what follows from it
    assert "not with eos, 7" in lines[1]
    assert "The same is wrong with 299 other documents" in lines[1]
