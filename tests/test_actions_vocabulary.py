"""The file of a vocabulary of actions: ours and the published one are the same, and what is wrong in it is said."""

import hashlib
import json

import numpy as np
import pytest

from action_cases import golden, random_vocabulary
from piecemill.actions import ActionTokenizer, ActionVocabulary, Items
from piecemill.errors import TokenizerError


@pytest.fixture
def vocabulary():
    initial = np.array([[0, 3], [0, 7], [1, 0]])
    return ActionVocabulary(2, initial, np.array([[1, 3], [2, 4]]), [0, 0, 0, 0, 1.5, 0.1])


@pytest.mark.parametrize("name", ["beauty_opq_600", "cds_hgn_60"])
def test_the_file_is_the_published_one_byte_for_byte(shared, tmp_path, name):
    case, vocabulary = golden(shared, name)
    vocabulary.save(tmp_path / "v.json")
    content = (tmp_path / "v.json").read_bytes()
    assert hashlib.sha256(content).hexdigest() == case["saved_json_sha256"]
    (tmp_path / "v.piecemill.json").unlink()  # as the published code left it
    assert ActionVocabulary.load(tmp_path / "v.json").published() == content


def test_the_file_has_the_published_keys_and_shapes(vocabulary, tmp_path):
    vocabulary.save(tmp_path / "v.json")
    assert json.loads((tmp_path / "v.json").read_text()) == {
        "n_categories": 2,
        "n_init_feats": 4,
        "token2feat": [[-1, -1], [0, 3], [0, 7], [1, 0], [-1, 1, 3], [-1, 2, 4]],
        "priority": [0, 0, 0, 0, 1.5, 0.1],
    }


def test_a_longer_vocabulary_holds_every_shorter_one(tmp_path):
    vocabulary = random_vocabulary(np.random.default_rng(1), 3)
    vocabulary.save(tmp_path)
    for size in range(vocabulary.n_init_feats, vocabulary.size + 1):
        short = ActionVocabulary.load(tmp_path, vocab_size=size)
        assert (short.size, short.bos, short.eos) == (size, size, size + 1)
        assert [short.entry(token) for token in range(size)] == [vocabulary.entry(token) for token in range(size)]
        assert short.priority == vocabulary.priority[:size]
    for size in (vocabulary.n_init_feats - 1, vocabulary.size + 1):
        with pytest.raises(TokenizerError, match=f"vocab_size={size}: .*Expected a size from"):
            ActionVocabulary.load(tmp_path, vocab_size=size)


def test_names_plan_and_items_come_back(tmp_path):
    items = Items.of({"a": ["red", 3], "b": ["blue", 0]}, columns=["colour", "size"])
    initial = np.array([[0, 0], [0, 1], [1, 0], [1, 3]])
    vocabulary = ActionVocabulary(2, initial, np.array([[2, 4]]), [0] * 5 + [1.0], plan={"counts": "published"})
    ActionTokenizer(vocabulary, items).save(tmp_path / "tok")
    names = sorted(path.name for path in (tmp_path / "tok").iterdir())
    assert names == ["actionpiece.items.parquet", "actionpiece.json", "actionpiece.piecemill.json"]
    loaded = ActionTokenizer.load(tmp_path / "tok")
    assert loaded.vocabulary.plan == {"counts": "published"}
    assert loaded.vocabulary.columns == ("colour", "size")
    assert loaded.vocabulary.value_name(0, 1) == "red"
    assert loaded.vocabulary.value_name(1, 3) == "3"
    assert loaded.encode(["a"]).tolist() == [5]
    # Saved anew without items, none are left behind.
    ActionTokenizer(vocabulary).save(tmp_path / "tok")
    assert ActionTokenizer.load(tmp_path / "tok").items is None


def test_files_that_do_not_belong_together_are_refused(vocabulary, tmp_path):
    vocabulary.save(tmp_path / "a.json")
    random_vocabulary(np.random.default_rng(2), 3).save(tmp_path / "b.json")
    (tmp_path / "b.piecemill.json").replace(tmp_path / "a.piecemill.json")
    with pytest.raises(TokenizerError, match=r"a\.piecemill\.json: written for another a\.json"):
        ActionVocabulary.load(tmp_path / "a.json")
    items = Items.of({"a": [3, 0]}, columns=["f0", "f1"])
    ActionTokenizer(vocabulary, items).save(tmp_path / "c.json")
    Items.of({"a": [7, 0]}, columns=["f0", "f1"]).save(tmp_path / "c.items.parquet")
    with pytest.raises(TokenizerError, match="not the items this vocabulary was saved with"):
        ActionTokenizer.load(tmp_path / "c.json")
    with pytest.raises(TokenizerError, match="not the items this vocabulary was saved with"):
        ActionTokenizer.load(tmp_path / "c.json", items=items)  # whose coding would be that of other items


def test_initial_tokens_follow_category_and_value(vocabulary):
    assert vocabulary.initial_ids(np.array([[7, 0], [3, 0]])).tolist() == [[2, 3], [1, 3]]
    with pytest.raises(TokenizerError, match="item row 1: column 0 has the value 5, which is not in the vocabulary"):
        vocabulary.initial_ids(np.array([[7, 0], [5, 0]]))
    with pytest.raises(TokenizerError, match="item row 0: column 0 has the value 9"):
        vocabulary.initial_ids(np.array([[9, 0]]))
    with pytest.raises(TokenizerError, match=r"shape \(1, 3\); expected one row of 2"):
        vocabulary.initial_ids(np.array([[9, 0, 0]]))


BROKEN = [
    ("{", "not JSON"),
    ("[1]", "n_categories, n_init_feats, token2feat, priority not found"),
    ({"priority": None}, "priority a list"),
    ({"n_categories": 0}, "must be numbers"),
    ({"n_categories": 3}, r"categories \[0, 1\]; expected each of 0 to 2"),
    ({"n_init_feats": 9}, "at least n_init_feats=9 entries"),
    ({"n_init_feats": 5}, r"token 4 is \[-1, 1, 3\]; expected \[category, value\]"),
    ({"n_init_feats": 3}, r"token 3 is \[1, 0\]; expected \[-1, a, b\]"),
    ({"priority": [0, 0, 0, 0, 1.5]}, "6 tokens but 5 priorities"),
    ({"priority": [0, 0, 0, 0, 1.5, None]}, "priority of token 5 is None"),
    ({"token2feat": [[0, 3], [0, 7], [1, 0], [-1, 1, 3]]}, "begins with the padding"),
    (
        {"token2feat": [[-1, -1], [0, 7], [0, 3], [1, 0], [-1, 1, 3], [-1, 2, 4]]},
        r"token 2 is the feature \(0, 3\) after",
    ),
    ({"token2feat": [[-1, -1], [0, 3], [0, 7], [1, 0], [-1, 3, 1], [-1, 2, 4]]}, r"token 4 merges \(3, 1\)"),
    ({"token2feat": [[-1, -1], [0, 3], [0, 7], [1, 0], [-1, 1, 4], [-1, 2, 4]]}, r"token 4 merges \(1, 4\)"),
    ({"token2feat": [[-1, -1], [0, 3], [0, 7], [1, 0], [-1, 0, 3], [-1, 2, 4]]}, r"token 4 merges \(0, 3\)"),
    ({"token2feat": [[-1, -1], [0, 3], [0, 7], [1, "x"], [-1, 1, 3], [-1, 2, 4]]}, r"token 3 is \[1, 'x'\]"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_a_broken_file_is_an_error_that_says_where(vocabulary, tmp_path, change, message):
    path = tmp_path / "v.json"
    if isinstance(change, str):
        path.write_text(change)
    else:
        path.write_text(json.dumps({**json.loads(vocabulary.published()), **change}))
    with pytest.raises(TokenizerError, match=message) as error:
        ActionVocabulary.load(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(TokenizerError, match=r"actionpiece\.json: cannot be read: No such file"):
        ActionVocabulary.load(tmp_path)
