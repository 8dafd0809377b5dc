"""Sources: every bad document is named with its place, and stops the run or is counted and listed."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import piecemill.sources.streams
import piecemill.sources.tasks
from piecemill.errors import SourceError
from piecemill.sources import Skipped, Tally, open_source

WAY_OUT = "Correct or exclude it, or pass on_bad_document='skip' to go on without it."


def read_skipping(source, **options) -> tuple[list[str], Tally]:
    opened = open_source(source, on_bad_document="skip", **options)
    blocks = [block for task in opened.tasks for block in opened.read(task)]
    tally = sum((block.tally for block in blocks), opened.found)
    return [block.text(i) for block in blocks for i in range(len(block))], tally


def stops_at(source, **options) -> str:
    with pytest.raises(SourceError) as caught:
        for _ in open_source(source, **options).blocks():
            pass
    return str(caught.value)


# JSON lines


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"body":"x"}', 'no field "text" (option field names the one that holds the text)'),
        (b'{"text":null}', 'the field "text" is null, expected a string'),
        (b'{"text":1e400}', 'the field "text" is a number, expected a string'),
        (b'{"text":["x"]}', 'the field "text" is an array, expected a string'),
        (b'{"text":{"x":1}}', 'the field "text" is an object, expected a string'),
        (b'"just a string"', 'found a string, expected a JSON object with the field "text"'),
        (b'{"text":"x"', "broken JSON at column 11: EOF while parsing an object"),
        (b'{"text":"x"} {}', "broken JSON at column 14: trailing characters"),
        (b'{"text":"x","b":"\xff"}', "invalid UTF-8 at byte 17 (found 0xff) of the line"),
        (b'{"text":"\\ud800!"}', "broken JSON at column 16: unexpected end of hex escape"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, reason):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"one"}\r\n\r\n' + line + b'\n{"text":"two"}')
    assert stops_at(path) == f"{path}:3: {reason}. {WAY_OUT}"
    documents, tally = read_skipping(path)
    assert documents == ["one", "two"]
    assert (tally.skipped_count, tally.skipped) == (1, (Skipped(f"{path}:3", reason),))


@pytest.mark.parametrize("number", ["1e400", "-1e999", "9" * 400, "[1e400, {}]"])
@pytest.mark.parametrize("line", ['{"text":"x","a":N}', '{"te\\u0078t":"x","a":N}', '{"text":N,"text":"x"}'])
def test_a_number_that_fits_no_float_is_valid_json(tmp_path, line, number):
    (tmp_path / "a.jsonl").write_text(line.replace("N", number) + '\n{"text":"y"}\n')
    assert read_skipping(tmp_path / "a.jsonl")[0] == ["x", "y"]
    assert json.loads(line.replace("N", number))["text"] == "x"


def test_a_key_with_a_lone_surrogate_is_another_key(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"te\\ud800xt":1,"text":"x"}\n{"m":{"\\udc00":[],"t":"y"},"text":"z"}\n')
    assert read_skipping(tmp_path / "a.jsonl")[0] == ["x", "z"]


def test_line_numbers_are_right_inside_ranges_and_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(piecemill.sources.tasks, "RANGE_BYTES", 64)
    monkeypatch.setattr(piecemill.sources.streams, "CHUNK_BYTES", 10)
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text" if n % 7 else "wrong": "x" * (n % 40)}) for n in range(1, 60)]
    for start in ("", "\ufeff", "\n\n"):
        path.write_text(start + "\n".join(lines))
        _, tally = read_skipping(path)
        before = start.count("\n")
        assert [one.name for one in tally.skipped] == [f"{path}:{n + before}" for n in range(7, 60, 7)]


def test_more_bad_lines_than_are_listed_are_all_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("x\n" * 2500 + '{"text":"good"}')
    documents, tally = read_skipping(path)
    assert documents == ["good"]
    assert (tally.skipped_count, len(tally.skipped), tally.skipped[-1].name) == (2500, 1000, f"{path}:1000")


# Packed streams


def packed(kind: str, text: bytes) -> bytes:
    return gzip.compress(text) if kind == "gz" else zstandard.ZstdCompressor().compress(text)


@pytest.mark.parametrize(("ending", "kind"), [("gz", "gzip"), ("zst", "zstd")])
def test_a_truncated_stream_keeps_the_documents_before_the_break(tmp_path, ending, kind):
    path = tmp_path / f"a.jsonl.{ending}"
    # Random text, so that cutting the last bytes cuts whole lines.
    noise = np.random.default_rng(1).integers(97, 123, (4000, 100), np.uint8)
    lines = [json.dumps({"text": bytes(row).decode()}) for row in noise]
    whole = packed(ending, "\n".join(lines).encode())
    size = len(whole) - 20_000
    path.write_bytes(whole[:size])
    documents, tally = read_skipping(path)
    assert 1000 < len(documents) < 4000
    assert documents == [bytes(row).decode() for row in noise[: len(documents)]]
    reason = f"truncated {kind}: the file ends at byte {size}, inside the packed stream"
    assert tally.skipped == (Skipped(f"{path}:{len(documents) + 1}", reason),)
    assert tally.source_bytes == size
    assert stops_at(path) == f"{path}:{len(documents) + 1}: {reason}. {WAY_OUT}"


@pytest.mark.parametrize(("ending", "kind"), [("gz", "gzip"), ("zst", "zstd")])
def test_broken_and_empty_streams_are_named(tmp_path, ending, kind):
    path = tmp_path / f"a.txt.{ending}"
    path.write_bytes(b"this is not packed")
    assert stops_at(path).startswith(f"{path}: broken {kind} near byte 0: ")
    path.write_bytes(packed(ending, b"first") + b"garbage")
    assert f"{path}: broken {kind} near byte " in stops_at(path)
    path.write_bytes(b"")
    assert stops_at(path).startswith(f"{path}: truncated {kind}: the file ends at byte 0")
    path.write_bytes(packed(ending, b"whole text")[:-3])
    assert read_skipping(path)[0] == []  # a document that is a file is broken as a whole
    assert read_skipping(path, separator=" ")[0] == ["whole"]  # but a piece before the break is not


def test_gzip_padding_is_not_an_error(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one ") + b"\0" * 10 + gzip.compress(b"two") + b"\0" * 100)
    assert read_skipping(path) == (["one two"], Tally(1, 7, path.stat().st_size, {}))


# Text


def test_text_that_is_not_utf8_is_named_with_its_byte(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("caf\u00e9".encode("latin-1"))
    assert stops_at(path) == f"{path}: invalid UTF-8 at byte 3 (found 0xe9). {WAY_OUT}"
    assert stops_at(path, separator="a") == f"{path}: invalid UTF-8 at byte 3 (found 0xe9). {WAY_OUT}"
    path.write_bytes(b"\xef\xbb\xbfmark \xff")
    for options in ({}, {"separator": "\n"}):
        assert "at byte 8 (found 0xff)" in stops_at(path, **options)
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbfmark \xff"))
    assert f"{packed}: invalid UTF-8 at byte 8 (found 0xff)" in stops_at(packed)


def test_one_bad_piece_spoils_no_other(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one|t\xffo|three")
    documents, tally = read_skipping(path, separator="|")
    assert documents == ["one", "three"]
    assert tally.skipped == (Skipped(str(path), "invalid UTF-8 at byte 5 (found 0xff)"),)


@pytest.mark.parametrize("options", [{}, {"separator": "\n"}])
def test_a_binary_file_that_was_named_is_a_bad_document(tmp_path, options):
    (tmp_path / "a.txt").write_bytes("utf-16".encode("utf-16"))
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"\0\0"))
    for name in ("a.txt", "b.gz"):
        reason = "binary file (a NUL byte near its start), expected UTF-8 text (or bytes=True); a text in UTF-16 must"
        reason += " be converted to UTF-8"
        assert stops_at(tmp_path / name, **options) == f"{tmp_path / name}: {reason}. {WAY_OUT}"
    assert read_skipping(tmp_path, **options)[1].left_out["binary"] == 2


def test_a_text_in_utf_16_without_a_nul_byte_near_its_start_is_named_too(tmp_path):
    (tmp_path / "a.txt").write_text("語" * 9, encoding="utf-16")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}', encoding="utf-16")
    for name in ("a.txt", "a.jsonl"):
        assert "; a text in UTF-16 must be converted to UTF-8. Correct" in stops_at(tmp_path / name)


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_has_no_order(kind):
    with pytest.raises(SourceError, match=f"found {kind.__name__}, whose order is another in each process"):
        open_source(kind(["a", "b"]))


def test_an_unpacked_text_can_be_oversized_too(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"x" * 100_000))
    documents, tally = read_skipping(tmp_path, max_file_bytes=10_000)
    assert (documents, tally.left_out["oversized"]) == ([], 1)
    assert len(read_skipping(tmp_path / "a.txt.gz", max_file_bytes=10_000)[0]) == 1  # it was named


# Files that go away


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.arrow"])
def test_a_file_that_vanishes_is_named(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"x")
    for policy in ("stop", "skip"):
        path.write_bytes(b"x")
        source = open_source(path, on_bad_document=policy)
        path.unlink()
        if policy == "stop":
            with pytest.raises(SourceError, match=rf"^{path}.*: cannot be read.*No such file"):
                list(source.read(source.tasks[0]))
        else:
            (block,) = source.read(source.tasks[0])
            assert (len(block), block.tally.skipped_count) == (0, 1)


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="neither a file nor a folder"):
        open_source(tmp_path / "pipe")
    (tmp_path / "a").write_text("text")
    assert open_source(tmp_path).left_out["special"] == 1


# Tables


def write_parquet(path: Path, column: pa.Array, rows: int = 2) -> Path:
    pq.write_table(pa.table({"id": pa.array(range(len(column))), "text": column}), path, row_group_size=rows)
    return path


def test_nulls_and_bad_text_are_named_by_row(tmp_path, monkeypatch):
    monkeypatch.setattr(piecemill.sources.tasks, "RANGE_BYTES", 1)
    bad = pa.array([b"one", b"t\xffo", None, b"", b"\xe9", b"six"], pa.binary())
    path = write_parquet(tmp_path / "a.parquet", bad)
    assert stops_at(path) == f"{path}[1]: invalid UTF-8 at byte 1 of the text (found 0xff). {WAY_OUT}"
    for source in (path, pa.table({"text": bad})):
        name = str(path) if source is path else "<Table>"
        documents, tally = read_skipping(source)
        assert documents == ["one", "six"]
        assert tally.left_out["empty"] == 1
        assert [one.name for one in tally.skipped] == [f"{name}[1]", f"{name}[2]", f"{name}[4]"]
        assert tally.skipped[1].reason == "null, expected text"


def test_a_string_column_is_checked_too():
    # Arrow says string, the bytes say otherwise; and the second border cuts "é" in two.
    def strings(data: bytes, borders: list[int]) -> pa.Table:
        offsets = pa.py_buffer(np.array(borders, np.int32).data)
        return pa.table(
            {"text": pa.Array.from_buffers(pa.string(), len(borders) - 1, [None, offsets, pa.py_buffer(data)])}
        )

    assert read_skipping(strings(b"ok\xff", [0, 2, 3]))[0] == ["ok"]
    assert read_skipping(strings("aé".encode(), [0, 2, 3]))[0] == []


def test_a_missing_or_wrong_column_is_named(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", pa.array(["x"]))
    assert stops_at(path, field="body") == f"{path}: no column 'body'; its columns are id, text. {WAY_OUT}"
    assert stops_at(path, field="id") == f"{path}: the column 'id' is int64, expected strings. {WAY_OUT}"
    assert read_skipping(path, field="id")[1].skipped_count == 1
    table = pa.table({"meta": [{"n": 1}]})
    assert "no column 'meta.text': 'meta' is struct<n: int64> without 'text'" in stops_at(table, field="meta.text")
    assert stops_at(table).startswith("<Table>: no column 'text'; its columns are meta. Name the column")


def test_a_broken_table_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"not a table")
    assert stops_at(path).startswith(f"{path}: not a readable Parquet file: ")
    path = tmp_path / "a.arrow"
    path.write_bytes(b"not a table")
    assert stops_at(path).startswith(f"{path}[0]: cannot be read from this row on: ")


# Strings


def test_items_that_are_no_text_are_named():
    assert stops_at(["fine text", "\udfff"]).startswith("<list>[1]: lone surrogate U+DFFF at character 0")
    assert stops_at([b"fine", b"\xff"]).startswith("<list>[1]: invalid UTF-8 at byte 0 (found 0xff)")
    assert stops_at([{"text": "x"}]).startswith("<list>[0]: found dict, expected str or bytes. For rows, pass")


# Nothing at all


def test_an_empty_corpus_is_an_error(tmp_path):
    assert stops_at([]) == "<list>: empty corpus, no document with text in it (there was nothing in it)."
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "b.jsonl").write_bytes(b"\n\n")
    assert (
        stops_at(tmp_path) == f"{tmp_path}/a.txt and 1 more tasks: empty corpus, no document with text in it (1 empty)."
    )
    (tmp_path / "b.jsonl").write_bytes(b"x")
    message = stops_at(tmp_path, on_bad_document="skip")
    assert f"(1 empty, 1 skipped (first: {tmp_path}/b.jsonl:1: broken JSON at column 1: expected value))" in message
    empty = write_parquet(tmp_path / "c.parquet", pa.array([], pa.string()))
    assert stops_at(empty) == f"{empty}: empty corpus, no document with text in it (there was nothing in it)."
