"""The time left, held against recorded runs: the progress of each at some 150 moments (`Moment`)."""

import json
from pathlib import Path

import pytest

from piecemill.training.stages import Moment, Remaining

RUNS = json.loads(Path(__file__).with_name("recorded_runs.json").read_text(encoding="utf-8"))
# An error that nobody who reads a progress line can see.
UNSEEN_SECONDS = 0.25


def estimates(run):
    """(moment, estimated, true) seconds left, at every moment for which there is an estimate."""
    remaining = Remaining(run["merges"])
    moments = [Moment(*moment) for moment in run["trace"]]
    for moment in moments:
        remaining.add_snapshot(moment)
        estimate = remaining.seconds()
        if estimate is not None:
            yield moment, estimate, moments[-1].seconds - moment.seconds


@pytest.mark.parametrize("run", RUNS, ids=[run["run"] for run in RUNS])
def test_the_time_left_holds_within_a_factor_of_two_from_a_fifth_of_the_merges_on(run):
    checked = 0
    for moment, estimate, left in estimates(run):
        if moment.merges >= 0.2 * run["merges"] and abs(estimate - left) > UNSEEN_SECONDS:
            assert left / 2 <= estimate <= left * 2, (moment, estimate, left)
        checked += moment.merges >= 0.2 * run["merges"]
    assert checked > 3


def test_the_record_has_runs_long_enough_to_be_wrong_about():
    assert sum(run["trace"][-1][0] > 2 for run in RUNS) >= 3


def test_a_straight_line_would_fail():
    # What the estimate replaces: merges left times seconds per merge so far.
    wrong = 0
    for run in RUNS:
        for moment, _, left in estimates(run):
            line = moment.seconds * (run["merges"] - moment.merges) / moment.merges
            wrong += abs(line - left) > UNSEEN_SECONDS and not left / 2 <= line <= left * 2
    assert wrong > 100


def test_too_early_there_is_no_estimate():
    remaining = Remaining(1000)
    assert remaining.seconds() is None
    remaining.add_snapshot(Moment(0.1, 10, 100, 50, 1, 1, 1, 0.0))
    assert remaining.seconds() is None
    assert remaining.merges_per_second() == pytest.approx(100)
