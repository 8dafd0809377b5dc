"""Shards in an object store: read as local ones are, through a cache that holds less than they are."""

import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import piecemill as pm
from command import piecemill
from corpora import small_tokenizer
from loadable import some_documents, write_rows
from piecemill.errors import LoadError, PlanError, ShardError, StoreError
from piecemill.loading import Local, Windows, batches, mix
from piecemill.objects import ObjectPlace
from piecemill.reporting.describing import describe
from piecemill.shards import RECORD, ShardWriter
from piecemill.shards.check import check_shards
from piecemill.shards.export import ExportPlan, export
from piecemill.shards.folder import render_stats
from piecemill.shards.remote import _OWN, Cache
from prepared import prepare_folder
from stores import proxied

OPTIONS = {"window": 8, "batch_size": 3, "seed": 5}
SMALL = 3_000
"Bytes of a cache that holds less than a third of the ids."


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Four batches each, so that an epoch has many."""
    monkeypatch.setattr("piecemill.loading.batching.CHUNK_TOKENS", 4 * 3 * 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """About 30 shards of 100 tokens or more."""
    path = tmp_path_factory.mktemp("prepared") / "rows"
    groups = [number // 9 % 2 for number in range(150)]
    write_rows(path, some_documents(150, seed=2), shard_tokens=100, groups=groups, weights=(1.0, 1.0))
    return path


def upload(folder: Path, place: ObjectPlace) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            place.write(path.relative_to(folder).as_posix(), path.read_bytes())


@pytest.fixture(scope="module")
def bucket(s3, folder) -> ObjectPlace:
    place = s3.place("corpus/run")
    upload(folder, place)
    return place


def opened(bucket, cache, cache_bytes="50GiB", **more):
    return pm.open_shards(bucket.url, cache=cache, cache_bytes=cache_bytes, storage=bucket.options, **more)


def held(cache: Path) -> int:
    """Bytes of the files in a cache that nobody downloads to."""
    return sum(path.stat().st_size for path in cache.iterdir() if _OWN.fullmatch(path.name))


def assert_same_batches(found, want, count=None):
    for number, batch in enumerate(want):
        other = next(found)
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(other[name], batch[name])
        if number + 1 == count:
            return
    assert next(found, None) is None


def test_documents_are_those_of_the_local_folder(bucket, folder, tmp_path):
    local, remote = pm.open_shards(folder), opened(bucket, tmp_path)
    assert len(remote) == len(local)
    assert (remote.tokens, remote.identity, remote.splits) == (local.tokens, local.identity, local.splits)
    assert list(tmp_path.glob("*.npy")) == []  # opening downloads no shard
    for number in (0, 75, -1):
        np.testing.assert_array_equal(remote[number], local[number])
    for ours, theirs in zip(remote, local, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert repr(remote).startswith(f"Shards('{bucket.url}', 'all': 150 documents")


@pytest.mark.parametrize(
    ("order", "options"),
    [
        ("local", {}),
        (Local(2), {"pack": False}),
        (Local(3), {"boundaries": True, "overlap": 2}),
        ("local", {"weights": [1, 2]}),
        ("sequential", {}),
        ("shuffled", {"boundaries": True}),
        ("shuffled", {"threads": 3}),
    ],
)
def test_batches_are_those_of_the_local_folder_with_a_cache_smaller_than_the_data(
    bucket, folder, tmp_path, order, options
):
    local, remote = pm.open_shards(folder), opened(bucket, tmp_path, SMALL)
    assert sum(entry.files["tokens"].bytes for entry in local.entries) > 3 * SMALL
    asked = {**OPTIONS, **options, "order": order, "epochs": 1}
    with batches(remote, **asked) as found, batches(local, **asked) as want:
        assert_same_batches(found, want)
    remote.close()
    assert 0 < held(tmp_path) <= SMALL


def test_a_state_of_the_local_folder_goes_on_from_the_bucket_at_another_world_size(bucket, folder, tmp_path):
    asked = {"window": 8, "seed": 5, "order": "local", "epochs": 2}
    with batches(pm.open_shards(folder), batch_size=6, **asked) as one:
        for _ in range(17):
            next(one)
        state = one.state_dict()
        assert state["order"] == "local 8"
        ranks = [batches(opened(bucket, tmp_path, SMALL), batch_size=3, rank=r, world_size=2, **asked) for r in (0, 1)]
        for rank in ranks:
            rank.load_state_dict(json.loads(json.dumps(state)))
        for _ in range(40):
            want = next(one)["input_ids"]
            np.testing.assert_array_equal(np.concatenate([next(rank)["input_ids"] for rank in ranks]), want)
        for rank in ranks:
            rank.close()
    with (
        pytest.raises(LoadError, match="taken with order='local 8'"),
        batches(opened(bucket, tmp_path), batch_size=6, **{**asked, "order": Local(3)}) as other,
    ):
        other.load_state_dict(state)


def test_a_mixture_of_a_bucket_and_a_folder_is_that_of_two_folders(bucket, folder, tmp_path):
    local, remote = pm.open_shards(folder), opened(bucket, tmp_path, SMALL)
    asked = {**OPTIONS, "order": "local", "epochs": 1}
    with (
        batches(mix([(remote, 0.7), (local, 0.3)]), **asked) as found,
        batches(mix([(local, 0.7), (local, 0.3)]), **asked) as want,
    ):
        assert_same_batches(found, want)


def test_torch_tensors_come_from_a_bucket_too(bucket, folder, tmp_path):
    torch = pytest.importorskip("torch")
    from piecemill.loading.torch import batches as tensors

    with (
        tensors(opened(bucket, tmp_path, SMALL), **OPTIONS, order="local", epochs=1) as found,
        batches(pm.open_shards(folder), **OPTIONS, order="local", epochs=1) as want,
    ):
        for batch, other in zip(found, want, strict=True):
            assert torch.equal(batch["input_ids"], torch.from_numpy(other["input_ids"]))


def asked_for(rows, monkeypatch, **options):
    """Which files are requested ahead of each batch of an epoch, and which windows and shards come."""
    asked = []
    monkeypatch.setattr(type(rows), "prefetch", lambda self, numbers, kinds: asked.append(list(numbers)))
    windows = Windows(rows, window=8)
    with batches(rows, window=8, batch_size=1, epochs=1, threads=0, **options) as fed:
        monkeypatch.setattr("piecemill.loading.batching.CHUNK_TOKENS", 8)
        fed._chunks.chunk = 1
        # A chunk asks for its own files last, when it is gathered.
        ahead = []
        for _ in fed:
            ahead.append([file for numbers in asked[:-1] for file in numbers])
            asked.clear()
        coming = windows.view.files(fed.maker.draws(np.arange(len(windows)))[1]).tolist()
    return ahead, coming


@pytest.mark.parametrize(("order", "shards"), [(Local(4), 4), ("sequential", 1)])
def test_shards_are_asked_for_before_they_are_needed(bucket, tmp_path, monkeypatch, order, shards):
    rows = opened(bucket, tmp_path, 1_000_000)
    ahead, coming = asked_for(rows, monkeypatch, order=order)
    first_use = {shard: coming.index(shard) for shard in set(coming)}
    first_asked = {}
    for sample, files in enumerate(ahead):
        for file in files:
            first_asked.setdefault(file, sample)
    assert set(first_asked) == set(range(len(rows.entries)))
    windows = len(coming) / len(rows.entries)
    late = {shard for shard, use in first_use.items() if use - first_asked[shard] < windows * shards / 4}
    # Only what is needed at the very beginning is not known a quarter of a buffer before.
    assert late <= {shard for shard, use in first_use.items() if use < windows * shards}
    # And not everything at once: a buffer and the next, with neighbours.
    assert len(set(ahead[0])) <= 4 * max(2, shards)


def test_no_more_is_asked_for_than_the_cache_can_hold(bucket, tmp_path, monkeypatch):
    rows = opened(bucket, tmp_path, SMALL)
    ahead, _ = asked_for(rows, monkeypatch, order="local")
    sizes = [entry.tokens * 2 for entry in rows.entries]
    assert max(sum(sizes[file] for file in set(files)) for files in ahead) <= SMALL * 3 // 4
    assert any(ahead)


def test_in_a_shuffled_order_nothing_is_asked_for_ahead(bucket, tmp_path, monkeypatch):
    ahead, _ = asked_for(opened(bucket, tmp_path), monkeypatch, order="shuffled")
    assert not any(ahead)


def test_a_file_is_asked_for_once_at_a_time(bucket, tmp_path, monkeypatch):
    rows, begun, go_on = opened(bucket, tmp_path), [], threading.Event()
    fetch = ObjectPlace.fetch

    def slow(self, name, path):
        begun.append(name)
        go_on.wait(600)
        fetch(self, name, path)

    monkeypatch.setattr(ObjectPlace, "fetch", slow)
    for _ in range(20):
        rows.prefetch([0, 1])
    assert len(rows._asked) == 2
    go_on.set()
    rows.array(1, "tokens")
    rows.close()
    assert sorted(begun) == sorted(set(begun))


# The cache


def test_a_file_is_downloaded_once_and_verified(bucket, tmp_path, s3):
    with proxied(s3) as (port, faults):
        place = ObjectPlace(bucket.url, s3.options(port))
        remote = opened(place, tmp_path)
        with ThreadPoolExecutor(8) as pool:
            arrays = list(pool.map(lambda _: remote.array(3, "tokens"), range(16)))
        another = opened(place, tmp_path)
        arrays.append(another.array(3, "tokens"))
        name = remote.entries[3].files["tokens"].name
        assert [path for method, path in faults.requests if name in path] == [f"/{place.url[5:]}/all/{name}"]
    assert all((array == arrays[0]).all() for array in arrays)


def test_the_least_recently_used_files_go_first(bucket, tmp_path):
    remote = opened(bucket, tmp_path)
    sizes = [entry.files["tokens"].bytes for entry in remote.entries[:5]]
    remote = opened(bucket, tmp_path, sum(sizes[:3]) + sizes[3])
    for number in (0, 1, 2, 3):
        remote.array(number, "tokens")
    remote.array(0, "tokens")  # used again: 1 is the oldest now
    there = lambda: [remote.path(entry, "tokens").exists() for entry in remote.entries[:5]]  # noqa: E731
    assert there() == [True, True, True, True, False]
    remote.array(4, "tokens")
    assert there()[0]
    assert not there()[1]
    assert there()[3:] == [True, True]


def test_a_deleted_file_stays_readable_while_it_is_mapped_and_no_longer(bucket, folder, tmp_path):
    remote, local = opened(bucket, tmp_path), pm.open_shards(folder)
    array = remote.array(0, "tokens")
    remote.path(remote.entries[0], "tokens").unlink()
    np.testing.assert_array_equal(array, local.array(0, "tokens"))
    # The next file that is opened lets go of the map, so that the disk gets its space back.
    remote.array(1, "tokens")
    assert list(remote._open) == [(1, "tokens")]
    np.testing.assert_array_equal(array, local.array(0, "tokens"))
    np.testing.assert_array_equal(remote.array(0, "tokens"), local.array(0, "tokens"))


def test_a_damaged_object_is_refused_and_not_kept(s3, folder, tmp_path):
    place = s3.place()
    upload(folder, place)
    remote = opened(place, tmp_path)
    file = remote.entries[2].files["tokens"]
    content = place.read(f"all/{file.name}")
    for changed, words in (
        (content[:-1] + bytes([content[-1] ^ 1]), f"has the xxh3 [0-9a-f]{{16}}; the manifest says {file.xxh3}"),
        (content[:-2], f"has {len(content) - 2:,} bytes; the manifest says {len(content):,}"),
    ):
        place.write(f"all/{file.name}", changed)
        with pytest.raises(ShardError, match=f"{place.url}/all/{file.name} {words}.*Restore it"):
            remote.array(2, "tokens")
        assert held(tmp_path) == 0
    place.delete(f"all/{file.name}")
    with pytest.raises(ShardError, match=r"is missing, but the manifest lists it"):
        remote.array(2, "tokens")
    place.write(f"all/{file.name}", content)
    assert len(remote.array(2, "tokens")) == remote.entries[2].tokens


@pytest.mark.parametrize("left", [0, 90])
def test_a_file_that_was_cut_in_the_cache_is_downloaded_again(bucket, folder, tmp_path, left):
    remote = opened(bucket, tmp_path)
    remote.array(2, "tokens")
    path = remote.path(remote.entries[2], "tokens")
    path.write_bytes(path.read_bytes()[:left])
    np.testing.assert_array_equal(
        opened(bucket, tmp_path).array(2, "tokens"), pm.open_shards(folder).array(2, "tokens")
    )


def test_an_error_of_a_download_reaches_the_training_loop(s3, folder, tmp_path):
    place = s3.place()
    upload(folder, place)
    remote = opened(place, tmp_path)
    place.delete(f"all/{remote.entries[5].files['tokens'].name}")
    with (
        pytest.raises(ShardError, match="is missing, but the manifest lists it"),
        batches(remote, **OPTIONS, order="local", epochs=1) as fed,
    ):
        list(fed)


def test_downloads_survive_throttling_and_cut_connections(s3, folder, bucket, tmp_path):
    with proxied(s3) as (port, faults):
        faults.add("GET", r"\.npy", 503, "half", "cut", 503, "half", "cut", 429)
        faults.add("GET", "plan.json", 503, "cut")
        remote = opened(ObjectPlace(bucket.url, s3.options(port)), tmp_path, SMALL)
        with (
            batches(remote, **OPTIONS, order="local", epochs=1) as found,
            batches(pm.open_shards(folder), **OPTIONS, order="local", epochs=1) as want,
        ):
            assert_same_batches(found, want)
        assert faults.planned == []


def test_a_folder_that_was_prepared_again_is_not_mistaken_for_the_old_one(s3, tmp_path):
    place = s3.place()
    for number in (1, 2):
        write_rows(tmp_path / f"{number}", [[number] * 20] * 5)
        upload(tmp_path / f"{number}", place)
        remote = opened(place, tmp_path / "cache")
        assert remote[0].tolist() == [number] * 20


def test_files_that_are_not_of_a_cache_are_left_alone(bucket, tmp_path):
    (tmp_path / "thesis.npy").write_bytes(b"x" * 100_000)
    (tmp_path / "0123456789abcdef.txt").write_bytes(b"x" * 100_000)
    remote = opened(bucket, tmp_path, 3_000)
    for number in range(len(remote.entries)):
        remote.array(number, "tokens")
    assert (tmp_path / "thesis.npy").exists()
    assert (tmp_path / "0123456789abcdef.txt").exists()
    assert 0 < held(tmp_path) <= 3_000


def test_what_a_killed_download_left_is_deleted_and_does_not_count(bucket, tmp_path):
    remote = opened(bucket, tmp_path, 3_000)
    parts = [Path(f"{remote.path(entry, 'tokens')}.part") for entry in remote.entries[:2]]
    for part in parts:
        part.write_bytes(b"x" * 2_000)
    for number in (0, 5, 6, 7, 8, 9):
        remote.array(number, "tokens")
    assert [part for part in parts if part.exists()] == []
    assert held(tmp_path) <= 3_000


def test_a_download_waits_for_another_that_fills_the_cache(bucket, tmp_path, monkeypatch):
    remote = opened(bucket, tmp_path)
    begun, waits, go_on = threading.Event(), threading.Event(), threading.Event()

    def pause(seconds):
        waits.set()
        time.sleep(seconds)

    clock = SimpleNamespace(sleep=pause, time_ns=time.time_ns)
    monkeypatch.setattr("piecemill.shards.remote.time", clock)

    class Slow(ObjectPlace):
        def fetch(self, name, path):
            begun.set()
            go_on.wait(600)
            super().fetch(name, path)

    one = remote._object(remote.entries[0].files["tokens"], "tokens")
    other = remote._object(remote.entries[1].files["tokens"], "tokens")
    cache = Cache(tmp_path, max(one.file.bytes, other.file.bytes))  # one at a time
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.map, replace(one, place=Slow(bucket.url, bucket.options)))
        assert begun.wait(600)
        second = pool.submit(cache.map, other)
        assert waits.wait(600)
        assert not second.done()
        go_on.set()
        assert (len(first.result(600)), len(second.result(600))) == (one.file.bytes, other.file.bytes)
    assert not cache.path(one).exists()
    assert cache.path(other).exists()


def test_processes_share_a_cache(bucket, folder, tmp_path):
    code = (
        "import pickle, sys, numpy as np\n"
        "from piecemill.loading import batches\n"
        "rows = pickle.load(sys.stdin.buffer)\n"
        "with batches(rows, window=8, batch_size=3, seed=5, order='local', epochs=1) as fed:\n"
        "    print(sum(int(batch['input_ids'].sum()) for batch in fed))\n"
    )
    pickled = pickle.dumps(opened(bucket, tmp_path, SMALL))
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)
    ]
    with ThreadPoolExecutor(3) as pool:
        printed = list(pool.map(lambda process: process.communicate(pickled)[0], running))
    with batches(pm.open_shards(folder), **OPTIONS, order="local", epochs=1) as fed:
        want = sum(int(batch["input_ids"].sum()) for batch in fed)
    assert [int(line) for line in printed] == [want] * 3
    assert held(tmp_path) <= SMALL


def test_a_full_disk_is_an_error_that_says_what_to_do(bucket, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    remote = opened(bucket, tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ShardError, match=r"No space left on device while s3://.*Free some space"):
        remote.array(0, "tokens")
    assert held(tmp_path) == 0


def test_what_cannot_work_is_refused(bucket, s3, tmp_path):
    with pytest.raises(PlanError, match=r"pass cache=FOLDER"):
        pm.open_shards(bucket.url, storage=bucket.options)
    with pytest.raises(PlanError, match=r"cache_bytes='many'"):
        opened(bucket, tmp_path, "many")
    with pytest.raises(ShardError, match=r"bytes, and cache_bytes=10\. Pass a larger cache_bytes"):
        opened(bucket, tmp_path, 10).array(0, "tokens")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PlanError, match=r"cache='.*file'"):
        opened(bucket, tmp_path / "file")
    with pytest.raises(ShardError, match=rf"{bucket.url}: split='val': this folder has all"):
        opened(bucket, tmp_path, split="val")
    place = s3.place()
    with pytest.raises(ShardError, match=rf"{place.url}/plan\.json is missing\. Expected a folder written by"):
        opened(place, tmp_path)


def test_a_folder_that_is_not_complete_opens_only_on_request(s3, folder, tmp_path):
    place = s3.place()
    upload(folder, place)
    place.delete("stats.json")
    place.delete("all/manifest.jsonl")
    with pytest.raises(ShardError, match=rf"{place.url} is not complete"):
        opened(place, tmp_path)
    rows = opened(place, tmp_path, unfinished=True)
    assert rows.tokens == pm.open_shards(folder).tokens


def test_memory_works_as_a_bucket_does(folder, tmp_path):
    place = ObjectPlace("memory://shards/run")
    upload(folder, place)
    rows = pm.open_shards("memory://shards/run", cache=tmp_path, cache_bytes=SMALL)
    for ours, theirs in zip(rows, pm.open_shards(folder), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_tokenizer_comes_along(s3, tmp_path):
    tok = pm.train_bpe(["low lower lowest"] * 10, vocab_size=262, pretokenizer="gpt2")
    folder = prepare_folder(tmp_path / "prepared", {"all": ["low lower", "lowest"]}, tok)
    place = s3.place()
    upload(folder, place)
    rows = opened(place, tmp_path / "cache")
    gc.collect()
    assert rows.tokenizer().decode(rows[0][:-1]) == "low lower"


def test_a_shard_written_to_a_bucket_has_the_bytes_of_a_local_one(s3, tmp_path):
    from piecemill.files import LocalPlace

    local, remote = LocalPlace(tmp_path), s3.place()
    for place in (local, remote):
        with ShardWriter(place, "train", "000012-0003", dtype=np.dtype("<u2")) as writer:
            for first in range(0, 1000, 100):
                writer.append(np.arange(first, first + 100, dtype="<u2"), np.array([40, 100]), np.zeros(2, RECORD))
            entry = writer.finish()
        place.write("train/manifest.jsonl", entry.line(0).encode())
    assert remote.sizes("train") == local.sizes("train")
    assert len(remote.sizes("train")) == 4
    for name in remote.sizes("train"):
        assert remote.read(f"train/{name}") == local.read(f"train/{name}")
    assert list(remote.scratch().iterdir()) == []


def test_prepare_writes_the_same_objects_to_a_bucket_as_files_to_a_folder(s3, tmp_path, monkeypatch, stdlib_texts):
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    (tmp_path / "corpus").mkdir()
    for number in range(4):
        texts = stdlib_texts[number * 20 : number * 20 + 25]  # five of each file are in the next one too
        (tmp_path / f"corpus/{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tok = pm.train_bpe(stdlib_texts[:20], vocab_size=500, pretokenizer="gpt2")
    options = {"splits": "train=80,val=20", "dedup": "exact", "piece_bytes": "4KiB"}
    pm.prepare(tmp_path / "corpus", tok, out=tmp_path / "out", **options)
    with proxied(s3) as (port, faults):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        for method in ("PUT", "GET", "POST", "HEAD"):
            faults.add(method, "out/", 503, "cut", "lost", 429)
        bucket = s3.bucket()
        stopping = "entries/000002"
        faults.add("PUT", stopping, 403)  # not one that passes: the run ends, and the next one goes on
        with pytest.raises(StoreError, match=rf"{stopping}.*the store answered 403\. Check the credentials"):
            pm.prepare(tmp_path / "corpus", tok, out=f"s3://{bucket}/out", **options)
        for method in ("PUT", "GET"):
            faults.add(method, "out/", 503, "cut", "lost", 429)
        summary = pm.prepare(tmp_path / "corpus", tok, out=f"s3://{bucket}/out", **options)
        place = ObjectPlace(f"s3://{bucket}/out")
        names = {
            path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()
        }
        folders = {str(Path(name).parent).replace(".", "") for name in names}
        listed = {f"{folder}/{name}".lstrip("/") for folder in folders | {"entries"} for name in place.sizes(folder)}
        assert listed == names
        for name in names - {"timing.json"}:
            assert place.read(name) == (tmp_path / "out" / name).read_bytes(), name
        assert [fault for fault in faults.planned if fault[0] in ("PUT", "GET")] == []
        assert summary.shards > 2
        assert summary.dropped
        assert pm.prepare(tmp_path / "corpus", tok, out=f"s3://{bucket}/out", **options).complete_before
        local = pm.open_shards(tmp_path / "out", "train")
        remote = pm.open_shards(f"s3://{bucket}/out", "train", cache=tmp_path / "cache")
        with (
            batches(remote, window=64, order="local", epochs=1) as found,
            batches(local, window=64, order="local", epochs=1) as want,
        ):
            assert_same_batches(found, want)
        remote.close()
        url = f"s3://{bucket}/out"
        timed = {"stats": None}
        assert {**describe(url).facts, **timed} == {**describe(str(tmp_path / "out")).facts, **timed}
        here, there = check_shards(tmp_path / "out"), check_shards(url)
        assert here.sound
        assert there == replace(here, folder=url, files=there.files, bytes=there.bytes)
        name = next(name for name in sorted(names) if name.startswith("val/") and name.endswith(".tokens.npy"))
        place.write(name, place.read(name)[:-1] + b"\x7f")
        place.delete(name.replace(".tokens.", ".ends."))
        place.write("train/other.npy", b"x")
        found = {problem.file: problem.what for problem in check_shards(url).problems}
        assert set(found) == {name, name.replace(".tokens.", ".ends."), "train/other.npy"}
        with pytest.raises(PlanError, match=r"out: an export reads and writes local folders\. Copy the prepared"):
            export(url, out=tmp_path / "rows", plan=ExportPlan())


def test_what_reads_local_folders_only_says_so_of_a_bucket():
    tok, url = small_tokenizer(), "s3://bucket/run"
    for read in (
        lambda: pm.prune(tok, counts=url, vocab_size=257),
        lambda: pm.prune(tok, counts=[url], vocab_size=257),
        lambda: pm.pretrain(url, out="run"),
        lambda: pm.report([url], out="page.html"),
    ):
        with pytest.raises(PlanError, match=r"^s3://bucket/run: .* reads local folders\. Copy the prepared folder"):
            read()
    assert "s3://bucket/run: pretraining reads local folders" in piecemill("pretrain", url).stderr


def test_show_of_a_bucket_without_a_prepared_folder_says_so():
    with pytest.raises(ShardError, match=r"memory://nothing/here has no plan\.json\. Name a folder written by"):
        describe("memory://nothing/here")
    assert [problem.file for problem in check_shards("memory://nothing/here").problems] == ["stats.json"]


@pytest.mark.parametrize("splits", [None, 5, ["all"], {"../x": 1}])
def test_a_plan_in_a_bucket_whose_splits_were_changed_is_reported(splits):
    place = ObjectPlace("memory://changed")
    plan = {"format": 2, "vocab_size": 300, "splits": splits, "bos": None, "eos": None}
    place.write("plan.json", json.dumps(plan).encode())
    place.write("stats.json", render_stats({"checksums": {"plan.json": "0" * 16}}))
    with pytest.raises(ShardError, match=r"plan\.json: "):
        describe(place.url)
    assert {problem.file for problem in check_shards(place.url).problems} == {"plan.json"}
