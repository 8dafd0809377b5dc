"""A complete folder is compared with what it is asked to hold; `force` replaces it, and deletes only what is ours."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import piecemill as pm
from command import piecemill
from corpora import content, small_tokenizer, texts
from piecemill.errors import PlanError, ShardError, SourceError


@pytest.fixture(scope="module")
def tok():
    return small_tokenizer()


def decoded(folder, tok):
    return [tok.decode(ids[:-1]) for ids in pm.open_shards(folder)]


def test_other_data_from_memory_is_not_taken_for_what_a_complete_folder_holds(tok, tmp_path):
    out = tmp_path / "out"
    pm.prepare(["a doc"], tok, out=out)
    assert pm.prepare(["a doc"], tok, out=out).complete_before
    for other in (["completely different", "and more", "third"], ["b doc"], ["a doc", "more"]):
        with pytest.raises(SourceError, match=r"not what it was when it was prepared.*force=True"):
            pm.prepare(other, tok, out=out)
    with pytest.raises(SourceError, match="1 of its documents then, 2 now"):
        pm.prepare(["a doc", "more"], tok, out=out)
    assert decoded(out, tok) == ["a doc"]


def test_a_file_that_was_broken_and_skipped_and_can_be_read_now_is_another_source(tok, tmp_path):
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    corpus.mkdir()
    (corpus / "a.txt").write_text("a doc")
    pq.write_table(pa.table({"text": ["more"]}), corpus / "b.parquet")
    whole = (corpus / "b.parquet").read_bytes()
    (corpus / "b.parquet").write_bytes(bytes(len(whole)))
    pm.prepare(corpus, tok, out=out, on_bad_document="skip")
    (corpus / "b.parquet").write_bytes(whole)
    with pytest.raises(SourceError, match=r"made from 5 bytes that could be read, found .* was broken then and is not"):
        pm.prepare(corpus, tok, out=out, on_bad_document="skip")


def test_other_data_of_several_pieces_is_noticed_wherever_it_differs(tok, tmp_path):
    out, many = tmp_path / "out", texts(400)
    small = {"piece_bytes": "8KiB", "block_bytes": "2KiB", "dedup": "exact"}
    pm.prepare(many, tok, out=out, **small)
    assert pm.prepare(many, tok, out=out, **small).complete_before
    for at in (0, 200, 399):
        with pytest.raises(SourceError, match="not what it was"):
            pm.prepare([*many[:at], "other", *many[at + 1 :]], tok, out=out, **small)
    for other in (many[:-1], [*many, "one more"]):
        with pytest.raises(SourceError, match="not what it was"):
            pm.prepare(other, tok, out=out, **small)
    (out / "stats.json").unlink()  # all pieces are done, and the run was stopped before its end
    with pytest.raises(SourceError, match="not what it was"):
        pm.prepare(["other", *many[1:]], tok, out=out, **small)


def test_other_groups_of_the_same_texts_are_other_data(tok, tmp_path):
    by_lang = {"split_by": "lang", "splits": "train=1,val=1"}
    rows = [{"text": text, "lang": lang} for text, lang in zip(texts(8), "abcdefgh", strict=True)]
    swapped = [{**row, "lang": lang} for row, lang in zip(rows, "hgfedcba", strict=True)]
    pm.prepare(pa.Table.from_pylist(rows), tok, out=tmp_path / "table", **by_lang)
    with pytest.raises(SourceError, match="8 of its documents then, 8 now, with other text or groups"):
        pm.prepare(pa.Table.from_pylist(swapped), tok, out=tmp_path / "table", **by_lang)
    file = tmp_path / "a.jsonl"
    for number, some in enumerate((rows, rows, swapped)):
        file.write_text("".join(json.dumps(row) + "\n" for row in some))
        os.utime(file, (number, number))
        if some is rows:
            assert pm.prepare(file, tok, out=tmp_path / "file", **by_lang).complete_before == (number > 0)
    with pytest.raises(SourceError, match="its content is another"):
        pm.prepare(file, tok, out=tmp_path / "file", **by_lang)


def test_a_run_that_found_no_document_does_not_block_its_folder(tok, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(SourceError, match="empty corpus"):
        pm.prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "out", field="txt", on_bad_document="skip")
    assert list((tmp_path / "out/entries").iterdir())
    assert pm.prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "out").documents == 1
    with pytest.raises(SourceError, match="empty corpus"):
        pm.prepare([], tok, out=tmp_path / "list")
    assert pm.prepare(["a"], tok, out=tmp_path / "list").documents == 1


def test_force_replaces_other_data_options_and_tokenizers(tok, tmp_path):
    out = tmp_path / "out"
    pm.prepare(texts(50), tok, out=out, splits="train=9,val=1", dedup="exact")
    summary = pm.prepare(iter(["one", "two"]), tok, out=out, force=True)
    assert not summary.complete_before
    assert decoded(out, tok) == ["one", "two"]
    pm.prepare(iter(["one", "two"]), tok, out=tmp_path / "new")
    assert content(out) == content(tmp_path / "new")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("a text")
    with pytest.raises((PlanError, SourceError)):
        pm.prepare(corpus, tok, out=out)
    pm.prepare(corpus, tok, out=out, force=True)
    times = {path: path.stat().st_mtime_ns for path in (out / "all").iterdir()}
    assert pm.prepare(corpus, tok, out=out, force=True).complete_before  # the same: there is nothing to replace
    assert times == {path: path.stat().st_mtime_ns for path in times}
    other = pm.train_bpe(["other words"], vocab_size=260, pretokenizer="gpt2")
    with pytest.raises((PlanError, ShardError), match="tokenizer"):
        pm.prepare(corpus, other, out=out)
    pm.prepare(corpus, other, out=out, force=True)
    assert pm.open_shards(out).tokenizer_identity == other.identity


@pytest.mark.parametrize("mine", ["notes.txt", "all/notes.txt", "entries/mine.json", "more/a.npy"])
def test_force_deletes_nothing_where_something_is_not_ours(tok, tmp_path, mine):
    out = tmp_path / "out"
    pm.prepare(["a doc"], tok, out=out)
    (out / mine).parent.mkdir(exist_ok=True)
    (out / mine).write_text("mine")
    before = content(out)
    with pytest.raises(ShardError, match=rf"holds '{mine}'.*nothing is replaced"):
        pm.prepare(["another"], tok, out=out, force=True)
    assert content(out) == before


def test_force_deletes_no_folder_of_someone_else(tok, tmp_path):
    (tmp_path / "plan.json").write_text('{"format": 1, "options": {}}')
    with pytest.raises(ShardError):
        pm.prepare(["a doc"], tok, out=tmp_path, force=True)
    assert (tmp_path / "plan.json").exists()
    with pytest.raises(PlanError, match="force and part"):
        pm.prepare(tmp_path, tok, out=tmp_path / "out", part="1/2", force=True)


def test_the_command_says_that_there_is_a_way_to_replace(tok, tmp_path):
    tok.save(tmp_path / "tok")
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "b.txt").write_text("b text")
    run = ["prepare", "--tokenizer", "tok", "--out", "out", "--quiet"]
    assert piecemill(*run, "a.txt", cwd=tmp_path).returncode == 0
    refused = piecemill(*run, "b.txt", cwd=tmp_path)
    assert refused.returncode != 0
    assert "--force" in refused.stderr
    assert piecemill(*run, "b.txt", "--force", cwd=tmp_path).returncode == 0
    assert decoded(tmp_path / "out", tok) == ["b text"]
