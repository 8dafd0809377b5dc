"""Blocks: the memory they are in, and how far they are read ahead."""

import json
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from piecemill.sources import jsonl, open_source, packing, read_task, streams
from piecemill.sources.ahead import ReadAhead


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "text"])
def test_the_text_of_usual_blocks_is_in_the_buffers_that_are_given(tmp_path, kind):
    documents = [f"{number} " * (number % 50 + 1) for number in range(3_000)]
    documents[1_000] = "x" * 20_000
    path = tmp_path / f"text.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    elif kind == "parquet":
        pq.write_table(pa.table({"text": documents}), path)
    else:
        path = tmp_path
        for number, text in enumerate(documents):
            (path / f"{number:04}.txt").write_text(text)
    given: list[np.ndarray] = []

    def buffer():
        given.append(np.zeros(10_000, np.uint8))
        return given[-1]

    source = open_source(path, block_bytes=10_000)
    plain = [block for task in source.tasks for block in source.read(task)]
    filled = [block for task in source.tasks for block in read_task(task, source.reading, None, buffer)]
    assert [block.data.tobytes() for block in filled] == [block.data.tobytes() for block in plain]
    assert [block.tally for block in filled] == [block.tally for block in plain]
    for block in filled:
        own = [one for one in given if np.shares_memory(one, block.data)]
        assert len(own) == (1 if 0 < block.nbytes <= 10_000 else 0)
    assert sum(block.nbytes > 10_000 for block in filled) == 1
    assert len(given) > 10


@pytest.mark.parametrize("seed", range(20))
def test_blocks_of_json_lines_are_those_of_a_plain_reference(tmp_path, monkeypatch, seed):
    """Lines of all lengths, from a few bytes to some blocks: text that was appended to the block, and text apart."""
    random = np.random.default_rng(seed)
    lengths = np.where(random.random(400) < 0.05, random.integers(1, 4_000, 400), random.integers(1, 90, 400))
    documents = [chr(97 + number % 26) * int(length) for number, length in enumerate(lengths)]
    notes = ["z" * int(5_000 * (random.random() < 0.02)) for _ in documents]  # a long line with a short text
    rows = [json.dumps({"note": note, "text": text}) for note, text in zip(notes, documents, strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    block_bytes = int(random.integers(200, 2_000))
    monkeypatch.setattr(streams, "CHUNK_BYTES", int(random.integers(1, 1_500)))
    want: list[list[str]] = [[]]
    for text in documents:
        if want[-1] and sum(map(len, want[-1])) + len(text) > block_bytes:
            want.append([])
        want[-1].append(text)
    blocks = list(open_source(tmp_path / "a.jsonl", block_bytes=block_bytes).blocks())
    assert [[block.text(i) for i in range(len(block))] for block in blocks if len(block)] == want
    places = np.cumsum([0, *(len(row) + 1 for row in rows)])[:-1]
    assert [int(place) for block in blocks for place in block.places] == places.tolist()


def test_the_text_of_json_lines_is_not_copied_to_its_block(tmp_path, monkeypatch):
    """Only what is left over when a block is full is copied, to the start of the next one."""
    (tmp_path / "a.jsonl").write_text((json.dumps({"text": "x" * 80}) + "\n") * 5_000)
    monkeypatch.setattr(streams, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(packing, "CHUNK_BYTES", 1_000)
    moved = []

    class Counting:
        """A buffer that counts what stays in it when a block is taken."""

        def __init__(self, capacity):
            self.own = packing_buffer(capacity)

        def __len__(self):
            return len(self.own)

        def take(self, size):
            moved.append(len(self.own) - size)
            return self.own.take(size)

    packing_buffer = packing.TextBuffer
    extract = jsonl.extract_lines
    monkeypatch.setattr(packing, "TextBuffer", Counting)
    monkeypatch.setattr(jsonl, "extract_lines", lambda lines, text, *rest: extract(lines, text.own, *rest))
    blocks = list(open_source(tmp_path, block_bytes=20_000).blocks())
    assert sum(block.nbytes for block in blocks) == 400_000
    assert len(moved) == len(blocks)
    assert sum(moved) < 400_000 * 0.05


def test_without_a_gpu_no_engine_gets_special_buffers(monkeypatch):
    from piecemill.tokenizers import engines

    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    assert engines.text_buffers("piecemill", 10) is None
    assert engines.text_buffers("cuda", 10) is None


def test_nothing_is_read_ahead_of_a_large_block_until_it_is_done_with():
    sizes, asked = [4, 9, 4, 4, 4], []
    released = threading.Event()

    def blocks():
        for number, size in enumerate(sizes):
            asked.append(number)
            if number == 2:
                assert released.wait(600)  # set when the caller is done with the large one
            block = next(iter(open_source(["x" * size]).blocks()))
            yield block

    with ReadAhead(blocks(), 5, lambda: None) as ahead:
        assert ahead.next_block().nbytes == 4
        assert ahead.next_block().nbytes == 9
        assert asked == [0, 1]
        released.set()
        assert [ahead.next_block().nbytes for _ in sizes[2:]] == sizes[2:]
        assert not ahead.more()


def test_leaving_ends_the_reader_whatever_it_waits_for():
    closed = threading.Event()

    def blocks():
        try:
            while True:
                yield next(iter(open_source(["x" * 9]).blocks()))
        finally:
            closed.set()

    with ReadAhead(blocks(), 5, lambda: None) as ahead:  # every block is a large one
        assert ahead.next_block().nbytes == 9
    assert closed.wait(600)
