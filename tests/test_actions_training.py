"""`train_actions` and `piecemill actions train`: what goes in, what comes out, what is refused."""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import piecemill as pm
from action_cases import random_corpus
from command import interrupted, piecemill
from piecemill.actions.histories import Histories
from piecemill.actions.items import Items
from piecemill.actions.training import ActionsProgress
from piecemill.errors import PlanError, SourceError, TrainingError
from piecemill.training.stages import Moment, Remaining

FEATURES = {"shirt": ["cotton", "blue"], "socks": ["cotton", "red"], "hat": ["wool", "red"]}
# An error that nobody who reads a progress line minds, in runs of 6 to 16 s.
UNSEEN_SECONDS = 0.5
SEQUENCES = [["shirt", "socks"], ["shirt", "socks", "hat"], ["hat"]]


def train(sequences=SEQUENCES, features=FEATURES, **options):
    return pm.train_actions(sequences, features, **{"vocab_size": 9, **options})


# --- What goes in.


def test_lists_tables_and_prepared_inputs_learn_the_same():
    learned = train().vocabulary
    assert learned.size == 9
    assert learned.n_init_feats == 5
    table = pa.table({"user": [3, 4, 5], "items": SEQUENCES})
    items = pa.table(
        {"item": list(FEATURES), "material": ["cotton", "cotton", "wool"], "colour": ["blue", "red", "red"]}
    )
    for sequences, features in (
        (table, items),
        (Histories.of(SEQUENCES), Items.of(FEATURES)),
        (tuple(map(tuple, SEQUENCES)), {key: tuple(values) for key, values in FEATURES.items()}),
    ):
        again = train(sequences, features).vocabulary
        assert again.merges.tolist() == learned.merges.tolist()
        assert list(again.priority) == list(learned.priority)
        assert again.initial.tolist() == learned.initial.tolist()
    assert again.labels[0] == ("cotton", "wool")


def test_features_of_items_in_no_sequence_are_in_the_vocabulary():
    more = {**FEATURES, "gloves": ["leather", "black"]}
    assert train(features=more).vocabulary.n_init_feats == 7


def test_exact_weights_are_saved_as_the_nearest_float():
    vocabulary = train(vocab_size=6).vocabulary
    # (cotton, red): 1 in each of two sets of socks, 1/4 from shirt to socks, twice, and 1/4 from socks to hat.
    assert vocabulary.merges.tolist() == [[1, 4]]
    assert vocabulary.priority[:5] == [0] * 5
    assert vocabulary.priority[5] == 11 / 4


# --- What is refused.


def test_an_unknown_item_is_named_with_its_place():
    with pytest.raises(SourceError, match=r"sequence of 1, position 2: the item 'scarf' has no features"):
        train([["shirt"], ["hat", "hat", "scarf"]])


def test_items_with_another_number_of_features_are_named():
    with pytest.raises(SourceError, match="hat"):
        train(features={**FEATURES, "hat": ["wool"]})


def test_an_empty_sequence_is_an_error_unless_it_was_left_out_before():
    with pytest.raises(SourceError, match=r"sequences\[1\]: a sequence without items \(1 in all\)"):
        train([["shirt", "socks"], []])
    assert train(Histories.of([["shirt", "socks"], []])).vocabulary.size == 9
    with pytest.raises(SourceError):
        train([])


def test_what_has_no_pairs_is_an_error():
    with pytest.raises(TrainingError, match="no pair to merge: 2 sequences of one item each, and items of one feature"):
        train([["a"], ["b"]], {"a": [1], "b": [2]})
    assert train([["a"], ["b"]], {"a": [1], "b": [2]}, vocab_size=3).vocabulary.size == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 4}, r"vocab_size=4: padding and the 4 features of the 3 items alone need 5"),
        ({"vocab_size": 0}, r"vocab_size=0: expected a whole number"),
        ({"counts": "stale"}, r"counts='stale': expected published or current"),
        ({"arithmetic": "float32"}, r"arithmetic='float32': expected exact or float64"),
        ({"counts": "current", "arithmetic": "float64"}, r"arithmetic='float64' reproduces published files"),
        ({"min_pair_weight": -1}, r"min_pair_weight=-1: expected a number of 0 or more"),
        ({"threads": 0}, r"threads=0: expected a whole number"),
        ({"vocab": 9}, r"unknown option 'vocab'; did you mean 'vocab_size'"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(PlanError, match=message):
        train(**options)


# --- What comes out.


def test_running_out_of_pairs_ends_with_the_size_that_was_reached():
    vocabulary = train(vocab_size=40_000).vocabulary
    assert 9 < vocabulary.size < 100
    assert vocabulary.plan["ended"] == "no pair left"
    assert train().vocabulary.plan["ended"] == "vocabulary full"


def test_what_is_saved_loads_and_says_how_it_was_made(tmp_path):
    tokenizer = train(counts="current")
    tokenizer.save(tmp_path / "act.json")
    loaded = pm.ActionTokenizer.load(tmp_path / "act.json")
    assert loaded.vocabulary.merges.tolist() == tokenizer.vocabulary.merges.tolist()
    assert loaded.vocabulary.plan["counts"] == "current"
    assert loaded.vocabulary.plan["corpus"] == {"sequences": 3, "actions": 6, "items": 3}
    assert loaded.encode(["shirt", "hat"]).tolist() == tokenizer.encode(["shirt", "hat"]).tolist()
    published = json.loads((tmp_path / "act.json").read_text())
    assert list(published) == ["n_categories", "n_init_feats", "token2feat", "priority"]


@pytest.mark.parametrize("name", ["beauty_opq_600", "cds_hgn_60"])
def test_float64_writes_the_published_file_byte_for_byte(shared, name, tmp_path):
    case = json.loads((shared / "actionpiece" / "golden" / f"{name}.json").read_text())
    options = {"vocab_size": case["target_vocab_size"], "arithmetic": "float64"}
    pm.train_actions(case["corpus"], case["state2feat"], **options).save(tmp_path / "act.json")
    assert hashlib.sha256((tmp_path / "act.json").read_bytes()).hexdigest() == case["saved_json_sha256"]


def test_progress_tells_of_merges_touched_sequences_weight_memory_and_time_left():
    moments = []
    sequences, _ = random_corpus(np.random.default_rng(1), 5, values=30, count=3000, longest=9, items=800)
    items = {}
    keyed = [[str(items.setdefault(tuple(item), len(items))) for item in sequence] for sequence in sequences]
    features = {str(number): list(item) for item, number in items.items()}
    tokenizer = pm.train_actions(keyed, features, vocab_size=8_000, on_progress=moments.append)
    last = moments[-1]
    assert last.stage == "merge"
    assert last.merges == last.merges_wanted == len(tokenizer.vocabulary.merges)
    assert last.fraction == 1.0
    assert last.touched == tokenizer.vocabulary.plan["merging"]["touched"] > 0
    assert last.pair_weight == tokenizer.vocabulary.priority[-1] > 0
    assert last.memory > 10**6
    shown = " ".join(last.columns())
    assert f"{last.merges:,}/{last.merges:,} merges" in shown
    assert "touched" in shown
    assert "weight" in shown
    counting = ActionsProgress(stage="count", sequences=10, counted=5)
    assert counting.fraction == 0.5
    assert counting.columns()[0] == "5/10 sequences"


# --- The command.


@pytest.fixture
def files(tmp_path):
    (tmp_path / "histories.txt").write_text("u shirt socks\nv shirt socks hat\nw hat\n")
    (tmp_path / "items.json").write_text(json.dumps(FEATURES))
    return tmp_path


def run(files, *arguments):
    return piecemill("actions", "train", "histories.txt", "--items", "items.json", *arguments, cwd=files)


def test_the_command_learns_and_saves(files):
    done = run(files, "--out", "act", "--vocab-size", "9")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("9 tokens (5 padding and features, 4 merges) from 3 sequences of 6 actions, in ")
    saved = pm.ActionTokenizer.load(files / "act").vocabulary
    assert saved.merges.tolist() == train().vocabulary.merges.tolist()
    again = run(files, "--out", "act")
    assert again.returncode == 2
    assert "is there already" in again.stderr
    full = run(files, "--out", "act", "--force", "--quiet", "--json")
    told = json.loads(full.stdout)
    assert told["ended"] == "no pair left"
    assert told["tokens"] == pm.ActionTokenizer.load(files / "act").vocabulary.size
    assert full.stderr == ""
    noted = run(files, "--out", "act", "--force")
    assert f"40,000 tokens were requested, but after {told['tokens']:,} no pair is left" in noted.stdout


def test_the_command_refuses_in_one_line(files):
    (files / "items.json").write_text(json.dumps({"shirt": ["cotton", "blue"]}))
    done = run(files, "--out", "act", "--vocab-size", "9", "--quiet")  # without lines of progress
    assert done.returncode == 1
    assert done.stderr.startswith("piecemill: sequence of 'u', position 1: the item 'socks' has no features")
    assert done.stderr.count("\n") == 1
    assert not (files / "act").exists()


def test_ctrl_c_ends_training_and_leaves_nothing(tmp_path):
    rng = np.random.default_rng(2)
    items = {str(item): rng.integers(0, 200, 5).tolist() for item in range(20_000)}
    (tmp_path / "items.json").write_text(json.dumps(items))
    with gzip.open(tmp_path / "histories.txt.gz", "wt") as file:
        for user in range(10_000):
            file.write(f"u{user} {' '.join(map(str, rng.integers(0, 20_000, 12)))}\n")
    asked = ("actions", "train", tmp_path / "histories.txt.gz", "--items", tmp_path / "items.json")
    code, stderr = interrupted("merge", *asked, "--out", tmp_path / "act", "--vocab-size", "2000000", cwd=tmp_path)
    assert code == 130
    assert "Traceback" not in stderr
    assert not (tmp_path / "act").exists()


# --- The time left.


def test_the_time_left_holds_within_a_factor_of_two_from_a_fifth_of_the_merges_on():
    runs = json.loads(Path(__file__).with_name("recorded_actions.json").read_text())
    assert len(runs) >= 3
    for record in runs:
        remaining = Remaining(record["merges"], merge_cost=record["merge_cost"])
        last, checked, wrong_line = record["trace"][-1][0], 0, 0
        for moment in (Moment(*moment) for moment in record["trace"]):
            remaining.add_snapshot(moment)
            estimate, left = remaining.seconds(), last - moment.seconds
            if moment.merges >= 0.2 * record["merges"]:
                assert estimate is not None
                assert abs(estimate - left) <= UNSEEN_SECONDS or left / 2 <= estimate <= left * 2, (
                    record["run"],
                    moment,
                    estimate,
                )
                checked += 1
            if moment.merges:
                line = moment.seconds * (record["merges"] - moment.merges) / moment.merges
                wrong_line += abs(line - left) > UNSEEN_SECONDS and not left / 2 <= line <= left * 2
        assert checked > 3
        assert wrong_line > 3, "a straight line would do"
