"""Verification: an engine that changes one id is found, and the error says what to do."""

import json
import re
import subprocess
import sys
import unicodedata

import numpy as np
import pyarrow as pa
import pytest

import command
import models
from corpora import write_jsonl
from piecemill.errors import TokenizerError
from piecemill.sources import open_source
from piecemill.tokenizers import Tokenizer, load_tokenizer, verify
from piecemill.tokenizers.engines import piecemill, sentencepiece
from piecemill.tokenizers.nasty import NASTY
from piecemill.tokenizers.texts import finish, first_difference
from vocabularies import library_texts, tokenizer


def pack(rows):
    return finish(rows, bos=None, eos=None, narrow=False)


class OneOff:
    """An engine that is wrong in one id of one text."""

    def __init__(self, engine, text, change=lambda ids: ids[-1:] * 0 + 7):
        self.engine, self.text, self.change = engine, text, change
        self.name, self.why, self.version = engine.name, engine.why, engine.version

    def encode_flat(self, data, ends, **options):
        ids, id_ends = self.engine.encode_flat(data, ends, **options)
        rows = np.split(ids, id_ends[:-1])
        whole, start = data.tobytes(), 0
        for i, end in enumerate(ends.tolist()):
            if whole[start:end] == self.text.encode():
                rows[i] = np.concatenate([rows[i][:-1], self.change(rows[i])])
            start = end
        return pack(rows)


def broken(text, **options):
    tok = load_again("gpt2")
    tok.__dict__["engine"] = OneOff(tok.engine, text, **options)
    return tok


def load_again(pretokenizer):
    from pickle import dumps, loads

    return loads(dumps(tokenizer(pretokenizer)))


def test_the_record_is_small_json_with_both_versions():
    verified = verify(tokenizer("gpt2"), library_texts(5))
    record = verified.to_dict()
    assert json.loads(json.dumps(record)) == record
    assert record.keys() == {
        "engine", "engine_version", "home", "home_version", "strings", "documents", "bytes"
    }  # fmt: skip
    assert (record["engine"], record["home"]) == ("piecemill", "tokenizers")
    assert (record["strings"], record["documents"]) == (len(NASTY) + 1, 5)
    assert record["bytes"] == sum(len(text.encode()) for text in library_texts(5))
    assert f"compared on {len(NASTY) + 1} nasty strings and 5 documents" in str(verified)


@pytest.mark.parametrize("at", [0, 3])
def test_one_wrong_id_in_a_document_is_caught(at):
    documents = library_texts(5)
    tok = broken(documents[at])
    right = tokenizer("gpt2").encode(documents[at])
    with pytest.raises(TokenizerError) as raised:
        verify(tok, documents)
    said = str(raised.value)
    assert f"verify: document {at} gets other ids from piecemill" in said
    assert f"From id {len(right) - 1:,} of {len(right):,} and {len(right):,} on" in said
    assert re.search(rf"\[\.\.\., .*, 7\] and \[\.\.\., .*, {right[-1]}\]", said)
    assert said.endswith("Use engine='tokenizers'.")


@pytest.mark.parametrize("text", [NASTY[0], NASTY[20], NASTY[-1]])
def test_one_wrong_id_in_any_nasty_string_is_caught(text):
    with pytest.raises(TokenizerError, match=f"verify: nasty string {NASTY.index(text)} gets other ids"):
        verify(broken(text))


def test_a_missing_or_an_extra_id_is_caught():
    for change in (lambda ids: ids[:0], lambda ids: np.repeat(ids[-1:], 2)):
        with pytest.raises(TokenizerError, match="document 1 gets other ids"):
            verify(broken("def f(): pass", change=change), ["other", "def f(): pass", "more"])


def test_an_engine_that_differs_on_a_nasty_string_is_not_chosen(monkeypatch):
    real = piecemill.load
    monkeypatch.setattr(piecemill, "exact", lambda model: False)
    monkeypatch.setattr(piecemill, "load", lambda model: OneOff(real(model), NASTY[20]))
    tok = Tokenizer(tokenizer("cl100k").model)
    assert tok.engine.name == "tokenizers"
    assert tok.engine.why == f"piecemill gives other ids than tokenizers, for example for {NASTY[20][:40]!r}"
    with pytest.raises(TokenizerError, match="engine='piecemill': piecemill gives other ids than tokenizers"):
        Tokenizer(tok.model, engine="piecemill")


def test_the_home_library_is_not_compared_with_itself(tmp_path):
    (tmp_path / "tok.model").write_bytes(models.sentencepiece_model("unigram"))
    record = verify(load_tokenizer(tmp_path / "tok.model"), ["text"])
    assert (record.engine, record.home, record.strings, record.documents) == ("sentencepiece", "sentencepiece", 0, 0)
    assert str(record).endswith("is the home library: nothing to compare")


def test_without_the_home_library_it_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "tok.model").write_bytes(models.sentencepiece_model("bpe", **models.AS_IT_IS))
    monkeypatch.setattr(sentencepiece, "find_spec", lambda name: None)
    tok = load_tokenizer(tmp_path / "tok.model")
    assert tok.engine.name == "piecemill"
    with pytest.raises(
        TokenizerError, match=r"sentencepiece is not installed \(pip install 'piecemill\[sentencepiece\]'"
    ):
        verify(tok)
    (tmp_path / "tok.model").write_bytes(models.sentencepiece_model("unigram"))
    with pytest.raises(
        TokenizerError,
        match="no engine can encode this: Piecemill has no encoder for Unigram models; sentencepiece is not installed",
    ):
        _ = load_tokenizer(tmp_path / "tok.model").engine


def test_documents_come_as_a_list_a_stream_a_table_or_a_source_and_most_limits_them(tmp_path):
    tok = broken("wrong")
    right = ["right"] * 2500
    assert verify(tok, [*right, "wrong"], most=2500).documents == 2500
    assert verify(tok, pa.array([*right, "wrong"]), most=7).documents == 7
    for documents in ([*right, "wrong"], (text for text in [*right, "wrong"]), pa.array([*right, "wrong"])):
        with pytest.raises(TokenizerError, match="document 2500 gets other ids"):
            verify(tok, documents)
    file = write_jsonl(tmp_path / "a.jsonl", ["right", "wrong"])
    with pytest.raises(TokenizerError, match=r"a\.jsonl.* gets other ids from piecemill"):
        verify(tok, open_source(file))


def test_the_command_prints_one_result_and_fails_on_a_difference(tmp_path):
    tokenizer("cl100k").save(tmp_path / "tok")
    file = write_jsonl(tmp_path / "a.jsonl", list(library_texts(5)))
    done = command.piecemill("verify", tmp_path / "tok", "--on", file, "--documents", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["documents"] == 3
    done = command.piecemill("verify", tmp_path / "tok")
    assert re.fullmatch(r"piecemill \S+ gives the ids of tokenizers \S+: compared on .*\n", done.stdout)
    code = f"""
import sys
import numpy as np
from piecemill import cli
from piecemill.tokenizers.engines import piecemill

load = piecemill.load


class Wrong(piecemill.PiecemillEngine):
    def __init__(self, engine):
        self.encode, self.right = engine.encode, engine.encode_flat

    def encode_flat(self, data, ends, **options):
        ids, ends = self.right(data, ends, **options)
        return (ids + 1 if len(ends) == 5 else ids), ends


piecemill.load = lambda model: Wrong(load(model))
sys.argv = ["piecemill", "verify", {str(tmp_path / "tok")!r}, "--on", {str(file)!r}]
cli.run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.match(
        r"piecemill: verify: .*a\.jsonl.* gets other ids from piecemill .* Use --engine tokenizers", done.stderr
    )


def test_nasty_strings_have_no_character_that_only_new_tables_know():
    # 3.11's tables are Unicode 14; what is unassigned there on purpose is named here
    on_purpose = set("\U0010ffff\ufffe\uffff")
    strange = {c for text in NASTY for c in text if unicodedata.category(c) == "Cn"} - on_purpose
    assert not strange
    assert len(set(NASTY)) == len(NASTY)


def test_the_first_difference_is_found_wherever_it_is():
    base = [[1, 2], [], [3], [4, 5, 6], []]
    assert first_difference(pack(base), pack(base)) is None
    for i in range(len(base)):
        for other in ([9], [*base[i], 9], base[i][:-1], [*base[i][:-1], 9]):
            rows = [*base[:i], other, *base[i + 1 :]]
            assert first_difference(pack(base), pack(rows)) == (None if other == base[i] else i)
    # ends that come together again behind the difference
    assert first_difference(pack([[1], [2, 3], [4]]), pack([[1, 2], [3], [4]])) == 0
