"""Sources: what is found, how it is cut into tasks and blocks, and that documents in are documents out."""

import gzip
import inspect
import json
import os
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import piecemill.sources.streams
import piecemill.sources.tasks
from piecemill import _core
from piecemill.errors import PlanError, SourceError
from piecemill.sizes import parse_size
from piecemill.sources import Documents, Reading, Source, Tally, open_source, parquet, read_task
from piecemill.sources.options import SourceOptions
from piecemill.sources.packing import MAX_FILE_BYTES
from piecemill.sources.tasks import ENDINGS, PACKED_ENDINGS, reader_of


def texts(source: Source) -> list[str]:
    return [block.text(i) for block in source.blocks() for i in range(len(block))]


def names(source: Source) -> list[str]:
    return [block.name(i) for block in source.blocks() for i in range(len(block))]


def whole_tally(source: Source) -> Tally:
    return sum((block.tally for block in source.blocks()), source.found)


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def found(source: Source, folder: Path) -> list[str]:
    return [str(Path(path).relative_to(folder)) for task in source.tasks for path in task.paths]


# What is found


def test_files_come_in_the_order_of_their_path_components(tmp_path):
    # As strings, "a.txt" < "a/b" because "." < "/"; as components "a" < "a.txt".
    write(tmp_path, {"a.txt": "3", "a/z": "2", "a/B": "1", "é": "5", "b": "4"})
    assert texts(open_source(tmp_path)) == ["1", "2", "3", "4", "5"]
    assert names(open_source(tmp_path))[0] == f"{tmp_path}/a/B"


def test_hidden_binary_empty_and_oversized_files_are_left_out_and_counted(tmp_path):
    write(tmp_path, {"a.py": "a", ".env": "x", ".git/config": "x", "b.bin": b"\x00\x01", "c": "", "big": "x" * 11})
    source = open_source(tmp_path, max_file_bytes=10)
    assert texts(source) == ["a"]
    left_out = {rule: count for rule, count in whole_tally(source).left_out.items() if count}
    assert left_out == {"hidden": 2, "oversized": 1, "binary": 1, "empty": 1}
    assert source.left_out["hidden"] == 2
    assert texts(open_source(tmp_path, hidden=True, max_file_bytes=10)) == ["x", "a"]  # .git stays out


def test_one_size_is_the_default_everywhere_and_in_the_docs():
    import inspect

    size = MAX_FILE_BYTES
    assert inspect.signature(open_source).parameters["max_file_bytes"].default == Reading().max_file_bytes == size
    assert parse_size(SourceOptions().max_file_bytes, "") == size
    docs = (Path(__file__).parents[1] / "docs" / "sources.md").read_text(encoding="utf-8")
    assert f"`max_file_bytes` ({size >> 20} MiB)" in docs


def test_a_nul_after_the_first_8_kib_is_text_as_in_git(tmp_path):
    write(tmp_path, {"a": b"x" * 8192 + b"\x00", "b": b"x" * 8191 + b"\x00"})
    assert [len(text) for text in texts(open_source(tmp_path))] == [8193]


def test_tables_are_never_oversized(tmp_path):
    write(tmp_path, {"a.jsonl": '{"text":"a long line"}'})
    assert texts(open_source(tmp_path, max_file_bytes=1)) == ["a long line"]


def test_gitignore_is_respected_nested_and_with_exceptions(tmp_path):
    write(
        tmp_path,
        {
            ".gitignore": "*.log\n/build/\n!keep.log\nfoo/bar\n",
            "a.log": "a",
            "keep.log": "keep",
            "build/x.py": "b",
            "sub/build/x.py": "sub build",
            "sub/.gitignore": "!b.log\nlocal.py\n",
            "sub/b.log": "b log",
            "sub/c.log": "c log",
            "sub/local.py": "l",
            "local.py": "local",
            "foo/bar/x": "f",
        },
    )
    source = open_source(tmp_path)
    assert found(source, tmp_path) == ["keep.log", "local.py", "sub/b.log", "sub/build/x.py"]
    assert source.left_out["ignored"] == 5  # a folder that is ignored counts once
    assert len(found(open_source(tmp_path, gitignore=False), tmp_path)) == 9


def test_a_gitignore_above_the_folder_does_not_count(tmp_path):
    write(tmp_path, {".gitignore": "*\n", "data/a.txt": "a"})
    assert texts(open_source(tmp_path / "data")) == ["a"]


def test_include_and_exclude(tmp_path):
    write(tmp_path, {"a.py": "1", "s/a.py": "2", "s/a.md": "3", "t/a.py": "4", "s/t/b.py": "5"})
    assert texts(open_source(tmp_path, include=["*.py"])) == ["1", "2", "5", "4"]
    assert texts(open_source(tmp_path, include=["s/*.py"])) == ["2"]
    assert texts(open_source(tmp_path, include=["s/"])) == ["3", "2", "5"]
    source = open_source(tmp_path, exclude=["t", "*.md"])
    assert texts(source) == ["1", "2"]
    assert source.left_out["excluded"] == 3
    assert texts(open_source(tmp_path, include=["*.py"], exclude=["s"])) == ["1", "4"]  # exclude beats include
    with pytest.raises(SourceError, match="expected a list of patterns"):
        open_source(tmp_path, include="*.py")
    with pytest.raises(SourceError, match=r'pattern "\*\*/\[": '):
        open_source(tmp_path, include=["["])


def test_globs(tmp_path, monkeypatch):
    write(tmp_path, {"a.py": "1", "s/a.py": "2", "s/t/a.py": "3", "s/t/a.md": "4", "[x].txt": "5"})
    assert texts(open_source(f"{tmp_path}/**/*.py")) == ["1", "2", "3"]
    assert texts(open_source(f"{tmp_path}/*.py")) == ["1"]
    assert texts(open_source(f"{tmp_path}/s/**/a.{{py,md}}")) == ["2", "4", "3"]
    assert texts(open_source(f"{tmp_path}/[x].txt")) == ["5"]  # a name that exists is that file
    assert texts(open_source(f"{tmp_path}/s*")) == ["2", "4", "3"]  # as the shell would pass the folder
    monkeypatch.chdir(tmp_path)
    assert names(open_source("*/a.py")) == ["s/a.py"]
    assert names(open_source(".")) == ["./[x].txt", "./a.py", "./s/a.py", "./s/t/a.md", "./s/t/a.py"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_links_to_files_are_followed_and_links_to_folders_are_not(tmp_path, scheme):
    write(tmp_path, {"a/real": "text"})
    (tmp_path / "a/loop").symlink_to(tmp_path)
    write(tmp_path.parent, {f"{tmp_path.name}-beside": "text"})
    (tmp_path / "a/link").symlink_to(tmp_path.parent / f"{tmp_path.name}-beside")
    source = open_source(f"{scheme}{tmp_path}")
    assert found(source, tmp_path) == ["a/link", "a/real"]
    assert source.left_out["folder_links"] == 1
    (tmp_path / "a/broken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SourceError, match=r"a/broken: cannot be read: No such file.*on_bad_document='skip'"):
        open_source(f"{scheme}{tmp_path}")
    assert open_source(f"{scheme}{tmp_path}", on_bad_document="skip").skipped[0].name == f"{tmp_path}/a/broken"


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_that_is_reached_twice_is_read_once(tmp_path, scheme):
    write(tmp_path, {"a": "1", "b": "2"})
    source = open_source([tmp_path / "b", f"{scheme}{tmp_path}"])
    assert texts(source) == ["2", "1"]
    assert source.left_out["repeated"] == 1


def test_a_file_that_was_named_is_never_left_out(tmp_path):
    write(tmp_path, {".gitignore": "*", ".hidden.txt": "a long text"})
    assert texts(open_source(tmp_path / ".hidden.txt", exclude=["*"], max_file_bytes=1)) == ["a long text"]


def test_a_list_of_strings_is_paths_or_texts_and_in_doubt_an_error(tmp_path):
    write(tmp_path, {"a": "1", "b.txt": "2"})
    assert texts(open_source([f"{tmp_path}/a", f"{tmp_path}/*.txt"])) == ["1", "2"]
    assert texts(open_source(["one two", "three"])) == ["one two", "three"]
    assert texts(open_source(["what? [no] *", "either/or?"])) == ["what? [no] *", "either/or?"]
    assert texts(open_source(iter(["corpus/"]))) == ["corpus/"]
    with pytest.raises(SourceError, match="'corpsu/' looks like a path, but no file matched"):
        open_source(["corpsu/"])
    with pytest.raises(SourceError, match=f"{tmp_path}/zzz: no file matched"):
        open_source([f"{tmp_path}/a", f"{tmp_path}/zzz"])


@pytest.mark.parametrize("name", ["nothing", "some words", "no*such", "sub/**/*.txt"])
def test_a_string_that_matches_no_file_is_an_error_and_never_a_text(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for source in (name, Path(name)):
        with pytest.raises(SourceError, match="no file matched"):
            open_source(source)


def test_no_file_matched_says_what_was_left_out(tmp_path):
    write(tmp_path, {".hidden": "x", ".gitignore": "*.log", "a.log": "x"})
    with pytest.raises(
        SourceError, match=r"Left out: 2 hidden, 1 ignored\. To read them, pass hidden=True or gitignore=False"
    ):
        open_source(tmp_path)


def test_what_is_no_source_is_refused():
    for source in (3, b"bytes", {"train": []}):
        with pytest.raises(SourceError, match=rf"source: found {type(source).__name__}, expected a path"):
            open_source(source)
    with pytest.raises(PlanError, match="block_bytes=0"):
        open_source(["a text"], block_bytes=0)
    with pytest.raises(PlanError, match="on_bad_document='ignore'"):
        open_source(["a text"], on_bad_document="ignore")


def test_a_tree_of_text_imports_neither_pyarrow_nor_the_command_line_library(tmp_path):
    write(tmp_path, {"a.py": "1", "b.jsonl": '{"text":"2"}'})
    code = (
        "import sys; from piecemill.sources import open_source; "
        f"print(sum(len(b) for b in open_source({str(tmp_path)!r}).blocks()), "
        "'pyarrow' in sys.modules, 'cyclopts' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["2", "False", "False"]


# Tasks and blocks


def mixed_folder(folder: Path) -> Path:
    rows = [{"text": f"row {n} " + "x" * (n % 50)} for n in range(300)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    write(folder, {f"t{n:02}.md": f"text {n} " * (n + 1) for n in range(20)})
    write(folder, {"l.jsonl": lines, "m.jsonl.gz": gzip.compress(lines.encode()), "z.txt.gz": gzip.compress(b"zip")})
    pq.write_table(pa.Table.from_pylist(rows), folder / "p.parquet", row_group_size=100)
    return folder


def test_tasks_can_be_pickled_and_read_alone_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr(piecemill.sources.tasks, "RANGE_BYTES", 1000)
    source = open_source(mixed_folder(tmp_path), block_bytes=500)
    assert len(source.tasks) > 20
    assert [task.index for task in source.tasks] == list(range(len(source.tasks)))
    alone = {}
    for task in reversed(source.tasks):
        for block in read_task(pickle.loads(pickle.dumps(task)), pickle.loads(pickle.dumps(source.reading))):
            alone[block.id] = (block.data.tobytes(), block.ends.tolist(), block.places.tolist(), block.name(0))
    again = list(source.blocks())
    assert list(alone) != [b.id for b in again]
    assert sorted(alone) == [b.id for b in again]
    for b in again:
        assert alone[b.id] == (b.data.tobytes(), b.ends.tolist(), b.places.tolist(), b.name(0))
    assert sum((b.tally for b in again), Tally()).source_bytes == source.total_bytes


def test_small_files_share_a_task_up_to_a_number(tmp_path, monkeypatch):
    monkeypatch.setattr(piecemill.sources.tasks, "GROUP_FILES", 3)
    write(tmp_path, {f"{n}": "x" for n in range(8)})
    assert [len(task.paths) for task in open_source(tmp_path).tasks] == [3, 3, 2]


def test_small_files_share_a_task_up_to_a_size_and_blocks_inside_stay_small(tmp_path, monkeypatch):
    monkeypatch.setattr(piecemill.sources.tasks, "RANGE_BYTES", 1000)
    write(tmp_path, {f"{n}": "x" * 150 for n in range(8)} | {"8": "x" * 3000, "9": "x"})
    source = open_source(tmp_path, block_bytes=320)
    assert [task.nbytes for task in source.tasks] == [900, 300, 3000, 1]
    assert [[block.nbytes for block in source.read(task)] for task in source.tasks] == [[300] * 3, [300], [3000], [1]]
    assert open_source(tmp_path, block_bytes=7).tasks == source.tasks
    names = [block.name(i) for block in source.blocks() for i in range(len(block))]
    assert names == [f"{tmp_path}/{n}" for n in range(10)]


def write_small_files(folder: Path, kind: str, count: int) -> Path:
    folder.mkdir(exist_ok=True)
    for n in range(count):
        rows = [{"text": f"file {n:03} row {row}"} for row in range(3)]
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        if kind == "jsonl":
            (folder / f"{n:03}.jsonl").write_bytes(lines.rstrip())  # no line end at the end of the file
        elif kind == "zst":
            (folder / f"{n:03}.jsonl.zst").write_bytes(zstandard.compress(lines))
        elif kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), folder / f"{n:03}.parquet", row_group_size=2)
        elif kind == "arrow":
            with pa.ipc.new_file(folder / f"{n:03}.arrow", pa.schema([("text", pa.string())])) as file:
                file.write_table(pa.Table.from_pylist(rows))
        else:
            (folder / f"{n:03}.txt").write_text("\n".join(row["text"] for row in rows))
    return folder


@pytest.mark.parametrize("kind", ["jsonl", "zst", "parquet", "arrow", "pieces"])
def test_small_files_of_every_kind_share_a_task(tmp_path, kind):
    folder = write_small_files(tmp_path, kind, 50)
    options = {"separator": "\n"} if kind == "pieces" else {}
    source, alone = open_source(folder, **options), open_source(folder, **options, group_bytes=1)
    assert (len(source.tasks), len(alone.tasks)) == (1, 50)
    assert texts(source) == texts(alone) == [f"file {n:03} row {row}" for n in range(50) for row in range(3)]
    assert names(source) == names(alone)
    assert len(list(source.blocks())) == 1
    assert whole_tally(source) == whole_tally(alone)
    assert (
        whole_tally(source).source_bytes == source.total_bytes == sum(path.stat().st_size for path in folder.iterdir())
    )
    few = open_source(folder, **options, block_bytes=70)  # progress grows from block to block, through all files
    assert all(block.tally.source_bytes >= 0 for block in few.blocks())
    assert sum(block.tally.source_bytes > 0 for block in few.blocks()) > 20


def test_a_large_file_between_small_ones_is_cut_and_they_are_not_joined_across_it(tmp_path, monkeypatch):
    monkeypatch.setattr(piecemill.sources.tasks, "RANGE_BYTES", 1000)
    lines = json.dumps({"text": "x" * 80}) + "\n"
    small = {f"{n}.jsonl": lines for n in (0, 1, 2, 4, 5)}
    source = open_source(write(tmp_path, {**small, "3.jsonl": lines * 25}))
    assert [(task.first_file, len(task.paths), task.start) for task in source.tasks] == [
        (0, 3, 0),
        (3, 1, 0),
        (3, 1, 1000),
        (3, 1, 2000),
        (4, 2, 0),
    ]
    assert len(texts(source)) == 30


def test_a_file_that_cannot_be_planned_splits_a_group_of_small_ones(tmp_path):
    write_small_files(tmp_path, "parquet", 5)
    (tmp_path / "002.parquet").write_bytes(b"PAR1 broken PAR1")
    source = open_source(tmp_path, on_bad_document="skip")
    assert [(task.first_file, len(task.paths)) for task in source.tasks] == [(0, 2), (3, 2)]
    assert names(source)[-1] == f"{tmp_path}/004.parquet[2]"
    assert source.skipped[0].name.endswith("002.parquet")


def test_a_broken_file_in_a_group_is_named_and_the_others_are_read(tmp_path):
    write_small_files(tmp_path, "jsonl", 5)
    (tmp_path / "002.jsonl").write_text('{"text": "good"}\n{"text": 7}\n')
    with pytest.raises(SourceError, match=r"002\.jsonl:2: "):
        texts(open_source(tmp_path))
    source = open_source(tmp_path, on_bad_document="skip")
    assert len(texts(source)) == 4 * 3 + 1
    assert [one.name for one in whole_tally(source).skipped] == [f"{tmp_path}/002.jsonl:2"]


@pytest.mark.parametrize("kind", sorted({*ENDINGS.values(), *PACKED_ENDINGS.values(), "text", "pieces"}))
def test_every_format_in_the_table_is_a_module_with_what_a_reader_needs(kind):
    reader = reader_of(kind)
    assert reader.PLACE in ("file", "byte", "row")
    assert list(inspect.signature(reader.cut).parameters) == ["file", "reading", "size"]
    assert list(inspect.signature(reader.read).parameters) == ["task", "packer"]


def test_a_separator_at_the_border_of_two_chunks_is_found(tmp_path, monkeypatch):
    write(tmp_path, {"a.txt": "one<|end|>two<|end|><|end|>three"})
    for size in range(1, 12):
        monkeypatch.setattr(piecemill.sources.streams, "CHUNK_BYTES", size)
        assert texts(open_source(tmp_path, separator="<|end|>")) == ["one", "two", "three"]


def test_blocks_do_not_depend_on_how_much_is_read_at_a_time(tmp_path, monkeypatch):
    folder = mixed_folder(tmp_path)

    def blocks() -> list[tuple[object, ...]]:
        return [(b.id, b.data.tobytes(), b.ends.tolist()) for b in open_source(folder, block_bytes=700).blocks()]

    first = blocks()
    for module in (piecemill.sources.streams, piecemill.sources.jsonl):
        monkeypatch.setattr(module, "CHUNK_BYTES", 37)
    assert blocks() == first


@given(st.lists(st.integers(1, 40), min_size=1), st.integers(1, 50))
def test_a_block_is_never_larger_than_asked_unless_one_document_is(lengths, block_bytes):
    blocks = list(open_source(("x" * n for n in lengths), block_bytes=block_bytes).blocks())
    for block in blocks:
        assert block.nbytes <= block_bytes or len(block) == 1
    for block, after in pairwise(blocks):
        assert block.nbytes + int(after.ends[0]) > block_bytes  # and none is smaller than it must be
    assert [n for block in blocks for n in np.diff(block.ends, prepend=0)] == lengths


def test_a_block_hands_over_columns(tmp_path):
    write(tmp_path, {"a": "één", "b": "two"})
    (block,) = open_source(tmp_path).blocks()
    assert isinstance(block, Documents)
    assert (len(block), block.nbytes, block.ends.tolist(), block.files.tolist()) == (2, 8, [5, 8], [0, 1])
    assert block.text(-1) == "two"
    with pytest.raises(IndexError):
        block.text(2)
    assert [block.name(number) for number in range(2)] == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert (block.files.tolist(), block.places.tolist()) == ([0, 1], [0, 0])


def test_a_path_that_is_not_unicode_can_be_read_and_named(tmp_path):
    (tmp_path / os.fsdecode(b"a\xff")).write_text("text")
    (block,) = open_source(tmp_path).blocks()
    assert os.fsencode(block.name(0)) == os.fsencode(tmp_path) + b"/a\xff"


def test_documents_have_hashes_of_their_content():
    (block,) = open_source(["one text", "two", "one text"]).blocks()
    hashes = _core.hash_documents(block.data, block.ends)
    assert hashes.shape == (3, 2)
    assert hashes.dtype == np.uint64
    assert hashes[0].tolist() == hashes[2].tolist() != hashes[1].tolist()
    with pytest.raises(ValueError, match="the last is 2 and data has 3 bytes"):
        _core.hash_documents(np.zeros(3, np.uint8), np.array([2]))


def test_tallies_add_up_in_any_grouping_and_list_the_first_thousand():
    bad = ["\ud800"] * 700 + [""]
    (block,) = open_source([*bad, *bad, "good text"], on_bad_document="skip").blocks()
    assert (block.tally.skipped_count, len(block.tally.skipped), block.tally.left_out) == (1400, 1000, {"empty": 2})
    a, b, c = (Tally(documents=n, left_out={"empty": n}, skipped=block.tally.skipped[n:]) for n in range(3))
    assert (a + b) + c == a + (b + c)


# Documents in == documents out

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["a\nb", "\r\n", "\ufeffx", "😀"]
)
LAWFUL = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@LAWFUL
@given(
    st.lists(TEXT, min_size=1, max_size=20),
    st.integers(1, 60),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.booleans(),
    st.integers(1, 80),
    st.booleans(),
)
def test_jsonl_documents_survive(tmp_path, documents, block_bytes, newline, ends, range_bytes, ascii_only):
    lines = [json.dumps({"n": [1.5, None], "text": text, "é": {}}, ensure_ascii=ascii_only) for text in documents]
    data = (newline.join(lines) + (newline if ends else "")).encode()
    (tmp_path / "a.jsonl").write_bytes(data)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data[:20]) + gzip.compress(data[20:]))
    packed = zstandard.ZstdCompressor()
    (tmp_path / "a.jsonl.zst").write_bytes(packed.compress(data[:20]) + packed.compress(data[20:]))
    want = [text for text in documents if text]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piecemill.sources.tasks, "RANGE_BYTES", range_bytes)
        patch.setattr(piecemill.sources.streams, "CHUNK_BYTES", 16)
        for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst"):
            source = open_source(tmp_path / name, block_bytes=block_bytes)
            blocks = [block for task in source.tasks for block in source.read(task)]
            assert [block.text(i) for block in blocks for i in range(len(block))] == want
            places = [int(place) for block in blocks for place in block.places]
            assert [json.loads(data[place:].splitlines()[0])["text"] for place in places] == want


@LAWFUL
@given(st.lists(TEXT, min_size=1, max_size=20), st.integers(1, 60), st.sampled_from(["|", "||", "<|end|>"]))
def test_split_documents_survive(tmp_path, documents, block_bytes, separator):
    whole = separator.join(documents).replace("\0", "")  # a NUL would make the file binary
    want = [text for text in whole.removeprefix("\ufeff").split(separator) if text]
    (tmp_path / "a.txt").write_text(whole, newline="")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(whole.encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piecemill.sources.streams, "CHUNK_BYTES", 16)
        for name in ("a.txt", "a.txt.gz"):
            source = open_source(tmp_path / name, block_bytes=block_bytes, separator=separator)
            blocks = [block for task in source.tasks for block in source.read(task)]
            assert [block.text(i) for block in blocks for i in range(len(block))] == want


@LAWFUL
@given(st.lists(TEXT, min_size=1, max_size=20), st.integers(1, 60), st.integers(1, 7))
def test_table_documents_survive(tmp_path, documents, block_bytes, group):
    want = [text for text in documents if text]
    kinds = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
    sources = []
    for kind in kinds:
        encoded = [text.encode() for text in documents] if kind == pa.binary() else documents
        # Sliced, so that offsets do not start at zero.
        table = pa.table({"text": pa.array(["x", *encoded] if kind != pa.binary() else [b"x", *encoded], kind)})[1:]
        sources += [table, table.column("text"), table.to_batches()[0]]
    table = pa.table({"id": range(len(documents)), "text": documents})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=group)
    with pa.OSFile(str(tmp_path / "file.arrow"), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=group)
    with pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=group)
    sources += [tmp_path / name for name in ("a.parquet", "file.arrow", "stream.arrow")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piecemill.sources.tasks, "RANGE_BYTES", 100)
        for source in sources:
            opened = open_source(source, block_bytes=block_bytes)
            blocks = [block for task in opened.tasks for block in opened.read(task)]
            assert [block.text(i) for block in blocks for i in range(len(block))] == want
            rows = [int(place) for block in blocks for place in block.places]
            assert [documents[row] for row in rows] == want


def test_the_size_of_a_column_is_its_own_beside_one_whose_name_begins_as_it_does(tmp_path):
    table = pa.table({"text.note": ["n"] * 100, "text": ["a long text " * 100] * 100})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    (task,) = open_source(tmp_path / "a.parquet").tasks
    (chunk,) = parquet.text_chunks(task, pq.read_metadata(tmp_path / "a.parquet"), Reading())
    assert chunk.size > 100_000


@LAWFUL
@given(st.lists(TEXT, min_size=1, max_size=20), st.integers(1, 60))
def test_strings_and_text_files_survive(tmp_path_factory, documents, block_bytes):
    want = [text for text in documents if text]
    source = open_source(iter(documents), block_bytes=block_bytes)
    assert [b.text(i) for b in source.read(source.tasks[0]) for i in range(len(b))] == want
    folder = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(documents):
        (folder / f"{number:03}").write_bytes(text.encode())
    source = open_source(folder, block_bytes=block_bytes)
    want = [text.removeprefix("\ufeff") for text in want if "\0" not in text]
    assert [b.text(i) for task in source.tasks for b in source.read(task) for i in range(len(b))] == want


def test_each_ending_is_read_as_it_says(tmp_path):
    line = b'{"text":"line"}\n'
    packed = zstandard.ZstdCompressor().compress
    write(tmp_path, {"a.jsonl": line, "b.ndjson": line, "c.json.gz": gzip.compress(line), "d.json.zst": packed(line)})
    write(tmp_path, {"e.json": "{}", "f.txt.zst": packed(b"zip"), "g.py.gz": gzip.compress(b"code")})
    write(tmp_path, {"h.tar.gz": gzip.compress(b"\x00tar"), "i.JSONL": line})
    assert texts(open_source(tmp_path)) == ["line"] * 4 + ["{}", "zip", "code", "line"]


def test_a_nested_field_and_a_struct_column(tmp_path):
    write(tmp_path, {"a.jsonl": '{"meta":{"body":"in"}}\n{"meta.body":"flat"}\n'})
    assert texts(open_source(tmp_path / "a.jsonl", field="meta.body")) == ["in", "flat"]
    table = pa.table({"meta": [{"body": "in", "n": 1}]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert texts(open_source(table, field="meta.body")) == ["in"]
    assert texts(open_source(tmp_path / "a.parquet", field="meta.body")) == ["in"]


def test_anything_that_speaks_arrow_is_a_table():
    class Stream:
        def __arrow_c_stream__(self, requested_schema=None):
            return pa.table({"text": ["one", "two"]}).__arrow_c_stream__(requested_schema)

    class Dataset:  # as Hugging Face has it: no capsule, but Arrow tables on demand
        def with_format(self, kind):
            assert kind == "arrow"
            return self

        def iter(self, batch_size):
            yield pa.table({"text": ["one"]})
            yield pa.table({"text": ["two"]})

    for source in (Stream(), Dataset()):
        assert texts(open_source(source)) == ["one", "two"]
    assert names(open_source(Stream())) == ["<Stream>[0]", "<Stream>[1]"]


def test_an_iterator_can_be_read_once():
    source = open_source(iter(["some text"]))
    assert texts(source) == ["some text"]
    with pytest.raises(SourceError, match="was read before"):
        texts(source)
