"""Output is never input: not `out` inside a source, nor what earlier runs wrote there."""

import json

import pytest

import piecemill as pm
from command import piecemill
from corpora import content, small_tokenizer
from piecemill.errors import Stopped
from piecemill.preparing import task
from piecemill.sources import open_source


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    folder = tmp_path / "corpus"
    for number in range(20):
        (folder / f"{number % 3}").mkdir(parents=True, exist_ok=True)
        (folder / f"{number % 3}" / f"{number}.txt").write_text(f"text number {number} " * 20)
    monkeypatch.chdir(folder)
    return folder


SMALL = {"piece_bytes": "1KiB", "block_bytes": "1KiB"}


def test_a_run_whose_folder_lies_in_its_source_is_resumed_and_repeated(corpus, tmp_path, monkeypatch):
    tok = small_tokenizer()
    real, pieces = task._NewPiece.finish, []

    def stopping(self, *, last):
        if len(pieces) == 3:
            raise KeyboardInterrupt
        pieces.append(1)
        real(self, last=last)

    with monkeypatch.context() as patched:
        patched.setattr(task._NewPiece, "finish", stopping)
        with pytest.raises(Stopped):
            pm.prepare(".", tok, out="out/shards", threads=1, **SMALL)
    assert (corpus / "out/shards/plan.json").exists()
    assert pm.prepare(".", tok, out="out/shards", **SMALL).documents == 20
    assert pm.prepare(".", tok, out="out/shards", **SMALL).complete_before
    assert pm.prepare(".", tok, out=corpus / "out/shards", **SMALL).complete_before
    # the files are those of a run that nothing interrupted, and of one elsewhere
    first = content(corpus / "out/shards")
    pm.prepare(".", tok, out=tmp_path / "elsewhere", **SMALL)
    elsewhere = content(tmp_path / "elsewhere")
    assert json.loads(elsewhere.pop("stats.json"))["left_out"] == {"own": 1}
    assert "own" not in json.loads(first.pop("stats.json"))["left_out"]
    assert first == elsewhere


def test_our_folders_found_while_walking_are_left_out_and_counted(corpus):
    small_tokenizer().save("tok")
    assert piecemill("train", ".", "--out", "0/mine", "--vocab-size", "270", "--quiet", cwd=corpus).returncode == 0
    again = piecemill(
        "train", ".", "--out", "0/mine", "--vocab-size", "270", "--force", "--json", "--quiet", cwd=corpus
    )
    read = json.loads(again.stdout)
    assert "20" in json.dumps(read)
    pm.prepare(".", "tok", out="shards")
    source = open_source(".")
    assert len(source.files) == 20
    assert source.left_out["own"] == 3
    assert pm.train_bpe(".", vocab_size=260).training["corpus"]["documents"] == 20
    (corpus / "0/mine/more.txt").write_text("a text that lies in there is left out with it")
    assert len(open_source(".").files) == 20
    # whoever names such a folder wants it
    assert len(open_source("tok").files) > 1
    assert "tok/tokenizer.json" in [file.path for file in open_source("tok").files]


def test_saved_tokenizers_rows_and_reports_are_left_out_too(corpus):
    tok = small_tokenizer()
    pm.prepare("0", tok, out="shards")
    pm.export("shards", out="rows", to="jsonl", window=16)
    pm.export("shards", out="megatron", to="megatron")
    pm.load_tokenizer("shards/tokenizer").save("saved")
    (corpus / "saved/training.json").unlink(missing_ok=True)
    pm.report(["saved"], out="page.html")
    source = open_source(".")
    assert len(source.files) == 20
    assert source.left_out["own"] == 6  # the shards, both kinds of rows, the tokenizer, the report and its facts


def test_folders_of_others_with_such_files_are_read(corpus):
    others = [("tokenizer.json", "README.md"), ("export.json", "rows.jsonl"), ("export.json", "notes.txt")]
    for number, names in enumerate(others):  # a folder for each: one file more would make another kind of folder
        (corpus / f"mine {number}").mkdir()
        for name in names:
            (corpus / f"mine {number}" / name).write_text('{"text": "one"}')
    (corpus / "0/page.html").write_text("a page of others")
    assert len(open_source(".").files) == 20 + 2 * len(others) + 1
    assert "own" not in open_source(".").left_out


def test_a_link_to_the_output_and_an_output_above_a_source_make_no_difference(corpus, tmp_path):
    (tmp_path / "link").symlink_to(corpus)
    tok = small_tokenizer()
    for _ in range(2):
        assert pm.prepare(tmp_path / "link", tok, out="shards").documents == 20
    assert open_source("0", out="..").files
