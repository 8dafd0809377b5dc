"""`piecemill show`, `check` and `export`: results on stdout, progress on stderr, the exit code says what happened."""

import json
import re

import pytest

import command
from prepared import prepare_folder
from vocabularies import tokenizer


@pytest.fixture
def folder(tmp_path):
    return prepare_folder(tmp_path / "shards", {"train": ["one two", "three"], "val": ["four"]}, tokenizer("gpt2"))


@pytest.fixture
def piecemill():
    def run(*words):
        done = command.piecemill(*words)
        return done.returncode, done.stdout, done.stderr

    return run


def test_show_prints_a_page_or_json(piecemill, folder):
    code, out, _ = piecemill("show", folder)
    assert (code, "'one two<|endoftext|>'" in out) == (0, True)
    code, out, _ = piecemill("show", folder, "--json")
    assert (code, json.loads(out)["documents"]) == (0, 3)
    assert json.loads(piecemill("show", folder / "tokenizer", "--json")[1])["kind"] == "tokenizer"
    code, _, err = piecemill("show", folder / "train")
    assert (code, f"a part of prepared shards. Name the whole folder: {folder}" in err) == (1, True)


def test_check_exits_0_when_sound_and_1_with_the_place_when_not(piecemill, folder):
    code, out, _ = piecemill("check", folder)
    assert (code, "is sound" in out) == (0, True)
    path = folder / "val" / "000001-0000.tokens.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    code, out, _ = piecemill("check", folder)
    assert (code, f"{path}: was changed" in out) == (1, True)
    code, out, _ = piecemill("check", folder, "--json")
    assert (code, json.loads(out)["problems"][0]["file"]) == (1, "val/000001-0000.tokens.npy")


def test_export_says_how_many_rows_there_are(piecemill, folder, tmp_path):
    words = ("export", folder, "--to", "jsonl", "--window", 2, "--overlap", 1, "--out", tmp_path / "rows")
    code, out, err = piecemill(*words, "--json")
    done = json.loads(out)
    lines = [line for path in (tmp_path / "rows").rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert (code, done["windows"], done["made"]) == (0, len(lines), 2)
    assert "export  2/2 parts   val/00000.jsonl" in err
    code, out, err = piecemill(*words, "--quiet")
    assert (code, "0 made now" in out, err) == (0, True, "")
    code, _, err = piecemill(*words, "--no-pack")
    assert (code, "pack=True, requested pack=False" in err) == (2, True)
    code, _, err = piecemill("export", folder, "--window", 2, "--overlap", 2, "--out", tmp_path / "x")
    assert (code, "--overlap 2: expected 0 to 1" in err) == (2, True)


def test_ctrl_c_during_an_export_says_what_to_do_and_the_same_command_goes_on(tmp_path):
    texts = ["a word or two, " * 300] * 60
    folder = prepare_folder(tmp_path / "many", {"train": texts}, tokenizer("gpt2"), shard_tokens=1, block_documents=1)
    words = ("export", folder, "--to", "jsonl", "--window", 2, "--out")
    code, stderr = command.interrupted("export", *words, tmp_path / "rows")
    assert code == 130
    says = r"piecemill: stopped; (\d+) of 60 parts are whole: run the same command again to make the others in .*/rows"
    found = re.fullmatch(says, stderr.splitlines()[-1])
    whole = sorted(path.name for path in (tmp_path / "rows" / "train").iterdir())
    assert len(whole) == int(found[1])
    assert 1 <= len(whole) < 60  # and nothing that is half written
    for out in ("rows", "straight"):
        assert command.piecemill(*words, tmp_path / out).returncode == 0
    for path in (tmp_path / "straight").rglob("*.jsonl"):
        assert (tmp_path / "rows" / path.relative_to(tmp_path / "straight")).read_bytes() == path.read_bytes()
