"""Documents of any bytes: trained as the definition says, and what is encoded decodes to the same bytes."""

import gzip
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command import PIECEMILL, environment
from command import piecemill as run
from corpora import content, split_documents
from piecemill import check, open_shards, prepare, reference
from piecemill.errors import PlanError, SourceError, TokenizerError
from piecemill.loading.text import batches
from piecemill.sources import open_source
from piecemill.tokenizers import Tokenizer, load_tokenizer
from piecemill.tokenizers.models.byte_level import BYTE_ORDER
from piecemill.training import train_bpe

# Starts and ends of characters, in and out of order, and bytes that UTF-8 never has.
PIECES = st.lists(st.sampled_from([b"a", b"\xc3", b"\xa9", b"\xc3\xa9", b"\xe2\x82\xac", b"\xff", b"\0", b"\xf0\x9f"]))
DOCUMENTS = st.lists(PIECES.map(b"".join), min_size=1, max_size=8).filter(any)


def files(count: int, seed: int = 1) -> list[bytes]:
    """Binary files: records of a few fields, and noise."""
    rng = random.Random(seed)
    return [
        b"".join(
            rng.choice([b"\x00\x01\xff", b"ab\xc3", b"\xa9\x00", rng.randbytes(3)])
            for _ in range(rng.choice([1, 9, 400]))
        )
        for _ in range(count)
    ]


def definition(documents, vocab_size):
    byte_ids = [0] * 256
    for rank, byte in enumerate(BYTE_ORDER):
        byte_ids[byte] = 1 + rank
    return reference.bpe.train(documents, vocab_size - 257, byte_ids=byte_ids)


def by_definition(document, tok):
    """`document` after every merge in turn."""
    ids, tokens = tok.vocabulary.ids, tok.vocabulary.tokens
    symbols = [ids[bytes([byte])] for byte in document]
    for left, right in tok.merges.tolist():
        symbols = reference.bpe.merge_word(symbols, (left, right), ids[tokens[left] + tokens[right]])
    return list(symbols)


@settings(max_examples=200, deadline=None)
@given(DOCUMENTS, DOCUMENTS, st.integers(0, 12))
def test_training_and_encoding_are_as_defined(documents, others, n_merges):
    tok = train_bpe(documents, bytes=True, vocab_size=257 + n_merges)
    assert [tuple(pair) for pair in tok.merges.tolist()] == definition(documents, 257 + n_merges)
    ids, ends = tok.encode_batch(documents + others)
    start = 0
    for document, end in zip(documents + others, ends.tolist(), strict=True):
        assert ids[start:end].tolist() == by_definition(document, tok) == tok.encode(document).tolist()
        assert tok.decode_bytes(ids[start:end]) == document
        start = end


def test_long_documents_on_several_threads_are_encoded_as_one_by_one():
    documents = files(60) + [b"".join(files(300, 2))] * 3
    tok = train_bpe(documents, bytes=True, vocab_size=600)
    ids, ends = tok.encode_batch(documents, threads=4)
    assert ids.tolist() == [i for document in documents for i in tok.encode(document).tolist()]
    assert tok.decode_flat(ids, ends)[0].tobytes() == b"".join(documents)
    assert tok.encode(documents[0]).tolist() == by_definition(documents[0], tok)


def test_text_has_the_ids_that_it_had(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    texts = ["one two", "zwei é drei", "ünï €"]
    tok = train_bpe(texts, bytes=True, vocab_size=270)
    assert tok.identity == train_bpe(texts, pretokenizer="none", vocab_size=270).identity
    tok.save(tmp_path / "tok")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tok" / "tokenizer.json"))
    assert [theirs.encode(text).ids for text in texts] == [tok.encode(text).tolist() for text in texts]
    assert tok.decode(tok.encode(b"a\xff")) == "a\ufffd"


def test_sources_give_documents_as_they_are(tmp_path):
    documents = [b"\xef\xbb\xbfmark", b"\0\0\xff", b"text"]
    for number, document in enumerate(documents):
        (tmp_path / f"{number}.bin").write_bytes(document)
    (tmp_path / "3.bin.gz").write_bytes(gzip.compress(b"\xff\0packed"))
    (tmp_path / "4.bin").write_bytes(b"")
    pq.write_table(pa.table({"text": [b"\xfe\xfd", b"row"]}), tmp_path / "5.parquet")
    source = open_source(tmp_path, raw=True)
    blocks = list(source.blocks())
    found = [block.encoded(i) for block in blocks for i in range(len(block))]
    assert found == [*documents, b"\xff\0packed", b"\xfe\xfd", b"row"]
    assert sum(block.tally.left_out.get("empty", 0) for block in blocks) == 1
    cut = open_source(tmp_path / "1.bin", raw=True, separator="\0")
    assert [block.encoded(i) for block in cut.blocks() for i in range(len(block))] == [b"\xff"]
    items = open_source(iter([b"\xff", "é", b""]), raw=True)
    assert [block.encoded(i) for block in items.blocks() for i in range(len(block))] == [b"\xff", "é".encode()]


def test_from_files_to_batches(tmp_path):
    documents = files(200)
    (tmp_path / "in").mkdir()
    for number, document in enumerate(documents):
        (tmp_path / "in" / f"{number:03}.bin").write_bytes(document)
    done = run("train", tmp_path / "in", "--bytes", "--vocab-size", 500, "--out", tmp_path / "tok")
    assert done.returncode == 0, done.stderr
    tok = load_tokenizer(tmp_path / "tok")
    assert tok.takes_bytes
    for threads in (1, 2):
        out = tmp_path / str(threads)
        done = run("prepare", tmp_path / "in", "--bytes", "--tokenizer", tmp_path / "tok", "--out", out,
                   "--threads", threads, "--piece-bytes", 20_000, "--block-bytes", 5_000)  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert content(tmp_path / "1") == content(tmp_path / "2")
    assert [tok.decode_bytes(ids[:-1]) for ids in split_documents(tmp_path / "1", "all")[0]] == documents
    assert not check(tmp_path / "1").problems
    assert next(iter(batches(open_shards(tmp_path / "1"), window=16, batch_size=2, seed=1)))["input_ids"].max() < 500
    for command in (["show", tmp_path / "1"], ["check", tmp_path / "1"], ["vocab", tmp_path / "tok"],
                    ["compare", tmp_path / "tok", tmp_path / "tok", "--bytes", "--on", tmp_path / "in"],
                    ["report", tmp_path / "tok", tmp_path / "1", "--out", tmp_path / "report.html"]):  # fmt: skip
        done = run(*command)
        assert done.returncode == 0, done.stderr


def test_standard_input_may_be_any_bytes(tmp_path):
    import subprocess

    command = [
        PIECEMILL,
        "train",
        "-",
        "--bytes",
        "--separator",
        r"\0",
        "--vocab-size",
        "260",
        "--out",
        tmp_path / "tok",
    ]
    subprocess.run(command, input=b"\xff\xfe\xff\xfe\0\xff\xfe", env=environment(), check=True, timeout=600)
    tok = load_tokenizer(tmp_path / "tok")
    assert tok.training["corpus"]["documents"] == 2
    assert tok.bytes_of(257) == b"\xff\xfe"
    ids = subprocess.run([PIECEMILL, "encode", tmp_path / "tok"], input=b"\xff\xfe\x80", capture_output=True,
                         env=environment(), check=True, timeout=600).stdout  # fmt: skip
    assert ids.split() == [b"257", b"%d" % tok.id_of(b"\x80")]
    back = subprocess.run([PIECEMILL, "decode", tmp_path / "tok"], input=ids, capture_output=True, env=environment(),
                          check=True, timeout=600).stdout  # fmt: skip
    assert back == b"\xff\xfe\x80"


def test_words_counted_elsewhere_are_the_documents(tmp_path):
    documents = files(30)
    tok = train_bpe(documents, bytes=True, vocab_size=400)
    counted = train_bpe(documents, bytes=True, vocab_size=400, save_counts=tmp_path / "counts.parquet")
    assert counted.identity == tok.identity
    again = train_bpe(from_counts=[tmp_path / "counts.parquet"], vocab_size=400)
    assert again.identity == tok.identity


def test_what_needs_text_refuses_bytes():
    with pytest.raises(PlanError, match=r"bytes and pretokenizer='gpt2': a pretokenizer needs text"):
        train_bpe([b"\xff"], bytes=True, pretokenizer="gpt2")
    text = Tokenizer.from_merges([], pretokenizer="gpt2")
    with pytest.raises(
        PlanError, match=r"bytes: the pretokenizer of start or of the counts is 'gpt2', which needs text"
    ):
        train_bpe([b"\xff"], bytes=True, start=text, vocab_size=300)
    with pytest.raises(
        PlanError, match=r"bytes: a byte-level BPE with a pretokenizer encodes text. Expected byte-level BPE"
    ):
        prepare([b"\xff"], text, out="nowhere", bytes=True, eos="none")
    for call in (text.encode, lambda document: text.encode_batch([document])):
        with pytest.raises(TokenizerError, match="UTF-8"):
            call(b"a\xff")
    whole = Tokenizer.from_merges([], pretokenizer="none", special_tokens=["<|endoftext|>"])
    with pytest.raises(TokenizerError, match="UTF-8"):  # what is to be parsed is text
        whole.encode_batch([b"a\xff"], special="parse")
    with pytest.raises(SourceError, match=r"<list>\[0\]: invalid UTF-8 at byte 0"):
        train_bpe([b"\xff"], pretokenizer="none", vocab_size=300)


def test_bytes_with_an_alphabet():
    documents = [b"\xff\xfe\xff\xfe", b"\xff\xff\xfe\x00"]
    tok = train_bpe(documents, bytes=True, alphabet="auto", vocab_size=6)
    assert tok.alphabet == b"\xfe\xff\x00"
    assert [tok.decode_bytes(tok.encode(document)) for document in documents] == documents
    with pytest.raises(TokenizerError, match=r"byte 0x80 at its start is not in the alphabet"):
        tok.encode(b"\x80")


def test_continued_training_goes_on_with_bytes():
    documents = files(30)
    tok = train_bpe(documents, bytes=True, vocab_size=300)
    longer = train_bpe(documents, bytes=True, start=tok, vocab_size=340)
    assert longer.identity == train_bpe(documents, bytes=True, vocab_size=340).identity
