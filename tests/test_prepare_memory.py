"""`--memory` holds, whatever is in the corpus: beyond it comes only a document that is larger than a block, twice."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command import PIECEMILL
from command import installed as piecemill
from corpora import content, small_tokenizer, split_documents, split_lengths, texts, write_jsonl
from piecemill import prepare
from piecemill.errors import PlanError
from piecemill.machine import memory_now
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
def test_a_document_larger_than_a_block_or_a_piece_is_encoded_as_any_other(engine, splits, tmp_path):
    tok = Tokenizer(tokenizer("gpt2").model, engine=engine)
    documents = ["short", " ".join(texts(40)), "x7Y!" * 700, "last"]
    prepare(documents, tok, out=tmp_path / "out", splits=splits, bos=END, block_bytes="1000", piece_bytes="2000")
    found = [ids for name in splits.split(",") for ids in split_documents(tmp_path / "out", name.split("=")[0])[0]]
    assert sorted(found) == sorted([0, *tok.encode(text).tolist(), 0] for text in documents)


def large_text(size: int) -> bytes:
    """Text with all that makes a document heavy: escapes in JSON, and characters beyond the first 256.

    Bytes, here and below: as a `str` every character would take four, and this process would grow to gigabytes.
    """
    some = ("\n".join(texts(200)) + '\t"quoted" \\ 学校 🙂 \n').encode()
    return some * (size // len(some) + 1)


@cache
def tokens_of_large_text(size: int) -> int:
    """Without a memory limit, in one call."""
    text = np.frombuffer(large_text(size), np.uint8)
    return len(small_tokenizer().encode_flat(text, np.array([len(text)]))[0])


def column(parts: list[bytes | None]) -> pa.Array:
    ends = np.cumsum([0, *(len(part or b"") for part in parts)], dtype=np.int64)
    there = np.packbits([part is not None for part in parts], bitorder="little")
    buffers = [pa.py_buffer(one) for one in (ends, b"".join(part or b"" for part in parts), there)]
    return pa.LargeStringArray.from_buffers(len(parts), *buffers)


def write(folder: Path, kind: str, text: bytes) -> Path:
    path = folder / f"large.{kind}"
    if kind == "txt":
        path.write_bytes(text)
    elif kind == "jsonl":
        # A small one after it, so that the next line is read while the large one is at work.
        escaped = text.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n").replace(b"\t", b"\\t")
        path.write_bytes(b'{"text": "%s"}\n{"text": "small"}\n' % escaped)
    elif kind == "alone.parquet":
        pq.write_table(pa.table({"text": column([text, b"small"])}), path, row_group_size=1)
    else:
        # One row group or record batch, so that only what is inside it says that one row is large.
        table = pa.table({"text": column([b"some text"] * 500 + [text] + [None, b"small"] * 500)})
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
        ("txt", 144, 512),
        ("jsonl", 144, 512),
        ("alone.parquet", 144, 512),
        ("parquet", 144, 512),
        ("plain.parquet", 144, 512),
        ("arrow", 144, 512),
        ("zstd.arrow", 144, 512),
    ],
)
def test_one_large_document_takes_twice_its_size_beyond_the_memory(kind, size, memory, tmp_path):
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
    assert timing["peak_memory_bytes"] < (memory + 2 * size) * MIB
    lengths, records = split_lengths(tmp_path / "out", "all")
    before, after = {"txt": (0, 0), "jsonl": (0, 1), "alone.parquet": (0, 1)}.get(kind, (500, 500))
    assert len(lengths) == before + 1 + after
    assert records["bytes"].tolist() == [len("some text")] * before + [len(text)] + [len("small")] * after
    assert lengths[before] == tokens_of_large_text(size * MIB) + 1


def test_documents_around_a_large_one_are_what_they_are_without_it(tmp_path):
    tok = small_tokenizer()
    around, large = texts(30), large_text(MIB).decode()
    write_jsonl(tmp_path / "a.jsonl", [*around, large, *around, large])
    options = {"threads": 2, "splits": "a=50,b=50", "block_bytes": "16KiB"}
    prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "out", **options)
    found = [ids for split in "ab" for ids in split_documents(tmp_path / "out", split)[0]]
    want = [[*tok.encode(text).tolist(), tok.id_of("<|endoftext|>")] for text in [*around, *around, large, large]]
    assert sorted(found) == sorted(want)


def test_as_many_tasks_run_as_the_memory_has_room_for_and_the_first_event_says_so(tmp_path):
    for number in range(20):
        write_jsonl(tmp_path / f"in/{number}.jsonl", texts(5))
    tok = small_tokenizer()

    def run(name, more, source=tmp_path / "in", **options):
        events = []
        memory = str(min(memory_now(), 256 * MIB) + more * MIB)
        options |= {"memory": memory, "piece_bytes": 1}  # every file is a task
        summary = prepare(source, tok, out=tmp_path / name, on_progress=events.append, **options)
        assert events[0].stage == "start" != events[1].stage
        return summary.timing["workers"], events[0].workers

    workers, why = run("few", 600, threads=16)
    assert 1 <= workers < 16
    assert why.endswith(f"memory has room for {workers}")
    assert "16 requested" in why
    assert run("asked", 4000, threads=3) == (3, "3 tasks at once on 3 cores: 3 requested")
    assert run("one", 4000, tmp_path / "in/0.jsonl", threads=3) == (1, "1 task at once on 3 cores: 3 requested")
    cores = len(os.sched_getaffinity(0))
    assert run("cores", 4000 + 200 * cores)[0] == min(cores, 20)
    with pytest.raises(PlanError, match=r"a task takes 1\d\d\d\d.*Allow more, or a smaller block_bytes"):
        run("none", 600, block_bytes="2GiB")


def test_what_the_caller_holds_is_not_counted(tmp_path):
    own = np.ones(700 * MIB, np.uint8)
    assert prepare(["one two"], small_tokenizer(), out=tmp_path / "out", memory="600MiB").documents == 1
    assert own[-1]


def test_the_first_line_on_stderr_says_how_many_tasks_run(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", texts(50))
    small_tokenizer().save(tmp_path / "tok")
    done = subprocess.run(
        [PIECEMILL, "prepare", tmp_path / "a.jsonl", "--tokenizer", tmp_path / "tok", "--out", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    first = done.stderr.splitlines()[0]
    cores = len(os.sched_getaffinity(0))
    assert first.startswith("start")
    assert sum(line.startswith("start") for line in done.stderr.splitlines()) == 1
    assert f": {cores} cores" in first
