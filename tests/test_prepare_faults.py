"""Everything that can end a run badly, followed by the same command again: the folder is as if nothing had happened."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from corpora import content, journal, small_tokenizer, split_texts, texts, write_jsonl
from piecemill import prepare
from piecemill.errors import ShardError, SourceError
from piecemill.preparing import encoding
from piecemill.tokenizers import Tokenizer

SMALL = {"block_bytes": "8KiB", "shard_tokens": 6_000}
KILLER = Path(__file__).with_name("killer.py")


@pytest.fixture(scope="module")
def tok() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    for number in range(8):
        write_jsonl(folder / f"part{number}.jsonl", texts(60, seed=number))
    for number, text in enumerate(texts(80, seed=99)):
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


def test_killed_at_any_mark_on_disk_a_run_goes_on_to_the_same_bytes(tok, corpus, tmp_path):
    options = {**SMALL, "splits": "train=80,val=20", "dedup": "exact"}
    report = kill(tmp_path, tok, corpus, options, points=48, random=8)
    assert report["wrong"] == []
    assert report["marks"] > 100
    assert report["killed"] >= 48


def limited(corpus: Path, tokenizer: Path, out: Path, file_bytes: int) -> subprocess.CompletedProcess[str]:
    """A run that may write files of at most so many bytes: to it, the disk is full there."""
    code = (
        "import resource, sys; from pathlib import Path; from piecemill.__main__ import main\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({file_bytes}, resource.RLIM_INFINITY))\n"
        "sys.argv = ['piecemill', *sys.argv[1:]]; main()"
    )
    args = ["prepare", corpus, "--tokenizer", tokenizer, "--out", out, "--block-bytes", "8KiB", "--quiet"]
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_full_disk_is_an_error_and_with_room_the_run_goes_on(tok, corpus, tmp_path):
    tok.save(tmp_path / "tok")
    full = limited(corpus, tmp_path / "tok", tmp_path / "out", 60_000)
    assert full.returncode == 1
    assert "run the same command again to go on" in full.stderr
    assert (tmp_path / "out/.journal.jsonl").stat().st_size > 0
    room = limited(corpus, tmp_path / "tok", tmp_path / "out", resource.RLIM_INFINITY)
    assert room.returncode == 0, room.stderr
    prepare([corpus], tok, out=tmp_path / "whole", block_bytes="8KiB")
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("how", ["shrinks", "changes"])
def test_a_source_file_that_changes_under_the_run_stops_it(tok, corpus, tmp_path, how, monkeypatch):
    from piecemill.preparing.commit import Commits

    path, real = corpus / "part5.jsonl", Commits.commit
    whole, times = path.read_bytes(), path.stat()

    def commit(self, item):
        if self.totals.blocks == 3 and path.stat().st_mtime_ns == times.st_mtime_ns:
            path.write_bytes(whole[: len(whole) // 2] if how == "shrinks" else whole.replace(b"the", b"THE"))
        real(self, item)

    monkeypatch.setattr(Commits, "commit", commit)
    # One worker and small blocks: the reader cannot be at file 5 when the third block is written.
    with pytest.raises(SourceError, match=r"part5\.jsonl: changed under the run"):
        prepare([corpus], tok, out=tmp_path / "out", workers=1, **SMALL)
    assert path.stat().st_mtime_ns != times.st_mtime_ns
    monkeypatch.undo()
    with pytest.raises(Exception, match=r"part5\.jsonl: changed under the run|source\.bytes"):
        prepare([corpus], tok, out=tmp_path / "out", **SMALL)
    path.write_bytes(whole)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    prepare([corpus], tok, out=tmp_path / "out", **SMALL)
    prepare([corpus], tok, out=tmp_path / "whole", **SMALL)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("error", [RuntimeError("worker died"), MemoryError()])
def test_a_worker_that_dies_ends_the_run_and_the_next_run_goes_on(tok, corpus, tmp_path, monkeypatch, error):
    real, count = encoding.Encoder.encode, 0

    def encode(self, data, ends):
        nonlocal count
        count += 1
        if count == 12:
            raise error
        return real(self, data, ends)

    monkeypatch.setattr(encoding.Encoder, "encode", encode)
    with pytest.raises(type(error)):
        prepare([corpus], tok, out=tmp_path / "out", workers=3, **SMALL)
    monkeypatch.undo()
    lines = journal(tmp_path / "out")
    # The twelfth call began, so no more than two of the eleven before it were not committed: a block per worker.
    assert sum("block" in line for line in lines) >= 12 - 1 - 2
    assert prepare([corpus], tok, out=tmp_path / "out", **SMALL).resumed
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
        with pytest.raises(SourceError, match=r"part6\.jsonl:31: broken JSON.*--on-bad-document skip"):
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


def test_pages_that_a_power_loss_took_are_written_again(tok, corpus, tmp_path):
    # The journal speaks of blocks whose pages never reached the disk: the run goes on from the last that is there.
    from test_prepare import stop_halfway

    out = stop_halfway([corpus], tok, tmp_path / "out", **SMALL)
    lines = (out / ".journal.jsonl").read_bytes().splitlines(keepends=True)
    parts = sorted((out / "all").glob(".*.tokens.npy.part"))
    assert len(parts) == 1
    os.truncate(parts[0], parts[0].stat().st_size - 1)  # a byte of the last block
    (out / ".journal.jsonl").write_bytes(b"".join(lines) + b"\0" * 512)  # and a torn tail
    assert prepare([corpus], tok, out=out, **SMALL).resumed
    prepare([corpus], tok, out=tmp_path / "whole", **SMALL)
    assert content(out) == content(tmp_path / "whole")


def test_a_line_of_the_journal_that_was_altered_ends_what_counts(tok, corpus, tmp_path):
    from test_prepare import stop_halfway

    out = stop_halfway([corpus], tok, tmp_path / "out", **SMALL)
    lines = (out / ".journal.jsonl").read_bytes().splitlines(keepends=True)
    lines[4] = lines[4].replace(b'"documents":', b'"documents":1', 1)
    (out / ".journal.jsonl").write_bytes(b"".join(lines))
    prepare([corpus], tok, out=out, **SMALL)
    prepare([corpus], tok, out=tmp_path / "whole", **SMALL)
    assert content(out) == content(tmp_path / "whole")


def test_a_finished_shard_that_was_damaged_between_runs_is_not_built_upon(tok, corpus, tmp_path):
    from test_prepare import stop_halfway

    out = stop_halfway([corpus], tok, tmp_path / "out", **SMALL)
    finished = sorted((out / "all").glob("0*.tokens.npy"))
    assert finished
    os.truncate(finished[0], finished[0].stat().st_size - 2)
    try:
        prepare([corpus], tok, out=out, **SMALL)
    except ShardError:
        return  # said so
    prepare([corpus], tok, out=tmp_path / "whole", **SMALL)
    assert content(out) == content(tmp_path / "whole")  # or made it again from an earlier block


@pytest.mark.skipif("PIECEMILL_SOAK" not in os.environ, reason="long: make soak")
@pytest.mark.parametrize("seed", range(int(os.environ.get("PIECEMILL_SOAK", "0") or 0)))
def test_soak(tok, corpus, tmp_path, seed):
    options = {**SMALL, "splits": "train=80,val=15,test=5", "dedup": "exact", "seed": seed}
    points = int(os.environ.get("PIECEMILL_SOAK_POINTS") or 500)
    places = {"points": points - points // 5, "random": points // 5}
    report = kill(tmp_path, tok, corpus, options, **places, seed=seed, shuffle=True)
    assert report["wrong"] == []
