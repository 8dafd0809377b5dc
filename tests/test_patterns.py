"""Patterns that match nothing are not silent, and patterns mean what people write."""

import fsspec
import numpy as np
import pytest

import piecemill as pm
from corpora import small_tokenizer
from piecemill.errors import PlanError, SourceError
from piecemill.reporting.describing import describe
from piecemill.sources import open_source


@pytest.fixture(scope="module")
def tok():
    return small_tokenizer()


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """mix/web with three texts, mix/books with two, one of which is in mix/books/web."""
    monkeypatch.chdir(tmp_path)
    for name in ("web/a.txt", "web/b.txt", "web/c.md", "books/d.txt", "books/web/e.txt"):
        path = tmp_path / "mix" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"the text of {name}")
    return tmp_path


def groups(out):
    """The group of each document, by file."""
    rows = pm.open_shards(out)
    return [int(one) for n in range(len(rows.entries)) for one in rows.array(n, "documents")["group"]]


@pytest.mark.parametrize(
    ("sources", "weight", "expected"),
    [
        (["mix"], "web/**=3", [0, 0, 1, 1, 1]),
        (["mix"], "mix/web/**=3", [0, 0, 1, 1, 1]),
        (["mix"], "./mix/web/**=3", [0, 0, 1, 1, 1]),
        (["mix/web", "mix/books"], "mix/web/**=3", [1, 1, 1, 0, 0]),
        (["mix/web", "mix/books"], "mix/web=3", [1, 1, 1, 0, 0]),
        (["mix/web", "./mix/books/"], "books=3", [0, 0, 0, 1, 1]),
        (["mix/web/a.txt", "mix/books"], "mix/*/a.txt=3", [1, 0, 0]),
        (["mix/*/*.txt"], "mix/web/*=3", [0, 1, 1]),
    ],
)
def test_weights_go_by_the_path_as_typed_and_by_source(tok, tree, sources, weight, expected):
    summary = pm.prepare(sources, tok, out="out", weight=[weight])
    assert groups("out") == expected
    others, weighed = summary.groups
    assert (others["documents"], weighed["documents"]) == (expected.count(0), expected.count(1))
    assert weighed["weight"] == 3


def test_absolute_paths_are_typed_too(tok, tree):
    pm.prepare([tree / "mix/web", tree / "mix/books"], tok, out="out", weight=[f"{tree}/mix/web/**=3"])
    assert groups("out") == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("weight", ["wbe/**=3", "*.py=2", "mix/web/web/**=2"])
def test_a_weight_that_matches_nothing_is_an_error_that_shows_a_path(tok, tree, weight):
    with pytest.raises(PlanError, match=r"it matches none of the 5 files.*mix/books/d.txt.*'mix/books/\*\*'"):
        pm.prepare("mix", tok, out="out", weight=["web/**=2", weight])
    pm.prepare("mix", tok, out="out", weight=["web/**=2"])  # nothing was begun


def test_a_weight_that_an_earlier_one_hides_is_seen_in_the_result(tok, tree):
    summary = pm.prepare("mix", tok, out="out", weight=["web/**=2", "web/a.txt=3"])
    assert "web/a.txt (weight 3): 0 documents, 0 tokens" in str(summary)


def test_documents_and_tokens_of_groups_are_in_the_result_in_show_and_in_stats(tok, tree):
    summary = pm.prepare(
        "mix", tok, out="out", weight=["web/**=2", "books/web/**=0.5"], splits="a=1,b=1", dedup="exact"
    )
    counted = [0, 0, 0]
    for split in ("a", "b"):
        rows = pm.open_shards("out", split)
        for number in range(len(rows.entries)):
            lengths = np.diff(rows.array(number, "ends"), prepend=0)
            for group, length in zip(rows.array(number, "documents")["group"].tolist(), lengths.tolist(), strict=True):
                counted[group] += length
    assert [group["tokens"] for group in summary.groups] == counted
    assert [group["documents"] for group in summary.groups] == [1, 3, 1]
    description = describe("out")
    found = description.facts
    assert found["groups"] == found["stats"]["groups"] == list(summary.groups)
    for text in (str(summary), str(description)):
        assert "web/** (weight 2): 3 documents" in text
        assert "all others (weight 1): 1 document," in text
    assert pm.prepare(
        "mix", tok, out="out", weight=["web/**=2", "books/web/**=0.5"], splits="a=1,b=1", dedup="exact"
    ).groups == summary.groups  # fmt: skip


def files(*sources, **options):
    return [file.path for file in open_source([*map(str, sources)], **options).files]


@pytest.mark.parametrize(
    "pattern", ["mix/web/*.txt", "./mix/web/*.txt", "mix/w*/*.txt", "mix/{web,x}/*.txt", "**/web/[ab]*"]
)
def test_include_and_exclude_go_by_the_path_as_typed_too(tree, pattern):
    assert files("mix/web", include=[pattern]) == ["mix/web/a.txt", "mix/web/b.txt"]
    assert files("mix/web", exclude=[pattern]) == ["mix/web/c.md"]
    assert "mix/web/a.txt" not in files("mix/web", "mix/books", exclude=[pattern])


def test_a_folder_as_typed_stands_for_all_in_it(tree):
    with pytest.raises(SourceError, match="mix/web: no file matched"):
        open_source(["mix/web", "mix/books"], exclude=["mix/web"])


def test_include_and_exclude_that_match_nothing_are_notes(tok, tree):
    source = open_source("mix", include=["*.txt", "*.rst"], exclude=["*.html", "web/b.txt"])
    assert len(source.notes) == 2
    assert "include='*.rst' matched no file" in source.notes[0]
    assert "exclude='*.html' matched no file" in source.notes[1]
    summary = pm.prepare("mix", tok, out="out", exclude=["*.html"])
    assert "note: exclude='*.html' matched no file" in str(summary)
    trained = pm.train_bpe("mix", vocab_size=260, exclude=["*.html"])
    assert "exclude='*.html'" in trained.training["corpus"]["notes"][0]
    assert open_source("mix", exclude=["*.md", "books"]).notes == ()


def test_patterns_for_data_in_memory_are_notes_as_they_match_nothing(tok, tree):
    assert "exclude='*.html' matched no file" in pm.prepare(["a"], tok, out="out", exclude=["*.html"]).notes[0]


def test_counting_alone_says_it_too(tree):
    counted = pm.count_words("mix", save_counts="counts.parquet", exclude=["*.html"])
    assert "note: exclude='*.html' matched no file" in str(counted)


def test_batches_from_text_warn_of_it(tok, tree):
    torch = pytest.importorskip("piecemill.loading.torch")
    with pytest.warns(UserWarning, match=r"exclude='\*\.html' matched no file of a folder") as seen:
        torch.text_batches("mix", tok, window=4, exclude=["*.html"])
    assert [one.filename for one in seen] == [__file__], "at the line of the user"


@pytest.mark.parametrize("glob", ["", "**"])
def test_a_pattern_that_matches_no_file_of_a_url_is_told_too(tmp_path, glob):
    for name in ("a.md", "b.txt", "docs/c.md"):
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    fsspec.filesystem("memory").put(str(tmp_path), str(tmp_path), recursive=True)
    url = f"memory://{tmp_path}/{glob}"
    source = open_source([url], include=("*.md", "*.rst"), exclude=("docs/**", "*.html"))
    assert [file.inside for file in source.files] == ["a.md"]
    assert [note.split(" of a")[0] for note in source.notes] == [
        "include='*.rst' matched no file",
        "exclude='*.html' matched no file",
    ]
    both = open_source([url, tmp_path], include=("*.md", "docs/*.md"))
    assert both.notes == ()
