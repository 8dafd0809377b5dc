"""`compare`: tokenizers on one corpus, against figures that can be counted by hand and by the home libraries."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import models
import piecemill as pm
from command import piecemill
from corpora import small_tokenizer, write_jsonl
from piecemill.errors import PlanError, SourceError, TokenizerError
from piecemill.reporting.comparing import gini, names_of, renyi_efficiency, words_in

DOCUMENTS = {
    "en/a.txt": "the cat sat on the mat. the cat was low, and lower.\n" * 30,
    "en/b.md": "# A title\n\nsome words in a row\n" * 20,
    "de/c.txt": "die Katze saß auf der Matte, über dem Fluß.\n" * 30,
    "top.txt": "x = 1\n",
}


@pytest.fixture
def corpus(tmp_path):
    for name, text in DOCUMENTS.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(text)
    return tmp_path / "in"


@pytest.fixture
def bytes_only(tmp_path):
    """A vocabulary of bytes: as many tokens as bytes."""
    tok = pm.Tokenizer.from_merges(np.empty((0, 2), np.uint32), pretokenizer="gpt2", special_tokens=["<|endoftext|>"])
    tok.save(tmp_path / "bytes")
    return tmp_path / "bytes"


def test_what_is_not_compared_is_a_note(corpus, bytes_only):
    (corpus / "none.bin").write_bytes(b"\0\1")
    (corpus / "bad.txt").write_bytes(b"\xff")
    found = pm.compare([bytes_only], on=corpus, exclude=["*.rst"], on_bad_document="skip")
    assert found.corpus["documents"] == 4
    assert found.corpus["notes"][0].startswith("exclude='*.rst' matched no file")
    assert found.corpus["notes"][1].startswith("left out 1 binary, 1 skipped (first: ")
    assert str(found).splitlines()[-1] == f"note: {found.corpus['notes'][1]}"


def test_figures_are_those_of_encoding_every_document(corpus, bytes_only):
    tok = small_tokenizer()
    found = pm.compare([tok, bytes_only], on=corpus)
    sizes = {name: len(text.encode()) for name, text in DOCUMENTS.items()}
    tokens = {name: len(tok.encode(text)) for name, text in DOCUMENTS.items()}
    total, words = sum(sizes.values()), sum(len(text.split()) for text in DOCUMENTS.values())
    corpus_facts = {"documents": 4, "bytes": total, "words": words, "source_bytes": total, "whole": True, "notes": []}
    assert found.corpus == corpus_facts
    ours, plain = found.tokenizers
    assert ours["tokens"] == sum(tokens.values())
    assert ours["bytes_per_token"] == pytest.approx(total / sum(tokens.values()))
    assert ours["tokens_per_word"] == pytest.approx(sum(tokens.values()) / words)
    assert (plain["tokens"], plain["bytes_per_token"]) == (total, 1.0)
    assert plain["gini"]["source"] == pytest.approx(0)  # every group pays one token a byte
    by_source = {group["name"]: group for group in found.groups["source"]}
    assert set(by_source) == {"en/", "de/", "(no folder)"}
    assert by_source["de/"]["tokens"] == [tokens["de/c.txt"], sizes["de/c.txt"]]
    assert by_source["en/"]["documents"] == 2
    by_ending = {group["name"]: group for group in found.groups["ending"]}
    assert by_ending[".md"]["bytes"] == sizes["en/b.md"]
    assert by_ending[".txt"]["words"] == sum(len(DOCUMENTS[name].split()) for name in DOCUMENTS if name.endswith("txt"))


def test_words_kept_whole_are_words_of_letters_with_one_token():
    tok = pm.train_bpe(["low lower lower"] * 20, vocab_size=300, pretokenizer="gpt2")
    (found,) = pm.compare([tok], on=["lower lower low, 12 zebra"]).tokenizers
    # "lower" begins the document, the others have a space before them; " zebra" is several tokens, "12" no word
    one = [len(tok.encode(word)) == 1 for word in ("lower", " lower", " low", " zebra")]
    assert found["words_whole"] == sum(one) / 4
    assert 0 < sum(one) < 4


def test_renyi_and_gini_by_the_formulas():
    counts = np.array([6, 3, 1, 0], np.uint64)
    shares = [0.6, 0.3, 0.1]
    want = math.log(sum(share**2.5 for share in shares)) / (1 - 2.5) / math.log(4)
    assert renyi_efficiency(counts) == pytest.approx(want)
    costs = [0.5, 0.2, 0.3]
    pairs = sum(abs(a - b) for a in costs for b in costs)
    assert gini(costs) == pytest.approx(pairs / (2 * len(costs) ** 2 * (sum(costs) / len(costs))))
    assert gini([1.0]) is None


def test_words_are_counted_in_each_document():
    texts = [b"", b" one\ttwo\n", b"three", b"four five ", b"six"]
    ends = np.cumsum([len(text) for text in texts])
    assert words_in(np.frombuffer(b"".join(texts), np.uint8), ends).tolist() == [0, 2, 1, 2, 1]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_language_column_makes_groups_with_their_names(tmp_path, kind):
    rows = [{"text": f"row {n} with some words", "lang": ["en", "de", "日本語"][n % 3]} for n in range(60)]
    if kind == "jsonl":
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = pm.compare([small_tokenizer()], on=tmp_path / f"a.{kind}", language="lang")
    groups = {group["name"]: group for group in found.groups["language"]}
    assert {name: group["documents"] for name, group in groups.items()} == {"en": 20, "de": 20, "日本語": 20}
    want = sum(len(row["text"].encode()) for row in rows if row["lang"] == "de")
    assert groups["de"]["bytes"] == want
    assert "日本語" in str(found)


@pytest.mark.parametrize("name", ["word_piece", "unigram", "sentencepiece"])
def test_tokenizers_of_every_kind_are_compared(name, tmp_path, corpus):
    if name == "sentencepiece":
        path = tmp_path / "tokenizer.model"
        path.write_bytes(models.sentencepiece_model())
    else:
        path = tmp_path / "tokenizer.json"
        path.write_text(models.tokenizer_json(name))
    tok = pm.load_tokenizer(path)
    (found,) = pm.compare([path], on=corpus).tokenizers
    assert found["tokens"] == sum(len(tok.encode(text)) for text in DOCUMENTS.values())
    assert 0 < found["words_whole"] < 1


def test_a_sample_is_taken_from_the_whole_corpus(tmp_path):
    for number in range(8):
        lines = [f"file {number} line {n} " + "x" * 500 for n in range(400)]
        write_jsonl(tmp_path / "in" / f"{number:02}" / "a.jsonl", lines)
    small, again = (pm.compare([small_tokenizer()], on=tmp_path / "in", sample=600_000) for _ in range(2))
    assert 300_000 < small.corpus["bytes"] < 900_000 < 1_600_000 < small.corpus["source_bytes"]
    assert "a sample of the corpus" in str(small)
    assert len(small.groups["source"]) > 3  # not only from the first files
    assert small.groups == again.groups
    assert pm.compare([small_tokenizer()], on=tmp_path / "in", sample=0).corpus["whole"]


def test_names_are_short_and_distinct(tmp_path):
    tok = small_tokenizer()
    assert names_of(["a/gpt2/tokenizer.json", "b/o200k_base.tiktoken.gz", tok], [tok] * 3)[:2] == ["gpt2", "o200k_base"]
    assert names_of(["a/tok", "b/tok"], [tok] * 2) == ["a/tok", "b/tok"]
    assert len(set(names_of([tok, tok], [tok, tok]))) == 2


def test_wrong_use_is_an_error_in_words(corpus):
    with pytest.raises(PlanError, match="expected a list of one or more tokenizers"):
        pm.compare([], on=corpus)
    with pytest.raises(PlanError, match="did you mean 'sample'"):
        pm.compare([small_tokenizer()], on=corpus, smaple=3)
    assert "no tokenizer was given: name one or more before the flags" in piecemill("compare", "--on", corpus).stderr


def test_the_command_prints_a_table_or_json(corpus, bytes_only, tmp_path):
    small_tokenizer().save(tmp_path / "mine")
    done = piecemill("compare", tmp_path / "mine", bytes_only, "--on", corpus)
    assert (done.returncode, done.stderr) == (0, "")
    head, rows = done.stdout.splitlines()[2], done.stdout.splitlines()[3:5]
    assert head.split()[:2] == ["tokenizer", "vocabulary"]
    assert [row.split()[0] for row in rows] == ["mine", "bytes"]
    assert "bytes per token by source" in done.stdout
    found = json.loads(piecemill("compare", bytes_only, "--on", corpus, "--json").stdout)
    assert found["tokenizers"][0]["bytes_per_token"] == 1.0


def test_documents_that_one_of_the_tokenizers_cannot_encode_are_bad_ones(tmp_path):
    """They stopped the comparison with `texts[1]`, and `--on-bad-document skip` did not help."""
    dna = pm.train_bpe(["ACGT" * 9], alphabet="ACGT", pretokenizer="none", vocab_size=8)
    more = pm.train_bpe(["ACGTN" * 9], alphabet="ACGTN", pretokenizer="none", vocab_size=8)
    documents = ["ACGT", "ACGNT", "GGG"]
    with pytest.raises(SourceError, match=r"<list>\[1\]: 'N' \(byte 0x4e\) at byte 3 of the document is not in"):
        pm.compare([dna, more], on=documents)
    found = pm.compare([more, dna], on=documents, on_bad_document="skip")
    assert found.corpus["documents"] == 2
    assert "skipped" in found.corpus["notes"][0]
    events = pm.train_bpe([[1, 2, 3, 1, 2]], integers=True, vocab_size=5)
    other = pm.train_bpe([[1, 2, 9]], integers=True, vocab_size=4)
    found = pm.compare([events, other], on=[[1, 2], [1, 3], [9]], integers=True, on_bad_document="skip")
    assert found.corpus["documents"] == 1
    with pytest.raises(PlanError, match=r"integers: 5 tokens encodes integers"):
        pm.compare([dna, events], on=documents)


def test_a_report_names_the_tokenizer_that_cannot_encode_the_corpus(tmp_path):
    documents = ["ACGT" * 9, "ACGN" * 9]
    more = pm.train_bpe(documents, alphabet="ACGTN", pretokenizer="none", vocab_size=8)
    pm.train_bpe(documents[:1], alphabet="ACGT", pretokenizer="none", vocab_size=8).save(tmp_path / "dna")
    pm.prepare(documents, more, out=tmp_path / "shards")
    with pytest.raises(TokenizerError, match=r"^dna cannot encode a document: texts\[1\]: 'N' \(byte 0x4e\)"):
        pm.report(tmp_path / "shards", against=[tmp_path / "dna"], out=tmp_path / "r.html")
