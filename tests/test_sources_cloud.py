"""Sources behind URLs: the same documents as the same tree on disk, and errors that name the URL."""

import gzip
import json
import pickle
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import zstandard

import piecemill.sources.tasks
from command import piecemill as command
from corpora import small_tokenizer
from piecemill.errors import SourceError
from piecemill.sources import Source, Tally, open_source, read_task
from piecemill.sources.remote import Url, is_url, spelled_out, url_parts
from piecemill.sources.tasks import kind_of

WAY_OUT = "Correct or exclude it, or pass on_bad_document='skip' to go on without it."


class Handler(SimpleHTTPRequestHandler):
    """A folder on the web: with ranges, which the standard library does not have, and failures on demand."""

    asked: list[tuple[str, str | None]]
    failing: set[str]
    ranges = True

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.asked.append((self.path, wanted))
        if self.path in self.failing:
            return self.send_error(500)
        path = Path(self.translate_path(self.path))
        if not wanted or not path.is_file() or not self.ranges:
            return super().do_GET()
        whole = path.read_bytes()
        first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted).groups()
        part = whole[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(whole)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def do_HEAD(self):
        return self.send_error(500) if self.path in self.failing else super().do_HEAD()

    def log_message(self, *args):
        pass


@pytest.fixture
def web(tmp_path) -> Iterator[tuple[str, type[Handler]]]:
    """The address under which `tmp_path` is served, and the handler with what it was asked."""
    handler = type("Served", (Handler,), {"asked": [], "failing": set()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: handler(*args, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    yield fs
    fs.store.clear()


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def tree(folder: Path) -> Path:
    """Every format and every rule in a few files."""
    rows = [{"text": f"row {n} é " + "x" * (n % 50)} for n in range(300)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    write(folder, {"a.txt": "3", "a/z": "2", "a/B.md": "1", "b.bin": b"\x00\x01", "c": "", "bom.txt": "\ufeffmark"})
    write(folder, {".env": "x", ".git/config": "x", "a/.hidden/deep/x": "x", "big": "x" * 5000})
    write(folder, {".gitignore": "*.log\n/build/\n", "a.log": "x", "build/x.py": "x", "a/build/x.py": "kept"})
    write(folder, {"l.jsonl": lines, "m.jsonl.gz": gzip.compress(lines), "z.txt.gz": gzip.compress(b"zip")})
    write(folder, {"n.ndjson.zst": zstandard.ZstdCompressor().compress(lines)})
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, folder / "p.parquet", row_group_size=100)
    with pa.OSFile(str(folder / "q.arrow"), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    with pa.OSFile(str(folder / "r.arrow"), "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    return folder


def contents(source: Source, folder: str) -> list[tuple[object, ...]]:
    """All that a source gives, with names relative to the folder."""
    blocks = [block for task in source.tasks for block in source.read(task)]
    return [
        (
            block.id,
            block.data.tobytes(),
            block.ends.tolist(),
            block.places.tolist(),
            [block.name(i).removeprefix(folder) for i in range(len(block))],
            block.tally,
        )
        for block in blocks
    ]


def texts(source: Source) -> list[str]:
    return [block.text(i) for block in source.blocks() for i in range(len(block))]


def stops_at(source: object, **options) -> str:
    with pytest.raises(SourceError) as caught:
        for _ in open_source(source, **options).blocks():
            pass
    return str(caught.value)


# The same documents


@pytest.mark.parametrize("options", [{}, {"hidden": True, "gitignore": False}, {"include": ["*.jsonl*", "a/"]}])
def test_a_tree_gives_the_same_blocks_from_disk_from_memory_and_from_the_web(
    tmp_path, web, memory, monkeypatch, options
):
    monkeypatch.setattr(piecemill.sources.tasks, "RANGE_BYTES", 1000)
    folder = tree(tmp_path / "corpus")
    memory.put(str(folder), "/bucket/corpus", recursive=True)
    address, _ = web
    rules = {"block_bytes": 500, "max_file_bytes": 4000, **options}
    local = open_source(folder, **rules)
    want = contents(local, f"{folder}/")
    assert len(want) > 20
    for url in ("memory://bucket/corpus", "memory://bucket/corpus/", f"{address}/corpus/", f"{address}/corpus"):
        source = open_source(url, **rules)
        assert contents(source, f"{url.rstrip('/')}/") == want
        assert (source.found, source.total_bytes) == (local.found, local.total_bytes)


@pytest.mark.parametrize("pattern", ["*.txt", "**/*", "a/*", "a*", "**/*.{md,txt}", "*.jsonl*", "[lm].jsonl*"])
def test_a_glob_gives_the_same_as_on_disk(tmp_path, web, memory, pattern):
    folder = tree(tmp_path / "corpus")
    memory.put(str(folder), "/bucket/corpus", recursive=True)
    address, _ = web
    # A glob over URLs sees no .gitignore: looking for one would be a request for each folder.
    want = contents(open_source(f"{folder}/{pattern}", gitignore=False), f"{folder}/")
    for url in ("memory://bucket/corpus/", f"{address}/corpus/"):
        assert contents(open_source(f"{url}{pattern}", gitignore=False), url) == want


def test_urls_and_paths_mix_and_a_file_that_is_reached_twice_is_read_once(tmp_path, memory):
    write(tmp_path, {"here.txt": "local"})
    memory.pipe({"/b/one.txt": b"1", "/b/two.txt": b"2"})
    source = open_source(["memory://b/two.txt", str(tmp_path / "here.txt"), "memory:///b", "memory://b/one.txt"])
    assert texts(source) == ["2", "local", "1"]
    assert source.left_out["repeated"] == 2
    assert texts(open_source(["memory://b/one.txt", "memory://b/two.txt"])) == ["1", "2"]


def test_a_list_of_urls_with_spaces_is_not_taken_for_texts(memory):
    memory.pipe({"/b/my corpus/a.jsonl": b'{"text":"line"}', "/b/my corpus/b": b"text"})
    assert texts(open_source(["memory://b/my corpus/a.jsonl"])) == ["line"]
    assert texts(open_source(["memory://b/my corpus/b", "memory://b/my corpus/a.jsonl"])) == ["text", "line"]
    assert "memory://b/no such/a: no file matched" in stops_at(["memory://b/no such/a"])
    # A text may begin with a web address, or with any URL if there are other texts beside it.
    for documents in (["https://a.b/c was down? *", "http://d e"], ["memory://b/my corpus/b is a text", "as this is"]):
        assert texts(open_source(documents)) == documents
    assert texts(open_source([Url("memory://b/my corpus/b")])) == ["text"]


@pytest.mark.parametrize("scheme", ["file", "http"])
def test_a_url_on_the_command_line_is_never_a_text(tmp_path, web, scheme):
    write(tmp_path, {"my corpus/a.jsonl": '{"text":"a line of text"}\n' * 3})
    small_tokenizer().save(tmp_path / "tok")
    root = web[0] if scheme == "http" else f"file://{tmp_path}"
    for verb, *options in (["train", "--vocab-size", 260], ["prepare", "--tokenizer", tmp_path / "tok"]):
        for name, code in (("a.jsonl", 0), ("b.jsonl", 1)):
            url = f"{root}/my corpus/{name}"
            done = command(verb, url, *options, "--out", tmp_path / f"{verb}-{name}", "--json", "--quiet")
            assert done.returncode == code, done.stderr
            if code:
                assert f"{url}: no file matched (a URL)" in done.stderr
            else:
                told = json.loads(done.stdout)
                assert told.get("corpus", told)["documents"] == 3


def test_a_file_that_was_named_is_never_left_out(memory):
    memory.pipe({"/b/.hidden[1].txt": b"a long text"})
    assert texts(open_source("memory://b/.hidden[1].txt", exclude=["*"], max_file_bytes=1)) == ["a long text"]


def test_a_chained_url_keeps_its_chain(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/one.jsonl", '{"text":"1"}')
        archive.writestr("in/two.txt", "2")
    url = f"zip://in::file://{tmp_path}/a.zip"
    (one, two) = open_source(url).blocks()
    assert (one.name(0), one.text(0)) == (f"zip://in/one.jsonl::file://{tmp_path}/a.zip@0", "1")
    assert (two.name(0), two.text(0)) == (f"zip://in/two.txt::file://{tmp_path}/a.zip", "2")
    assert texts(open_source(f"zip://in/*.txt::file://{tmp_path}/a.zip")) == ["2"]


def test_tasks_can_be_pickled_and_read_in_another_process(tmp_path, web, monkeypatch):
    monkeypatch.setattr(piecemill.sources.tasks, "RANGE_BYTES", 1000)
    tree(tmp_path / "corpus")
    source = open_source(f"{web[0]}/corpus/", block_bytes=500, max_file_bytes=4000)
    want = [(block.id, block.data.tobytes()) for block in source.blocks()]
    code = (
        "import pickle, sys; from piecemill.sources import read_task; tasks, reading = pickle.load(sys.stdin.buffer); "
        "out = [(tuple(b.id), b.data.tobytes()) for t in tasks for b in read_task(t, reading)]; "
        "pickle.dump(out, sys.stdout.buffer)"
    )
    given = pickle.dumps((source.tasks, source.reading))
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=True)
    assert pickle.loads(done.stdout) == want


def test_a_range_of_json_lines_is_asked_for_as_a_range(tmp_path, web, monkeypatch):
    lines = [json.dumps({"text": f"{n:06} " + "x" * 1000}) for n in range(20_000)]
    write(tmp_path, {"a.jsonl": "\n".join(lines)})
    monkeypatch.setattr(piecemill.sources.tasks, "RANGE_BYTES", 8_000_000)
    address, handler = web
    source = open_source(f"{address}/a.jsonl")
    assert len(source.tasks) == 3
    handler.asked.clear()
    (*_, last) = read_task(source.tasks[2], source.reading)
    assert last.text(-1).startswith("019999 ")
    starts = [int(wanted.removeprefix("bytes=").partition("-")[0]) for _, wanted in handler.asked]
    assert min(starts) == 16_000_000 - 1
    assert sum(1 for _ in handler.asked) <= 3


def test_a_server_without_ranges_is_read_from_the_start(tmp_path, web, monkeypatch):
    lines = [json.dumps({"text": f"{n:06} " + "x" * 1000}) for n in range(14_000)]
    write(tmp_path, {"a.jsonl": "\n".join(lines)})
    monkeypatch.setattr(piecemill.sources.tasks, "RANGE_BYTES", 10_000_000)
    address, handler = web
    monkeypatch.setattr(handler, "ranges", False)
    source = open_source(f"{address}/a.jsonl")
    assert len(source.tasks) == 2
    assert [text[:6] for text in texts(source)] == [f"{n:06}" for n in range(14_000)]


def test_readers_of_one_file_in_memory_do_not_move_each_other(memory, monkeypatch):
    monkeypatch.setattr(piecemill.sources.tasks, "RANGE_BYTES", 1000)
    memory.pipe("/a.jsonl", b"".join(b'{"text":"%04d"}\n' % n for n in range(1000)))
    source = open_source("memory://a.jsonl", block_bytes=16)
    readers = [source.read(task) for task in source.tasks[:2]]
    first, second = ([next(reader).text(0) for _ in range(3)] for reader in readers)
    assert [next(readers[0]).text(0), next(readers[1]).text(0)] == [
        f"{int(first[0]) + 12:04}",
        f"{int(second[0]) + 12:04}",
    ]


def test_a_server_may_know_a_folder_by_its_slash_alone(tmp_path, web, monkeypatch):
    write(tmp_path, {"corpus/a.txt": "a", "corpus/in/b.txt": "b", "corpus/in/deep/c.txt": "c"})
    address, handler = web
    sent = handler.send_head

    def send_head(self):
        slash = self.path.endswith("/") or not Path(self.translate_path(self.path)).is_dir()
        return sent(self) if slash else self.send_error(404)

    monkeypatch.setattr(handler, "send_head", send_head)
    for url in ("corpus/", "corpus/**", "corpus/**/*.txt"):
        assert texts(open_source(f"{address}/{url}")) == ["a", "b", "c"]


def test_the_query_of_a_web_address_is_no_ending_and_no_wildcard(tmp_path, web):
    write(tmp_path, {"a.jsonl": '{"text":"line"}'})
    assert texts(open_source(f"{web[0]}/a.jsonl?download=true")) == ["line"]
    assert kind_of("https://host/a.parquet?x=a.jsonl")[0] == "parquet"
    assert kind_of("s3://bucket/a?.jsonl")[0] == "jsonl"


def test_options_reach_the_file_system_and_are_not_shown():
    options = {"headers": {"Authorization": "Bearer secret-key"}}
    fs_options = open_source(["some text"], storage_options=options).reading
    assert fs_options.storage == options
    assert "secret" not in repr(fs_options)


def test_local_files_do_not_import_fsspec(tmp_path):
    write(tmp_path, {"a.py": "1", "b.jsonl": '{"text":"2"}'})
    code = (
        "import sys; from piecemill.sources import open_source; "
        f"print(sum(len(b) for b in open_source({str(tmp_path)!r}).blocks()), 'fsspec' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["2", "False"]


def test_what_a_url_is():
    assert all(map(is_url, ["s3://b/k", "hf://datasets/x", "simplecache::s3://b/k", "zip://a::s3://b", "memory://"]))
    assert not any(map(is_url, ["corpus/", "c://x", "a::b", "s3:/b/k", "://x", "what? see http://x", "/a://b"]))
    assert url_parts("simplecache::zip://a/*::s3://b") == ("simplecache::zip://", "a/*", "::s3://b")
    assert spelled_out("{a,b}/*.{c,d}") == ["a/*.c", "a/*.d", "b/*.c", "b/*.d"]


# What goes wrong


def test_a_missing_file_folder_or_bucket_is_no_match(tmp_path, web, memory):
    write(tmp_path, {"there/a.txt": "x"})
    memory.pipe("/there/.hidden", b"x")
    for url in ("memory://nowhere", "memory://nowhere/a.jsonl", f"{web[0]}/nowhere", f"{web[0]}/nowhere/a.jsonl"):
        expected = "Expected an existing file or folder, or a glob such as 's3://bucket/corpus/**/*.txt'."
        assert stops_at(url) == f"{url}: no file matched (a URL). {expected}"
    for url in ("memory://nowhere/*.txt", "memory://there/*.md", f"{web[0]}/there/*.md", f"{web[0]}/nowhere/**"):
        assert stops_at(url).startswith(f"{url}: no file matched (a glob).")
    assert "Left out: 1 hidden. To read them, pass hidden=True" in stops_at("memory://there")
    assert "memory://b: no file matched" in stops_at(["memory://b", "memory://there"])


def test_a_path_made_of_a_url_says_what_to_do():
    assert "A URL must be a string: a Path drops one of its slashes." in stops_at(Path("s3://bucket/a.txt"))


@pytest.mark.parametrize(("ending", "kind"), [("gz", "gzip"), ("zst", "zstd")])
def test_a_truncated_stream_is_named_by_its_url(memory, ending, kind):
    whole = b'{"text":"one"}\n{"text":"two"}\n' * 100
    packed = gzip.compress(whole) if ending == "gz" else zstandard.ZstdCompressor().compress(whole)
    memory.pipe(f"/a.jsonl.{ending}", packed[:-6])
    url = f"memory://a.jsonl.{ending}"
    reason = f"truncated {kind}: the file ends at byte {len(packed) - 6}, inside the packed stream"
    assert re.fullmatch(rf"{url}:\d+: {reason}\. {WAY_OUT}", stops_at(url))


def test_bad_documents_are_named_as_on_disk(memory, monkeypatch):
    monkeypatch.setattr(piecemill.sources.tasks, "RANGE_BYTES", 64)
    good = b'{"text":"a good line"}\n'
    memory.pipe(
        {"/a.jsonl": good * 20 + b"{}\n" + good, "/b.txt": b"\xef\xbb\xbfcaf\xe9", "/c": b"\0", "/d.parquet": b"x"}
    )
    assert stops_at("memory://a.jsonl") == (
        f'memory://a.jsonl:21: no field "text" (option field names the one that holds the text). {WAY_OUT}'
    )
    assert stops_at("memory://b.txt") == f"memory://b.txt: invalid UTF-8 at byte 6 (found 0xe9). {WAY_OUT}"
    assert stops_at("memory://c").startswith(
        "memory://c: binary file (a NUL byte near its start), expected UTF-8 text (or bytes=True); a text in UTF-16"
    )
    assert stops_at("memory://d.parquet").startswith("memory://d.parquet: not a readable Parquet file: ")
    source = open_source("memory://", on_bad_document="skip")
    tally = sum((block.tally for block in source.blocks()), source.found)
    assert (tally.documents, tally.skipped_count, tally.left_out["binary"]) == (21, 3, 1)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.arrow"])
def test_a_file_that_vanishes_is_named(memory, name):
    for policy in ("stop", "skip"):
        memory.pipe(f"/{name}", b"x")
        source = open_source(f"memory://{name}", on_bad_document=policy)
        memory.rm(f"/{name}")
        if policy == "stop":
            with pytest.raises(SourceError, match=rf"^memory://{name}.*: cannot be read.*No such file"):
                list(source.read(source.tasks[0]))
        else:
            (block,) = source.read(source.tasks[0])
            assert (len(block), block.tally.skipped_count) == (0, 1)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.parquet"])
def test_a_server_that_fails_is_an_error_with_its_answer(tmp_path, web, name):
    pq.write_table(pa.table({"text": ["x"] * 10}), tmp_path / "a.parquet")
    write(tmp_path, {"a.txt": "x", "a.jsonl": '{"text":"x"}', "a.txt.gz": gzip.compress(b"x")})
    address, handler = web
    url = f"{address}/{name}"
    source = open_source(url)
    skipping = open_source(url, on_bad_document="skip")
    handler.failing.add(f"/{name}")
    for opened in (source, skipping):  # a server that fails says nothing about the content
        with pytest.raises(SourceError, match=rf"^{url}.*: cannot be read.*500.*Internal Server Error"):
            list(opened.read(opened.tasks[0]))
    assert re.match(rf"{url}: cannot be read: .*500", stops_at(url))  # while looking for it, too


def test_a_server_that_is_not_there_is_an_error():
    assert re.match(r"http://127.0.0.1:1/a.txt: cannot be read: .*Connect call", stops_at("http://127.0.0.1:1/a.txt"))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    assert "s3://bucket/a.txt: a package for this kind of URL is missing: " in stops_at("s3://bucket/a.txt")
    assert "Install s3fs" in stops_at("s3://bucket/a.txt")
    assert stops_at("nosuch://a").startswith("nosuch://a: Protocol not known: nosuch. Expected a scheme")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    assert stops_at("memory://a") == (
        "memory://a: reading a URL needs fsspec, which is not installed. Install it: pip install 'piecemill[cloud]'."
    )


def test_an_unknown_size_is_read_all_the_same(tmp_path, web, monkeypatch):
    write(tmp_path, {"a.jsonl": '{"text":"one"}\n{"text":"two"}'})
    np.save(tmp_path / "large.npy", np.arange(200_000).reshape(100, 2000))  # comes in many pieces
    address, handler = web
    send = handler.send_header
    monkeypatch.setattr(
        handler, "send_header", lambda self, name, value: send(self, name, value) if name != "Content-Length" else None
    )
    source = open_source(f"{address}/a.jsonl")
    assert texts(source) == ["one", "two"]
    assert source.total_bytes == 0
    assert sum((block.tally for block in source.blocks()), Tally()).source_bytes == 0
    rows = texts(open_source(f"{address}/large.npy", integers=True))
    assert [len(row.split()) for row in rows] == [2000] * 100
    assert rows[-1].split()[-1] == "199999"
