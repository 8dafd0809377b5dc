"""`report`: one page for a browser and the same facts as JSON, tested as files and in headless Chromium."""

import html
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import models
import piecemill as pm
from browser import Browser, required
from command import piecemill
from corpora import small_tokenizer
from piecemill._core import splits
from piecemill.actions.shards import write_action_shards
from piecemill.errors import PlanError
from piecemill.files import LocalPlace
from piecemill.reporting.html import escape, show, to_javascript
from piecemill.reporting.vocabulary import compression_by_size, merges_of, uses_of_merges, vocabulary_section
from piecemill.shards.folder import read_stats, write_stats
from vocabularies import NASTY, library_texts

TEXTS = {
    f"{folder}/{n}.{ending}": text
    for n, text in enumerate(library_texts(6))
    for folder, ending in [("ab"[n % 2], ["py", "txt"][n // 3])]
}
HOSTILE = "</script><script>alert(1)</script><!-- <b onmouseover=alert(2)>\x1b & \u2028"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A tokenizer, shards made with it, and another tokenizer."""
    folder = tmp_path_factory.mktemp("report")
    for name, text in TEXTS.items():
        (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "in" / name).write_text(text)
    (folder / "in" / "a" / "hostile.txt").write_text(HOSTILE * 20)
    tok = pm.train_bpe(folder / "in", vocab_size=2000, pretokenizer="cl100k")
    tok.save(folder / "tok")
    small_tokenizer().save(folder / "other")
    pm.prepare(folder / "in", folder / "tok", out=folder / "shards", splits="train=80,val=20")
    return folder


@pytest.fixture(scope="module")
def written(made):
    return pm.report([made / "shards"], out=made / "report.html", against=[made / "other"])


def figures(facts):
    """Every figure of a report, with the name that says how it is shown."""
    for section in facts["sections"]:
        yield from section.get("figures", {}).items()
        for table in section.get("tables", ()):
            for row in table["rows"]:
                yield from row.items()
        for curve in section.get("curves", ()):
            for series in curve["series"]:
                for x, y in series["points"]:
                    yield from (("x", x), ("y", y))


def test_the_page_is_one_file_and_the_same_twice(made, written, tmp_path):
    content = (made / "report.html").read_bytes()
    assert written.bytes == len(content) < 2_000_000
    text = content.decode()
    for link in ("http://", "https://", "src=", "@import", "url("):
        assert link not in text.replace("https://example.org", ""), link
    again = pm.report([made / "shards"], out=tmp_path / "b.html", against=[made / "other"], threads=1)
    assert (tmp_path / "b.html").read_bytes() == content
    assert (tmp_path / "b.facts.json").read_bytes() == (made / "report.facts.json").read_bytes()
    assert json.loads((made / "report.facts.json").read_text()) == written.facts == again.facts


def test_sections_are_those_of_the_paths(made, written, tmp_path):
    kinds = [section["id"] for section in written.facts["sections"]]
    assert kinds == ["head", "compression", "comparison", "vocabulary", "samples", "numbers", "corpus"]
    (row,) = written.facts["sections"][0]["tables"][0]["rows"]
    assert (row["what"], row["made_from"].partition(",")[0]) == ("prepared shards", f"{len(TEXTS) + 1} files")
    assert row["tokenizer_identity"] == pm.load_tokenizer(made / "tok").identity
    splits = {split: pm.open_shards(made / "shards", split).identity for split in ("train", "val")}
    assert row["shards_identity"] == f"train {splits['train']}, val {splits['val']}"
    alone = pm.report(made / "tok", out=tmp_path / "tok.html")
    for report, path, option in (
        (written, "shards", ("splits", "train=80,val=20")),
        (alone, "tok", ("pretokenizer", "cl100k")),
    ):
        tables = {one["title"]: one for one in report.facts["sections"][0]["tables"]}
        assert dict(zip(("option", "value"), option, strict=True)) in tables[f"Plan of {made / path}"]["rows"]
        names = [row["source"] for row in tables[f"Sources of {made / path}"]["rows"]]
        assert names == sorted(str(file) for file in (made / "in").rglob("*.*"))
    assert [section["id"] for section in alone.facts["sections"]] == ["head", "vocabulary", "samples", "numbers"]
    both = pm.report([made / "tok", made / "shards"], out=tmp_path / "both.html")
    assert "comparison" not in [section["id"] for section in both.facts["sections"]]  # one tokenizer, given twice
    with pytest.raises(PlanError, match="there are no documents to compare on"):
        pm.report(made / "tok", out=tmp_path / "x.html", against=[made / "other"])
    with pytest.raises(PlanError, match="no path was given"):
        pm.report([], out=tmp_path / "x.html")


def test_the_names_of_many_sources_are_not_all_listed(tmp_path):
    (tmp_path / "in").mkdir()
    for n in range(30):
        (tmp_path / "in" / f"{n:02}.txt").write_text(f"text {n}")
    pm.train_bpe(tmp_path / "in", vocab_size=270).save(tmp_path / "tok")
    pm.prepare(tmp_path / "in", tmp_path / "tok", out=tmp_path / "shards")
    head = pm.report([tmp_path / "tok", tmp_path / "shards"], out=tmp_path / "r.html").facts["sections"][0]
    tables = [one for one in head["tables"] if one["title"].startswith("Sources of")]
    assert [(len(one["rows"]), one["note"]) for one in tables] == [(20, "and 10 more files")] * 2


def test_figures_are_those_of_the_shards(made, written):
    facts = {section["id"]: section for section in written.facts["sections"]}
    rows = {row["group"]: row for row in facts["compression"]["tables"][0]["rows"]}
    tok = pm.load_tokenizer(made / "tok")
    texts = [path.read_text() for path in (made / "in" / "b").iterdir()]
    assert rows["b/"]["tokens"] == sum(len(tok.encode(text)) for text in texts)
    assert rows["b/"]["bytes"] == sum(len(text.encode()) for text in texts)
    assert facts["corpus"]["figures"]["documents"] == len(TEXTS) + 1
    counts = sum(pm.open_shards(made / "shards", split).token_counts() for split in ("train", "val"))
    findings = {row["finding"]: row["tokens"] for row in facts["vocabulary"]["tables"][0]["rows"]}
    assert findings["never emitted"] == sum(
        counts[i] == 0 for i in range(len(tok)) if i not in tok.special_tokens.values()
    )
    windows = {row["window"]: row for row in facts["corpus"]["tables"][-2]["rows"]}
    lengths = np.array([len(row) for split in ("train", "val") for row in pm.open_shards(made / "shards", split)])
    assert windows[1024]["documents_cut_share"] == pytest.approx((lengths > 1024).mean())
    alone = (-(-lengths // 1024) * 1024).sum()
    assert windows[1024]["padding_share_one_document_a_row"] == pytest.approx(1 - lengths.sum() / alone)


def test_samples_are_parts_of_single_documents(made, written):
    samples = next(one for one in written.facts["sections"] if one["id"] == "samples")["samples"]
    tok = pm.load_tokenizer(made / "tok")
    assert [sample["group"] for sample in samples] == ["a/", "b/"] or [sample["group"] for sample in samples] == [
        "b/",
        "a/",
    ]
    for sample in samples:
        ids = [token[0] for token in sample["tokens"]]
        assert tok.decode(ids).rstrip("\ufffd") in (made / "in" / sample["name"]).read_text()
        counts = sum(pm.open_shards(made / "shards", split).token_counts() for split in ("train", "val"))
        for i, text, raw, count in sample["tokens"]:
            assert (bytes.fromhex(raw), count) == (tok.bytes_of(i), counts[i])
            assert text == tok.bytes_of(i).decode("utf-8", "backslashreplace")


def test_the_curve_is_that_of_smaller_vocabularies(made):
    """The first k merges are the vocabulary of size k: the same numbers as encoding with each."""
    tok = pm.load_tokenizer(made / "tok")
    texts = list(TEXTS.values())
    ids, _ = tok.encode_batch(texts)
    counts = np.bincount(ids, minlength=len(tok)).astype(np.uint64)
    applied, _ = uses_of_merges(merges_of(tok), counts)
    size = sum(len(text.encode()) for text in texts)
    assert size - applied.sum() == len(ids)
    for merges in (0, 1, 50, 700, len(tok.merges)):
        smaller = pm.Tokenizer.from_merges(
            tok.merges[:merges], pretokenizer="cl100k", special_tokens=list(tok.special_tokens)
        )
        assert size - applied[:merges].sum() == len(smaller.encode_batch(texts)[0]), merges
    found = compression_by_size(tok, merges_of(tok), counts)
    assert found["curve"]["series"][0]["points"][-1] == [len(tok), round(size / len(ids), 4)]
    assert found["figures"]["bytes_per_token"] == pytest.approx(size / len(ids))


def test_findings_about_tokens_by_hand():
    # a 64, b 65, space 220 are ids of bytes; the merges make "ab", " ab", "aba", and bytes of "ä" and "я"
    tok = pm.Tokenizer.from_merges(np.empty((0, 2), np.uint32), pretokenizer="gpt2")
    byte = {bytes([b]): tok.id_of(bytes([b])) for b in range(256)}
    merges = [
        (byte[b"a"], byte[b"b"]),  # 256: ab
        (byte[b" "], 256),  # 257: " ab"
        (byte[b"A"], byte[b"b"]),  # 258: Ab
        (byte["я".encode()[:1]], byte["я".encode()[1:]]),  # 259: я
        (256, 259),  # 260: abя, of two scripts
        (byte[b"."], byte[b"a"]),  # 261: ".a", which the pretokenizer always cuts
    ]
    tok = pm.Tokenizer.from_merges(np.array(merges), pretokenizer="gpt2")
    counts = np.zeros(len(tok), np.uint64)
    counts[257], counts[256] = 1000, 3
    section = vocabulary_section(tok, merges_of(tok), counts)
    found = {row["finding"].partition(":")[0]: row["tokens"] for row in section["tables"][0]["rows"]}
    assert found["never emitted"] == len(tok) - 2
    assert found["emitted under 100 times"] == 1
    assert found["unreachable"] == 1
    assert found["incomplete UTF-8"] == 128
    assert found["several scripts in one token"] == 1
    assert found["merge residue"] == 1  # "ab": 3 times by itself, 1,000 times inside " ab"
    examples = {row["finding"].partition(":")[0]: row["token"] for row in section["tables"][1]["rows"]}
    assert (examples["unreachable"], examples["several scripts in one token"]) == (".a", "abя")
    twins = {row["text"]: row["tokens"] for row in section["tables"][3]["rows"]}
    assert twins["ab"] == "'ab'  ' ab'  'Ab'"


@pytest.mark.parametrize("name", ["word_piece", "unigram", "sentencepiece"])
def test_a_tokenizer_of_any_kind_has_a_report(name, tmp_path, made):
    if name == "sentencepiece":
        path = tmp_path / "tokenizer.model"
        path.write_bytes(models.sentencepiece_model())
    else:
        path = tmp_path / "tokenizer.json"
        path.write_text(models.tokenizer_json(name))
    pm.prepare(made / "in", path, out=tmp_path / "shards", eos="none")
    done = pm.report(tmp_path / "shards", out=tmp_path / "r.html", against=[made / "tok"])
    assert "only byte-level BPE with a named pretokenizer" in (tmp_path / "r.html").read_text()
    assert [section["id"] for section in done.facts["sections"]][1:3] == ["compression", "comparison"]


def test_a_corpus_with_languages_and_a_folder_without_counts(made, tmp_path):
    rows = [{"text": f"row {n} with words", "lang": ["en", "de"][n % 2]} for n in range(50)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = pm.report(
        made / "tok",
        out=tmp_path / "r.html",
        against=[made / "other"],
        on=tmp_path / "a.jsonl",
        language="lang",
        speed=True,
    )
    facts = {section["id"]: section for section in done.facts["sections"]}
    assert {row["group"] for row in facts["compression"]["tables"][0]["rows"]} == {"en", "de"}
    both = pm.report(made / "shards", out=tmp_path / "r.html", on=tmp_path / "a.jsonl", language="lang", sample=0)
    tables = {one["title"]: one["rows"] for one in both.facts["sections"][1]["tables"]}
    assert {row["tokens_per_word"] for row in tables["By source"]} == {
        None
    }  # the words of another corpus are not mixed in
    assert {row["group"] for row in tables["By language, on the sample"]} == {"en", "de"}
    assert facts["comparison"]["tables"][0]["rows"][0]["mb_per_second"] > 0
    shutil.copytree(made / "shards", tmp_path / "old")
    for file in (tmp_path / "old").glob("*/counts.npy"):
        file.unlink()
    stats = {key: value for key, value in read_stats(tmp_path / "old").items() if key not in ("checksums", "xxh3")}
    write_stats(LocalPlace(tmp_path / "old"), stats)
    old = pm.report(tmp_path / "old", out=tmp_path / "old.html")
    assert "There are no exact counts" in next(
        one["rule"] for one in old.facts["sections"] if one["id"] == "vocabulary"
    )


def test_languages_come_from_the_files_that_were_prepared(made, tmp_path):
    rows = [{"body": f"row {n} with words", "lang": ["en", "de"][n % 2]} for n in range(50)]
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pm.prepare(tmp_path / "in", made / "tok", out=tmp_path / "shards", field="body")
    given = {"out": tmp_path / "r.html", "against": [made / "other"], "language": "lang"}
    facts = {section["id"]: section for section in pm.report(tmp_path / "shards", **given).facts["sections"]}
    (table,) = (one for one in facts["compression"]["tables"] if one["title"] == "By language, on the sample")
    size = sum(len(row["body"]) for row in rows if row["lang"] == "de")
    assert {row["group"]: (row["documents"], row["bytes"]) for row in table["rows"]}["de"] == (25, size)
    assert facts["comparison"]["tables"][0]["rows"][0]["gini_by_language"] is not None
    with pytest.raises(PlanError, match="language: there are no documents"):
        pm.report(made / "tok", out=tmp_path / "r.html", language="lang")
    file.write_text("")
    with pytest.raises(PlanError, match=r"language='lang'.*a.jsonl is not as it was prepared"):
        pm.report(tmp_path / "shards", **given)


def test_a_run_that_the_guard_ended_says_why(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").write_text(json.dumps({"format": 1, "options": {}, "data": {}}))
    reason = "step 31: loss nan. The run has diverged: lower --lr or raise --warmup, and start in another --out."
    (tmp_path / "run" / "result.json").write_text(json.dumps({"complete": False, "guard": reason}))
    found = pm.describe(tmp_path / "run")
    assert (found.facts["complete"], found.facts["guard"]) == (False, reason)
    first, *rest = str(found).splitlines()
    assert first.endswith("; ended by the guard")
    assert f"guard        {reason}" in rest
    sections = pm.report(tmp_path / "run", out=tmp_path / "r.html").facts["sections"]
    assert sections[-1]["figures"]["ended_by_the_guard"] is True
    assert sections[-1]["tables"][0]["rows"] == [{"reason": reason}]
    assert reason in (tmp_path / "r.html").read_text()


PACE = {"tokens_per_second": 81234.5, "utilisation": 0.4321, "waited_share": 0.0123, "process_cores": 1.875}


@pytest.fixture(scope="module")
def ran(made):
    """A report with a run and a vocabulary of actions."""
    items = {str(item): [item % 3, item % 5] for item in range(30)}
    histories = [[str((user * step) % 30) for step in range(1, 9)] for user in range(40)]
    pm.train_actions(histories, items, vocab_size=40).save(made / "voc")
    (made / "histories.txt").write_text("".join(f"{user} {' '.join(row)}\n" for user, row in enumerate(histories)))
    run = made / "run"
    run.mkdir()
    identity = pm.open_shards(made / "shards", "train").identity
    plan = {"format": 1, "options": {"val_split": "val"}, "data": {"identity": identity}}
    plan |= {"chance": 7.6, "unigram_entropy": 6.0}
    (run / "plan.json").write_text(json.dumps(plan))
    (run / "result.json").write_text(json.dumps({"complete": True, "device": "cpu", **PACE}))
    metrics = [{"kind": "train", "step": n, "tokens": 64 * n, "loss": 7.0 - n / 200} for n in range(1, 301)]
    metrics += [{"kind": "val", "step": 300, "tokens": 64 * 300, "loss": 5.5}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in metrics))
    paths = [made / "voc", run, made / "shards"]
    return pm.report(paths, out=made / "run.html", histories=made / "histories.txt")


def test_a_run_and_a_vocabulary_of_actions_have_sections(made, ran):
    facts = {section["id"]: section for section in ran.facts["sections"]}
    found = facts["run"]["figures"]
    assert (found["steps"], found["validation_loss_in_nats_per_token"]) == (300, 5.5)
    assert found["better_than_knowing_how_frequent_tokens_are"]
    names = ("tokens_per_second", "peak_flops_share", "waiting_for_batches_share", "processor_cores")
    assert [found[name] for name in names] == list(PACE.values())
    assert found["ended_by_the_guard"] is False
    assert len(facts["run"]["curves"][0]["series"][0]["points"]) <= 120
    assert facts["actions"]["figures"]["vocab_size"] == 40
    assert {row["column"] for row in facts["actions"]["tables"][0]["rows"]}
    assert facts["actions"]["tables"][-1]["title"] == "Use"


def test_bits_per_byte_are_by_the_text_of_the_split(made, ran):
    """Splits differ in bytes per token: a loss is divided by that of the split it was measured on."""
    found = next(section for section in ran.facts["sections"] if section["id"] == "run")["figures"]
    train, val = (pm.open_shards(made / "shards", split) for split in ("train", "val"))
    assert train.text_bytes / train.tokens != pytest.approx(val.text_bytes / val.tokens)
    assert found["training_loss_in_nats_per_token"] == pytest.approx(7.0 - 275.5 / 200)  # of the last 50 steps
    for name, loss, shards in (("training", 7.0 - 275.5 / 200, train), ("validation", 5.5, val)):
        want = loss / np.log(2) * shards.tokens / shards.text_bytes
        assert found[f"{name}_loss_in_bits_per_byte"] == pytest.approx(want)


def test_shards_of_actions_have_a_report(ran, made, tmp_path):
    """Their tokens are items: numbers and code cannot be encoded with them."""
    write_action_shards(made / "histories.txt", pm.ActionTokenizer.load(made / "voc"), out=tmp_path / "shards")
    facts = {one["id"]: one for one in pm.report(tmp_path / "shards", out=tmp_path / "r.html").facts["sections"]}
    assert facts["corpus"]["figures"]["documents"] == 40
    assert facts["numbers"]["rule"].startswith("They have no tokens: ")


def test_the_command_writes_the_page_and_says_where(made, tmp_path):
    done = piecemill("report", made / "shards", "--against", made / "other", "--out", tmp_path / "r.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'r.html'}: ")
    assert (tmp_path / "r.facts.json").exists()
    assert "ending .facts.json" in " ".join(piecemill("report", "--help").stdout.replace("│", "").split())
    assert (tmp_path / "r.html").read_bytes() == (tmp_path / "r.html").read_bytes()
    assert json.loads(piecemill("report", made / "tok", "--out", tmp_path / "t.html", "--json").stdout)["bytes"]


def test_a_folder_is_no_name_of_a_page(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in (".", str(tmp_path)):
        with pytest.raises(PlanError, match=r"is a folder; expected the page in it, such as .*report\.html"):
            pm.report(made / "tok", out=out)
    assert os.listdir(tmp_path) == []


def test_a_report_replaces_a_report_and_no_other_file(made, tmp_path):
    pm.report(made / "tok", out=tmp_path / "r.html")
    pm.report(made / "shards", out=tmp_path / "r.html")
    (tmp_path / "mine.toml").write_text("vocab_size = 300")
    (tmp_path / "data.facts.json").write_text("{}")
    pm.report(made / "tok", out=tmp_path / "page")
    with pytest.raises(PlanError, match=r"page\.facts\.json: is there already without .*page\.html, so"):
        pm.report(made / "tok", out=tmp_path / "page.html")
    for out, file in (("mine.toml", "mine.toml"), ("data.html", "data.facts.json")):
        with pytest.raises(PlanError, match=rf"{file}: is there already without .*, so it is no report of this"):
            pm.report(made / "tok", out=tmp_path / out)
    assert (tmp_path / "mine.toml").read_text() == "vocab_size = 300"
    assert (tmp_path / "data.facts.json").read_text() == "{}"


def test_what_cannot_be_typed_says_why(made, tmp_path, monkeypatch):
    monkeypatch.setattr("piecemill.reporting.reports.LIMIT", 10_000)
    pm.report(made / "tok", out=tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "MB with the vocabulary in it" in text
    assert 'id="bpe"' not in text


def test_a_report_does_not_change_what_it_is_about(made):
    with pytest.raises(PlanError, match=r"lies in .*tok, which would not stay as it was made"):
        pm.report(made / "tok", out=made / "tok" / "tokenizer.html")


def test_merges_of_ranks_are_those_of_the_vocabulary(made, tmp_path):
    """A .tiktoken file lists no merges; they follow from its ranks."""
    tok = pm.load_tokenizer(made / "tok")
    ranks = pm.load_tokenizer(made / "tok" / "ranks.tiktoken", pretokenizer="cl100k")
    found, want = merges_of(ranks), merges_of(tok)
    assert found.whole == {}
    spelled = [[(ranks.bytes_of(a), ranks.bytes_of(b)) for a, b in found.pairs.tolist()]]
    assert spelled == [[(tok.bytes_of(a), tok.bytes_of(b)) for a, b in want.pairs.tolist()]]
    pm.prepare(made / "in", ranks, out=tmp_path / "shards", eos="none")
    done = pm.report(tmp_path / "shards", out=tmp_path / "r.html")
    assert next(one for one in done.facts["sections"] if one["id"] == "compression")["curves"]


def test_markup_and_control_characters_are_escaped(made, written):
    text = (made / "report.html").read_text()
    assert "<script>alert(1)" not in text
    assert "<b onmouseover" not in text
    assert "\x00" not in text
    assert text.count("</script>") == 2
    assert escape('<a href="x">\n\x00') == "&lt;a href=&quot;x&quot;&gt;\\n\\u0000"
    assert escape("a\u202egpj.exe\u2066") == "a\\u202egpj.exe\\u2066"  # else all that follows is read backwards


# In a browser


@pytest.mark.parametrize(("value", "ends"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_without_chromium_tests_are_skipped_but_not_in_ci(value, ends, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("CI", value)
    with pytest.raises(ends, match="needs Chromium"):
        required()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def typed(browser, text):
    """The ids that the page shows for a text, as if it had been typed."""
    browser.run(
        f"document.getElementById('typed').value = {json.dumps(text)};"
        "document.getElementById('typed').dispatchEvent(new Event('input'))"
    )
    return [int(i) for i in browser.run("document.getElementById('typed-ids').value").split()]


@pytest.mark.parametrize("name", ["written", "ran"])
def test_the_page_has_no_complaints_and_shows_every_figure(browser, name, request):
    written = request.getfixturevalue(name)
    browser.open(Path(written.out))
    assert browser.complaints == []
    assert browser.run("performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length") == 0
    for number, section in enumerate(written.facts["sections"]):
        text = browser.run(f"document.getElementById('{section['id']}-{number}').textContent")
        shown = list(figures({"sections": [section]}))
        missing = [(key, value) for key, value in shown if html.unescape(escape(show(key, value))) not in text]
        assert missing == [], section["id"]
    assert len(list(figures(written.facts))) > 300
    spans = browser.run("document.querySelectorAll('.tokens span[title^=\"id \"]').length")
    samples = next(one for one in written.facts["sections"] if one["id"] == "samples")["samples"]
    assert spans >= sum(len(sample["tokens"]) for sample in samples) > 100


@pytest.mark.parametrize("pretokenizer", [one["name"] for one in splits()])
def test_typed_text_gets_the_ids_of_the_tokenizer(browser, pretokenizer, tmp_path):
    tok = pm.train_bpe(
        [*library_texts(4), *models.SCRIPTS, "it's IT'S 'ſ don't\u0085x\ufeffy"],
        vocab_size=1500,
        pretokenizer=pretokenizer,
    )
    tok.save(tmp_path / "tok")
    pm.report(tmp_path / "tok", out=tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    texts = [
        *NASTY,
        *models.SCRIPTS[:20],
        library_texts(1)[0][:1500],
        "IT'S 'ſ\u0085 \u0085x\ufeff y\u2028z",
        "<|endoftext|>",
    ]
    for text in texts:
        text = text.replace("\r\n", "\n").replace("\r", "\n")  # as a textarea has it
        if not any("\ud800" <= c <= "\udfff" for c in text):
            assert typed(browser, text) == tok.encode(text).tolist(), repr(text)
    assert browser.complaints == []


@pytest.mark.parametrize("name", ["cl100k_base.tiktoken", "o200k_base.tiktoken"])
def test_published_ranks_can_be_typed(browser, name, shared, tmp_path):
    path = shared / "vocabs" / name
    tok = pm.load_tokenizer(path)
    assert pm.report(path, out=tmp_path / "r.html").bytes < 2_000_000
    browser.open(tmp_path / "r.html")
    for text in [*NASTY, *models.SCRIPTS, *library_texts(2)[1][:20_000].split("\n\n")]:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not any("\ud800" <= c <= "\udfff" for c in text):
            assert typed(browser, text) == tok.encode(text).tolist(), repr(text)
    assert browser.complaints == []


def test_a_vocabulary_of_more_than_65536_tokens_can_be_typed(browser, tmp_path):
    """Ids take three bytes each then."""
    pairs = [(a, b) for a in range(256) for b in range(256)] + [(256 + n, 256 + n) for n in range(2000)]
    tok = pm.Tokenizer.from_merges(np.array(pairs), pretokenizer="gpt2")
    assert len(tok) > 65_536
    tok.save(tmp_path / "tok")
    pm.report(tmp_path / "tok", out=tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    for text in ("The quick brown fox", "ababab zzzz", "日本語"):
        assert typed(browser, text) == tok.encode(text).tolist()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_phones_and_both_themes(browser, made, written, width, dark, tmp_path):
    browser.open(made / "report.html")
    browser.look(width=width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")  # only tables scroll, by themselves
    ink, paper = browser.run("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    brightness = [sum(int(part) for part in colour[4:-1].split(",")) for colour in (ink, paper)]
    assert (brightness[0] > brightness[1]) == dark
    browser.screenshot(tmp_path / "shot.png", width=width, dark=dark)
    assert (tmp_path / "shot.png").stat().st_size > 10_000


def test_the_page_can_be_printed(browser, made, written):
    browser.open(made / "report.html")
    browser.look(width=1000, dark=False, media="print")
    assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.run("getComputedStyle(document.querySelector('textarea')).display") == "none"
    assert len(browser.call("Page.printToPDF")["data"]) > 10_000


def test_folded_tables_are_printed(browser, made, written):
    browser.open(made / "report.html")
    seen = "[...document.querySelectorAll('details:not([open]) table')].map(one => one.checkVisibility())"
    browser.look(width=1000, dark=False)
    assert set(browser.run(seen)) == {False}
    browser.look(width=1000, dark=False, media="print")
    assert set(browser.run(seen)) == {True}


def test_a_tap_on_a_token_shows_what_it_is(browser, made, written):
    browser.open(made / "report.html")
    browser.look(width=390, dark=False, height=700)
    for place in ("p.tokens:not([id]) span:nth-child(5)", "#typed-tokens span:nth-child(2)"):
        x, y, title = browser.run(
            f"window.one = document.querySelector('{place}'); one.scrollIntoView({{block: 'center'}});"
            "window.tapped = new Promise((done) => { one.onfocus = done; setTimeout(done, 5000); });"
            "(({ x, y, width, height }) => [x + width / 2, y + height / 2, one.title])(one.getClientRects()[0])"
        )
        assert re.match(r"id \d+ · [0-9a-f ]+( · [\d,]+ times in the corpus)?$", title)
        browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        content, position, bottom = browser.run(
            "tapped.then(() => getComputedStyle(one, '::after')).then((s) => [s.content, s.position, s.bottom])"
        )
        assert (content, position, bottom) == (f'"{title}"', "fixed", "0px")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")


def test_patterns_for_javascript_have_white_space_of_unicode():
    assert to_javascript(r"\s+(?!\S)|[^\s\p{L}]") == (
        r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
        r"(?![^\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000])|"
        r"[^\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\p{L}]"
    )
    assert to_javascript("(?i:'s|'re)") == "(?:'[sSſ]|'[rR][eE])"
