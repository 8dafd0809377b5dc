"""Everything that can end a run badly, followed by the same command again: the folder is as if nothing had happened."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path

import pytest

from corpora import content, entries, failing_after, small_tokenizer, split_texts, texts, write_jsonl
from piecemill import prepare
from piecemill.errors import ShardError, SourceError
from piecemill.files import LocalPlace
from piecemill.tokenizers import Tokenizer

SMALL = {"block_bytes": "4KiB", "piece_bytes": "8KiB"}
KILLER = Path(__file__).with_name("killer.py")


@pytest.fixture(scope="module")
def tok() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus", 8, 80)


def write_corpus(folder: Path, parts: int, files: int) -> Path:
    for number in range(parts):
        write_jsonl(folder / f"part{number}.jsonl", texts(60, seed=number))
    for number, text in enumerate(texts(files, seed=99)):
        path = folder / f"tree/{number % 5}/{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def kill(tmp_path: Path, tok: Tokenizer, corpus: Path, options: dict, **spec: object) -> dict:
    tok.save(tmp_path / "tok", force=True)
    # In memory where there is such a folder: to a killed process, what it wrote is written, synced or not.
    memory = Path("/dev/shm")
    work = Path(tempfile.mkdtemp(prefix="piecemill-kill-", dir=memory if os.access(memory, os.W_OK) else tmp_path))
    spec = {
        "sources": [str(corpus)],
        "tokenizer": str(tmp_path / "tok"),
        "work": str(work),
        "options": options,
        "seed": 1,
        **spec,
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, str(KILLER), str(tmp_path / "spec.json")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=3_000, check=False)
    finally:
        shutil.rmtree(work)
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    return json.loads(done.stdout)


@pytest.mark.long
def test_killed_at_any_mark_on_disk_a_run_goes_on_to_the_same_bytes(tok, tmp_path):
    corpus = write_corpus(tmp_path / "corpus", 2, 10)  # the fewer marks, the larger the share that is killed at
    options = {**SMALL, "splits": "train=80,val=20", "dedup": "exact"}
    report = kill(tmp_path, tok, corpus, options, points=64, random=8)
    assert report["wrong"] == []
    assert report["marks"] > 200
    assert report["killed"] >= 64


def limited(corpus: Path, tokenizer: Path, out: Path, file_bytes: int) -> subprocess.CompletedProcess[str]:
    """A run that may write files of at most so many bytes: to it, the disk is full there."""
    code = (
        "import resource, sys; from pathlib import Path; from piecemill.__main__ import main\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({file_bytes}, resource.RLIM_INFINITY))\n"
        "sys.argv = ['piecemill', *sys.argv[1:]]; main()"
    )
    args = ["prepare", corpus, "--tokenizer", tokenizer, "--out", out, "--quiet", "--threads", "1"]
    args += ["--block-bytes", SMALL["block_bytes"], "--piece-bytes", SMALL["piece_bytes"]]
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_a_full_disk_is_an_error_and_with_room_the_run_goes_on(tok, corpus, tmp_path):
    tok.save(tmp_path / "tok")
    write_jsonl(corpus / "z.jsonl", ["\n".join(texts(1000))])  # its ids take more than 60 kB; those of others do not
    full = limited(corpus, tmp_path / "tok", tmp_path / "out", 60_000)
    assert full.returncode == 1
    assert "run the same command again to go on" in full.stderr
    assert len(entries(tmp_path / "out")) > 0
    room = limited(corpus, tmp_path / "tok", tmp_path / "out", resource.RLIM_INFINITY)
    assert room.returncode == 0, room.stderr
    prepare([corpus], tok, out=tmp_path / "whole", **SMALL)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("how", ["shrinks", "changes"])
def test_a_source_file_that_changes_under_the_run_stops_it(tok, corpus, tmp_path, how, monkeypatch):
    path, real = corpus / "part5.jsonl", os.replace
    whole, times = path.read_bytes(), path.stat()

    def replace(source, target):
        if str(target).endswith("000003-0000.json"):  # an entry of a task before that of the file
            path.write_bytes(whole[: len(whole) // 2] if how == "shrinks" else whole.replace(b"the", b"THE"))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(SourceError, match=r"part5\.jsonl: changed under the run"):
        prepare([corpus], tok, out=tmp_path / "out", threads=1, **SMALL)
    assert path.stat().st_mtime_ns != times.st_mtime_ns
    monkeypatch.undo()
    if how == "shrinks":
        with pytest.raises(SourceError, match=r"part5\.jsonl: changed under the run"):
            prepare([corpus], tok, out=tmp_path / "out", **SMALL)
        path.write_bytes(whole)
    # Nothing was prepared of that file before it changed, so the folder is that of the files as they are now.
    prepare([corpus], tok, out=tmp_path / "out", **SMALL)
    prepare([corpus], tok, out=tmp_path / "whole", **SMALL)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("error", [RuntimeError("worker died"), MemoryError()])
def test_a_worker_that_dies_ends_the_run_and_the_next_run_goes_on(tok, corpus, tmp_path, monkeypatch, error):
    real, calls = Tokenizer.encode_flat, count()  # `next` is atomic; three workers call

    def encode(self, data, ends, **more):
        if next(calls) == 11:
            raise error
        return real(self, data, ends, **more)

    monkeypatch.setattr(Tokenizer, "encode_flat", encode)
    with pytest.raises(type(error)):
        prepare([corpus], tok, out=tmp_path / "out", threads=3, **SMALL)
    monkeypatch.undo()
    # Each of three workers can lose the piece it was in, of three blocks at most.
    assert sum(len(entry["shards"]) for entry in entries(tmp_path / "out")) >= 1
    assert prepare([corpus], tok, out=tmp_path / "out", **SMALL).resumed
    prepare([corpus], tok, out=tmp_path / "whole", **SMALL)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_an_error_of_the_disk_names_the_file_and_the_run_goes_on(tok, corpus, tmp_path):
    with (
        failing_after(3, OSError(5, "Input/output error", "a.npy")),
        pytest.raises(ShardError, match=r"a\.npy: Input/output error.*run the same command again"),
    ):
        prepare([corpus], tok, out=tmp_path / "out", **SMALL)
    assert len(entries(tmp_path / "out")) == 3
    prepare([corpus], tok, out=tmp_path / "out", **SMALL)
    prepare([corpus], tok, out=tmp_path / "whole", **SMALL)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.fixture
def broken(corpus: Path) -> Path:
    """Line 31 of file 7 is no JSON."""
    path = corpus / "part6.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[30] = '{"text": "cut off\n'
    path.write_text("".join(lines))
    return corpus


def test_broken_json_in_file_7_stops_with_its_place_and_can_be_mended(tok, broken, tmp_path):
    for _ in range(2):  # the second run comes to the same place
        with pytest.raises(SourceError, match=r"part6\.jsonl:31: broken JSON.*on_bad_document='skip'"):
            prepare([broken], tok, out=tmp_path / "out", **SMALL)
    assert not (tmp_path / "out/stats.json").exists()


def test_broken_json_in_file_7_is_skipped_counted_and_named_when_asked(tok, broken, tmp_path):
    options = {**SMALL, "on_bad_document": "skip"}
    summary = prepare([broken], tok, out=tmp_path / "out", **options)
    assert summary.skipped == 1
    name, reason = summary.skipped_documents[0]
    assert name.endswith("part6.jsonl:31")
    assert "broken JSON" in reason
    assert summary.documents == 8 * 60 + 80 - 1
    assert texts(60, seed=6)[30] not in set(split_texts(tmp_path / "out", "all", tok)) - set(texts(60, seed=6)[:30])
    tok.save(tmp_path / "tok")
    report = kill(tmp_path, tok, broken, options, points=6, random=0)
    assert report["wrong"] == []


@pytest.mark.parametrize("damage", ["cut", "gone", "entry"])
def test_a_shard_or_entry_that_was_damaged_between_runs_is_made_again(tok, corpus, tmp_path, damage):
    from test_prepare import stop_halfway

    out = stop_halfway([corpus], tok, tmp_path / "out", **SMALL)
    path = sorted((out / ("entries" if damage == "entry" else "all")).iterdir())[4]
    if damage == "gone":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 2)
    assert prepare([corpus], tok, out=out, **SMALL).resumed
    prepare([corpus], tok, out=tmp_path / "whole", **SMALL)
    assert content(out) == content(tmp_path / "whole")


def test_what_a_killed_run_left_unfinished_is_deleted(tok, corpus, tmp_path):
    from test_prepare import stop_halfway

    out = stop_halfway([corpus], tok, tmp_path / "out", **SMALL)
    (out / ".scratch/000003-0000.tokens.npy.1-aa").write_bytes(b"half")
    prepare([corpus], tok, out=out, **SMALL)
    assert not (out / ".scratch").exists()


@pytest.mark.skipif("PIECEMILL_SOAK" not in os.environ, reason="long: make soak")
@pytest.mark.parametrize("seed", range(int(os.environ.get("PIECEMILL_SOAK", "0") or 0)))
def test_soak(tok, corpus, tmp_path, seed):
    options = {**SMALL, "splits": "train=80,val=15,test=5", "dedup": "exact", "seed": seed}
    points = int(os.environ.get("PIECEMILL_SOAK_POINTS") or 500)
    places = {"points": points - points // 5, "random": points // 5}
    report = kill(tmp_path, tok, corpus, options, **places, seed=seed, shuffle=True)
    assert report["wrong"] == []


@pytest.mark.parametrize("missing", [0, 1, -1])
def test_a_list_of_entries_that_is_not_complete_is_an_error_and_no_folder_without_their_documents(
    tok, tmp_path, monkeypatch, missing
):
    documents = [f"document {number} of the corpus" for number in range(200)]
    options = {"piece_bytes": "1KiB", "block_bytes": "1KiB"}
    prepare(documents, tok, out=tmp_path / "whole", **options)
    sizes = LocalPlace.sizes

    def stale(self, folder=""):
        found = sizes(self, folder)
        if folder == "entries" and len(found) > 2:
            del found[sorted(name for name in found if name.endswith(".json"))[missing]]
        return found

    with monkeypatch.context() as patch:
        patch.setattr(LocalPlace, "sizes", stale)
        with pytest.raises(ShardError, match=r"not all entries of task 0 are listed\. Run the same command again"):
            prepare(documents, tok, out=tmp_path / "out", **options)
    assert not (tmp_path / "out" / "stats.json").exists()
    prepare(documents, tok, out=tmp_path / "out", **options)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
