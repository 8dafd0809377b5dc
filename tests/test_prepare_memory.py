"""`--memory` holds: for one large document in every kind of file, for any number of workers; or there is a refusal."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command import PIECEMILL, piecemill
from corpora import content, small_tokenizer, split_documents, texts, write_jsonl
from piecemill import prepare
from piecemill.machine import memory_now
from piecemill.preparing.encoding import LARGE, Encoder
from piecemill.shards.format import token_dtype
from piecemill.tokenizers import Tokenizer
from vocabularies import END, tokenizer

MIB = 2**20


def test_words_that_are_ever_new_stay_within_the_memory(tmp_path):
    # Caches of fixed size: what was seen takes no more memory, however much of it is new.
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
    assert much.returncode == 0, much.stderr
    assert content(tmp_path / "few") == content(tmp_path / "much")


@pytest.mark.parametrize("engine", ["piecemill", "tokenizers"])
@pytest.mark.parametrize("splits", ["all=100", "a=50,b=50"])
def test_a_large_document_is_encoded_as_any_other(engine, splits, tmp_path, monkeypatch):
    monkeypatch.setattr("piecemill.preparing.encoding.LARGE", 1000)
    tok = Tokenizer(tokenizer("gpt2").model, engine=engine)
    documents = ["short", " ".join(texts(40)), "x7Y!" * 700, "last"]
    prepare(documents, tok, out=tmp_path / "out", splits=splits, bos=END, memory=str(memory_now() + 1500 * MIB))
    found = [ids for name in splits.split(",") for ids in split_documents(tmp_path / "out", name.split("=")[0])[0]]
    assert sorted(found) == sorted([0, *tok.encode(text).tolist(), 0] for text in documents)


def test_what_a_large_document_takes_is_estimated_from_samples():
    tok = tokenizer("gpt2")
    encoder = Encoder(tok, eos="auto", bos="none", special="plain", dtype=token_dtype(tok.vocab_size))
    text = "".join(texts(4000)).encode()
    data = np.frombuffer(text * (LARGE // len(text) + 1), np.uint8)
    tokens = len(tok.encode(text)) * (len(data) // len(text))
    assert tokens * 2 * 0.8 < encoder.heavy(data, np.array([len(data)])) < tokens * 2 * 1.3
    assert encoder.heavy(data[:1000], np.array([1000])) == 0


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
        ("parquet", 144, 960),
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
