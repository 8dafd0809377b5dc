"""New items get the codes that old ones with the same values have; what the coding does not know is never guessed."""

import importlib.util
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import piecemill as pm
from command import piecemill
from piecemill.actions import embeddings
from piecemill.actions.coding import code_like
from piecemill.actions.features import make_items
from piecemill.actions.items import Items
from piecemill.actions.tokenizer import ActionTokenizer
from piecemill.errors import PlanError, SourceError

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs faiss-cpu")


def run(*words):
    done = piecemill(*words)
    return done.returncode, done.stdout, done.stderr


def shop(rows):
    names = ["item", "cat", "price"]
    return pa.table({name: [row[n] for row in rows] for n, name in enumerate(names)})


OLD = shop([(f"i{n}", "bdf"[n % 3], 1.0 + 7 * n) for n in range(30)])


@pytest.fixture
def vocabulary(tmp_path):
    items = make_items(OLD, columns=("cat",), bins=("price=4",))
    histories = [[f"i{(n * k) % 30}" for k in range(1, 9)] for n in range(20)]
    pm.train_actions(histories, items, vocab_size=60).save(tmp_path / "voc")
    return tmp_path / "voc"


def test_a_refreshed_catalogue_is_encoded_as_the_same_features(vocabulary, tmp_path):
    """f is delisted and 40 dear items came in: codes and edges made anew would be others."""
    new = [(f"i{n}", "bdf"[n % 3], 1.0 + 7 * n) for n in range(30) if n % 3 != 2]
    new += [(f"n{n}", "bd"[n % 2], 500.0 + n) for n in range(4)]
    pq.write_table(shop(new), tmp_path / "today.parquet")
    old = ActionTokenizer.load(vocabulary)
    raw = ActionTokenizer.load(vocabulary, items=tmp_path / "today.parquet")
    made = ["features", tmp_path / "today.parquet", "--like", vocabulary, "--out", tmp_path / "like.parquet"]
    assert run("actions", *made)[0] == 0
    like = ActionTokenizer.load(vocabulary, items=tmp_path / "like.parquet")
    for other in (raw, like):
        for key in ("i0", "i1", "i3", "i28"):
            assert other.encode([key, "i0"]).tolist() == old.encode([key, "i0"]).tolist()
        assert "n0" in other.items_of(other.decode(other.labels("n0")))
    # A new item with the features of an old one has its codes, but for the hash that tells them apart.
    assert raw.items.codes[raw.items.index(["n0"])[0], :2].tolist() == old.items.codes[27, :2].tolist()


def test_the_command_line_encodes_todays_items_with_the_codes_of_the_vocabulary(vocabulary, tmp_path):
    keep = [n for n in range(30) if n % 3 != 2]
    (tmp_path / "today.csv").write_text(
        "item,cat,price\n" + "".join(f"i{n},{'bdf'[n % 3]},{1.0 + 7 * n}\n" for n in keep)
    )
    (tmp_path / "h.txt").write_text("u i0 i3 i4\n")
    for name, more in (("a", []), ("b", ["--items", tmp_path / "today.csv"])):
        done = run("actions", "encode", tmp_path / "h.txt", "--tokenizer", vocabulary, "--out", tmp_path / name, *more)
        assert done[0] == 0, done
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text()


def test_codes_made_by_another_coding_are_matched_by_name_or_refused(vocabulary):
    other = make_items(shop([("x", "d", 8.0), ("y", "f", 9.0)]), columns=("cat",), bins=("price=4",))
    with pytest.raises(SourceError, match=r"'price': its bins have the edges .* `piecemill actions features CATALOGUE"):
        ActionTokenizer.load(vocabulary, items=other)
    plain = pm.train_actions([["a", "b", "c"]] * 3, {"a": ["b"], "b": ["d"], "c": ["f"]}, vocab_size=6)
    today = Items.of({"a": ["d"], "z": ["f"]})  # codes 0 and 1, which are b and d in the vocabulary
    again = ActionTokenizer(plain.vocabulary, today)
    assert again.encode(["z"]).tolist() == plain.encode(["c"]).tolist()
    assert again.encode(["a"]).tolist() == plain.encode(["b"]).tolist()


def test_unknown_values_are_an_error_that_names_them_or_follow_a_rule(vocabulary, tmp_path):
    like = ActionTokenizer.load(vocabulary).items
    new = shop([("x", "a", 8.0), ("y", "f", 9.0), ("z", "q", 9.0), ("w", "a", 9.0)])
    with pytest.raises(SourceError, match=r"'x' has cat='a'.*'a' \(2 items\), 'q' \(1 item\); known are 'b', 'd', 'f'"):
        code_like(new, like)
    assert code_like(new, like, unknown_value="drop").keys == ["y"]
    assert code_like(new, like, unknown_value="cat=b").codes[:, 0].tolist() == [0, 2, 0, 0]
    with pytest.raises(PlanError, match=r"unknown_value='other': the column 'cat' has no such value; it knows 'b'"):
        code_like(new, like, unknown_value="other")
    pq.write_table(new, tmp_path / "new.parquet")
    code, _, told = run("actions", "features", tmp_path / "new.parquet", "--like", vocabulary, "--out", tmp_path / "o")
    assert code == 1
    assert "cat='a'" in told
    assert "--unknown-value drop" in told
    words = ["--unknown-value", "drop", "--json", "--out", tmp_path / "o.parquet"]
    code, out, _ = run("actions", "features", tmp_path / "new.parquet", "--like", vocabulary, *words)
    assert (code, json.loads(out)["items"], json.loads(out)["dropped"]) == (0, 1, 3)


def test_a_catalogue_without_items_says_so(vocabulary, tmp_path):
    (tmp_path / "empty.csv").write_text("item,cat,price\n")
    with pytest.raises(SourceError, match=r"empty\.csv: no item in it\.$"):
        code_like(tmp_path / "empty.csv", like=ActionTokenizer.load(vocabulary).items)


def test_a_value_that_is_missing_is_the_missing_value_of_the_coding_or_unknown():
    old = Items.of({"a": ["red"], "b": [None], "c": ["blue"]}, missing="none")
    assert code_like({"d": [None], "e": ["red"]}, old).codes.tolist() == [[1], [2]]
    full = Items.of({"a": ["red"], "c": ["blue"]})
    with pytest.raises(SourceError, match=r"the item 'd' has no 'f0' \(1 such item\)"):
        code_like({"d": [None], "e": ["red"]}, full)
    bins = make_items(OLD, columns=("cat",), bins=("price=2",), hash_buckets="none")
    with pytest.raises(SourceError, match=r"the item 'x' has no 'price'"):
        code_like(shop([("x", "b", None)]), bins)


def test_hashes_of_old_items_stay_and_new_ones_get_a_free_one():
    old = Items.of({"a": ["red"], "b": ["red"], "c": ["red"], "d": ["blue"]})
    old = make_items(old, hash_buckets="8")
    known = set(old.codes[:, 1].tolist())
    like = code_like({"new": ["blue"], "c": ["red"], "a": ["red"]}, old)
    assert like.codes[1:].tolist() == old.codes[[2, 0]].tolist()
    assert like.codes[0, 1] in known - {old.codes[3, 1]}
    many = {f"n{n}": ["blue"] for n in range(8)}
    with pytest.raises(SourceError, match=r"equal to others in all features, and none of the \d values of 'hash' is"):
        code_like(many, old, unknown_value="hash=error")
    assert len(code_like(many, old, unknown_value="hash=drop")) == len(known) - 1
    shared = code_like(many, old)
    assert (shared.codes[:, 0] == 0).all()
    assert set(shared.codes[:, 1].tolist()) <= known
    assert shared.made["shared_hashes"] == 8 - (len(known) - 1)


def test_items_coded_alike_can_be_coded_alike_again(tmp_path):
    old = make_items(OLD, columns=("cat",), bins=("price=4",))
    first = code_like(shop([("x", "f", 8.0)]), old)
    first.save(tmp_path / "x.parquet")
    again = code_like(OLD, Items.load(tmp_path / "x.parquet"))
    assert again.codes[:, :2].tolist() == old.codes[:, :2].tolist()


def test_numbers_are_values_and_lists_have_their_length():
    old = Items.of(pa.table({"item": ["a", "b"], "year": [1990, 5], "ids": [[1, 2], [3, 4]]}))
    new = pa.table({"item": ["c"], "year": ["5"], "ids": [[3, 2]]})
    assert code_like(new, old).codes.tolist() == [[5, 3, 2]]
    with pytest.raises(SourceError, match=r"'ids' holds 1 values per item, expected 2"):
        code_like(pa.table({"item": ["c"], "year": [5], "ids": [[3]]}), old)
    with pytest.raises(SourceError, match=r"year='7'"):
        code_like(pa.table({"item": ["c"], "year": [7], "ids": [[3, 2]]}), old)


def test_the_coding_is_not_made_and_taken_at_once():
    with pytest.raises(PlanError, match="bins: like='voc' takes the coding as it is"):
        make_items(OLD, like="voc", bins=("price=4",))


@needs_faiss
def test_embeddings_get_the_codes_that_the_codebooks_gave(tmp_path):
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((3000, 24)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    np.save(tmp_path / "w.npy", vectors[:2000])
    table = pa.table({"item": np.arange(3000), "cat": ["a"] * 3000})
    plan = {"codebooks": 3, "bits": 5, "columns": ("cat",)}
    for pca in (None, 0):
        old = make_items(table, embeddings=str(tmp_path / "v.npy"), pca=pca, **plan)
        old.save(tmp_path / "old.parquet")
        new = code_like(table[:2000], Items.load(tmp_path / "old.parquet"), embeddings=str(tmp_path / "w.npy"))
        assert (new.codes == old.codes[:2000]).all()
    with pytest.raises(PlanError, match=r"have codes of embeddings; embeddings=... gives those"):
        code_like(table[:2000], old)
    other = make_items(table[:2000], embeddings=str(tmp_path / "w.npy"), **plan)
    with pytest.raises(SourceError, match="codes of other codebooks"):
        code_like(other, old)
    with pytest.raises(SourceError, match="codebooks cannot be read"):
        embeddings.Codebooks.from_json({"mean": {"type": "<f4", "shape": [3], "base64": "AAAA"}})


def test_several_values_become_features_of_the_commonest_first():
    genres = ["Action|Comedy", "Comedy", None, "War|Action|Comedy", "Drama"]
    table = pa.table({"item": list("abcde"), "genres": genres})
    items = make_items(table, many=("genres=2",), hash_buckets="none")
    shown = items.table().to_pydict()
    assert shown["genres_0"] == ["Comedy", "Comedy", "(none)", "Comedy", "Drama"]
    assert shown["genres_1"] == ["Action", "(none)", "(none)", "Action", "(none)"]
    assert items.made["values_left_out"] == {"genres": 1}
    lists = pa.table({"item": list("abcde"), "genres": [(one or "").split("|") for one in genres]})
    assert make_items(lists, many=("genres=2",), hash_buckets="none").codes.tolist() == items.codes.tolist()
    new = code_like(pa.table({"item": ["n"], "genres": ["Comedy|Action"]}), items)
    assert new.codes.tolist() == items.codes[:1].tolist()
    with pytest.raises(SourceError, match="genres_0='Noir'"):
        code_like(pa.table({"item": ["n"], "genres": ["Comedy|Noir"]}), items)
    with pytest.raises(PlanError, match="many='genres': expected a column and 1 to 64 features"):
        make_items(table, many=("genres",))


def test_several_values_with_an_unknown_one_stand_where_the_known_ones_stood():
    """By a rule for unknown values, an item is coded as the item of the values that the rule leaves it."""
    genres = ["Action|Comedy", "Action", "Action|other", "other", "Action|Comedy|other", "Comedy"]
    items = make_items(pa.table({"item": list("abcdef"), "genres": genres}), many=("genres=2",), hash_buckets="none")
    new = pa.table({"item": ["x", "y"], "genres": ["Western|Action", "Noir|Comedy|Action"]})
    coded = code_like(new, items, unknown_value="genres=other")
    assert coded.codes.tolist() == items.codes[[2, 0]].tolist()  # as Action|other, and Action|Comedy|other
    assert coded.made["unknown_values"] == {"genres": 2}
    coded = code_like(new, items, unknown_value="genres=(none)")
    assert coded.codes.tolist() == items.codes[[1, 0]].tolist()  # as Action, and Action|Comedy
    with pytest.raises(PlanError, match=r"no such value; it knows 'Action', 'Comedy', 'other'\. Name one .*, \(none\)"):
        code_like(new, items, unknown_value="genres=Drama")
    with pytest.raises(SourceError, match=r"unknown_value='genres=\(none\)' leaves the values out"):
        code_like(new, items)


def test_several_values_coded_in_another_order_are_refused(tmp_path):
    """Of b|c, b came first while it was the commoner one; in a catalogue coded anew it comes second."""
    rows = ["a", "a", "a", "a|b", "a|c", "b", "b", "c", "b|c"]
    old, new = (pa.table({"item": list(range(len(g))), "g": g}) for g in (rows, [*rows, "c", "c"]))
    items, other = (make_items(table, many=("g=2",), hash_buckets="none") for table in (old, new))
    assert code_like(new, items).codes[:9].tolist() == items.codes.tolist()
    with pytest.raises(SourceError, match=r"'g_0': it holds values in another order.* `piecemill actions features"):
        code_like(other, items)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_whole_numbers_are_the_same_with_and_without_missing_ones_beside_them(ending, tmp_path):
    """pandas makes 1990 of a year 1990.0 once another year is missing, in a table and in a CSV."""
    pandas = pytest.importorskip("pandas")

    def written(name, years):
        table = pandas.DataFrame({"item": range(len(years)), "year": years})
        path = tmp_path / f"{name}.{ending}"
        table.to_csv(path, index=False) if ending == "csv" else table.to_parquet(path)
        return path

    gap, full = written("gap", [1990, None, 1991]), written("full", [1991, 1990])
    items = make_items(gap, missing="unknown", hash_buckets="none")
    assert items.labels == (["1990", "1991", "unknown"],)
    assert code_like(full, items).codes.tolist() == [[1], [0]]
    items = make_items(full, hash_buckets="none")
    assert code_like(gap, items, unknown_value="drop").codes.tolist() == [[1990], [1991]]
