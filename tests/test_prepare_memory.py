"""`--memory` holds: for one large document in every kind of file, for any number of workers; or there is a refusal."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command import PIECEMILL, piecemill
from corpora import content, journal, small_tokenizer, split_documents, texts, write_jsonl
from piecemill import prepare
from piecemill.errors import SourceError, TokenizerError
from piecemill.preparing.encoding import Encoder, pieces_of
from piecemill.shards.format import token_dtype
from piecemill.sources import LARGE
from piecemill.tokenizers import Tokenizer
from piecemill.tokenizers.verify import Verifier
from piecemill.training.stages import give_back_memory, memory_allocated, memory_now
from vocabularies import tokenizer

MIB = 2**20

# Words, the pieces that splits treat by themselves, and what looks like white space to some and not to others.
PARTS = ["word", "W", "i'll", "'s", "'", "12345", "7", " ", "  ", "\n", " \n ", "\r\n", "\t", "!?", "...\n\n", "/",
         "é", "学", "。", "\u00a0", "\u2003", "\u3000", "\x1c", "\x7f", "e\u0301", "\u0301", "🙂", "ſ"]  # fmt: skip


@cache
def home(split):
    """The library whose ids are right by definition."""
    return tokenizer(split).model.start("tokenizers", "asked")


@pytest.mark.parametrize("split", ["gpt2", "cl100k", "o200k"])
@settings(deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=40), size=st.integers(1, 12))
def test_a_text_cut_at_spaces_has_the_ids_of_the_whole(split, parts, size):
    tok = tokenizer(split)
    assert tok.cuts_at_spaces
    text = "".join(parts).encode()
    pieces = [bytes(piece) for piece in pieces_of(np.frombuffer(text, np.uint8), size)]
    assert b"".join(pieces) == text
    ids = [i for piece in pieces for i in tok.encode(piece).tolist()]
    assert ids == tok.encode(text).tolist()
    assert [i for piece in pieces for i in home(split).encode(piece.decode(), parse=False).tolist()] == ids


@pytest.mark.parametrize("split", ["gpt2", "cl100k", "o200k"])
@settings(deadline=None)
@given(
    parts=st.lists(st.sampled_from([part for part in PARTS if " " not in part]), max_size=40), size=st.integers(1, 5)
)
def test_a_text_without_spaces_is_cut_at_line_ends(split, parts, size):
    text = "".join(["word", *parts, "7", "\n", *parts]).encode()
    pieces = [bytes(piece) for piece in pieces_of(np.frombuffer(text, np.uint8), size)]
    assert len(pieces) > 1
    assert b"".join(pieces) == text
    ids = [i for piece in pieces for i in tokenizer(split).encode(piece).tolist()]
    assert ids == tokenizer(split).encode(text).tolist()


def test_a_document_that_cannot_be_cut_is_refused_before_it_is_encoded(tmp_path):
    # Some hundred megabytes for the engine in one call, where a text with spaces takes 8 MiB at a time.
    (tmp_path / "a.txt").write_text("x7Y!" * (8 * MIB))
    before = memory_now()
    with pytest.raises(SourceError, match=r"a\.txt.*: a document of 33\.6 MB.*needs about .* --memory allows"):
        prepare(
            tmp_path / "a.txt", tokenizer("gpt2"), out=tmp_path / "out", memory=str(min(before, 256 * MIB) + 500 * MIB)
        )
    assert memory_now() < before + 300 * MIB


def test_words_that_are_ever_new_stay_within_the_memory(tmp_path):
    # gigatoken keeps every word it has seen: without an end to that, these took 830 MiB.
    random = np.random.default_rng(0)
    for number in range(12):
        letters = random.integers(0x21, 0x7F, 12 * MIB, np.uint8)
        letters[::60] = 0x20
        letters[::1200] = 0x0A
        (tmp_path / f"{number:02}.txt").write_bytes(letters.tobytes())
    small_tokenizer().save(tmp_path / "tok")
    options = ["--separator", "\n", "--tokenizer", tmp_path / "tok", "--json"]
    files = sorted(tmp_path.glob("*.txt"))
    few = piecemill("prepare", *files, *options, "--out", tmp_path / "few", "--memory", "576MiB")
    assert few.returncode == 0, few.stderr
    assert json.loads(few.stdout)["timing"]["peak_memory_bytes"] < 576 * MIB
    much = piecemill("prepare", *files, *options, "--out", tmp_path / "much", "--memory", "8GiB")
    assert json.loads(much.stdout)["timing"]["peak_memory_bytes"] > 576 * MIB
    assert content(tmp_path / "few") == content(tmp_path / "much")


def test_what_is_allocated_is_counted_and_what_is_freed_is_not():
    before = memory_allocated()
    held = [np.ones(size, np.uint8) for size in (50 * MIB, 1000, 1000)]
    assert 50 * MIB <= memory_allocated() - before < 51 * MIB
    held.clear()
    assert abs(memory_allocated() - before) < MIB


def test_an_engine_that_has_forgotten_gives_the_same_ids():
    engine = tokenizer("gpt2").model.start("gigatoken", "asked")
    text = " ".join(texts(20))
    want = engine.encode(text, parse=False).tolist()
    (kept,) = engine._idle[False]
    with engine._one(False) as in_use:
        assert in_use is kept
        engine.forget()
    assert engine._idle[False] == []
    assert engine.encode(text, parse=False).tolist() == want
    assert engine._idle[False] != [kept]


def test_only_splits_that_were_proved_are_cut():
    assert not tokenizer("none").cuts_at_spaces
    assert not Tokenizer.from_merges([], split=r"\w+ \w+|[\s\S]").cuts_at_spaces


@pytest.mark.parametrize("split", ["gpt2", "none"])
@pytest.mark.parametrize("eos", ["auto", "none"])
def test_a_document_alone_is_encoded_as_among_others(split, eos, monkeypatch):
    monkeypatch.setattr("piecemill.preparing.encoding._PIECE", 100)
    tok = tokenizer(split)
    encoder = Encoder(tok, eos=eos, bos="none", special="plain")
    text = " ".join(texts(40)).encode()
    data, dtype = np.frombuffer(text, np.uint8), token_dtype(tok.vocab_size)
    want = tok.encode(text).tolist() + ([] if encoder.eos is None else [encoder.eos])
    alone = encoder.encode_alone(data, dtype)
    assert (alone.tolist(), alone.dtype) == (want, dtype)
    assert len(want) * 0.8 < encoder._tokens(data) < len(want) * 1.3


def large_text(size: int) -> str:
    """Text with all that makes a document heavy: escapes in JSON, and characters beyond the first 256."""
    some = "\n".join(texts(200)) + '\t"quoted" \\ 学校 🙂 \n'
    return some * (size // len(some.encode()) + 1)


def write(folder: Path, kind: str, text: str) -> Path:
    path = folder / f"large.{kind}"
    if kind == "txt":
        path.write_text(text)
    elif kind == "jsonl":
        # A small one after it, so that the next line is read while the large one is at work.
        path.write_text("".join(json.dumps({"text": one}, ensure_ascii=False) + "\n" for one in (text, "small")))
    elif kind == "alone.parquet":
        pq.write_table(pa.table({"text": pa.array([text, "small"], pa.large_string())}), path, row_group_size=1)
    else:
        # One row group or record batch, so that only what is inside it says that one row is large.
        table = pa.table({"text": pa.array(["some text"] * 500 + [text] + [None, "small"] * 500, pa.large_string())})
        if kind == "plain.parquet":
            pq.write_table(table, path, use_dictionary=False)
        elif kind == "parquet":
            pq.write_table(table, path)
        else:
            options = pa.ipc.IpcWriteOptions(compression="zstd" if kind == "zstd.arrow" else None)
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
                writer.write_table(table)
    return path


@pytest.mark.parametrize(
    ("kind", "size", "memory"),
    [
        ("txt", 64, 576),
        ("jsonl", 64, 576),
        ("alone.parquet", 64, 704),
        ("parquet", 144, 704),
        ("plain.parquet", 144, 704),
        ("arrow", 144, 704),
        ("zstd.arrow", 144, 704),
    ],
)
def test_one_large_document_stays_within_the_memory(kind, size, memory, tmp_path):
    text = large_text(size * MIB)
    path = write(tmp_path, kind, text)
    small_tokenizer().save(tmp_path / "tok")
    done = piecemill(
        *[
            "prepare",
            path,
            "--tokenizer",
            tmp_path / "tok",
            "--out",
            tmp_path / "out",
            "--memory",
            f"{memory}MiB",
            "--on-bad-document",
            "skip",
            "--json",
        ]
    )
    assert done.returncode == 0, done.stderr
    timing = json.loads(done.stdout)["timing"]
    assert timing["peak_memory_bytes"] < memory * MIB
    ids, records = split_documents(tmp_path / "out", "all")
    before, after = {"txt": (0, 0), "jsonl": (0, 1), "alone.parquet": (0, 1)}.get(kind, (500, 500))
    assert len(ids) == before + 1 + after
    assert records["bytes"].tolist() == [len("some text")] * before + [len(text.encode())] + [len("small")] * after
    assert len(ids[before]) == len(small_tokenizer().encode(text)) + 1


def test_documents_around_a_large_one_are_what_they_are_without_it(tmp_path):
    tok = small_tokenizer()
    around, large = texts(30), large_text(LARGE)
    write_jsonl(tmp_path / "a.jsonl", [*around, large, *around, large])
    options = {"workers": 2, "splits": "a=50,b=50", "block_bytes": "16KiB", "memory": str(memory_now() + 2000 * MIB)}
    prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "out", **options)
    found = [ids for split in "ab" for ids in split_documents(tmp_path / "out", split)[0]]
    want = [[*tok.encode(text).tolist(), tok.id_of("<|endoftext|>")] for text in [*around, *around, large, large]]
    assert sorted(found) == sorted(want)


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_a_document_beyond_the_memory_is_refused_before_it_is_too_late(kind, tmp_path):
    path = tmp_path / f"huge.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"text": ["x" * (300 * MIB)]}), path)  # a row of one letter is packed to nothing
        give_back_memory()
    else:
        path.write_text('{"text": "' if kind == "jsonl" else "")
        os.truncate(path, 8 * 2**30)  # a hole: nobody gets as far as to see that there is no text in it
    most = memory_now() + 500 * MIB
    allowed = str(min(memory_now(), 256 * MIB) + 500 * MIB)  # what is beyond an interpreter's own is not counted
    with pytest.raises(
        SourceError, match=rf"huge\.{kind}.*: a document of .* needs about .* --memory allows"
    ) as raised:
        prepare(path, small_tokenizer(), out=tmp_path / "out", memory=allowed)
    assert "Allow more, or leave the document out" in str(raised.value)
    assert memory_now() < most
    # What there is without it can be prepared.
    write_jsonl(tmp_path / "small.jsonl", texts(5))
    prepare(tmp_path / "small.jsonl", small_tokenizer(), out=tmp_path / "other", memory=allowed)


def test_as_many_encode_as_the_memory_has_room_for_and_it_is_said_at_the_start(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", texts(50))
    said = []
    tok = small_tokenizer()

    def run(name, more, **options):
        memory = str(min(memory_now(), 256 * MIB) + more * MIB)
        summary = prepare(
            tmp_path / "a.jsonl", tok, out=tmp_path / name, memory=memory, on_progress=said.append, **options
        )
        first = said[0]
        assert first.stage == "start" != said[1].stage
        said.clear()
        return summary.timing["workers"], first.workers

    workers, why = run("few", 600, workers=16)
    assert 1 <= workers < 16
    assert why.endswith(f"16 asked for, {summary_memory(why)} memory has room for {workers}")
    assert run("asked", 4000, workers=3) == (3, "3 threads encode: 3 asked for")
    cores = len(os.sched_getaffinity(0))
    assert run("cores", 4000 + 200 * cores)[0] == cores


def test_what_the_caller_holds_is_not_counted(tmp_path):
    own = np.ones(700 * MIB, np.uint8)
    assert prepare(["one two"], small_tokenizer(), out=tmp_path / "out", memory="600MiB").documents == 1
    assert own[-1]


def summary_memory(why: str) -> str:
    return why.split(", ")[1].split(" ")[0]


def test_the_first_line_on_stderr_says_how_many_encode(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", texts(50))
    small_tokenizer().save(tmp_path / "tok")
    done = subprocess.run(
        [PIECEMILL, "prepare", tmp_path / "a.jsonl", "--tokenizer", tmp_path / "tok", "--out", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    first = done.stderr.splitlines()[0]
    cores = len(os.sched_getaffinity(0))
    assert first.startswith("start")
    assert sum(line.startswith("start") for line in done.stderr.splitlines()) == 1
    assert f": {cores} cores" in first
    assert "GiB for what is in flight" in first


@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
def test_long_documents_among_others_are_cut_for_the_engine_and_nobody_sees_it(engine, monkeypatch):
    tok = Tokenizer(tokenizer("gpt2").model, engine=engine)
    documents = [text.encode() for text in ["short", *texts(20), "x" * 500, "last one"]]
    data, ends = np.frombuffer(b"".join(documents), np.uint8), np.cumsum([len(text) for text in documents])
    want, want_ends = tok.encode_flat(data, ends)
    monkeypatch.setattr("piecemill.preparing.encoding._CALL", 40 * tok.engine.bytes_per_token)
    encoder = Encoder(tok, eos="none", bos="none", special="plain")
    assert len(encoder._cut(data, ends)) > len(ends)
    ids, id_ends = encoder.encode(data, ends)
    assert (ids.tolist(), id_ends.tolist()) == (want.tolist(), want_ends.tolist())


def test_documents_that_come_a_few_at_a_time_are_compared_and_a_difference_ends_the_run(tmp_path, monkeypatch):
    # Far fewer documents in flight than are compared: who waits for whom must come out.
    many = texts(120, copies=0.0)
    write_jsonl(tmp_path / "a.jsonl", many)
    tok = small_tokenizer()
    options = {"block_bytes": "1KiB", "workers": 1, "memory": str(memory_now() + 600 * MIB)}
    assert prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "out", **options).documents == 120
    real, wrong = Verifier.compare, []

    def compare(self, name, data, ends):
        if name == "document":
            wrong.append(len(ends))
            if sum(wrong) > 60:
                raise TokenizerError("verify: other ids")
        return real(self, name, data, ends)

    monkeypatch.setattr(Verifier, "compare", compare)
    with pytest.raises(TokenizerError, match="other ids"):
        prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "wrong", **options)
    assert sum(one["tally"]["documents"] for one in journal(tmp_path / "wrong") if "block" in one) <= 60
