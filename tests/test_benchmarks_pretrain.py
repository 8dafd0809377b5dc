"""The GPU benchmark, tried on a processor: every part runs, and its records become the page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from corpora import texts, write_jsonl
from piecemill.pretraining import pretrain
from pretraining import ONE_THREAD, SMALL, small_shards

HOUSE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HOUSE / "benchmarks"))

import pretrain as benchmark  # noqa: E402
import tables  # noqa: E402


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """What the script writes: the feeding of a tiny model here, and a run of the command."""
    place = tmp_path_factory.mktemp("benchmark")
    shards = small_shards(place / "shards")
    jsonl = write_jsonl(place / "sample.jsonl", texts(50))
    pretrain(shards, out=place / "run", steps=12, eval_every=4, **SMALL)
    script, out = str(HOUSE / "benchmarks/pretrain.py"), str(place / "records")
    small = [
        "--size",
        "tiny",
        "--window",
        "16",
        "--batch-size",
        "4",
        "--segment",
        "3",
        "--rounds",
        "2",
        "--device",
        "cpu",
    ]
    for given in ([str(shards), "--jsonl", str(jsonl), *small], ["--run", str(place / "run")]):
        command = [sys.executable, script, *given, "--out", out, "--commit", "abc"]
        done = subprocess.run(command, env=os.environ | ONE_THREAD, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return [json.loads((place / f"records/pretrain-{name}.json").read_text()) for name in ("feeding", "training")]


def test_every_way_to_feed_a_step_is_measured(records):
    feeding, _ = records
    assert {name: len(found) for name, found in feeding["segments"].items()} == {
        **{"feeder": 2, "resident": 2, "text": 2},
        "naive": 3,
    }
    assert feeding["ratio"] == pytest.approx(feeding["step_ms"]["feeder"] / feeding["step_ms"]["resident"])
    assert all(0 <= share <= 1 for share in feeding["waited_share"].values())
    assert feeding["text_ratio"] == pytest.approx(feeding["step_ms"]["text"] / feeding["step_ms"]["resident"])
    assert feeding["utilisation"] == {"feeder": None, "resident": None, "text": None, "naive": None}
    assert feeding["commit"] == "abc"


def test_the_page_shows_bars_and_tables_and_keeps_the_words_around(records, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- pretrain: begin -->\nold\n<!-- pretrain: end -->\nafter\n")
    tables.rewrite(page, "pretrain", benchmark.Pretrain().render(records))
    shown = page.read_text()
    assert shown.startswith("before\n")
    assert shown.endswith("after\n")
    assert "old" not in shown
    assert f"| {records[0]['step_ms']['naive']:.2f} |" in shown
    assert f"| 12 | {records[1]['validation'][-1][1]:.4f} |" in shown


def bars(feeding, training):
    found = [{"question": name, **given} for name, given in (("feeding", feeding), ("training", training)) if given]
    return {bar.promise: bar.passed for bar in benchmark.Pretrain().bars(found)}


def test_a_bar_passes_at_its_figure_and_fails_beyond_it(records):
    assert set(bars(None, None).values()) == {None}
    good = {"ratio": 1.01, "waited_share": {"feeder": 0.01}, "feeder_cpu_cores": 0.15, "extra_cpu_cores": -0.2}
    good |= {"text_ratio": 1.01, "text_cpu_cores": 0.15}
    run = {"utilisation": 0.4, "validation": [[0, 10.8], [1, 3.0], [2, 2.59]], "tokens": 1e8}
    assert set(bars(good, run).values()) == {True}
    for worse in (
        {"ratio": 1.0101},
        {"waited_share": {"feeder": 0.0101}},
        {"feeder_cpu_cores": 0.16},
        {"extra_cpu_cores": 0.16},
        {"text_ratio": 1.02},
        {"text_cpu_cores": 0.16},
    ):
        assert list(bars({**good, **worse}, run).values()).count(False) == 1
    for worse in ({"utilisation": 0.39}, {"validation": [[0, 2.0], [1, 2.1]]}, {"validation": [[0, 9.0], [1, 2.7]]}):
        assert list(bars(good, {**run, **worse}).values()).count(False) == 1
