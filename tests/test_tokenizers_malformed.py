"""Tokenizer files that are broken in any way: a TokenizerError that names the file, never a traceback or an abort."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import piecemill as pm
from corpora import small_tokenizer
from hf import needs_trainers
from models import AS_IT_IS, sentencepiece_model, tokenizer_json
from piecemill.errors import PiecemillError, TokenizerError
from piecemill.tokenizers import load_tokenizer
from piecemill.tokenizers.listing import tokens_of

FUZZ = r"""
import copy, json, random, resource, sys
from pathlib import Path
from piecemill.errors import PiecemillError
from piecemill.tokenizers import load_tokenizer, resolve_bos, resolve_eos

folder, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
bases = sorted(path for path in folder.iterdir() if path.is_file())
TEXTS = ["", "a", "hello world's 12  \n\t x", "日本 é", "<|endoftext|> <s> [UNK] <0x41>", "\x00\x7f", "aa" * 40]
VALUES = [None, True, 0, 1, -1, 2**31, 2**64, 10**30, 0.5, "", "a", "\x00", "Ġ", "\ud800", [], {}, [[]], [1, 2],
          {"a": 1}, {"type": "BPE"}, {"type": "Sequence", "pretokenizers": []}, [["a", "b"]], "(",
          {"Regex": "(?:a|a)*b"}]

def nodes(data, path=()):
    yield path
    keys = data if isinstance(data, dict) else range(min(len(data), 30)) if isinstance(data, list) else ()
    for number, key in enumerate(keys):
        if number < 60:
            yield from nodes(data[key], (*path, key))

def at(data, path):
    for key in path:
        data = data[key]
    return data

def mutated_json(content):
    data = json.loads(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        paths = [path for path in nodes(data) if path]
        path = rng.choice([p for p in paths if len(p) < 3 or p[0] != "model"] if rng.random() < 0.6 else paths)
        parent, how = at(data, path[:-1]), rng.random()
        if how < 0.6: parent[path[-1]] = copy.deepcopy(rng.choice(VALUES))
        elif how < 0.8: del parent[path[-1]]
        else: parent[path[-1]] = copy.deepcopy(at(data, rng.choice(paths)))
    return json.dumps(data).encode()

def mutated_bytes(content):
    data = bytearray(content)
    for _ in range(rng.choice([1, 2, 5, 20])):
        place, how = rng.randrange(len(data)), rng.random()
        if how < 0.5: data[place] = rng.randrange(256)
        elif how < 0.7: del data[place : place + rng.choice([1, 10, 100])]
        elif how < 0.9: data[place:place] = bytes(rng.choices(range(256), k=3))
        else: del data[place:]
        data = data or bytearray(b"x")
    return bytes(data)

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
work = folder / "work"
work.mkdir(exist_ok=True)
counts = {"loaded": 0, "refused": 0}
for number in range(count):
    base = rng.choice(bases)
    file = work / {".json": "tokenizer.json", ".model": "m.model", ".tiktoken": "r.tiktoken"}[base.suffix]
    mutate = mutated_json if base.suffix == ".json" and rng.random() < 0.9 else mutated_bytes
    file.write_bytes(mutate(base.read_bytes()))
    (folder / "work" / "last").write_text(f"{seed} {number} {base.name}")
    try:
        tokenizer = load_tokenizer(file, **({"pretokenizer": "gpt2"} if base.suffix == ".tiktoken" else {}))
        ids, ends = tokenizer.encode_batch(TEXTS)
        assert not len(ids) or int(ids.max()) < tokenizer.vocab_size, (number, base)
        tokenizer.identity, tokenizer.special_tokens, resolve_eos(tokenizer, "auto"), resolve_bos(tokenizer, "auto")
        tokenizer.decode(ids)
        counts["loaded"] += 1
    except PiecemillError:
        counts["refused"] += 1
assert min(counts.values()) > 0, counts
print("done")
"""


@needs_trainers
@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_tokenizers_are_loaded_or_refused_and_nothing_else(tmp_path, seed):
    bases(tmp_path)
    made = subprocess.run(
        [sys.executable, "-c", FUZZ, str(tmp_path), str(seed), "120"], capture_output=True, text=True, timeout=300
    )
    assert (made.returncode, made.stdout) == (0, "done\n"), (tmp_path / "work/last").read_text() + made.stderr[-3000:]


def bases(folder: Path) -> None:
    small_tokenizer().save(folder / "saved")
    (folder / "byte.json").write_bytes((folder / "saved" / "tokenizer.json").read_bytes())
    (folder / "ranks.tiktoken").write_bytes((folder / "saved" / "ranks.tiktoken").read_bytes())
    for name in ("word_piece", "unigram", "bpe_with_digits"):
        (folder / f"{name}.json").write_text(tokenizer_json(name), encoding="utf-8")
    (folder / "bpe.model").write_bytes(sentencepiece_model("bpe", **AS_IT_IS))
    (folder / "unigram.model").write_bytes(sentencepiece_model("unigram"))


@pytest.mark.parametrize("wrong", [2**31, -1, 10**30, "7", None, 1.5, True])
def test_an_id_that_no_vocabulary_has_is_refused(tmp_path, wrong):
    small_tokenizer().save(tmp_path / "saved")
    data = json.loads((tmp_path / "saved" / "tokenizer.json").read_text())
    data["model"]["vocab"]["a"] = wrong
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: the id of 'a' is "):
        load_tokenizer(tmp_path / "tokenizer.json").encode("a")


def test_nested_brackets_and_a_rank_beyond_all_ids_are_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("[" * 100_000)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: could not be read as JSON"):
        load_tokenizer(tmp_path / "tokenizer.json")
    small_tokenizer().save(tmp_path / "saved")
    lines = (tmp_path / "saved" / "ranks.tiktoken").read_bytes().splitlines()
    lines[-1] = lines[-1].split()[0] + b" 99999999999999999999"
    (tmp_path / "r.tiktoken").write_bytes(b"\n".join(lines))
    with pytest.raises(TokenizerError, match=r"r\.tiktoken: the id of .* is 99999999999999999999"):
        load_tokenizer(tmp_path / "r.tiktoken", pretokenizer="gpt2")


@needs_trainers
def test_what_ends_the_process_inside_hf_is_refused_before(tmp_path):
    data = json.loads(tokenizer_json("bpe_with_digits"))
    data["model"]["continuing_subword_prefix"] = "("
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.json: the merge with .* no room for continuing_subword_prefix"
    ):
        load_tokenizer(tmp_path / "tokenizer.json")


@needs_trainers
def test_a_text_that_a_tokenizer_cannot_encode_is_an_error_of_the_tokenizer(tmp_path):
    data = json.loads(tokenizer_json("unigram"))
    data["model"]["unk_id"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: HF tokenizers .* cannot encode"):
        tokenizer.encode("\U000e0001")


@needs_trainers
@pytest.mark.parametrize("broken", [{"decoder": {"type": "Sequence", "decoders": [7]}}, {"pre_tokenizer": "x"}])
def test_what_only_decoding_reads_is_an_error_of_the_file_too(tmp_path, broken):
    data = json.loads(tokenizer_json("unigram")) | broken
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: it is malformed|HF tokenizers .* refused it"):
        _ = tokenizer.exact, tokens_of(tokenizer)


@pytest.mark.parametrize("endless", ["/dev/zero", "pipe"])
def test_a_device_or_a_pipe_is_no_tokenizer_file(tmp_path, endless):
    small_tokenizer().save(tmp_path / "saved")
    os.mkfifo(tmp_path / "pipe")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        folder = tmp_path / name
        shutil.copytree(tmp_path / "saved", folder)
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / endless)  # an absolute path stays as it is
        with pytest.raises(TokenizerError, match=f"{name}: could not be read"):
            load_tokenizer(folder)


def test_links_in_a_circle_are_no_place_to_save_at(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(TokenizerError, match=str(tmp_path / "a")):
        small_tokenizer().save(tmp_path / "a")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("model", "merges", 0, 1), [1]),
        (("model", "merges", 0), 5),
        (("pre_tokenizer", "pretokenizers"), 5),
        (("pre_tokenizer", "pretokenizers", 0, "pattern"), 5),
        (("added_tokens", 0, "content"), 5),
        (("model", "unk_token"), []),
    ],
)
def test_a_malformed_file_to_go_on_from_or_to_prune_is_named(tmp_path, path, value):
    pm.train_bpe(["low lower lowest"] * 9, vocab_size=262, pretokenizer="cl100k").save(tmp_path / "tok")
    data = json.loads((tmp_path / "tok/tokenizer.json").read_text())
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (tmp_path / "bad.json").write_text(json.dumps(data))
    for run in (
        lambda: pm.train_bpe(["low lower lowest"], start=tmp_path / "bad.json", vocab_size=264),
        lambda: pm.prune(tmp_path / "bad.json", counts=[1] * 262, vocab_size=260),
    ):
        with suppress(PiecemillError):  # what neither of them needs is no matter
            run()
