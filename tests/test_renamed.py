"""Earlier names: an error names today's, and files on disk that have them are read."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import piecemill as pm
from command import piecemill as run
from piecemill.errors import PlanError

FORMAT_1 = Path(__file__).with_name("format1")
TEXTS = [f"document {n} of the corpus" for n in range(50)]


@pytest.mark.parametrize(
    "verb",
    [
        lambda **old: pm.train_bpe(["text"], **old),
        lambda **old: pm.count_words(["text"], **old),
        lambda **old: pm.load_tokenizer(FORMAT_1 / "tokenizer", **old),
        lambda **old: pm.Tokenizer.from_merges([], **old),
        lambda **old: pm.describe(FORMAT_1 / "tokenizer", **old),
    ],
    ids=["train_bpe", "count_words", "load_tokenizer", "from_merges", "describe"],
)
def test_split_is_no_pretokenizer_in_python(verb):
    with pytest.raises(PlanError, match="unknown option 'split'; did you mean 'pretokenizer'"):
        verb(split="gpt2")


def test_superword_split_has_another_name():
    with pytest.raises(PlanError, match="unknown option 'superword_split'; did you mean 'superword_pretokenizer'"):
        pm.train_bpe(["text"], superword_split="gpt2")


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["train", "x", "--out", "y", "--split", "gpt2"], "--pretokenizer"),
        (["train", "x", "--out", "y", "--split=gpt2"], "--pretokenizer"),
        (["train", "x", "--out", "y", "--superword-split", "gpt2"], "--superword-pretokenizer"),
        (["show", "x", "--split", "gpt2"], "--pretokenizer"),
        (["vocab", "x", "--split", "gpt2"], "--pretokenizer"),
        (["verify", "x", "--tokenizer-split", "gpt2"], "--pretokenizer"),
        (["prepare", "x", "--tokenizer", "y", "--out", "z", "--tokenizer-split", "gpt2"], "--pretokenizer"),
        (["prepare", "x", "--tokenizer", "y", "--out", "z", "--split", "a=1"], "--splits"),
        (["export", "x", "--out", "y", "--splt", "val"], "--split"),
    ],
)
def test_split_is_no_pretokenizer_in_a_shell(words, flag):
    done = run(*words)
    assert done.returncode == 2
    assert f"Did you mean {flag}?" in done.stderr


def test_a_config_file_with_the_earlier_name_is_wrong_use(tmp_path):
    (tmp_path / "plan.toml").write_text('split = "gpt2"')
    done = run("train", "x", "--out", "y", "--config", tmp_path / "plan.toml")
    assert (done.returncode, "Did you mean --pretokenizer?" in done.stderr) == (2, True)


def earlier(record):
    """A record with the names that an earlier version gave it."""
    old = {"pretokenizer": "split", "superword_pretokenizer": "superword_split", "pretokenizer_note": "split_note"}
    return {old.get(key, key): earlier(value) if key == "plan" else value for key, value in record.items()}


def test_the_training_record_of_an_earlier_version_is_read(tmp_path):
    made = pm.train_bpe(TEXTS, vocab_size=300, pretokenizer="gpt2")
    made.save(tmp_path / "tok")
    file = tmp_path / "tok/training.json"
    written = json.loads(file.read_text())
    assert written["plan"]["pretokenizer"] == written["pretokenizer"] == "gpt2"
    assert not {"split", "split_note"} & {*written, *written["plan"]}
    file.write_text(json.dumps(earlier(written)))
    old = pm.load_tokenizer(tmp_path / "tok")
    assert (old.training, old.identity, old.pretokenizer) == (written, made.identity, "gpt2")
    old.save(tmp_path / "again")
    assert json.loads((tmp_path / "again/training.json").read_text()) == written
    assert pm.load_tokenizer(FORMAT_1 / "tokenizer").training["pretokenizer"] == "gpt2"


def test_a_record_of_ones_own_may_have_the_earlier_name(tmp_path):
    pm.Tokenizer.from_merges([], pretokenizer="gpt2", training={"split": "mine"}).save(tmp_path / "tok")
    record = pm.load_tokenizer(tmp_path / "tok").training
    assert (record["split"], record["pretokenizer"]) == ("mine", "gpt2")


def test_ranks_saved_by_an_earlier_version_are_read(tmp_path):
    pm.train_bpe(TEXTS, vocab_size=300, pretokenizer="o200k").save(tmp_path / "tok")
    ranks = pm.load_tokenizer(tmp_path / "tok/ranks.tiktoken", pretokenizer="o200k")
    ranks.save(tmp_path / "ranks")
    file = tmp_path / "ranks/encoding.json"
    written = json.loads(file.read_text())
    assert written["pretokenizer"] == "o200k"
    file.write_text(json.dumps(earlier(written)))
    assert pm.load_tokenizer(tmp_path / "ranks").identity == ranks.identity


def test_counts_of_an_earlier_version_are_read(tmp_path):
    new, old = tmp_path / "new.parquet", tmp_path / "old.parquet"
    pm.count_words(TEXTS, pretokenizer="gpt2", save_counts=new)
    table = pq.read_table(new)
    about = json.loads(table.schema.metadata[b"piecemill.counts"])
    assert (about["version"], about["pretokenizer"]) == (2, "gpt2")
    about = {**earlier(about), "version": 1}
    pq.write_table(table.replace_schema_metadata({b"piecemill.counts": json.dumps(about).encode()}), old)
    want = pm.train_bpe(TEXTS, vocab_size=300, pretokenizer="gpt2").identity
    assert pm.train_bpe(from_counts=[old], vocab_size=300).identity == want
    assert pm.train_bpe(from_counts=[new], vocab_size=300).identity == want


def test_a_folder_begun_by_an_earlier_version_is_resumed(tmp_path):
    tok = pm.train_bpe(TEXTS, vocab_size=300, pretokenizer="gpt2")
    pm.prepare(TEXTS, tok, out=tmp_path / "shards")
    want = pm.open_shards(tmp_path / "shards").identity
    file = tmp_path / "shards/tokenizer/training.json"
    file.write_text(json.dumps(earlier(json.loads(file.read_text()))))
    (tmp_path / "shards/stats.json").unlink()  # it was not complete yet
    pm.prepare(TEXTS, tok, out=tmp_path / "shards")
    assert pm.open_shards(tmp_path / "shards").identity == want
    assert pm.open_shards(tmp_path / "shards").tokenizer().pretokenizer == "gpt2"
    assert pm.check(tmp_path / "shards").sound
