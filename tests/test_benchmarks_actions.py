"""The benchmark of action vocabularies: its own arithmetic, on data small enough to check."""

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
sys.path.insert(0, str(BENCHMARKS / "peers"))

import action_peers  # noqa: E402
import actions as benchmark  # noqa: E402
import tables  # noqa: E402
from action_cases import random_corpus  # noqa: E402

ACTIONS = benchmark.Actions()

FAKE = """
from genrec.models.ActionPiece.utils import LEARNED

class ActionPieceCore:
    def __init__(self, state2feat):
        self.vocab, self.priority = [], []

    def train(self, corpus, size):
        learned = LEARNED(corpus, size)
        first = size - len(learned.merges)
        self.vocab = [None] * first + [(-1, a, b) for a, b in learned.merges.tolist()]
        self.priority = [0] * first + learned.weights
"""


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(1)
    sequences, _ = random_corpus(rng, 3, values=6, count=60, longest=9, items=40)
    keys = {}
    for item in (item for sequence in sequences for item in sequence):
        keys.setdefault(tuple(item), f"i{len(keys)}")
    features = {key: [token % 6 for token in item] for item, key in keys.items()}
    with gzip.open(tmp_path / "beauty.feat.json.gz", "wt") as file:
        json.dump(features, file)
    with gzip.open(tmp_path / "beauty.seq.txt.gz", "wt") as file:
        for user, sequence in enumerate(sequences):
            file.write(" ".join([f"u{user}", *(keys[tuple(item)] for item in sequence)]) + "\n")
    return tmp_path


def record(corpus, question, seconds, peak=400e6, **changes):
    inside = {
        "train_seconds": seconds,
        "first_seconds": seconds / 2,
        "milestones": [[10, seconds / 4], [1000, seconds]],
        "stats": {"count_seconds": seconds / 8},
    }
    if question == "spr":
        inside = {"items": 1000, "seconds": [0.002, 0.001, 0.004], "cpu_seconds": [0.001, 0.001, 0.001]}
    return {
        "benchmark": "actions",
        "complete": True,
        "machine": {"processor": "a processor", "cores": 2, "memory_gb": 8.0, "load_before": 0.1},
        "corpus": corpus,
        "question": question,
        "vocab": 40_000,
        "inside": [inside],
        "runs": [{"seconds": 2 * seconds, "cpu_seconds": seconds, "peak_bytes": peak, "outcome": "ok", "message": ""}],
        **changes,
    }


def test_a_run_leaves_out_two_items_and_tells_what_it_saw(data):
    corpus = action_peers.Corpus.load(data, "beauty")
    with gzip.open(data / "beauty.seq.txt.gz", "rt") as file:
        lines = [line.split()[1:] for line in file]
    assert corpus.sequences == [line[:-2] for line in lines if len(line) > 2]
    asked = {"data": data, "name": "beauty", "vocab": corpus.n_init + 40, "first": 7}
    told = {}
    for mode in action_peers.MODES:
        told[mode] = action_peers.learn(SimpleNamespace(**asked, mode=mode))
        assert told[mode]["merges"] == 40
        assert 0 < told[mode]["first_seconds"] <= told[mode]["train_seconds"]
        assert [merges for merges, _ in told[mode]["milestones"]] == [0, 4, 10, 20, 40]
    assert told["exact"]["merges_sha256"] != told["current"]["merges_sha256"]
    assert action_peers.segment(SimpleNamespace(**asked))["items"] == len(corpus.rows)


def test_the_published_implementation_is_compared_before_it_is_timed(data, tmp_path, monkeypatch):
    at = tmp_path / "checkout" / "genrec" / "models" / "ActionPiece"
    at.mkdir(parents=True)
    (at.parent.parent / "__init__.py").write_text("raise ImportError('imports what training does not need')")
    (at / "utils.py").write_text("LEARNED = None")
    (at / "core.py").write_text(FAKE)
    with pytest.raises(SystemExit, match="name a checkout"):
        action_peers.published_core(data)
    before = set(sys.modules)
    try:
        core = action_peers.published_core(tmp_path / "checkout")
        corpus = action_peers.Corpus.load(data, "beauty")
        progress = action_peers.Progress
        monkeypatch.setattr(core, "LEARNED", lambda _, size: corpus.train("float64", size, progress()))
        monkeypatch.setattr(action_peers, "published_core", lambda _: core)
        asked = SimpleNamespace(data=data, name="beauty", published=tmp_path, merges=9)
        assert action_peers.published(asked)["merges"] == 9
        monkeypatch.setattr(core, "LEARNED", lambda _, size: corpus.train("current", size, progress()))
        with pytest.raises(SystemExit, match="are not the published ones; no time is reported"):
            action_peers.published(asked)
    finally:
        for name in set(sys.modules) - before:
            if name.split(".")[0] == "genrec":
                del sys.modules[name]


def test_bars_pass_or_fail_by_the_last_complete_session():
    good = session_of(
        "2026-01-01T00:00:00",
        record("beauty", "exact", 2.0),
        record("beauty", "float64", 5.9),
        record("cds_like", "exact", 40.0, peak=2e9),
        record("cds_like", "float64", 121.0),
    )
    bars = ACTIONS.bars(ACTIONS.shown(good))
    # 345 s / 1 s; 1,000 items in 2 ms, the median.
    assert [bar.passed for bar in bars] == [True, True, True, True, True, False, True, True]
    assert "345x" in bars[6].measured
    assert bars[7].measured == "500,000"
    slow = session_of("2026-01-02T00:00:00", record("beauty", "exact", 5.1, peak=1.1e9))
    stopped = session_of("2026-01-03T00:00:00", record("beauty", "exact", 1.0))[:-1]
    quick = [line | {"complete": False} for line in session_of("2026-01-04T00:00:00", record("beauty", "exact", 1.0))]
    bars = ACTIONS.bars(ACTIONS.shown(good + slow + stopped + quick))
    assert [bar.passed for bar in bars][:2] == [False, False]
    assert [bar.passed for bar in ACTIONS.bars([])] == [None] * 8


def session_of(session, *records):
    """A whole session: these records, and one of a second for every other question."""
    given = {(line["corpus"], line["question"]): line for line in records}
    asked = [(corpus, question) for corpus in benchmark.DATA for question in benchmark.MODES]
    return [given.get(key, record(*key, 1.0)) | {"session": session} for key in asked]


def test_the_page_tells_of_every_question_and_of_a_run_that_failed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- actions: begin -->\nold\n<!-- actions: end -->\nafter\n")
    failed = record("sports", "exact", 1.0, inside=[])
    failed["runs"][0] |= {"outcome": "failed", "message": "no"}
    lines = session_of("2026-01-01", record("beauty", "exact", 2.0), failed)
    tables.rewrite(page, "actions", ACTIONS.render(lines))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    # 10 merges in a quarter of a second, and 990 in one and a half.
    assert "| beauty | exact | 2.00 (2.00-2.00) | 0.25 (0.25-0.25) | 1.00 (1.00-1.00) | 40, 660 |" in text
    assert "| sports | exact | failed |" in text
    assert "345 s for the first 932 merges" in text
    tables.rewrite(page, "actions", ACTIONS.render([]))
    assert "Not measured yet" in page.read_text()
