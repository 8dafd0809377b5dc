"""Trust but verify: an engine that changes one id is caught, and the error says what to do."""

import json
import re
import sys
import unicodedata

import numpy as np
import pyarrow as pa
import pytest

import models
from piecemill.errors import TokenizerError
from piecemill.tokenizers import load_tokenizer, sentencepiece, verify
from piecemill.tokenizers.nasty import NASTY
from piecemill.tokenizers.texts import first_difference, pack
from vocabularies import library_texts, tokenizer


class OneOff:
    """An engine that is wrong in one id of one text."""

    def __init__(self, engine, text, change=lambda ids: ids[-1:] * 0 + 7):
        self.engine, self.text, self.change = engine, text, change
        self.name, self.why, self.version = engine.name, engine.why, engine.version

    def encode_flat(self, data, ends, *, parse, parallel):
        ids, id_ends = self.engine.encode_flat(data, ends, parse=parse, parallel=parallel)
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


def load_again(split):
    from pickle import dumps, loads

    return loads(dumps(tokenizer(split)))


def test_the_record_is_small_json_with_both_versions():
    record = verify(tokenizer("gpt2"), library_texts(5))
    assert json.loads(json.dumps(record)) == record
    assert record.keys() == {
        "engine", "engine_version", "home", "home_version", "strings", "documents", "bytes"
    }  # fmt: skip
    assert (record["engine"], record["home"]) == ("gigatoken", "tokenizers")
    assert (record["strings"], record["documents"]) == (len(NASTY) + 1, 5)
    assert record["bytes"] == sum(len(text.encode()) for text in library_texts(5))


@pytest.mark.parametrize("at", [0, 3])
def test_one_wrong_id_in_a_document_is_caught(at):
    documents = library_texts(5)
    tok = broken(documents[at])
    right = tokenizer("gpt2").encode(documents[at])
    with pytest.raises(TokenizerError) as raised:
        verify(tok, documents)
    said = str(raised.value)
    assert f"verify: document {at} gets other ids from gigatoken" in said
    assert f"From id {len(right) - 1:,} of {len(right):,} and {len(right):,} on" in said
    assert re.search(rf"\[\.\.\., .*, 7\] and \[\.\.\., .*, {right[-1]}\]", said)
    assert said.endswith("Use engine='tokenizers' (--engine tokenizers).")


@pytest.mark.parametrize("text", [NASTY[0], NASTY[20], NASTY[-1]])
def test_one_wrong_id_in_any_nasty_string_is_caught(text):
    with pytest.raises(TokenizerError, match=f"verify: nasty string {NASTY.index(text)} gets other ids"):
        verify(broken(text))


def test_a_missing_or_an_extra_id_is_caught():
    for change in (lambda ids: ids[:0], lambda ids: np.repeat(ids[-1:], 2)):
        with pytest.raises(TokenizerError, match="document 1 gets other ids"):
            verify(broken("def f(): pass", change=change), ["other", "def f(): pass", "more"])


def test_control_tokens_found_in_a_text_are_caught(tmp_path):
    content = models.sentencepiece_model("bpe", **models.AS_IT_IS)
    (tmp_path / "tok.model").write_bytes(content)
    tok = load_tokenizer(tmp_path / "tok.model", engine="gigatoken")
    import gigatoken

    tok.engine._load = lambda parse: gigatoken.Tokenizer.from_sentencepiece(content)  # control pieces left in
    with pytest.raises(TokenizerError, match=r"gets other ids from gigatoken .* than from sentencepiece"):
        verify(tok)


def test_the_home_library_is_not_compared_with_itself(tmp_path):
    (tmp_path / "tok.model").write_bytes(models.sentencepiece_model("unigram"))
    record = verify(load_tokenizer(tmp_path / "tok.model"), ["text"])
    assert (record["engine"], record["home"], record["strings"], record["documents"]) == (
        "sentencepiece",
        "sentencepiece",
        0,
        0,
    )


def test_without_the_home_library_it_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "tok.model").write_bytes(models.sentencepiece_model("bpe", **models.AS_IT_IS))
    monkeypatch.setattr(sentencepiece, "find_spec", lambda name: None)
    tok = load_tokenizer(tmp_path / "tok.model")
    assert tok.engine.name == "gigatoken"
    with pytest.raises(
        TokenizerError, match=r"sentencepiece is not installed \(pip install 'piecemill\[sentencepiece\]'"
    ):
        verify(tok)
    (tmp_path / "tok.model").write_bytes(models.sentencepiece_model("unigram"))
    with pytest.raises(
        TokenizerError, match="no engine can encode this: gigatoken has no Unigram models; sentencepiece"
    ):
        _ = load_tokenizer(tmp_path / "tok.model").engine


def test_only_the_first_documents_are_compared_and_never_more_than_the_limit(monkeypatch):
    from piecemill.tokenizers.verify import DOCUMENTS

    tok = broken("wrong")
    right = ["right"] * DOCUMENTS
    assert verify(tok, [*right, "wrong"])["documents"] == DOCUMENTS
    assert verify(tok, pa.array([*right, "wrong"]))["documents"] == DOCUMENTS
    with pytest.raises(TokenizerError, match=f"document {DOCUMENTS - 1} "):
        verify(tok, (text for text in [*right[1:], "wrong"]))
    monkeypatch.setattr(sys.modules["piecemill.tokenizers.verify"], "BYTES", 100)
    record = verify(tok, ["é " * 30, "x" * 10, "y", "z"])  # 90, 100, 101 bytes
    assert (record["documents"], record["bytes"]) == (2, 100)
    huge = verify(tok, ["a" + "é" * 100])  # byte 100 is inside a character
    assert (huge["documents"], huge["bytes"]) == (1, 99)


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
