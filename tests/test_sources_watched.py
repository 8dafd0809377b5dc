"""Sources that change or fail under a run: noticed, waited out or stopped at; never a hole, never a mixture."""

import errno
import io
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import piecemill as pm
import piecemill.sources.tasks
from corpora import small_tokenizer
from piecemill.errors import SourceError
from piecemill.sources import open_source
from piecemill.sources.patience import PatientFile
from piecemill.sources.secrets import full_url, hide, public


class Server:
    """One file on the web, which changes and fails on demand."""

    def __init__(self, content: bytes) -> None:
        self.content, self.etag = content, '"1"'
        self.gets = 0
        self.at_get = {}  # what to do at the n-th GET
        self.paths: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.answer(body=False)

            def do_GET(self):
                server.gets += 1
                self.answer(body=True, fault=server.at_get.get(server.gets, lambda: None)())

            def answer(self, *, body, fault=None):
                server.paths.append(self.path)
                whole = server.content
                found = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                first, last = (int(found[1]), int(found[2] or len(whole) - 1)) if found else (0, len(whole) - 1)
                part = whole[first : last + 1]
                status = fault or (416 if first >= len(whole) else 206 if found else 200)
                part = part if status in (200, 206) else b""
                self.send_response(status)
                if status == 206:
                    self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(whole)}")
                self.send_header("Content-Length", str(len(part)))
                if server.etag:
                    self.send_header("ETag", server.etag)
                self.end_headers()
                if body:
                    self.wfile.write(part)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/a.jsonl"

    def close(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


LINES = b"".join(json.dumps({"text": f"old document {n:05}"}).encode() + b"\n" for n in range(3000))


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setattr(piecemill.sources.tasks, "RANGE_BYTES", 1 << 15)
    server = Server(LINES)
    yield server
    server.close()


def prepare(server: Server, out, **options):
    return pm.prepare(server.url, small_tokenizer(), out=out, threads=1, block_bytes="8KiB", **options)


@pytest.mark.parametrize("etag", ['"1"', ""])
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_url_that_is_cut_during_the_run_is_noticed(server, tmp_path, policy, etag):
    half = LINES[: LINES.rfind(b"\n", 0, len(LINES) // 2) + 1]
    server.etag = etag
    server.at_get[2] = lambda: setattr(server, "content", half)
    with pytest.raises(SourceError, match=r"a\.jsonl: changed under the run: it had .* bytes"):
        prepare(server, tmp_path / "out", on_bad_document=policy)
    assert not (tmp_path / "out" / "stats.json").exists()


def test_other_text_of_the_same_size_is_noticed_by_its_etag_during_the_run_and_after(server, tmp_path):
    def replaced() -> None:
        server.content, server.etag = LINES.replace(b"old", b"new"), '"2"'

    server.at_get[3] = replaced
    with pytest.raises(SourceError, match=r"changed under the run: its ETag"):
        prepare(server, tmp_path / "out")
    with pytest.raises(SourceError, match=r"changed under the run: it was written to since"):
        prepare(server, tmp_path / "out")
    server.content, server.etag = LINES, '"1"'
    assert prepare(server, tmp_path / "out").documents == 3000


def test_a_url_with_another_etag_is_read_again_and_one_that_told_none_is_not(server, tmp_path):
    assert prepare(server, tmp_path / "out").documents == 3000
    server.etag = '"2"'
    assert prepare(server, tmp_path / "out").complete_before
    gets, server.etag = server.gets, ""
    assert prepare(server, tmp_path / "silent").documents == 3000
    per_run, server.etag = server.gets - gets, '"3"'
    gets = server.gets
    assert prepare(server, tmp_path / "silent").complete_before
    assert server.gets - gets < per_run


def test_reading_alone_notices_that_fewer_bytes_come_than_were_listed(server):
    source = open_source(server.url, on_bad_document="skip")
    server.content = LINES[: len(LINES) // 2]
    with pytest.raises(SourceError, match=r"changed under the run: it ended after [0-9,]+ bytes, and had 93,000"):
        list(source.blocks())


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_one_bad_answer_of_a_server_is_waited_out(server, tmp_path, policy):
    server.at_get[2] = lambda: 503
    done = prepare(server, tmp_path / "out", on_bad_document=policy)
    assert (done.documents, done.skipped) == (3000, 0)


def test_a_server_that_keeps_failing_stops_the_run_which_goes_on_later(server, tmp_path):
    for number in range(3, 30):
        server.at_get[number] = lambda: 503
    with pytest.raises(SourceError, match=r"503.*not skipped. Fix the cause and run the same command again"):
        prepare(server, tmp_path / "out", on_bad_document="skip")
    server.at_get.clear()
    done = prepare(server, tmp_path / "out", on_bad_document="skip")
    assert (done.documents, done.skipped, done.resumed) == (3000, 0, True)


class Flaky(io.BytesIO):
    """A file whose n-th read fails."""

    failures: list[int]

    def read(self, size=-1):
        if self.failures and (error := self.failures.pop(0)):
            raise OSError(error, "injected")
        return super().read(size)


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_an_error_of_the_disk_is_no_bad_document(tmp_path, monkeypatch, error):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES * 20)
    failures = [0, error, 0, error]
    monkeypatch.setattr(PatientFile, "_open", lambda file: flaky(path, failures))
    source = open_source(path, on_bad_document="skip")
    assert sum(len(block) for block in source.blocks()) == 60_000
    failures += [0, error, error, error]
    with pytest.raises(SourceError, match=r"a\.jsonl: cannot be read: injected. That says nothing about what is in it"):
        list(source.blocks())


def flaky(path, failures) -> Flaky:
    file = Flaky(path.read_bytes())
    file.failures = failures
    return file


def test_an_open_of_a_table_that_fails_once_loses_no_table(tmp_path, monkeypatch):
    pq.write_table(pa.table({"text": ["x"] * 100}), tmp_path / "a.parquet")
    real, failures = pq.ParquetFile, [errno.EMFILE, 0, errno.ESTALE]

    def opened(*args, **options):
        if failures and (error := failures.pop(0)):
            raise OSError(error, "injected")
        return real(*args, **options)

    monkeypatch.setattr(pq, "ParquetFile", opened)
    source = open_source(tmp_path / "a.parquet", on_bad_document="skip")
    assert sum(len(block) for block in source.blocks()) == 100
    failures += [errno.EIO] * 3
    with pytest.raises(SourceError, match=r"a\.parquet.*: cannot be read: injected. That says nothing"):
        open_source(tmp_path / "a.parquet", on_bad_document="skip")


def test_directories_and_weights_of_a_url_are_those_of_the_tree_on_disk(tmp_path):
    for folder in "abcdefgh":
        (tmp_path / "src" / folder).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "src" / folder / f"{number}.txt").write_text(f"text {folder} {number}")
    url = f"memory://{tmp_path}"
    fsspec.filesystem("memory").put(f"{tmp_path}/src", f"{tmp_path}/src", recursive=True)
    options = {"splits": "train=50,val=50", "split_by": "directory", "weight": ("a/**=3",)}
    tokenizer, found = small_tokenizer(), {}
    for name, source in (
        ("disk", tmp_path / "src"),
        ("url", f"{url}/src/"),
        ("glob", f"{url}/src/**/*.txt"),
    ):
        pm.prepare(source, tokenizer, out=tmp_path / name, **options)
        splits = {split: pm.open_shards(tmp_path / name, split) for split in ("train", "val")}
        found[name] = {
            split: [([*rows[n]], int(rows.shard(0).documents["group"][n])) for n in range(len(rows))]
            for split, rows in splits.items()
        }
    assert found["disk"] == found["url"] == found["glob"]
    assert sum(group for rows in found["url"].values() for _, group in rows) == 3


SECRET_URLS = [
    ("https://me:hunter2@host/a.jsonl", "https://host/a.jsonl"),
    ("https://me:p@ss@host/a.jsonl", "https://host/a.jsonl"),
    ("http://h/a?X-Amz-Signature=S&X-Amz-Date=1&X-Amz-Expires=9&x-id=GetObject", "http://h/a?x-id=GetObject"),
    ("http://h/a?X-Goog-Signature=S&X-Goog-Date=1", "http://h/a"),
    ("http://h/a?sv=2&st=3&se=4&sr=b&sp=r&sig=S", "http://h/a"),
    ("http://h/a?st=3&id=5", "http://h/a?st=3&id=5"),
    ("zip://x.txt::https://me:pw@h/a.zip?token=S", "zip://x.txt::https://h/a.zip"),
    ("sftp://me:pw@h/a", "sftp://h/a"),
    ("abfs://container@account/a", "abfs://container@account/a"),
    ("s3://bucket/a@b?c", "s3://bucket/a@b?c"),
]


@pytest.mark.parametrize(("full", "shown"), SECRET_URLS)
def test_secrets_of_urls_are_split_off_and_found_again(full, shown):
    assert public(full) == shown
    (hidden,), storage = hide([full], {"a": 1})
    assert hidden == shown
    assert full_url(hidden, storage) == full
    assert full_url("http://other/a", storage) == "http://other/a"


def test_files_of_a_folder_have_its_user_info():
    (shown,), storage = hide(["https://me:pw@h:80/folder/"], {})
    assert shown == "https://h:80/folder/"
    assert full_url("https://h:80/folder/a.txt", storage) == "https://me:pw@h:80/folder/a.txt"
    assert full_url("https://h:8080/folder/a.txt", storage) == "https://h:8080/folder/a.txt"


def test_credentials_are_in_no_file_and_no_message_and_a_renewed_signature_is_the_same_file(server, tmp_path):
    def signed(secret: str) -> str:
        return server.url.replace("//", "//me:hunter2@") + f"?id=5&X-Amz-Signature={secret}&X-Amz-Date={secret}"

    tokenizer, out = small_tokenizer(), tmp_path / "out"
    for number in range(3, 30):
        server.at_get[number] = lambda: 503
    with pytest.raises(SourceError) as stopped:
        pm.prepare(signed("SECRETSIG1"), tokenizer, out=out, threads=1)
    server.at_get.clear()
    done = pm.prepare(signed("SECRETSIG2"), tokenizer, out=out, threads=1)
    assert (done.documents, done.resumed) == (3000, True)
    assert any("SECRETSIG2" in path for path in server.paths)
    stored = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    for said in (str(stopped.value).encode(), stored):
        assert b"SECRETSIG" not in said
        assert b"hunter2" not in said
    assert f"{server.url}?id=5" in json.loads((out / "files.jsonl").read_text())["path"]
