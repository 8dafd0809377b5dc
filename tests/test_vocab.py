"""`piecemill vocab` and `Tokenizer.tokens`: a vocabulary that can be looked at."""

import csv
import io
import json

import numpy as np
import pytest

import models
import piecemill
from command import piecemill as run
from piecemill.errors import PlanError, ShardError
from piecemill.shards.reader import count_tokens
from piecemill.tokenizers.listing import Token, select

TEXT = "the cat sat on the mat, and the other cat sat on the other mat.\n" * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocab")
    tok = piecemill.train_bpe([TEXT], vocab_size=275)
    tok.save(folder / "tok")
    piecemill.prepare([TEXT, "zzz"], tok, out=folder / "shards", splits="a=50,b=50")
    return folder


@pytest.fixture(scope="module")
def tok(folder):
    return piecemill.load_tokenizer(folder / "tok")


def test_each_token_is_listed_with_what_it_was_merged_from(tok):
    tokens = tok.tokens
    assert [token.id for token in tokens] == list(range(tok.vocab_size))
    assert tokens[0] == Token(0, b"<|endoftext|>", True)
    for number, (left, right) in enumerate(tok.merges.tolist()):
        made = tokens[257 + number]
        assert (made.merge, made.parts) == (number, (left, right))
        assert made.token == tokens[left].token + tokens[right].token == tok.bytes_of(made.id)


def test_tokens_are_searched_and_sorted(folder, tok):
    tokens = tok.tokens
    found = select(tokens, search=b" the")
    assert found
    assert all(b" the" in token.token for token in found)
    lengths = [len(token.token) for token in select(tokens, sort="length")]
    assert lengths == sorted(lengths, reverse=True)
    assert [token.merge for token in select(tokens, merges=True)] == list(range(len(tok.merges)))
    counts = count_tokens(folder / "shards", tok)
    ids = np.concatenate([tok.encode(TEXT), tok.encode("zzz"), [0, 0]])
    assert counts.tolist() == np.bincount(ids, minlength=tok.vocab_size).tolist()
    assert select(tokens, sort="count", counts=counts)[0].id == counts.argmax()
    with pytest.raises(PlanError, match="sort='count': counts are not known"):
        select(tokens, sort="count")
    other = piecemill.train_bpe(["another text"], vocab_size=270)
    with pytest.raises(ShardError, match="made with another tokenizer"):
        count_tokens(folder / "shards", other)


def test_the_command_prints_a_table_csv_and_json(folder, tok):
    done = run("vocab", folder / "tok", "--counts", folder / "shards", "--sort", "count", "--first", 3)
    assert done.returncode == 0, done.stderr
    head, *rows, rest = done.stdout.splitlines()
    assert head.startswith("275 of 275 tokens; bytes of a token: 1 to ")
    assert len(rows) == 3
    assert rest == "... and 272 more: --first 0 lists all"
    found = json.loads(run("vocab", folder / "tok", "--search", r"mat.\x0a", "--json").stdout)["tokens"]
    assert all("mat.\n" in one["token"] and one["token"] == "".join(one["parts"]) for one in found)
    rows = list(csv.DictReader(io.StringIO(run("vocab", folder / "tok", "--csv").stdout)))
    assert len(rows) == 275
    assert rows[-1]["left"] + rows[-1]["right"] == rows[-1]["token"]


def test_a_tokenizer_inside_prepared_shards_comes_with_their_counts(folder):
    wanted = run("vocab", folder / "tok", "--counts", folder / "shards", "--sort", "count", "--csv").stdout
    for place in (folder / "shards/tokenizer", folder / "shards/tokenizer/tokenizer.json"):
        done = run("vocab", place, "--sort", "count", "--csv")
        assert (done.returncode, done.stdout) == (0, wanted), done.stderr


@pytest.mark.parametrize("kind", ["word_piece", "unigram", "sentencepiece"])
def test_vocabularies_of_other_kinds_are_listed_too(tmp_path, kind):
    if kind == "sentencepiece":
        (tmp_path / "tokenizer.model").write_bytes(models.sentencepiece_model())
    else:
        (tmp_path / "tokenizer.json").write_text(models.tokenizer_json(kind))
    tok = piecemill.load_tokenizer(tmp_path)
    tokens = tok.tokens
    assert len(tokens) == tok.vocab_size
    assert {token.token.decode(): token.id for token in tokens if token.special} == tok.special_tokens
    done = run("vocab", tmp_path)
    assert done.returncode == 0, done.stderr
    with pytest.raises(PlanError, match="merges: this tokenizer has no merges to list"):
        select(tokens, merges=True)


def test_merges_of_ranks_and_of_any_bpe_are_listed(folder, tok, tmp_path):
    ranks = piecemill.load_tokenizer(folder / "tok/ranks.tiktoken", pretokenizer="cl100k")
    data = json.loads((folder / "tok/tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(data | {"normalizer": {"type": "NFC"}}))
    normalized = piecemill.load_tokenizer(tmp_path)
    assert normalized.kind == "tokenizer.json (BPE)"
    assert select(normalized.tokens, merges=True) == select(tok.tokens, merges=True)
    parts = [[token.parts[0] + 1, token.parts[1] + 1] for token in select(ranks.tokens, merges=True)]
    assert parts == tok.merges.tolist()  # one special token before them
