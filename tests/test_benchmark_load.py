"""The loading benchmark's own arithmetic: what is compared, what is shown, nothing timed."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks" / "peers"))

import load
import load_peers
import prepare
import tables
from worker import digest

LOAD = load.Load()


def record(tool, speed, *, workers=0, session="2026-01-01T00:00:00", complete=True, reason="", cpu=1.0):
    """Runs in which `tool` took `speed` million tokens a second of 8x1024, and twice as many of 32x1024."""
    answers = [
        {
            kind: {"tokens": value * 1e6 * factor, "seconds": 1.0, "cpu_seconds": cpu}
            for kind, factor in (("8x1024", 1), ("32x1024", 2))
        }
        for value in (speed * 0.9, speed, speed * 1.3)
    ]
    return {
        "benchmark": "load",
        "session": session,
        "complete": complete,
        "machine": {"processor": "a processor", "cores": 2, "memory_gb": 8.0, "load_before": 0.1},
        "corpus": "python-127mb",
        "input": "0123456789abcdef" * 4,
        "tokens": 1000,
        "tool": tool,
        "version": "1.0",
        "workers": workers,
        "reason": reason,
        "agreement": "same rows",
        "answers": [] if reason else answers,
        "runs": [{"outcome": "ok", "seconds": 1.0}],
    }


def test_rows_are_compared_whatever_their_order_and_kind():
    tokens = np.arange(100, dtype=np.uint16)
    want = digest(load.wanted_rows(tokens, 9, 9))
    rows = [tokens[start : start + 10] for start in range(0, 91, 9)]
    found = digest([*np.array(rows[5:], np.int64), *np.array(rows[:5], np.int32)])
    assert (found["documents"], found["unordered"]) == (11, want["unordered"])
    assert digest(rows[1:])["unordered"] != want["unordered"]
    # every window + 1: rows that share no token
    assert len(load.wanted_rows(tokens, 9, 10)) == 10
    assert len(load.wanted_rows(tokens[:99], 9, 10)) == 9


def test_a_row_is_looked_up_at_whole_tokens_only():
    whole = np.array([0x0100, 0x0302, 0x0504], np.uint16).tobytes()
    assert load.found_in(whole, np.array([0x0302], np.uint16).tobytes())
    assert not load.found_in(whole, np.array([0x0201], np.uint16).tobytes())


def test_time_counts_batches_after_the_first_ones_and_goes_on_with_the_next_epoch():
    epochs = []

    def three():
        epochs.append(1)
        return iter([1, 2, 3])

    found = load_peers.timed(three, 10, 0.01)
    assert found["tokens"] % 10 == 0
    assert found["seconds"] > 0.01
    assert len(epochs) > load_peers.WARM_BATCHES // 3
    assert found["tokens"] <= 10 * (3 * len(epochs) - load_peers.WARM_BATCHES)


def test_bars_take_each_loader_with_the_workers_that_suit_it_where_we_are_closest():
    records = [
        record("piecemill", 300),
        record("piecemill", 500, workers=1),
        record("numpy-gather", 600),
        record("datatrove", 140),
        record("litdata", 260, workers=2),
        record("nanogpt-loop", 900),  # not one of the libraries that the bar names
    ]
    libraries, ceiling = LOAD.bars(records)
    assert libraries.passed is False  # 500 / 260
    assert "litdata 260 M/s: 1.92x" in libraries.measured
    assert ceiling.passed is True  # 500 / 600
    assert "0.83x" in ceiling.measured


def test_a_loader_with_other_rows_is_shown_without_times_and_in_no_bar():
    records = [record("piecemill", 500), record("litdata", 900, reason="other rows of 1024: 3, expected 4")]
    libraries, ceiling = LOAD.bars(records)
    assert (libraries.passed, ceiling.passed) == (None, None)
    text = LOAD.render(records)
    assert "other rows of 1024: 3, expected 4" in text
    assert "| **piecemill** 1.0 | 0 | 500 (450-650), 2.0 ns | 1,000 (900-1,300), 1.0 ns | same rows |" in text


def test_the_last_complete_session_is_shown():
    old, new, quick = (
        record("piecemill", speed, session=session, complete=complete)
        for speed, session, complete in ((100, "2026-01-01", True), (200, "2026-01-02", True), (9, "2026-01-03", False))
    )
    assert LOAD.shown([old, new, quick]) == [new]
    assert LOAD.render([{"benchmark": "train"}, quick]) == "\nNot measured yet.\n"


def test_every_loader_has_a_worker_and_a_place_to_run(monkeypatch, tmp_path):
    assert load.LIBRARIES == ("litdata", "mosaicml-streaming", "datasets", "datatrove")
    assert set(load.LIBRARIES) < set(LOAD.peers)
    assert all(load.pipeline(loader).name in prepare.PIPELINES for loader in load.LOADERS.values())
    assert all(hasattr(loader, "write") for loader in load.LOADERS.values() if loader.writes)
    made = []
    monkeypatch.setattr(prepare, "environment", lambda folder, packages: made.append(packages[0]) or "")
    monkeypatch.setattr(prepare, "make_corpora", lambda names: None)
    monkeypatch.setattr(prepare, "TOKENIZER", tmp_path)
    prepare.set_up(["litdata", *(load.pipeline(load.LOADERS[name]).name for name in ("piecemill", "datatrove"))], [])
    assert [pin.partition("==")[0] for pin in made] == ["gigatoken", "litdata", "datatrove"]  # ours is never installed
    torch = tmp_path / "lib" / "python3" / "site-packages"
    torch.mkdir(parents=True)
    monkeypatch.setattr(prepare.PIPELINES[load.WITH_TORCH], "environment", tmp_path)
    command = load.command(load.LOADERS["datatrove"], "time", Path("c/t.npy"), ask=["8x1024"], workers=1)
    assert command[2:4] == ["datatrove", "time"]
    paths = {"tokens": "c/t.npy", "out": "c/datatrove", "site_behind": str(torch)}
    paths = {name: {"path": path} for name, path in paths.items()}
    assert json.loads(command[4]) == {**paths, "ask": ["8x1024"], "workers": 1}


def test_a_page_is_rewritten_between_its_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- load: begin -->\nold\n<!-- load: end -->\nafter\n")
    tables.rewrite(page, "load", LOAD.render([record("piecemill", 500)]))
    assert page.read_text().startswith("before\n<!-- load: begin -->\n\n## Bars of loading")
    assert page.read_text().endswith("<!-- load: end -->\nafter\n")
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="needs one"):
        tables.rewrite(page, "load", LOAD.render([record("piecemill", 500)]))
