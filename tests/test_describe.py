"""`describe`: one function and one result for everything that Piecemill writes or reads."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

import models
import piecemill as pm
from command import piecemill
from corpora import small_tokenizer
from piecemill import actions
from piecemill.actions.encoding import encode_histories
from piecemill.actions.features import MadeItems
from piecemill.actions.plan import EncodePlan
from piecemill.actions.show import describe as describe_vocabulary
from piecemill.actions.training import TrainedActions
from piecemill.errors import PlanError, ShardError, TokenizerError
from piecemill.tokenizers.listing import Listing
from piecemill.tokenizers.verify import verify
from piecemill.training.result import Trained


def folder_of(kind, tmp_path):
    """A folder with a tokenizer of a kind, and the file in it that can be named instead."""
    folder = tmp_path / "tok"
    if kind == "trained":
        small_tokenizer().save(folder)
        return folder, folder / "tokenizer.json"
    folder.mkdir()
    if kind == "ranks":
        small_tokenizer().save(tmp_path / "whole")
        (made,) = (tmp_path / "whole").glob("*.tiktoken")
        for file in (made, tmp_path / "whole" / "encoding.json"):
            if file.exists():
                (folder / file.name).write_bytes(file.read_bytes())
        return folder, folder / made.name
    if kind.startswith("sentencepiece"):
        (folder / "tokenizer.model").write_bytes(models.sentencepiece_model(kind.partition("-")[2] or "bpe"))
        return folder, folder / "tokenizer.model"
    (folder / "tokenizer.json").write_text(models.tokenizer_json(kind))
    return folder, folder / "tokenizer.json"


@pytest.mark.parametrize(
    "kind",
    ["trained", "ranks", "word_piece", "unigram", "bpe_with_digits", "sentencepiece-bpe", "sentencepiece-unigram"],
)
def test_a_folder_and_the_file_in_it_are_described_alike(kind, tmp_path):
    folder, file = folder_of(kind, tmp_path)
    pretokenizer = "gpt2" if kind == "ranks" else None
    by_folder, by_file = (
        pm.describe(folder, pretokenizer=pretokenizer),
        pm.describe(str(file), pretokenizer=pretokenizer),
    )
    assert by_folder.kind == by_file.kind == "tokenizer"
    assert dict(by_folder.facts) == dict(by_file.facts)
    assert str(by_folder).partition(": ")[2] == str(by_file).partition(": ")[2]
    found = by_folder.to_dict()
    assert json.loads(json.dumps(found)) == found
    tok = pm.load_tokenizer(folder, pretokenizer=pretokenizer)
    assert (found["vocab_size"], found["identity"], found["model"]) == (tok.vocab_size, tok.identity, tok.kind)
    assert list(found["sample"])[-1] == str(tok.vocab_size - 1)
    assert f"a tokenizer of {tok.vocab_size:,} tokens" in str(by_folder)


def test_a_trained_tokenizer_says_how_it_was_trained(tmp_path):
    pm.train_bpe(["low lower lowest"] * 10, vocab_size=262, pretokenizer="gpt2").save(tmp_path / "tok")
    for path in ("tok", "tok/tokenizer.json"):
        facts = pm.describe(tmp_path / path).facts
        assert (facts["training"]["corpus"]["documents"], facts["eos"]) == (10, "<|endoftext|>")


def test_an_engine_can_be_asked_for(tmp_path):
    small_tokenizer().save(tmp_path / "tok")
    assert pm.describe(tmp_path / "tok", engine="tokenizers").facts["engine"] == "tokenizers"


def test_a_file_that_is_no_tokenizer_says_what_was_expected(tmp_path):
    with pytest.raises(TokenizerError, match="no such file"):
        pm.describe(tmp_path / "nothing.json")
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        pm.describe(tmp_path / "tok")


def test_what_was_written_for_others_to_read_is_named(tmp_path):
    shards, rows, parts = tmp_path / "shards", tmp_path / "rows", tmp_path / "parts"
    pm.prepare(["one two", "three four"] * 20, small_tokenizer(), out=shards)
    pm.export(shards, out=rows, window=8)
    parts.mkdir()
    visits = "\n".join(f"u{n % 3},i{n % 4},{n}" for n in range(30))
    (tmp_path / "visits.csv").write_text(f"user,item,time\n{visits}\n")
    (tmp_path / "goods.csv").write_text("item,colour\n" + "".join(f"i{n},c{n % 2}\n" for n in range(4)))
    assert piecemill("actions", "split", tmp_path / "visits.csv", "--out", parts).returncode == 0
    assert piecemill("actions", "features", tmp_path / "goods.csv", "--out", tmp_path / "items.parquet").returncode == 0
    (split,) = pm.open_shards(shards).splits
    exported, vocabulary = "rows that `piecemill export` wrote for other loaders.", "`piecemill actions train` makes"
    for path, says in (
        (rows, exported),
        (rows / split, exported),
        (next((rows / split).iterdir()), exported),
        (shards / split, f"a part of prepared shards. Name the whole folder: {shards}"),
        (shards / "entries", f"a part of prepared shards. Name the whole folder: {shards}"),
        (parts, f"histories that `piecemill actions split` wrote. {vocabulary}"),
        (parts / "train.parquet", f"histories of users. {vocabulary}"),
        (tmp_path / "items.parquet", f"items and their codes, which `piecemill actions features` wrote. {vocabulary}"),
    ):
        with pytest.raises(ShardError, match=f"^{re.escape(f'{path}: {says}')}"):
            pm.describe(path)
        assert says in str(pm.check(path))


def test_options_for_tokenizers_are_refused_for_anything_else(tmp_path):
    pm.prepare(["one two", "three four"] * 20, small_tokenizer(), out=tmp_path / "shards")
    for name in ("engine", "pretokenizer"):
        with pytest.raises(PlanError, match=rf"^{name}='gpt2' is for tokenizers; .*shards is prepared shards"):
            pm.describe(tmp_path / "shards", **{name: "gpt2"})


def is_result(value):
    assert json.loads(json.dumps(value.to_dict())) == value.to_dict()
    return str(value) not in ("", repr(value))


def test_verbs_have_one_result_protocol(tmp_path):
    tok = small_tokenizer()
    out = tmp_path / "out"
    assert is_result(pm.prepare(["one two", "three"], tok, out=out))
    assert is_result(pm.check(out))
    assert is_result(pm.describe(out))
    assert is_result(pm.export(out, out=tmp_path / "rows", to="jsonl", window=4))
    assert (tmp_path / "rows" / "all" / "00000.jsonl").exists()
    assert is_result(pm.count_words(["one", b"\xff"], on_bad_document="skip", save_counts=tmp_path / "counts"))
    assert is_result(pm.prune(tok, counts=out, vocab_size=tok.vocab_size - 1))
    assert is_result(pm.compare([tok], on=["one two"]))
    tok.save(tmp_path / "tok")
    assert is_result(pm.report(tmp_path / "tok", out=tmp_path / "report.html", on=["one two"]))
    assert is_result(verify(tok, ["one two"]))
    for train in (pm.train_bpe, pm.train_wordpiece):
        assert is_result(Trained(train(["low lower"], vocab_size=400), tmp_path))
    assert is_result(Listing(vocab_size=tok.vocab_size, tokens=tok.tokens, chosen=tok.tokens[-3:], first=2))


def test_actions_have_the_same_result_protocol(tmp_path):
    items = actions.make_items({"a": ["red", 1], "b": ["red", 2], "c": ["blue", 1]})
    histories = actions.Histories.of([["a", "b", "c", "a"], ["b", "c", "a"]])
    tok = pm.train_actions(histories, items, vocab_size=9)
    assert is_result(MadeItems(items, tmp_path))
    assert is_result(actions.leave_out(histories))
    assert is_result(TrainedActions(tok, tmp_path))
    assert is_result(describe_vocabulary(tok, histories))
    tok.save(tmp_path / "voc")
    for path in (tmp_path / "voc", tmp_path / "voc/actionpiece.json"):
        assert pm.describe(path).kind == "action_vocabulary"
        assert pm.check(path).sound
    for to in ("jsonl", "npy", "shards"):
        done = encode_histories(histories, tok, out=tmp_path / to, plan=EncodePlan(to=to))
        assert is_result(done)
        assert (done.to_dict()["out"], done.actions) == (str(tmp_path / to), 7)


def test_a_pretraining_run_has_it_too(tmp_path):
    names = [field.name for field in fields(pm.PretrainSummary)]
    figures = dict.fromkeys(names, 1) | {"out": tmp_path, "validation": ((1, 2.5),), "sample": ("a", "b")}
    assert is_result(pm.PretrainSummary(**figures))


def test_no_other_names_for_the_protocol_are_left():
    for path in Path(pm.__file__).parent.rglob("*.py"):
        assert not re.search(r"def as_(json|text)\b", path.read_text()), path
    results = [getattr(pm, name) for name in pm.__all__ if not name.endswith(("Plan", "Tokenizer", "Shards"))]
    results = [result for result in results if isinstance(result, type)]
    assert {result.__name__ for result in results} == {
        "Comparison", "Description", "PretrainSummary", "Pruned", "Report", "Summary",
    }  # fmt: skip
    assert all("to_dict" in vars(result) and "__str__" in vars(result) for result in results)
