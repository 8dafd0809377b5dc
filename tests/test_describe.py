"""`describe`: one function and one result for everything that Piecemill writes or reads."""

import json

import pytest

import models
import piecemill as pm
from corpora import small_tokenizer
from piecemill.errors import TokenizerError


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
    split = "gpt2" if kind == "ranks" else None
    by_folder, by_file = pm.describe(folder, split=split), pm.describe(str(file), split=split)
    assert by_folder.kind == by_file.kind == "tokenizer"
    assert dict(by_folder.facts) == dict(by_file.facts)
    assert str(by_folder).partition(": ")[2] == str(by_file).partition(": ")[2]
    found = by_folder.to_dict()
    assert json.loads(json.dumps(found)) == found
    tok = pm.load_tokenizer(folder, split=split)
    assert (found["vocab_size"], found["identity"], found["model"]) == (tok.vocab_size, tok.identity, tok.kind)
    assert list(found["sample"])[-1] == str(tok.vocab_size - 1)
    assert f"a tokenizer of {tok.vocab_size:,} tokens" in str(by_folder)


def test_a_trained_tokenizer_says_how_it_was_trained(tmp_path):
    pm.train_bpe(["low lower lowest"] * 10, vocab_size=262, split="gpt2").save(tmp_path / "tok")
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


def test_verbs_have_one_result_protocol(tmp_path):
    tok = small_tokenizer()
    summary = pm.prepare(["one two", "three"], tok, out=tmp_path / "out")
    results = [
        summary,
        pm.check(tmp_path / "out"),
        pm.describe(tmp_path / "out"),
        pm.export(tmp_path / "out", out=tmp_path / "rows", to="jsonl", window=4),
    ]
    for result in results:
        assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
        assert str(result) not in ("", repr(result))
    assert (tmp_path / "rows" / "all" / "00000.jsonl").exists()
