"""`actions show` and `actions encode`: a vocabulary for people, and histories to files of tokens."""

import json

import numpy as np
import pytest

from command import piecemill
from piecemill.actions import ActionTokenizer, ActionVocabulary, Items
from piecemill.actions.encoding import encode_histories
from piecemill.actions.plan import EncodePlan
from piecemill.actions.show import describe, features_of, widths
from piecemill.errors import PlanError, TokenizerError

HISTORIES = [["b", "b", "d"], ["a", "c"], ["b"]]


@pytest.fixture
def small():
    """Blue is 1, red 2, large 3, small 4; {red, small} is 5, {red, 5} 6, {blue, large} 7, {large, large} 8."""
    items = Items.of(
        {"a": ["blue", "small"], "b": ["red", "small"], "c": ["red", "large"], "d": ["blue", "large"]},
        columns=["colour", "size"],
    )
    codes = {"large": 0, "small": 1}
    initial = np.array([[0, 0], [0, 1], [1, codes["large"]], [1, codes["small"]]])
    merges = np.array([[2, 4], [2, 5], [1, 3], [3, 3]])
    vocabulary = ActionVocabulary(2, initial, merges, [0] * 5 + [4.0, 2.5, 2.0, 0.5], plan={"counts": "published"})
    return ActionTokenizer(vocabulary, items)


@pytest.fixture
def saved(small, tmp_path):
    small.save(tmp_path / "tok")
    (tmp_path / "seqs.txt").write_text("".join(f"u{n} {' '.join(items)}\n" for n, items in enumerate(HISTORIES)))
    return tmp_path


def test_a_token_is_shown_as_its_features(small):
    found = describe(small, first=10)
    by_token = {entry["token"]: entry for entry in found.facts["tokens"]}
    assert by_token[5]["features"] == [["colour", "red"], ["size", "small"]]
    assert by_token[6]["features"] == [["colour", "red"], ["colour", "red"], ["size", "small"]]
    assert (by_token[5]["where"], by_token[6]["where"], by_token[8]["where"]) == ("unknown", "across", "across")
    assert (by_token[6]["merged"], by_token[6]["weight"]) == ([2, 5], 2.5)
    assert found.facts["columns"] == {"colour": 2, "size": 2}
    assert found.facts["plan"] == {"counts": "published"}
    assert [entry["where"] for entry in describe(small, tokens=[0, 1]).facts["tokens"]] == ["padding", "feature"]
    assert "colour=red  size=small" in str(found)
    assert "depends on histories: describe(tokenizer, histories)" in str(found)
    assert "depends on histories" not in str(describe(small, HISTORIES, first=10))
    found.facts["plan"]["corpus"] = {"items": 3}
    assert "plan     counts=published\n" in str(found)


def test_use_counts_what_the_histories_hold(small):
    found = describe(small, HISTORIES, first=4, epochs=3)
    use = found.facts["use"]
    ids = [small.encode(history).tolist() for history in HISTORIES]
    flat = [token for row in ids for token in row]
    assert use["weighed"] == {"share_used": len(set(flat)) / 8, "tokens_per_action": len(flat) / 6}
    drawn = [
        small.encode_batch(
            small.items.index(history), np.array([len(history)]), seed=0, epoch=epoch, rows=np.array([n])
        )[0]
        for epoch in range(3)
        for n, history in enumerate(HISTORIES)
    ]
    all_drawn = np.concatenate(drawn)
    assert use["random"][2]["share_used"] == len(np.unique(all_drawn)) / 8
    assert use["random"][2]["tokens_per_action"] == len(all_drawn) / 18
    by_token = {entry["token"]: entry for entry in found.facts["tokens"]}
    for token, entry in by_token.items():
        assert entry["inside"] + entry["across"] == int((all_drawn == token).sum())
    assert by_token[5]["inside"] > 0
    assert by_token[6]["inside"] == 0  # two reds are never in one item
    assert "random, 3 epochs" in str(found)


def test_across_is_what_reaches_over_a_border(small):
    # Without rules inside, {small, small}: both are at the border of two items, or not merged.
    vocabulary = ActionVocabulary(2, small.vocabulary.initial, np.array([[4, 4]]), [0] * 5 + [1.0])
    found = describe(ActionTokenizer(vocabulary, small.items), [["a", "a"]] * 50, first=1)
    (entry,) = found.facts["tokens"]
    assert entry["inside"] == 0
    assert 0 < entry["across"] < 50
    assert found.facts["use"]["random"][0]["share_across"] == entry["across"] / (200 - entry["across"])


def test_a_token_of_very_many_features_is_shown_in_part():
    vocabulary = ActionVocabulary(1, np.array([[0, 0]]), np.array([[n, n] for n in range(1, 71)]), [0, 0] + [1.0] * 70)
    assert int(widths(vocabulary)[70]) == 1 << 62  # 2**69, held down
    (entry,) = describe(ActionTokenizer(vocabulary), tokens=[71]).facts["tokens"]
    assert (len(entry["features"]), entry["more_features"]) == (12, 1000)
    assert len(list(features_of(vocabulary, 11))) == 1024


def test_tokens_that_are_not_there_are_refused(small):
    with pytest.raises(PlanError, match="token 9: this vocabulary has the tokens 0 to 8"):
        describe(small, tokens=[9])
    with pytest.raises(TokenizerError, match="no items"):
        describe(ActionTokenizer(small.vocabulary), HISTORIES)


def test_lines_and_arrays_hold_the_tokens_of_each_history(small, tmp_path):
    random = EncodePlan(seed=4, epoch=1)
    done = encode_histories(HISTORIES, small, out=tmp_path / "a.jsonl", plan=random)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    flat = small.items.index([item for history in HISTORIES for item in history])
    ids, ends = small.encode_batch(flat, np.array([3, 5, 6]), seed=4, epoch=1)
    assert [row["ids"] for row in rows] == [part.tolist() for part in np.split(ids, ends[:-1])]
    assert [row["user"] for row in rows] == [0, 1, 2]
    assert (done.tokens, done.actions) == (len(ids), 6)
    encode_histories(HISTORIES, small, out=tmp_path / "b", plan=EncodePlan(to="npy", seed=4, epoch=1))
    assert np.load(tmp_path / "b" / "ids.npy").dtype == np.uint16
    assert np.load(tmp_path / "b" / "ids.npy").tolist() == ids.tolist()
    assert np.load(tmp_path / "b" / "ends.npy").tolist() == ends.tolist()
    encode_histories(HISTORIES, small, out=tmp_path / "c.jsonl", plan=EncodePlan(marks=True))
    first = json.loads((tmp_path / "c.jsonl").read_text().splitlines()[0])["ids"]
    assert first == [small.bos, *small.encode(HISTORIES[0]).tolist(), small.eos]
    with pytest.raises(PlanError, match="something is there already"):
        encode_histories(HISTORIES, small, out=tmp_path / "b", plan=EncodePlan(to="npy"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b", "c.jsonl"]


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(PlanError, match=r"Give seed=\.\.\. too"):
        EncodePlan(epoch=2)
    with pytest.raises(PlanError, match="Leave out seed and marks"):
        EncodePlan(to="shards", seed=1)
    with pytest.raises(PlanError, match="expected jsonl"):
        EncodePlan(to="csv")


def test_the_commands_say_what_the_verbs_do(small, saved):
    encode = ("actions", "encode", "seqs.txt", "--tokenizer", "tok", "--quiet")
    done = piecemill(*encode, "--out", "ids.jsonl", "--json", cwd=saved)
    assert json.loads(done.stdout)["histories"] == 3, done.stderr
    assert json.loads((saved / "ids.jsonl").read_text().splitlines()[1]) == {
        "user": "u1",
        "ids": small.encode(HISTORIES[1]).tolist(),
    }
    done = piecemill(*encode, "--out", "shards", "--to", "shards", cwd=saved)
    assert done.stdout == "3 histories, 6 actions in shards\n", done.stderr
    done = piecemill(*encode, "--out", "shards", "--to", "shards", cwd=saved)
    assert (done.returncode, "something is there already" in done.stderr) == (2, True)
    done = piecemill("actions", "show", "tok", "--histories", "seqs.txt", "--json", cwd=saved)
    assert json.loads(done.stdout) == describe(small, HISTORIES).to_dict()
    done = piecemill("actions", "show", "tok", "5", "7", cwd=saved)
    *_, fifth, seventh, note = done.stdout.splitlines()
    assert (fifth.split()[0], seventh.split()[0]) == ("5", "7")
    assert note.startswith("note: ")
    assert "--histories" in note
    done = piecemill("actions", "show", "nowhere", cwd=saved)
    assert (done.returncode, "nowhere/actionpiece.json: cannot be read" in done.stderr) == (1, True)
