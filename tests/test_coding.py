"""`piecemill encode` and `piecemill decode`: texts, files and standard input to ids and back."""

import json
import os
import subprocess

import numpy as np
import pytest

import models
import piecemill
from command import PIECEMILL, environment
from command import piecemill as run
from piecemill.errors import TokenizerError
from piecemill.tokenizers import coding

TEXT = "the cat sat on the mat, and the other cat sat on the other mat.\n" * 40
NASTY = "\ufeff a  b\r\n\n\n漢字<|endoftext|>\0é\n".encode()
"What readers of text like to change: a byte order mark, line ends, empty lines."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coding")
    piecemill.train_bpe([TEXT], vocab_size=270).save(folder / "tok")
    (folder / "a.txt").write_bytes(NASTY)
    return folder


@pytest.fixture(scope="module")
def tok(folder):
    return piecemill.load_tokenizer(folder / "tok")


def piped(*words, given=b""):
    done = run(*words, given=given, text=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def failed(*words, code=1):
    done = run(*words)
    assert done.returncode == code, done
    return done.stderr


def test_texts_files_and_standard_input_give_the_same_ids(folder, tok):
    ids = tok.encode("the cat").tolist()
    assert piped("encode", folder / "tok", "the cat").split() == [b"%d" % i for i in ids]
    assert piped("encode", folder / "tok", given=b"the cat") == piped("encode", folder / "tok", "the cat")
    lines = piped("encode", folder / "tok", "the cat", folder / "a.txt", "-", "--json", given=b"mat").splitlines()
    assert list(map(json.loads, lines)) == [tok.encode(text).tolist() for text in ("the cat", NASTY, "mat")]
    assert piped("decode", folder / "tok", *ids) == b"the cat"
    assert piped("decode", folder / "tok", str(ids)) == b"the cat"
    assert piped("decode", folder / "tok", "--json", given=b"%b\n\n" % str(ids).encode()) == b'"the cat"\n""\n'


@pytest.mark.parametrize("name", ["ids.txt", "ids.json", "ids.npy"])
@pytest.mark.parametrize("separator", [None, r"\n"])
def test_any_file_comes_back_exactly(folder, tmp_path, name, separator):
    cut = () if separator is None else ("--separator", separator)
    if name == "ids.npy" and separator is not None:
        said = failed("encode", folder / "tok", folder / "a.txt", *cut, "--out", tmp_path / name, code=2)
        assert "nothing in one row of ids would say where each of" in said
        assert os.listdir(tmp_path) == []
        return
    said = piped("encode", folder / "tok", folder / "a.txt", *cut, "--out", tmp_path / name)
    assert said.endswith(f"ids in {tmp_path / name}\n".encode())
    assert piped("decode", folder / "tok", tmp_path / name, *cut) == NASTY
    piped("decode", folder / "tok", tmp_path / name, *cut, "--out", tmp_path / "b.txt")
    assert (tmp_path / "b.txt").read_bytes() == NASTY
    assert "exists" in failed("encode", folder / "tok", "x", "--out", tmp_path / name, code=2)


def test_special_tokens_are_text_unless_asked_for(folder, tok):
    text = "a<|endoftext|>"
    assert piped("encode", folder / "tok", text).split() == [b"%d" % i for i in tok.encode(text)]
    parsed = piped("encode", folder / "tok", text, "--special", "parse", "--eos", "auto", "--bos", "<|endoftext|>")
    assert parsed.split() == [b"0", b"%d" % tok.id_of("a"), b"0", b"0"]
    assert "text 1, document 1: byte 1 begins" in failed("encode", folder / "tok", text, "--special", "stop")
    assert "--eos '<x>': not a special token" in failed("encode", folder / "tok", text, "--eos", "<x>", code=2)


def test_an_npy_is_one_row_in_the_narrowest_type(folder, tok, tmp_path):
    piped("encode", folder / "tok", "the cat", "sat", "--eos", "auto", "--out", tmp_path / "x.npy")
    ids = np.load(tmp_path / "x.npy")
    assert ids.dtype == np.uint16
    assert ids.tolist() == [*tok.encode("the cat"), 0, *tok.encode("sat"), 0]
    np.save(tmp_path / "y.npy", np.array([tok.encode("cat"), tok.encode("mat")]))
    assert piped("decode", folder / "tok", tmp_path / "y.npy") == b"cat\nmat"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("1 2\n3 999", "line 2: id 2 is 999; expected 0 to 269"),
        ("1, 2 x3", "line 1: 'x3' is no id; expected whole numbers"),
        ("5 -1", "line 1: '-1' is no id"),
        ("99999999999999999999", "line 1: id 1 is 9223372036854775807; expected 0 to 269"),
        ("[1, 2.5]", "line 1: '2.5' is no id"),
        ("[1, null]", "line 1: 'null' is no id"),
        ("1 \x1c2", "line 1: '\\x1c2' is no id"),
        ("[1, true]", "line 1: 'true' is no id"),
        ("[1, 2", "line 1: not JSON"),
        ("[" * 100_000, "line 1: not JSON"),
    ],
)
def test_a_bad_id_is_named(folder, tmp_path, content, match):
    (tmp_path / "ids.txt").write_text(content)
    assert f"ids.txt, {match}" in failed("decode", folder / "tok", tmp_path / "ids.txt")


def test_files_that_are_not_what_they_should_be_are_named(folder, tmp_path):
    np.save(tmp_path / "x.npy", np.array([1.5]))
    assert "holds float64 in the shape (1,)" in failed("decode", folder / "tok", tmp_path / "x.npy")
    (tmp_path / "y.npy").write_bytes(b"no")
    assert "y.npy: cannot be read as .npy" in failed("decode", folder / "tok", tmp_path / "y.npy")
    assert "none.txt: no such file" in failed("encode", folder / "tok", "none.txt", code=2)
    assert "none: no such file, and no ids" in failed("decode", folder / "tok", "none", code=2)
    assert "a folder; expected files" in failed("encode", folder / "tok", tmp_path, code=2)
    said = failed("encode", folder / "tok", "a text", "--out", tmp_path, "--force", code=2)
    assert f"--out {tmp_path}: is a folder; expected a file, such as {tmp_path}/ids.txt." in said
    (tmp_path / "latin.txt").write_bytes(b"a\nb\xe9\nc")
    said = failed("encode", folder / "tok", tmp_path / "latin.txt", "--separator", r"\n")
    assert "latin.txt, document 2: byte 1 is 0xe9" in said


def test_long_rows_and_many_documents_go_in_pieces(tok, tmp_path, monkeypatch):
    monkeypatch.setattr(coding, "_CHUNK", 5)
    monkeypatch.setattr(coding, "_BATCH_BYTES", 40)
    documents = [NASTY, b"", TEXT.encode(), *[b"the cat"] * 9]
    for form in ("text", "json"):
        with open(tmp_path / "ids", "wb") as file:
            written = coding.write_ids(file, coding.encode_documents(tok, documents, "here"), form)
        assert written == (len(documents), sum(len(tok.encode(one)) for one in documents))
        with open(tmp_path / "ids", "rb") as file:
            pieces = [list(one) for one in coding.decode_rows(tok, coding.read_ids(file, "ids"))]
        assert [b"".join(one) for one in pieces] == documents
        assert len(pieces[0]) > 1
    with pytest.raises(TokenizerError, match="x: id 8 is 999; expected 0 to 269"):
        list(*coding.decode_rows(tok, [("x", np.array([1] * 7 + [999]))]))


@pytest.mark.parametrize("kind", ["word_piece", "unigram", "sentencepiece"])
def test_tokenizers_that_do_not_decode_id_by_id_decode_rows_whole(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(coding, "_CHUNK", 2)
    if kind == "sentencepiece":
        (tmp_path / "tokenizer.model").write_bytes(models.sentencepiece_model())
    else:
        (tmp_path / "tokenizer.json").write_text(models.tokenizer_json(kind))
    tok = piecemill.load_tokenizer(tmp_path)
    ids = tok.encode("the import of a class")
    (pieces,) = coding.decode_rows(tok, [("x", ids)])
    assert b"".join(pieces).decode() == tok.decode(ids)


def test_wrong_ids_and_ends_are_refused_by_a_home_library_as_by_our_own_decoder(tok, tmp_path):
    (tmp_path / "tok.model").write_bytes(models.sentencepiece_model("unigram"))
    for one in (piecemill.load_tokenizer(tmp_path / "tok.model"), tok):
        assert one.decode_batch([], []) == []
        for ids in ([5, -1], [5, 10**12], np.array([5, 2**63], np.uint64)):
            with pytest.raises(TokenizerError, match=r"decode: ids\[1\] is -?\d+; expected 0 to"):
                one.decode(ids)
        for ends in ([], [2], [2, 9], [2, 1, 3], [-1, 3]):
            with pytest.raises(TokenizerError, match="ends: expected rising ends that finish where ids do"):
                one.decode_batch([5, 6, 7], ends)


def test_a_reader_that_has_gone_is_no_error(folder, tmp_path):
    (tmp_path / "long.txt").write_text("some text " * 200_000)  # more than a pipe holds
    reader, writer = os.pipe()
    os.close(reader)
    command = [PIECEMILL, "encode", folder / "tok", tmp_path / "long.txt"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment(), timeout=600)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
