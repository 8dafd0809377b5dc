"""Vocabularies of actions that somebody changed: they load as they were, or end in an error that names the file."""

import copy
import json
import random
import shutil
from collections import Counter

import pytest

from piecemill.actions import ActionTokenizer, ActionVocabulary
from piecemill.actions.training import train_actions
from piecemill.errors import PiecemillError, TokenizerError

VALUES = [None, True, 0, 1, -1, 2**31, 2**63, 10**400, 1.5, float("nan"), "", "x", [], {}, [1], {"a": 1}, "\ud800"]
VOCABULARY, BESIDE = "actionpiece.json", "actionpiece.piecemill.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    rng = random.Random(1)
    features = {f"i{k}": [f"a{k % 5}", f"b{k % 7}", f"c{k % 3}"] for k in range(40)}
    histories = [rng.choices(sorted(features), k=rng.randint(2, 8)) for _ in range(200)]
    folder = tmp_path_factory.mktemp("hostile")
    train_actions(histories, features, vocab_size=60).save(folder / "whole")
    return folder / "whole", histories[:10]


def nodes(data, path=()):
    if path:
        yield path
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield from nodes(data[key], (*path, key))


def mutated(content, rng):
    data = json.loads(content)
    for _ in range(rng.choice([1, 1, 2])):
        paths = list(nodes(data))
        path, how, parent = rng.choice(paths), rng.random(), data
        for key in path[:-1]:
            parent = parent[key]
        if how < 0.7:
            parent[path[-1]] = copy.deepcopy(rng.choice(VALUES))
        elif isinstance(parent, dict) or how < 0.85:
            del parent[path[-1]]
        else:
            parent.insert(0, parent[path[-1]])
    return data


@pytest.mark.parametrize("sealed", [True, False])
def test_a_changed_vocabulary_gives_the_same_tokens_or_an_error_that_names_a_file(whole, tmp_path, sealed):
    source, histories = whole
    rng, outcomes = random.Random(2), Counter()
    want = [ActionTokenizer.load(source).encode(history).tolist() for history in histories]
    for _ in range(150):
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        name = rng.choice([VOCABULARY, BESIDE, BESIDE])
        data = mutated((folder / name).read_bytes(), rng)
        if not sealed:  # as earlier versions wrote it
            beside = data if name == BESIDE else json.loads((folder / BESIDE).read_bytes())
            beside.pop("seal", None)
            (folder / BESIDE).write_text(json.dumps(beside))
        (folder / name).write_text(json.dumps(data))
        try:
            found = ActionTokenizer.load(folder)
            tokens = [found.encode(history).tolist() for history in histories]
            found.label_table  # noqa: B018 - made when first used
            outcomes["loaded"] += 1
            assert tokens == want or not sealed
        except PiecemillError as error:
            said = str(error)
            outcomes["refused" if str(folder) in said else said] += 1
    assert set(outcomes) == {"loaded", "refused"}, outcomes


def test_a_label_that_was_changed_is_noticed(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "tok")
    beside = tmp_path / "tok" / BESIDE
    data = json.loads(beside.read_bytes())
    data["labels"][0][:2] = data["labels"][0][1::-1]  # valid, and every item would have other tokens
    beside.write_text(json.dumps(data))
    with pytest.raises(TokenizerError, match=r"actionpiece\.piecemill\.json: .* changed after it was written"):
        ActionTokenizer.load(tmp_path / "tok")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (VOCABULARY, "[" * 100_000, "not JSON"),
        (BESIDE, "[" * 100_000, "does not describe a vocabulary"),
        (VOCABULARY, {"n_categories": 2**40}, r"categories \[0, 1, 2\]; expected each of 0 to 1099511627775"),
        (VOCABULARY, {"priority": 10**400}, "the priority of token 0 is 1000"),
    ],
)
def test_what_would_take_all_memory_or_end_in_a_raw_error_is_refused(whole, tmp_path, name, content, message):
    shutil.copytree(whole[0], tmp_path / "tok")
    path = tmp_path / "tok" / name
    if isinstance(content, dict):
        data = json.loads(path.read_bytes())
        for key, value in content.items():
            data[key] = [value, *data[key][1:]] if isinstance(data[key], list) else value
        content = json.dumps(data)
    path.write_text(content)
    (tmp_path / "tok" / BESIDE).unlink() if name == VOCABULARY else None
    with pytest.raises(TokenizerError, match=message):
        ActionVocabulary.load(tmp_path / "tok")


def test_a_feature_without_values_is_refused(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "tok")
    beside = tmp_path / "tok" / BESIDE
    data = json.loads(beside.read_bytes())
    del data["seal"]  # as earlier versions wrote it
    data["labels"][0] = []
    beside.write_text(json.dumps(data))
    with pytest.raises(TokenizerError, match=r"actionpiece\.piecemill\.json: .*labels are not lists of values"):
        ActionTokenizer.load(tmp_path / "tok")


def test_a_folder_in_place_of_the_record_is_named(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "tok")
    (tmp_path / "tok" / BESIDE).unlink()
    (tmp_path / "tok" / BESIDE).mkdir()
    with pytest.raises(TokenizerError, match=r"actionpiece\.piecemill\.json: does not describe a vocabulary"):
        ActionTokenizer.load(tmp_path / "tok")
