"""Saved tokenizers: four libraries read them and agree, and a save that fails leaves what was there."""

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiktoken

from hf import HF, OWN_REGEX, needs_trainers
from piecemill import files
from piecemill.errors import TokenizerError
from piecemill.tokenizers import Tokenizer, load_tokenizer
from piecemill.tokenizers.pretokenizers import PATTERNS, WHOLE_DOCUMENT
from vocabularies import CUSTOM, END, NASTY, SPLITS, library_texts, tokenizer

NAMES = [*SPLITS[:4], "custom"]
TEXTS = [*NASTY, *library_texts(35)[25:]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    for pretokenizer, name in zip(SPLITS, NAMES, strict=True):
        tokenizer(pretokenizer).save(folder / name)
    return dict(zip(SPLITS, (folder / name for name in NAMES), strict=True))


# Who loads it


@pytest.mark.parametrize("pretokenizer", SPLITS if OWN_REGEX else SPLITS[:4], ids=NAMES if OWN_REGEX else NAMES[:4])
def test_hf_tokenizers_gives_the_same_ids(pretokenizer, saved):
    hf = HF((saved[pretokenizer] / "tokenizer.json").read_text(encoding="utf-8"))
    tok = tokenizer(pretokenizer)
    assert hf.ids(TEXTS) == [tok.encode(t, special="parse").tolist() for t in TEXTS]
    assert hf.decode(tok.encode(TEXTS[-1]).tolist()) == TEXTS[-1]
    assert hf.ids(TEXTS, plain=True) == [tok.encode(t).tolist() for t in TEXTS]


@needs_trainers  # and so does transformers
@pytest.mark.parametrize("pretokenizer", SPLITS, ids=NAMES)
def test_transformers_gives_the_same_ids(pretokenizer, saved, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import transformers

    auto = transformers.AutoTokenizer.from_pretrained(str(saved[pretokenizer]))
    tok = tokenizer(pretokenizer)
    assert auto(TEXTS)["input_ids"] == [tok.encode(t, special="parse").tolist() for t in TEXTS]
    plain = [auto(t, split_special_tokens=True)["input_ids"] for t in TEXTS[:25]]
    assert plain == [tok.encode(t).tolist() for t in TEXTS[:25]]
    assert (auto.eos_token, auto.eos_token_id, auto.bos_token, auto.unk_token) == (END, 0, None, None)
    assert len(auto) == tok.vocab_size
    assert auto.decode(tok.encode("a , b .  c 's")) == "a , b .  c 's"


@pytest.mark.parametrize("pretokenizer", ["gpt2", "cl100k", "o200k"])
def test_gigatoken_gives_the_same_ids(pretokenizer, saved):
    gigatoken = pytest.importorskip("gigatoken")
    theirs = gigatoken.Tokenizer(str(saved[pretokenizer]))
    tok = tokenizer(pretokenizer)
    assert theirs.vocab_size == tok.vocab_size
    assert [theirs.encode(t).tolist() for t in TEXTS] == [tok.encode(t, special="parse").tolist() for t in TEXTS]


@pytest.mark.parametrize("pretokenizer", ["none", CUSTOM], ids=["none", "custom"])
def test_gigatoken_refuses_what_it_cannot_express_rather_than_give_other_ids(pretokenizer, saved):
    gigatoken = pytest.importorskip("gigatoken")
    with pytest.raises(RuntimeError, match=r"no Split regex found|no fast pretokenizer"):
        gigatoken.Tokenizer(str(saved[pretokenizer]))


@pytest.mark.parametrize("pretokenizer", SPLITS, ids=NAMES)
def test_tiktoken_gives_the_same_ids_less_the_special_tokens(pretokenizer, saved):
    lines = (saved[pretokenizer] / "ranks.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    assert list(ranks.values()) == list(range(len(lines)))
    tok = tokenizer(pretokenizer)
    pattern = (
        json.loads((saved[pretokenizer] / "training.json").read_text(encoding="utf-8"))["pattern"] or WHOLE_DOCUMENT
    )
    encoding = tiktoken.Encoding("saved", pat_str=pattern, mergeable_ranks=ranks, special_tokens={END: len(ranks)})
    for text in TEXTS:
        assert [i + 1 for i in encoding.encode_ordinary(text)] == tok.encode(text).tolist()


@pytest.mark.parametrize("pretokenizer", SPLITS, ids=NAMES)
def test_we_load_what_we_saved(pretokenizer, saved, tmp_path):
    tok, again = tokenizer(pretokenizer), load_tokenizer(saved[pretokenizer])
    assert (again.pretokenizer, again.pattern, again.special_tokens) == (
        tok.pretokenizer,
        tok.pattern,
        tok.special_tokens,
    )
    assert again.vocabulary.tokens == tok.vocabulary.tokens
    assert np.array_equal(again.merges, tok.merges)
    again.save(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(saved[pretokenizer])
    assert (
        load_tokenizer(saved[pretokenizer] / "tokenizer.json").encode(TEXTS[4]).tolist()
        == tok.encode(TEXTS[4]).tolist()
    )


def test_a_special_token_that_was_also_learned_survives_saving(tmp_path):
    tok = tokenizer("gpt2", (END, "return", "self"))
    tok.save(tmp_path / "tok")
    again = load_tokenizer(tmp_path / "tok")
    assert again.vocabulary.tokens == tok.vocabulary.tokens
    assert again.vocabulary.ranked == tok.vocabulary.ranked
    hf = HF((tmp_path / "tok" / "tokenizer.json").read_text(encoding="utf-8"))
    assert hf.ids(TEXTS, plain=True) == [again.encode(text).tolist() for text in TEXTS]


def test_the_training_record_is_written_and_read_back(tmp_path):
    record = {"plan": {"vocab_size": 257}, "corpus": "xxh3:00", "seconds": {"count": 0.1}, "note": "ünï"}
    tok = Tokenizer.from_merges(np.array([[64, 65]]), pretokenizer="gpt2", training=record)
    tok.save(tmp_path / "tok")
    written = json.loads((tmp_path / "tok" / "training.json").read_text(encoding="utf-8"))
    assert written == {"piecemill": written["piecemill"], "pretokenizer": "gpt2", "pattern": PATTERNS["gpt2"]} | {
        "vocab_size": 257,
        **record,
    }
    assert load_tokenizer(tmp_path / "tok").training == written
    bad = Tokenizer.from_merges(np.array([[64, 65]]), pretokenizer="gpt2", training={"seconds": float("nan")})
    with pytest.raises(TokenizerError, match=r"training record: .*expected only what JSON can hold"):
        bad.save(tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


# Whole or not at all


def contents(folder):
    return {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder))}


@pytest.fixture
def old(tmp_path):
    Tokenizer.from_merges(np.array([[64, 65]]), pretokenizer="gpt2").save(tmp_path / "tok")
    return tmp_path / "tok"


NEW = Tokenizer.from_merges(np.array([[66, 67], [256, 68]]), pretokenizer="cl100k", special_tokens=[END])
STEPS = ("mkdir", "open", "fsync", "rename")


class Failing:
    """Replaces functions of `os`; the call with number `at` fails before or after it has done its work."""

    def __init__(self, monkeypatch, at, error, after):
        self.calls, self.at, self.error, self.after = 0, at, error, after
        for name in STEPS:
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name)))

    def wrap(self, real):
        def call(*args, **kwargs):
            self.calls += 1
            if self.calls != self.at:
                return real(*args, **kwargs)
            if self.after:
                real(*args, **kwargs)
            raise self.error

        return call


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk", "ctrl-c"])
@pytest.mark.parametrize("force", [False, True])
def test_a_failure_at_any_step_leaves_the_old_or_the_new_whole(tmp_path, monkeypatch, force, error, after, exchange):
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    target = tmp_path / "tok"
    NEW.save(tmp_path / "expected")
    new = contents(tmp_path / "expected")
    first = Tokenizer.from_merges(np.array([[64, 65]]), pretokenizer="gpt2")
    finished = False
    for at in range(1, 40):
        shutil.rmtree(target, ignore_errors=True)
        if force:
            first.save(target)
        before = contents(target) if force else None
        with monkeypatch.context() as patch:
            failing = Failing(patch, at, error, after)
            try:
                NEW.save(target, force=force)
            except (TokenizerError, KeyboardInterrupt):
                assert failing.calls >= at
            else:
                finished = failing.calls < at
        found = contents(target) if target.exists() else None
        assert found in (before, new)
        # Hidden leftovers only where tidying up itself was made to fail, which comes after replacing.
        seen = {name for name in os.listdir(tmp_path) if not (found == new and force and name.startswith(".tok."))}
        assert seen == {"expected"} | ({"tok"} if found else set())
        for name in os.listdir(tmp_path):
            if name.startswith("."):
                shutil.rmtree(tmp_path / name)
        if finished:
            break
    assert finished
    assert at > 8


KILLED = """
import os, sys
from pathlib import Path
import numpy as np
import killer
from piecemill.tokenizers import Tokenizer

work = Path(sys.argv[1])
one = Tokenizer.from_merges(np.array([[64, 65]]), pretokenizer="gpt2")
two = Tokenizer.from_merges(np.array([[66, 67], [256, 68]]), pretokenizer="cl100k")
whole = [one.model.files(), two.model.files()]
for at in range(1, 200):
    target = work / str(at) / "tok"
    one.save(target)
    pid = os.fork()
    if pid == 0:
        killer.arm(at)
        two.save(target, force=True)
        os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
    assert {path.name: path.read_bytes() for path in target.iterdir()} in whole, at
    # What a kill leaves is hidden, and does not stop the next save.
    assert all(path.name.startswith(".tok.") for path in target.parent.iterdir() if path != target), at
    two.save(target, force=True)
    if not killed:
        break
print(at)
"""


def test_a_killed_save_leaves_the_old_or_the_new_whole(tmp_path):
    command = [sys.executable, "-c", KILLED, tmp_path]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_saving_over_a_tokenizer_needs_force(old):
    before = contents(old)
    with pytest.raises(TokenizerError, match=r"already holds a tokenizer.*force=True"):
        NEW.save(old)
    assert contents(old) == before
    NEW.save(old, force=True)
    assert contents(old) == NEW.model.files()
    assert os.listdir(old.parent) == ["tok"]


def test_anything_but_a_tokenizer_is_never_replaced(old):
    (old / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(TokenizerError, match=r"holds model.safetensors. It is never replaced, even with force"):
        NEW.save(old, force=True)
    assert (old / "model.safetensors").read_bytes() == b"weights"
    (old.parent / "file").write_text("text")
    with pytest.raises(TokenizerError, match="is a file; a tokenizer is saved as a folder"):
        NEW.save(old.parent / "file", force=True)


def test_an_empty_folder_a_missing_parent_and_a_link_are_fine(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    NEW.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert contents(tmp_path / "empty") == NEW.model.files()
    NEW.save(tmp_path / "a" / "b" / "tok")
    assert load_tokenizer(tmp_path / "a" / "b" / "tok").vocab_size == NEW.vocab_size


# What cannot be loaded


def changed(folder, change):
    NEW.save(folder)
    file = folder / "tokenizer.json"
    data = json.loads(file.read_bytes())
    change(data)
    file.write_text(json.dumps(data), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["model"].update(type="Unigram"), r"HF tokenizers .* refused it|cannot be read"),
        (lambda d: d["model"].update(dropout=0.1), "model.dropout is 0.1, so its ids are random"),
        (lambda d: d.update(pre_tokenizer={"type": "Nonsense"}), r"HF tokenizers .* refused it"),
        (lambda d: d["model"]["merges"].append(["no", "where"]), "a merge names or makes 'no'"),
        (lambda d: d.pop("model"), "it has no model"),
    ],
)
def test_a_file_that_nobody_can_carry_out_is_an_error(tmp_path, change, message):
    file = changed(tmp_path / "tok", change)
    with pytest.raises(TokenizerError, match=message) as raised:
        load_tokenizer(tmp_path / "tok").encode("text")
    assert str(file) in str(raised.value)


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(TokenizerError, match="nowhere: no such file; expected a folder saved with"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer.json: could not be read as JSON"):
        load_tokenizer(tmp_path)
