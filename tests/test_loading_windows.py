"""Windows: the same as the definition, for any cut of any documents; and no token twice or never."""

import subprocess
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import piecemill as pm
from corpora import open_files
from loadable import some_documents, write_rows
from piecemill.errors import LoadError, PlanError, ShardError
from piecemill.loading import Windows, batches
from piecemill.reference.windows import IGNORED
from piecemill.reference.windows import windows as reference
from piecemill.shards.windows import WindowSpec
from prepared import reseal

DOCUMENTS = st.lists(st.lists(st.integers(0, 99_999), max_size=9), min_size=1, max_size=9)


@settings(max_examples=80, deadline=None)
@given(
    documents=DOCUMENTS,
    window=st.integers(1, 8),
    overlap=st.integers(0, 7),
    shard_tokens=st.integers(1, 20),
    pack=st.booleans(),
    boundaries=st.booleans(),
    overlap_labels=st.booleans(),
    vocab_size=st.sampled_from([60_000, 100_000]),
)
def test_windows_are_those_of_the_definition(documents, window, overlap, shard_tokens, vocab_size, **cut):
    documents = [[token % vocab_size for token in document] for document in documents]
    overlap = min(overlap, window - 1)
    want = reference(documents, window, overlap=overlap, pad=7, **cut)
    with tempfile.TemporaryDirectory() as scratch:
        rows = write_rows(Path(scratch) / "a", documents, vocab_size=vocab_size, eos=7, shard_tokens=shard_tokens)
        if not want or (cut["pack"] and rows.tokens < window + 1):
            with pytest.raises(LoadError, match="window"):
                Windows(rows, window=window, overlap=overlap, **cut)
            return
        view = Windows(rows, window=window, overlap=overlap, **cut)
        assert len(view) == len(want)
        assert [{name: column.tolist() for name, column in view[n].items()} for n in range(len(view))] == want
        # and in one gather, backwards
        found = view.__getitems__(range(len(view))[::-1])
        assert [{name: column.tolist() for name, column in row.items()} for row in found] == want[::-1]


@pytest.mark.parametrize("overlap", [0, 1, 4, 7])
@pytest.mark.parametrize("pack", [True, False])
def test_every_token_but_the_first_is_a_label_exactly_once(tmp_path, overlap, pack):
    # ids that say where they are from
    lengths = [0, 1, 2, 30, 8, 9, 10, 0, 17]
    ends = np.cumsum([0, *lengths])
    documents = [list(range(a, b)) for a, b in pairwise(ends)]
    rows = write_rows(tmp_path / "a", documents)
    view = Windows(rows, window=8, overlap=overlap, pack=pack)
    labels = Counter(label for n in range(len(view)) for label in view[n]["labels"].tolist() if label != IGNORED)
    firsts = {0} if pack else {document[0] for document in documents if document}
    assert labels == Counter(set(range(ends[-1])) - firsts)
    assert view.targets == len(labels)


def test_boundaries_train_on_the_same_tokens_as_one_document_at_a_time(tmp_path):
    rows = write_rows(tmp_path / "a", some_documents(40))
    packed, single = Windows(rows, window=16, boundaries=True), Windows(rows, window=16, pack=False)
    count = [sum(int((view[n]["labels"] != IGNORED).sum()) for n in range(len(view))) for view in (packed, single)]
    assert count[0] == count[1] == single.targets


def test_overlapping_labels_are_trained_on_again_if_asked(tmp_path):
    rows = write_rows(tmp_path / "a", [list(range(20))])
    again = Windows(rows, window=8, overlap=4, overlap_labels=True)
    assert again[1]["labels"].tolist() == list(range(5, 13))
    assert Windows(rows, window=8, overlap=4)[1]["labels"].tolist() == [IGNORED] * 4 + list(range(9, 13))


def test_cu_seqlens_tell_where_documents_begin_in_the_batch(tmp_path):
    rows = write_rows(tmp_path / "a", [[1, 2, 3], [4, 5, 6, 7], [8]], eos=0)
    batch = next(batches(rows, window=4, batch_size=2, order="sequential", epochs=1, boundaries=True))
    # 1 2 3 | 4     5 6 7 | 8 and no label behind it; padding would be a document of its own
    assert batch["cu_seqlens"].tolist() == [0, 3, 4, 7, 8]
    assert batch["cu_seqlens"].dtype == np.int32
    assert batch["max_seqlen"] == 3
    assert batch["document_ids"].tolist() == [[0, 0, 0, 1], [1, 1, 1, 2]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0], [0, 1, 2, 0]]
    assert batch["labels"].tolist() == [[2, 3, IGNORED, 5], [6, 7, IGNORED, IGNORED]]


@pytest.mark.parametrize("options", [{"window": 0}, {"window": 4, "overlap": 4}, {"window": 4, "overlap": -1}])
def test_a_cut_that_never_advances_is_refused(options):
    with pytest.raises(PlanError, match=r"window|overlap"):
        WindowSpec(**options)


def test_windows_larger_than_the_data_say_so(tmp_path):
    rows = write_rows(tmp_path / "a", [[1, 2, 3], [4, 5]])
    assert len(Windows(rows, window=4)) == 1
    with pytest.raises(LoadError, match=r"window=5 needs 6 tokens.*there are 5.*smaller window"):
        Windows(rows, window=5)
    assert Windows(rows, window=5, pack=False)[0]["labels"].tolist() == [2, 3] + [IGNORED] * 3
    with pytest.raises(LoadError, match="no document has 2 tokens"):
        Windows(write_rows(tmp_path / "b", [[1], [2], [3]]), window=2, pack=False)
    with pytest.raises(PlanError, match="pad_id=1000: the vocabulary has 1,000 ids"):
        Windows(rows, window=2, pad_id=1000)
    with pytest.raises(IndexError, match=r"window 1 of .* which has 1"):
        Windows(rows, window=4)[1]


def test_a_shard_that_is_missing_or_changed_reaches_the_loop_with_its_name(tmp_path):
    rows = write_rows(tmp_path / "a", some_documents(20))
    path = rows.folder / "all" / "000000-0001.tokens.npy"
    whole = path.read_bytes()
    for content, says in [(None, "is missing, but the manifest lists it"), (whole + b"\0", "the manifest says")]:
        path.unlink() if content is None else path.write_bytes(content)
        for threads in (0, 2):
            fed = batches(pm.open_shards(rows.folder), window=8, order="sequential", batch_size=4, threads=threads)
            with pytest.raises(ShardError, match=f"000000-0001.tokens.npy .*{says}.*piecemill check") as raised:
                list(fed)
            assert "While making batch" in raised.value.__notes__[0]
            with pytest.raises(ShardError, match=says):  # and does not turn into an end
                next(fed)


def test_opening_ten_thousand_shards_maps_nothing_and_holds_no_descriptor(tmp_path):
    rows = write_rows(tmp_path / "a", [[1, 2, 3]])
    line = (rows.folder / "all" / "manifest.jsonl").read_text()
    many = [line.replace("000000-0000.", f"{n:06}-0000.").replace('"shard": 0', f'"shard": {n}') for n in range(10_000)]
    (rows.folder / "all" / "manifest.jsonl").write_text("".join(many))
    for kind in ("tokens", "ends"):
        for n in range(1, 2000):
            (rows.folder / "all" / f"{n:06}-0000.{kind}.npy").hardlink_to(
                rows.folder / "all" / f"000000-0000.{kind}.npy"
            )
    reseal(rows.folder)
    rows = pm.open_shards(rows.folder)
    assert (len(rows), rows.tokens, len(rows._open)) == (10_000, 30_000, 0)
    found = Windows(rows, window=3).__getitems__(range(1999))
    assert [row["input_ids"].tolist() for row in found] == [[1, 2, 3]] * 1999
    assert len(rows._open) == 2000  # one file more, for the last label
    assert open_files(tmp_path) == []


def test_loading_imports_numpy_and_nothing_heavier(tmp_path):
    write_rows(tmp_path / "a", some_documents(20))
    code = (
        "import sys, piecemill as pm\n"
        "from piecemill.loading import batches\n"
        f"next(batches(pm.open_shards({str(tmp_path / 'a')!r}), window=8, epochs=1))\n"
        "heavy = ('pyarrow', 'tokenizers', 'cyclopts', 'rich', 'torch', 'zstandard', 'piecemill.cli')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
