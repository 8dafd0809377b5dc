"""Files that were made to break the reader: they end in an error that names them, in bounded memory."""

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from piecemill.errors import SourceError
from piecemill.sources import jsonl, open_source
from piecemill.sources.streams import BOM, CHUNK_BYTES, BrokenStream, ByteStream


def bomb(size: int, **options) -> bytes:
    """Lines of a few bytes, packed a thousandfold."""
    line = b'{"text":"a short"}\n'
    return zstandard.ZstdCompressor(**options).compress(line * (size // len(line)))


@pytest.mark.parametrize("options", [{}, {"write_checksum": True, "level": 19}, {"write_content_size": False}])
def test_zstd_is_unpacked_a_megabyte_at_a_time_however_well_it_was_packed(options):
    packed = bomb(64 << 20, **options)
    skippable = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"x" * 5
    stream = ByteStream(io.BytesIO(packed + skippable + packed), "zstd")
    sizes = [len(chunk) for chunk in stream]
    assert sum(sizes) == 2 * ((64 << 20) // 19 * 19)
    assert max(sizes) < 4 * CHUNK_BYTES


def test_many_short_lines_in_a_small_zstd_file_are_many_documents(tmp_path):
    (tmp_path / "a.jsonl.zst").write_bytes(bomb(32 << 20))
    source = open_source(tmp_path / "a.jsonl.zst")
    assert sum(len(block) for block in source.blocks()) == (32 << 20) // 19


def test_every_cut_of_a_zstd_stream_gives_the_same_bytes_and_a_break_is_noticed():
    rng = np.random.default_rng(1)
    text = rng.integers(0, 8, 700_000, np.uint8).tobytes() + b"y" * 400_000
    frames = [zstandard.ZstdCompressor(write_checksum=n % 2 == 0).compress(text[n * 100_000 :]) for n in range(3)]
    packed = b"".join(frames)
    whole = b"".join(text[n * 100_000 :] for n in range(3))
    for step in (1 << 20, 4099):

        class Slow(io.BytesIO):
            def read(self, size=-1, step=step):
                return super().read(min(size, step))

        assert b"".join(ByteStream(Slow(packed), "zstd")) == whole
        with pytest.raises(BrokenStream, match="truncated zstd"):
            b"".join(ByteStream(Slow(packed[:-9]), "zstd"))


def test_a_zstd_window_beyond_128_mib_is_refused(tmp_path):
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=30, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    (tmp_path / "a.jsonl.zst").write_bytes(packer.compress(b'{"text":"x"}\n') + packer.flush())
    with pytest.raises(SourceError, match=r"a\.jsonl\.zst:1: broken zstd .*too much memory"):
        list(open_source(tmp_path / "a.jsonl.zst").blocks())


def arrow_file(path: Path, text: pa.Array, group: pa.Array | None = None) -> Path:
    table = pa.record_batch(
        [text] + ([] if group is None else [group]), names=["text", "g"][: 1 if group is None else 2]
    )
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
        writer.write_batch(table)
    return path


def bad_offsets(*offsets: int) -> pa.Array:
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(b"abcdefghij")]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


@pytest.mark.parametrize("offsets", [(0, 4, 2, 6), (0, -1, 4), (0, 9, 9, 10, 3, 4)])
def test_an_arrow_file_with_wrong_offsets_is_named(tmp_path, offsets):
    path = arrow_file(tmp_path / "a.arrow", bad_offsets(*offsets))
    with pytest.raises(SourceError, match=r"a\.arrow\[0\]: cannot be read from this row on: "):
        list(open_source(path).blocks())
    (block,) = open_source(path, on_bad_document="skip").read(open_source(path).tasks[0])
    assert (len(block), block.tally.skipped_count) == (0, 1)


def test_a_dictionary_with_wrong_indices_and_a_view_beyond_its_buffer_are_named(tmp_path):
    values = pa.array(["one", "two"])
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, 1, 900_000_000], pa.int32()), values, safe=False)
    view = np.array([(40, 0, 0, 0)], np.dtype([("n", "<i4"), ("prefix", "<i4"), ("buffer", "<i4"), ("at", "<i4")]))
    seen = pa.Array.from_buffers(pa.string_view(), 1, [None, pa.py_buffer(view), pa.py_buffer(b"x" * 20)])
    for text, group in [(wrong, None), (pa.array(["x"] * 3), wrong), (seen, None)]:
        path = arrow_file(tmp_path / "a.arrow", text, group)
        with pytest.raises(SourceError, match=r"a\.arrow\[0\]: cannot be read from this row on: "):
            list(open_source(path, group=None if group is None else "g").blocks())


def test_text_that_is_not_utf8_is_still_one_bad_document(tmp_path):
    buffers = [None, pa.py_buffer(np.array([0, 1, 2, 3], np.int32)), pa.py_buffer(b"a\xffc")]
    path = arrow_file(tmp_path / "a.arrow", pa.Array.from_buffers(pa.string(), 3, buffers))
    (block,) = open_source(path, on_bad_document="skip").blocks()
    assert ([block.text(0), block.text(1)], block.tally.skipped_count) == (["a", "c"], 1)


def test_gitignore_is_read_only_if_it_is_a_regular_file_of_sane_size(tmp_path):
    for name, make in {
        "pipe": lambda path: os.mkfifo(path),
        "device": lambda path: path.symlink_to("/dev/zero"),
        "large": lambda path: path.write_bytes(b"*.log\n" * 200_000),
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "x.txt").write_text("hi")
        make(folder / ".gitignore")
        expected = "larger than 1048576 bytes" if name == "large" else "expected a regular file"
        with pytest.raises(SourceError, match=rf"{name}/\.gitignore: cannot be read: {expected}"):
            open_source(folder)
        assert len(open_source(folder, gitignore=False).files) == 1
        assert open_source(folder, on_bad_document="skip").found.skipped_count == 1


def test_a_text_larger_than_memory_is_an_error_and_a_sparse_file_is_binary(tmp_path):
    path = tmp_path / "big.txt"
    path.write_text("x")
    for policy in ("stop", "skip"):
        source = open_source(path, on_bad_document=policy)
        huge = replace(source.tasks[0], sizes=(1 << 62,))
        with pytest.raises(SourceError, match=r"big\.txt: cannot be read: Cannot allocate memory"):
            list(source.read(huge))
    with open(path, "wb") as file:
        file.truncate(1 << 32)  # only its first bytes are touched
    with pytest.raises(SourceError, match=r"big\.txt: binary file"):
        list(open_source(path).blocks())


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.mark.parametrize(
    "shape",
    [b"((((((((", b"(20, 30", b"(-1, 30)", b"(20, -30)", b"(1, 99999999999999)", b"(99999999999999999999, 1)", b"'x'"],
)
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_an_npy_with_a_damaged_header_is_named_and_never_read_beyond_its_end(tmp_path, shape, policy):
    content = npy(np.arange(600, dtype=np.uint16).reshape(20, 30))
    at = content.index(b"(20, 30)")
    end = content.index(b"\n")
    path = tmp_path / "a.npy"
    path.write_bytes(content[:at] + (shape + b", }").ljust(end - at) + content[end:])
    source = open_source(path, integers=True, on_bad_document=policy)
    with pytest.raises(SourceError, match=r"a\.npy\[0\]: "):  # with skip, as nothing is left
        list(source.blocks())


def test_an_npy_that_says_any_number_of_empty_rows_ends_at_once(tmp_path):
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (10**15, 0)})
    with pytest.raises(SourceError, match=r"1,000,000,000,000,000 empty"):
        list(open_source(tmp_path / "a.npy", integers=True).blocks())


def test_a_line_that_memory_cannot_hold_stops_the_run_and_is_named(tmp_path, monkeypatch):
    def read(task, packer):
        raise MemoryError
        yield

    monkeypatch.setattr(jsonl, "read", read)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"text": "x"}\n')
    with pytest.raises(SourceError, match=r"a\.jsonl: cannot be read: Cannot allocate memory.*not skipped"):
        list(open_source(tmp_path, on_bad_document="skip").blocks())


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_column_without_a_name_is_not_the_text_of_a_file(tmp_path, ending):
    table = pa.table([pa.array(["x"])], names=[""])
    if ending == "parquet":
        pq.write_table(table, tmp_path / "a.parquet")
    else:
        with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(SourceError, match=rf"a\.{ending}: no column 'text'; its columns are "):
        list(open_source(tmp_path / f"a.{ending}").blocks())


def test_a_stream_that_gives_a_byte_at_a_time_is_read_as_any_other():
    class Slow(io.BytesIO):
        def read(self, size=-1):
            return super().read(1)

    for text in (BOM + b"x" * 10_000, b"\xef"):
        first, *rest = ByteStream(Slow(text), None)
        assert first[:8192] == text[:8192]
        assert b"".join([first, *rest]) == text


def test_what_a_stream_gave_before_an_error_is_not_lost():
    class Broken(io.BytesIO):
        def read(self, size=-1):
            if part := super().read(3):
                return part
            raise OSError("the server has gone")

    chunks = iter(ByteStream(Broken(b"a line\nhalf a"), None))
    assert next(chunks) == b"a line\nhalf a"
    with pytest.raises(OSError, match="the server has gone"):
        next(chunks)


@pytest.mark.parametrize("left", [0, 3, 60, 1000])
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_an_npy_that_became_shorter_is_no_bad_document(tmp_path, left, policy):
    path = tmp_path / "a.npy"
    path.write_bytes(npy(np.arange(600).reshape(20, 30)))
    source = open_source(path, integers=True, on_bad_document=policy)
    os.truncate(path, left)
    with pytest.raises(SourceError, match=rf"a\.npy: changed under the run: it ended after {left:,} bytes"):
        list(source.blocks())


FUZZ = r"""
import gzip, io, json, os, random, resource, sys
from dataclasses import replace
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq, pyarrow.ipc, zstandard
from piecemill.errors import PiecemillError
from piecemill.sources import open_source

folder, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
texts = [f"text {n} " + "word " * (n % 40) for n in range(200)]
table = pa.table({"text": texts, "g": [f"g{n % 7}" for n in range(200)]})
bases = {}
for codec in ("none", "zstd", "snappy"):
    out = io.BytesIO()
    pq.write_table(table, out, compression=codec, row_group_size=50, use_dictionary=codec != "zstd")
    bases[f"{codec}.parquet"] = out.getvalue()
column = table["text"]
kinds = {"plain": column, "dictionary": column.dictionary_encode(), "view": column.cast(pa.string_view())}
for name, column in kinds.items():
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        out = pa.BufferOutputStream()
        changed = table.set_column(0, "text", column)
        with new(out, changed.schema) as writer:
            writer.write_table(changed, max_chunksize=50)
        bases[f"{name}{new.__name__}.arrow"] = out.getvalue().to_pybytes()
lines = "".join(json.dumps({"text": text, "g": n % 7}) + "\n" for n, text in enumerate(texts)).encode()
bases["a.jsonl.gz"] = gzip.compress(lines)
rows = io.BytesIO()
np.save(rows, np.arange(600, dtype=np.uint16).reshape(20, 30))
bases["a.npy"] = rows.getvalue()
bases["a.fasta"] = "".join(f">r{n}\n" + "ACGT" * (n % 9) + "\n" for n in range(90)).encode()
bases["a.fastq.gz"] = gzip.compress("".join(f"@r{n}\nACGT\n+\nIIII\n" for n in range(90)).encode())
bases["a.jsonl.zst"] = zstandard.ZstdCompressor(write_checksum=True).compress(lines)

def mutated(data):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 3, 10])):
        at = rng.randrange(len(data)) if rng.random() < 0.5 else rng.randrange(max(0, len(data) - 600), len(data))
        how = rng.random()
        if how < 0.5: data[at] = rng.randrange(256)
        elif how < 0.7: data[at] ^= 1 << rng.randrange(8)
        elif how < 0.8: data[at : at + 4] = rng.choice([b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", bytes(4)])
        elif how < 0.9: del data[at : at + rng.choice([1, 4, 50])]
        else: del data[at:]
        data = data or bytearray(b"x")
    return bytes(data)

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for number in range(count):
    name = rng.choice(sorted(bases))
    path = folder / name
    path.write_bytes(mutated(bases[name]))
    (folder / "last").write_text(f"{seed} {number} {name}")
    try:
        policy, group = rng.choice(["stop", "skip"]), rng.choice([None, "g"])
        integers = name.endswith(".npy")
        group = group if name.endswith((".parquet", ".arrow", ".jsonl.gz", ".jsonl.zst")) else None
        for block in open_source(path, on_bad_document=policy, group=group, integers=integers).blocks():
            [block.text(n) for n in range(len(block))]
    except PiecemillError as error:
        assert name in str(error), (number, name, str(error))
print("done")
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_tables_and_archives_end_in_an_error_that_names_them(tmp_path, seed):
    made = subprocess.run(
        [sys.executable, "-c", FUZZ, str(tmp_path), str(seed), "250"], capture_output=True, text=True, timeout=300
    )
    assert (made.returncode, made.stdout) == (0, "done\n"), (tmp_path / "last").read_text() + made.stderr[-2000:]
