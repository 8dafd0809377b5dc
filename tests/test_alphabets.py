"""Vocabularies with tokens for some bytes only: trained as the definition says, and refusing every other byte."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command import piecemill as run
from corpora import content, split_texts, write_jsonl
from piecemill import check, open_shards, prepare, prune, reference
from piecemill.errors import PlanError, SourceError, TokenizerError
from piecemill.loading.text import batches
from piecemill.tokenizers import Tokenizer, load_tokenizer
from piecemill.tokenizers.verify import verify
from piecemill.training import count_words, train_bpe

END = "<|endoftext|>"
DNA = ["ACGTACGGTA" * 20, "TTAGGC" * 30, "GATTACA" * 11, "CCG"]


def definition(words, alphabet, n_merges):
    """The merges by the definition: END is id 0, then the alphabet, then merges."""
    byte_ids = [0] * 256
    for rank, byte in enumerate(sorted(alphabet)):
        byte_ids[byte] = 1 + rank
    return reference.bpe.train(words, n_merges, byte_ids=byte_ids)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.text("ACGT!z", min_size=1, max_size=30), min_size=1, max_size=8),
    st.integers(0, 12),
    st.sampled_from(["auto", "zTGC!AN"]),
)
def test_the_merges_are_those_of_the_definition_over_the_alphabet(texts, n_merges, asked):
    seen = {byte for text in texts for byte in text.encode()}
    alphabet = bytes(seen) if asked == "auto" else asked.encode()
    tok = train_bpe(texts, alphabet=asked, pretokenizer="none", vocab_size=1 + len(set(alphabet)) + n_merges)
    assert [tuple(pair) for pair in tok.merges.tolist()] == definition([t.encode() for t in texts], alphabet, n_merges)
    assert tok.alphabet == bytes(sorted(alphabet))
    assert [tok.bytes_of(i) for i in range(1, 1 + len(alphabet))] == [bytes([byte]) for byte in sorted(alphabet)]
    assert all(tok.decode(tok.encode(text)) == text for text in texts)


def test_words_that_were_counted_give_the_same(tmp_path):
    tok = train_bpe(DNA, alphabet="auto", pretokenizer="gpt2", vocab_size=20)
    assert tok.tokens == train_bpe(DNA, alphabet="ACGT", pretokenizer="none", vocab_size=20).tokens
    count_words(DNA, pretokenizer="gpt2", save_counts=tmp_path / "counts.parquet")
    counted = train_bpe(from_counts=[tmp_path / "counts.parquet"], alphabet="auto", vocab_size=20)
    assert counted.identity == tok.identity
    with pytest.raises(PlanError, match=r"byte 0x47 \('G'\), which is not in alphabet='ACT'"):
        train_bpe(from_counts=[tmp_path / "counts.parquet"], alphabet="ACT", vocab_size=20)


def test_a_special_token_that_is_learned_keeps_its_id():
    tok = train_bpe(DNA, alphabet="ACGT", pretokenizer="none", vocab_size=12, special_tokens=["TTA"])
    assert tok.special_tokens == {"TTA": 0}
    assert tok.vocab_size == 12
    assert tok.decode(tok.encode(DNA[1])) == DNA[1]


def test_characters_of_several_bytes_can_be_an_alphabet():
    texts = ["ñandú", "ñú", "andañ"]
    tok = train_bpe(texts, alphabet="ñandú", pretokenizer="none", vocab_size=12)
    assert set(tok.alphabet) == set("ñandú".encode())
    assert [tok.decode(tok.encode(text)) for text in texts] == texts


def test_hf_and_transformers_give_the_same_ids(tmp_path):
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    tok = train_bpe(DNA, alphabet="ACGT", pretokenizer="none", vocab_size=40)
    tok.save(tmp_path / "tok")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tok" / "tokenizer.json"))
    auto = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "tok"))
    for text in DNA:
        assert theirs.encode(text).ids == tok.encode(text).tolist() == auto(text)["input_ids"]
    assert verify(tok, DNA).documents == len(DNA)


def test_saved_and_loaded_it_is_the_same_and_refuses_the_same(tmp_path):
    tok = train_bpe(DNA, alphabet="ACGT", pretokenizer="none", vocab_size=40, roles={"pad": "<pad>"}, pad_to=8)
    tok.save(tmp_path / "tok")
    for where in ("tok", "tok/tokenizer.json"):
        loaded = load_tokenizer(tmp_path / where)
        assert (loaded.identity, loaded.alphabet, loaded.vocab_size % 8) == (tok.identity, b"ACGT", 0)
        for engine in (loaded, load_tokenizer(tmp_path / where, engine="tokenizers")):
            with pytest.raises(TokenizerError, match=r"not in the alphabet of this vocabulary \(ACGT\)"):
                engine.encode("ACGNT")
            with pytest.raises(TokenizerError, match=r"texts\[1\].* is not in the alphabet"):
                engine.encode_batch(["ACG", "ACGTn"])
        # A special token is no text: parsed, it may have any characters.
        assert loaded.encode(f"AC{END}GT", special="parse").tolist()[1:].count(0) == 1


def test_a_vocabulary_of_others_without_some_bytes_is_read_as_its_library_reads_it(tmp_path):
    pytest.importorskip("tokenizers")
    train_bpe(DNA, alphabet="ACGT", pretokenizer="none", vocab_size=40).save(tmp_path / "tok")
    config = tmp_path / "tok" / "tokenizer_config.json"
    said = json.loads(config.read_text())
    assert said.pop("piecemill_alphabet") == "ACGT"
    config.write_text(json.dumps(said))
    loaded = load_tokenizer(tmp_path / "tok")
    assert loaded.alphabet is None
    assert loaded.encode("ANC").tolist() == loaded.encode("AC").tolist()


def test_an_edited_and_a_continued_tokenizer_keep_the_alphabet(tmp_path):
    tok = train_bpe(DNA, alphabet="ACGT", pretokenizer="none", vocab_size=12)
    edited = tok.edit(add_special=["<mask>"], roles={"mask": "<mask>"})
    edited.save(tmp_path / "edited")
    assert load_tokenizer(tmp_path / "edited").alphabet == b"ACGT"
    longer = train_bpe(DNA, start=tok, vocab_size=30)
    assert longer.identity == train_bpe(DNA, alphabet="ACGT", pretokenizer="none", vocab_size=30).identity
    with pytest.raises(SourceError, match=r"<list>\[1\]: 'N' \(byte 0x4e\) at byte 2 of the document is not in"):
        train_bpe(["ACG", "ACN"], start=tok, vocab_size=30)


def test_another_byte_is_a_bad_document_that_is_named_or_skipped(tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", ["ACGT" * 9, "AC\u00e9", "NNN", "TTT"])
    with pytest.raises(SourceError, match=r"in\.jsonl@\d+: 'é' \(byte 0xc3\) at byte 2 of the document is not in the"):
        train_bpe(path, alphabet="ACGT", pretokenizer="none", vocab_size=10)
    tok = train_bpe(path, alphabet="ACGT", pretokenizer="none", vocab_size=10, on_bad_document="skip")
    assert tok.training["corpus"]["documents"] == 2
    assert [name for name, _ in tok.training["corpus"]["skipped_documents"]] == [f"{path}@49", f"{path}@70"]
    with pytest.raises(SourceError, match=r"in\.jsonl@49: 'é'"):
        prepare(path, tok, out=tmp_path / "out")
    summary = prepare(path, tok, out=tmp_path / "out", on_bad_document="skip", force=True)
    assert (summary.documents, summary.skipped) == (2, 2)
    assert split_texts(tmp_path / "out", "all", tok) == ["ACGT" * 9, "TTT"]


def test_a_vocabulary_that_cannot_hold_its_alphabet_is_an_error():
    with pytest.raises(PlanError, match=r"vocab_size=4: the 4 bytes and 1 special token alone need 5"):
        train_bpe(DNA, alphabet="ACGT", vocab_size=4)
    for pretokenizer in ("none", "gpt2"):
        with pytest.raises(PlanError, match=r"vocab_size=4: the 4 bytes of the alphabet and 1 special token alone"):
            train_bpe(DNA, alphabet="auto", pretokenizer=pretokenizer, vocab_size=4)
    with pytest.raises(PlanError, match=r"alphabet='': expected characters"):
        train_bpe(DNA, alphabet="")
    with pytest.raises(PlanError, match=r"alphabet and start"):
        train_bpe(DNA, alphabet="ACGT", start="tok")


def test_any_executor_gives_the_same(tmp_path):
    corpus = write_jsonl(tmp_path / "in.jsonl", DNA)
    tok = train_bpe(corpus, alphabet="auto", pretokenizer="none", vocab_size=30)
    with ThreadPoolExecutor(2) as pool:
        assert (
            train_bpe(corpus, alphabet="auto", pretokenizer="none", vocab_size=30, executor=pool).identity
            == tok.identity
        )
        with pytest.raises(SourceError, match="not in the alphabet ACG"):
            train_bpe(corpus, alphabet="ACG", pretokenizer="none", vocab_size=30, executor=pool)


def test_balanced_and_weighted_merges_are_those_of_all_bytes(tmp_path):
    for name, documents in (("one", DNA[:2]), ("two", DNA[2:])):
        write_jsonl(tmp_path / "in" / name / "a.jsonl", documents)
    for options in ({"balance": "directory"}, {"weight": ["one/**=3"]}):
        small = train_bpe(tmp_path / "in", alphabet="auto", pretokenizer="none", vocab_size=30, **options)
        large = train_bpe(tmp_path / "in", pretokenizer="none", vocab_size=30 + 252, **options)
        made = [[token for token in tok.vocabulary.tokens if len(token) > 1] for tok in (small, large)]
        assert made[0] == made[1]
        assert small.training["groups"] == large.training["groups"]
    with pytest.raises(PlanError, match="superwords with alphabet"):
        train_bpe(DNA, alphabet="ACGT", superwords=10, vocab_size=20)


def test_a_pruned_tokenizer_keeps_the_alphabet(tmp_path):
    tok = train_bpe(DNA, alphabet="ACGT", pretokenizer="none", vocab_size=40)
    prepare(DNA, tok, out=tmp_path / "shards")
    pruned = prune(tok, counts=[tmp_path / "shards"], vocab_size=20).tokenizer
    pruned.save(tmp_path / "pruned")
    loaded = load_tokenizer(tmp_path / "pruned")
    assert (loaded.alphabet, loaded.vocab_size) == (b"ACGT", 20)
    assert [loaded.decode(loaded.encode(text)) for text in DNA] == DNA


def test_from_merges_takes_an_alphabet():
    tok = Tokenizer.from_merges([[0, 1]], pretokenizer="none", alphabet=b"AB")
    assert (tok.vocab_size, tok.encode("ABA").tolist()) == (3, [2, 0])


def test_a_custom_split_over_an_alphabet_is_encoded_by_our_engine(tmp_path):
    pytest.importorskip("tokenizers")
    tok = train_bpe(DNA, alphabet="ACGT", pretokenizer="G+", vocab_size=20)
    tok.save(tmp_path / "tok")
    loaded = load_tokenizer(tmp_path / "tok")
    assert loaded.engine.name == "piecemill"
    assert loaded.decode(loaded.encode(DNA[0])) == DNA[0]


def test_from_training_to_batches_on_the_command_line(tmp_path):
    corpus = write_jsonl(tmp_path / "in.jsonl", DNA * 5)
    run("train", corpus, "--alphabet", "ACGT", "--pretokenizer", "none", "--vocab-size", 40, "--out", tmp_path / "tok")
    run("prepare", corpus, "--tokenizer", tmp_path / "tok", "--out", tmp_path / "one", "--threads", 1)
    run("prepare", corpus, "--tokenizer", tmp_path / "tok", "--out", tmp_path / "two", "--threads", 2)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    check(tmp_path / "one")
    rows = open_shards(tmp_path / "one")
    assert next(iter(batches(rows, window=16, batch_size=2, seed=1)))["input_ids"].max() < 40
    for command in (["show", tmp_path / "one"], ["show", tmp_path / "tok"], ["check", tmp_path / "one"]):
        assert run(*command).returncode == 0
    assert "ACGT" in run("vocab", tmp_path / "tok").stdout
    assert run("report", tmp_path / "tok", tmp_path / "one", "--out", tmp_path / "report.html").returncode == 0
    assert run("compare", tmp_path / "tok", "--on", corpus).returncode == 0
    ids = run("encode", tmp_path / "tok", "GATTACA").stdout
    assert run("decode", tmp_path / "tok", *ids.split()).stdout.strip() == "GATTACA"
