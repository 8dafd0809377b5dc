"""Item features: codes of embeddings, bins, and the hash that tells equal items apart."""

import importlib.util

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from piecemill.actions import embeddings
from piecemill.actions.features import FeaturesPlan, MadeItems, collisions, hash_feature, make_items
from piecemill.actions.items import Items
from piecemill.errors import PlanError, SourceError

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs faiss-cpu")


def vectors(rows=300, width=16, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, width)) @ rng.standard_normal((width, width))).astype(np.float32)


def test_whitened_components_are_uncorrelated_with_variance_1_and_come_largest_first():
    raw = vectors()
    white, share, _ = embeddings.whiten(raw, 5)
    np.testing.assert_allclose(np.cov(white.T), np.eye(5), atol=1e-4)
    # The definition by another way: the singular value decomposition of the centred vectors.
    left, sizes, _ = np.linalg.svd(raw - raw.mean(axis=0, dtype=np.float64), full_matrices=False)
    want = left[:, :5] * np.sqrt(len(raw) - 1)
    np.testing.assert_allclose(np.abs(white), np.abs(want), atol=1e-3)
    assert share == pytest.approx((sizes[:5] ** 2).sum() / (sizes**2).sum())


def test_components_are_as_many_as_the_vectors_span_and_no_more():
    flat = np.hstack([vectors(width=6), np.ones((300, 4), np.float32)])
    assert embeddings.whiten(flat, None)[0].shape == (300, 6)
    assert embeddings.whiten(flat, None, multiple=4)[0].shape == (300, 4)
    assert embeddings.whiten(vectors(rows=400, width=140), None)[0].shape == (400, 128)
    with pytest.raises(PlanError, match=r"pca=7: the 300 embeddings of 10 dimensions span 6; expected 1 to 6"):
        embeddings.whiten(flat, 7)


def test_blocks_of_rows_do_not_change_the_components(monkeypatch):
    whole, *_ = embeddings.whiten(vectors(), 8)
    monkeypatch.setattr(embeddings, "_BLOCK", 7)
    np.testing.assert_allclose(embeddings.whiten(vectors(), 8)[0], whole, atol=1e-4)


@pytest.fixture
def faiss():
    """faiss on one thread, as the codes are made."""
    faiss = pytest.importorskip("faiss", reason="needs faiss-cpu")
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield faiss
    faiss.omp_set_num_threads(threads)


def test_codes_are_those_of_faiss_itself(faiss):
    white = vectors(400, 4)
    learn_from = np.arange(0, 300)
    index = faiss.index_factory(4, "OPQ1,IVF1,PQ1x8", faiss.METRIC_INNER_PRODUCT)
    index.train(white[learn_from])
    index.add(white)
    inside = faiss.downcast_index(faiss.extract_index_ivf(index))
    want = faiss.rev_swig_ptr(inside.invlists.get_codes(0), 400).reshape(400, 1)
    assert embeddings.quantize(white, learn_from, codebooks=1, bits=8)[0].tolist() == want.tolist()


@pytest.mark.parametrize("bits", [3, 4, 5])
def test_codes_of_fewer_bits_are_unpacked_as_faiss_packs_them(faiss, bits):
    white = vectors(200, 6)
    index = faiss.index_factory(6, f"OPQ3,IVF1,PQ3x{bits}", faiss.METRIC_INNER_PRODUCT)
    quantizer = faiss.ProductQuantizer(6, 3, bits)
    faiss.downcast_VectorTransform(index.chain.at(0)).pq = quantizer
    index.train(white)
    index.add(white)
    inside = faiss.downcast_index(faiss.extract_index_ivf(index))
    packed = faiss.rev_swig_ptr(inside.invlists.get_codes(0), 200 * inside.code_size).reshape(200, -1).copy()
    found = embeddings.quantize(white, np.arange(200), codebooks=3, bits=bits)[0]
    centroids = faiss.vector_to_array(inside.pq.centroids).reshape(3, 1 << bits, 2)
    chosen = np.hstack([centroids[book][found[:, book]] for book in range(3)])
    np.testing.assert_array_equal(chosen, inside.pq.decode(packed))


def test_codes_are_the_same_every_time_by_seed_whatever_the_threads(faiss):
    white = vectors(300, 8)
    first = embeddings.quantize(white, np.arange(300), codebooks=4, bits=4)[0]
    faiss.omp_set_num_threads(2)
    assert embeddings.quantize(white, np.arange(300), codebooks=4, bits=4)[0].tolist() == first.tolist()
    assert faiss.omp_get_max_threads() == 2
    assert embeddings.quantize(white, np.arange(300), codebooks=4, bits=4, seed=5)[0].tolist() != first.tolist()


@needs_faiss
def test_embeddings_come_from_a_file_or_a_column_and_learn_from_training_items(tmp_path):
    raw = vectors()
    keys = [f"i{number}" for number in range(300)]
    np.save(tmp_path / "e.npy", raw)
    plan = FeaturesPlan(embeddings=str(tmp_path / "e.npy"), codebooks=2, bits=4, hash_buckets="64")
    items = make_items(pa.table({"item": keys}), plan=plan)
    assert items.columns == ("pq_0", "pq_1", "hash")
    assert items.made["embeddings"] | {"variance": 1} == {
        "dimensions": 16,
        "pca": True,
        "components": 16,
        "variance": 1,
        "codebooks": 2,
        "bits": 4,
        "learned_from": 300,
        "train_items_only": False,
    }
    table = pa.table({"item": keys, "emb": list(raw), "kind": ["a", "b"] * 150})
    options = {"embeddings": "emb", "codebooks": 2, "bits": 4, "hash_buckets": "64"}
    assert make_items(table, **options).codes.tolist() == items.codes.tolist()
    both = make_items(table, columns=("kind",), **options)
    assert both.columns == ("pq_0", "pq_1", "kind", "hash")
    assert both.codes[:, :2].tolist() == items.codes[:, :2].tolist()
    learned = make_items(table, train=[keys[:99], keys[50:100]], **options)
    assert (learned.made["embeddings"]["learned_from"], learned.made["embeddings"]["train_items_only"]) == (100, True)
    assert learned.codes[:, :2].tolist() != items.codes[:, :2].tolist()
    assert "note: all items taught" in str(MadeItems(items, "x"))
    assert "note: all items taught" not in str(MadeItems(learned, "x"))
    with pytest.raises(SourceError, match="no item 'gone' among the 300 items"):
        make_items(table, train=[["i1", "gone"]], **options)


@settings(max_examples=50, deadline=None)
@given(
    arrays.arrays(np.int64, st.tuples(st.integers(1, 40), st.integers(1, 3)), elements=st.integers(0, 2)),
    st.integers(0, 9),
)
def test_the_hash_tells_equal_items_apart_and_never_moves_an_older_item(codes, seed):
    rank, counts = collisions(codes)
    groups = {}
    for row in codes.tolist():
        groups.setdefault(tuple(row), []).append(len(groups))
    sizes = [len(group) for group in groups.values()]
    assert counts == {
        "distinct": len(groups),
        "collisions": sum(size > 1 for size in sizes),
        "colliding_items": sum(size for size in sizes if size > 1),
        "largest_collision": max(sizes),
    }
    for buckets in (max(sizes), max(sizes) + 1, 64):
        hashed = hash_feature(codes, rank, buckets, seed)
        assert (hashed.min() >= 0, hashed.max() < buckets) == (True, True)
        assert len(np.unique(np.column_stack([codes, hashed]), axis=0)) == len(codes)
        fewer = codes[: len(codes) // 2 + 1]
        assert hash_feature(fewer, collisions(fewer)[0], buckets, seed).tolist() == hashed[: len(fewer)].tolist()


def test_hashes_are_spread_evenly_and_hang_on_the_seed():
    codes = np.arange(6400)[:, None]
    hashed = hash_feature(codes, np.zeros(6400, np.int64), 64, 1)
    counts = np.bincount(hashed, minlength=64)
    assert (counts.min() > 60, counts.max() < 145) == (True, True)  # 100 each, less or more 4.5 deviations
    assert (hash_feature(codes, np.zeros(6400, np.int64), 64, 2) == hashed).mean() < 0.05


def test_buckets_are_the_next_power_of_two_or_as_many_as_asked_if_they_suffice():
    rows = {number: [0 if number < 5 else number] for number in range(9)}
    items = make_items(rows)
    assert items.made["hash"] == {
        "distinct": 5,
        "collisions": 1,
        "colliding_items": 5,
        "largest_collision": 5,
        "buckets": 8,
    }
    assert "collisions: 1 group of 5 items, the largest of 5; 8 buckets" in str(MadeItems(items, "x"))
    assert make_items(rows, hash_buckets="5").codes[:5, 1].tolist() != [0] * 5
    with pytest.raises(PlanError, match=r"hash_buckets=4: 5 items are equal in all other features, the last of them 4"):
        make_items(rows, hash_buckets="4")
    none = make_items(rows, hash_buckets="none")
    assert (none.columns, "cannot be distinguished" in str(MadeItems(none, "x"))) == (("f0",), True)
    # Nothing collides: a feature with one value for all would say nothing.
    assert make_items({1: [1], 2: [2]}).columns == ("f0",)


def test_numbers_go_into_bins_about_equally_full_and_equal_ones_stay_together():
    prices = [1.0, 2.0, 2.0, 2.0, 3.0, 4.0, 5.0, None]
    table = pa.table({"item": list(range(8)), "price": prices, "brand": ["x"] * 8})
    items = make_items(table, bins=("price=3",), missing="?", hash_buckets="none")
    assert items.columns == ("brand", "price")
    assert items.codes[:, 1].tolist() == [0, 1, 1, 1, 2, 2, 2, 3]
    assert items.labels[1] == ["from 1.0", "from 2.0", "from 3.0", "?"]
    with pytest.raises(SourceError, match=r"row 7: the item 7 has no 'price' \(1 such item\)"):
        make_items(table, bins=("price=3",))
    same = make_items(pa.table({"item": [1, 2], "price": [7, 7]}), bins=("price=4",), hash_buckets="none")
    assert same.codes.tolist() == [[0], [0]]


def test_interactions_serve_where_all_rows_of_an_item_say_the_same(tmp_path):
    (tmp_path / "log.csv").write_text("user,item,brand,price\nu,1,x,5\nv,1,x,6\nu,2,y,7\n")
    items = make_items(tmp_path / "log.csv", columns=("brand",))
    assert (list(items.keys), items.codes.tolist(), items.made["repeated_rows"]) == (["1", "2"], [[0], [1]], 1)
    with pytest.raises(SourceError, match=r"log\.csv, line 3: the item '1' has price='6', but it had '5' before"):
        make_items(tmp_path / "log.csv", columns=("brand", "price"))


def test_semantic_ids_are_taken_as_they_are(tmp_path):
    np.save(tmp_path / "ids.npy", np.array([[3, 0], [1, 9]], np.uint16))
    table = pa.table({"item": ["a", "b"]})
    items = make_items(table, semantic_ids=str(tmp_path / "ids.npy"))
    assert (items.columns, items.codes.tolist()) == (("id_0", "id_1"), [[3, 0], [1, 9]])
    lists = pa.table({"item": ["a", "b"], "ids": [[3, 0], [1, 9]]})
    assert make_items(lists).codes.tolist() == [[3, 0], [1, 9]]
    with pytest.raises(SourceError, match=r"ids\.npy: uint16 of shape \(2, 2\), expected .* each of the 1 items"):
        make_items(table.slice(0, 1), semantic_ids=str(tmp_path / "ids.npy"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"bins": ("price",)}, "bins='price': expected a column and 2 bins"),
        ({"hash_buckets": "many"}, "hash_buckets='many'"),
        ({"codebooks": 0}, "codebooks=0"),
        ({"bits": 17}, "bits=17"),
        ({"pca": -1}, "pca=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"embeddings": "emb"}, "embeddings='emb': neither a .npy file nor a column of items, which has 'item', 'x'"),
        ({"columns": ("x", "x")}, "'x' would be there twice"),
        ({"columns": ("x",), "bins": ("x=2",)}, "columns and bins: 'x' would be there twice. Name it only in bins"),
        ({"colums": ("x",)}, "unknown option 'colums'; did you mean 'columns'"),
        ({"bits": 17, "plan": FeaturesPlan(bits=8)}, "bits=17"),
    ],
)
def test_plans_that_cannot_work_are_refused(options, error):
    with pytest.raises(PlanError, match=error):
        make_items(pa.table({"item": [1], "x": [1]}), **options)


@needs_faiss
def test_embeddings_that_cannot_work_are_refused(tmp_path):
    table = pa.table({"item": list(range(20))})
    path = str(tmp_path / "e.npy")

    def made(array, **options):
        np.save(path, array)
        return make_items(table, embeddings=path, **options)

    with pytest.raises(SourceError, match=r"e\.npy: 19 rows for 20 items"):
        made(vectors(19, 4))
    with pytest.raises(SourceError, match=r"e\.npy: found float32 of shape \(20,\)"):
        made(vectors(20, 4)[:, 0])
    bad = vectors(20, 4)
    bad[7, 1] = np.nan
    with pytest.raises(SourceError, match=r"e\.npy, row 7: not all numbers are finite"):
        made(bad)
    with pytest.raises(PlanError, match=r"bits=8: a codebook of 256 needs .* found 20\. Choose bits=4 or fewer"):
        made(vectors(20, 4))
    with pytest.raises(PlanError, match="codebooks=3: 4 dimensions cannot be shared out"):
        made(vectors(20, 4), codebooks=3, pca=0, bits=2)
    (tmp_path / "f.npy").write_bytes(b"no")
    with pytest.raises(SourceError, match=r"f\.npy: not a \.npy file"):
        make_items(table, embeddings=str(tmp_path / "f.npy"))


def test_the_largest_collision_of_the_real_data_takes_the_buckets_that_were_published(shared):
    data = shared / "actionpiece" / "data" / "cds_like.feat.json.gz"
    given = Items.of(data)
    bare = Items(given.keys, given.codes[:, :4], given.columns[:4], given.labels[:4])
    made = make_items(bare)
    assert (made.made["hash"]["largest_collision"], made.made["hash"]["buckets"]) == (173, 256)
    assert collisions(made.codes)[1]["largest_collision"] == 1
