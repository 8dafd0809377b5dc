"""Blocks: the memory they are in, and how far they are read ahead."""

import json
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from piecemill.sources import open_source, read_task
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
                assert released.wait(60)  # set when the caller is done with the large one
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
    assert closed.wait(60)
