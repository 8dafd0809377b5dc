"""Files that may not be read and folders that may not be written: each is named, and nothing beside it is blamed."""

import shutil
import sys

import pytest

import piecemill as pm
from command import without_rights
from corpora import small_tokenizer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="root gives up its rights through Linux's prctl")


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for number in range(4):
        (tmp_path / f"docs/{number}.txt").write_text(f"the text with the number {number}")
    small_tokenizer().save("tok")
    pm.prepare("docs", "tok", out="out")
    return tmp_path


@pytest.fixture
def closed(corpus):
    """Takes all rights of a file or folder away; they come back, so that the folder can be deleted."""
    taken = []

    def close(name):
        taken.append((corpus / name, (corpus / name).stat().st_mode))
        (corpus / name).chmod(0)

    yield close
    for path, mode in taken:
        path.chmod(mode)


CHECKED = {
    "all/000000-0000.tokens.npy": "is listed in the manifest and cannot be read: Permission denied.",
    "all/manifest.jsonl": "cannot be read: Permission denied. Get the right to read it.",
    "plan.json": "is listed in stats.json and cannot be read: Permission denied.",
    "entries/000000-0000.json": "cannot be read: Permission denied.",
    "entries": "cannot be read: Permission denied. Get the right to read it.",
    "tokenizer/tokenizer.json": "is listed in stats.json and cannot be read: Permission denied.",
}


@pytest.mark.parametrize("name", CHECKED)
def test_check_names_what_it_may_not_read_and_nothing_else(corpus, closed, name):
    closed(f"out/{name}")
    code, said = without_rights("check", "out")
    assert (code, f"out/{name}: {CHECKED[name]}" in said) == (1, True), said
    named = [line for line in said.splitlines() if not line.startswith((f"out/{name}: ", f"piecemill: out/{name}: "))]
    assert [line for line in named if "cannot be decoded" not in line] == [], "an effect of the same cause"


@pytest.mark.parametrize("name", ["all/000000-0000.tokens.npy", "all/manifest.jsonl"])
def test_export_names_what_it_may_not_read(corpus, closed, name):
    closed(f"out/{name}")
    code, said = without_rights("export", "out", "--window", "4", "--out", "rows")
    assert code == 1
    assert f"out/{name}: cannot be read: Permission denied" in said
    assert "Get the right to read it." in said
    assert "prepare the folder again" not in said


def test_a_source_that_may_not_be_read_is_a_bad_document(corpus, closed):
    shutil.copytree("docs", "folder/inside")
    shutil.copy("docs/3.txt", "folder")
    closed("docs/1.txt")
    closed("folder/inside")
    for source, named in (("docs", "docs/1.txt: cannot be read"), ("folder", "folder/inside: folder cannot be read")):
        code, said = without_rights("prepare", source, "docs/2.txt", "--tokenizer", "tok", "--out", "new")
        assert (code, f"{named}: Permission denied" in said) == (1, True), said
        shutil.rmtree("new", ignore_errors=True)
        skip = ("--on-bad-document", "skip", "--dedup", "none")
        code, said = without_rights("prepare", source, "docs/2.txt", "--tokenizer", "tok", "--out", "new", *skip)
        assert (code, "note: skipped 1 bad document" in said) == (0, True), said
        assert f"{named}: Permission denied" in said
        shutil.rmtree("new")


def test_a_folder_that_may_not_be_written_is_refused_before_the_work(corpus):
    (corpus / "shut").mkdir(mode=0o500)
    commands = {
        "prepare docs --tokenizer tok --out shut/new": "shut/new",
        "train docs --vocab-size 270 --out shut/tok": "shut/tok",
        "train docs --save-counts shut/c.parquet": "shut/c.parquet",
        "report out --out shut/page.html": "shut/page.html",
        "export out --window 4 --out shut/rows": "shut/rows",
    }
    for line, out in commands.items():
        code, said = without_rights(*line.split())
        assert (code, f"{out}: cannot be written: Permission denied" in said) == (1, True), said
        assert "Nothing was done. Get the right to write there, or choose another place." in said
    assert not list((corpus / "shut").iterdir())
