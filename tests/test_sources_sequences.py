"""FASTA and FASTQ: the letters of each record, however the file is cut, packed and read."""

import gzip
import random

import pytest

from corpora import content, split_texts
from piecemill import prepare
from piecemill.errors import SourceError
from piecemill.sources import open_source, tasks
from piecemill.training import train_bpe


def sequences(count: int, seed: int = 1, letters: str = "ACGT") -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(letters, k=rng.choice([1, 7, 60, 61, 700]))) for _ in range(count)]


def fasta(records: list[str], width: int = 60, end: str = "\n") -> str:
    lines = []
    for number, letters in enumerate(records):
        lines.append(f">s{number} >not a header")
        lines += [letters[at : at + width] for at in range(0, len(letters), width)]
    return end.join(lines) + end


def fastq(records: list[str], seed: int = 1) -> str:
    """With qualities that look like headers and separators."""
    rng = random.Random(seed)
    return "".join(f"@r{i}\n{x}\n+\n{''.join(rng.choices('@+I>', k=len(x)))}\n" for i, x in enumerate(records))


def read(source, **options) -> list[str]:
    return [block.text(i) for block in open_source(source, **options).blocks() for i in range(len(block))]


@pytest.mark.parametrize("ending", [".fa", ".fasta", ".fna", ".ffn", ".faa", ".frn", ".FA"])
def test_a_fasta_file_is_a_document_per_record(tmp_path, ending):
    records = sequences(50)
    (tmp_path / f"in{ending}").write_text(fasta(records))
    assert read(tmp_path) == records


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
def test_both_formats_are_read_packed_too(tmp_path, packing):
    zstandard = pytest.importorskip("zstandard")
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[packing]
    records = sequences(300)
    (tmp_path / f"a.fna{packing}").write_bytes(pack(fasta(records, end="\r\n").encode()))
    (tmp_path / f"b.fastq{packing}").write_bytes(pack(fastq(records).encode()))
    (tmp_path / f"c.fq{packing}").write_bytes(pack(fastq(records).rstrip("\n").encode()))
    assert read(tmp_path) == records * 3


@pytest.mark.parametrize("write", [fasta, fastq])
@pytest.mark.parametrize("size", [1, 7, 100, 1_000, 10**6])
def test_records_are_the_same_however_a_file_is_cut_into_tasks(tmp_path, monkeypatch, write, size):
    records = sequences(60 if size > 1 else 12)  # with 1, a task for each byte
    path = tmp_path / f"in.{'fa' if write is fasta else 'fq'}"
    path.write_text(write(records))
    whole = open_source(path)
    places = [(block.name(i), block.text(i)) for block in whole.blocks() for i in range(len(block))]
    monkeypatch.setattr(tasks, "RANGE_BYTES", size)
    monkeypatch.setattr("piecemill.sources.streams.CHUNK_BYTES", random.Random(size).choice([1, 13, 500]))
    cut = open_source(path)
    assert len(cut.tasks) >= path.stat().st_size // size
    assert [(block.name(i), block.text(i)) for block in cut.blocks() for i in range(len(block))] == places
    text = path.read_text()
    assert all(text[int(name.rpartition("@")[2])] in ">@" for name, _ in places)


def test_files_elsewhere_are_cut_in_the_same_way(monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    files, records = fsspec.filesystem("memory"), sequences(200)
    files.pipe({"/genome/a.fa": fasta(records).encode(), "/genome/b.fq.gz": gzip.compress(fastq(records).encode())})
    monkeypatch.setattr(tasks, "RANGE_BYTES", 1_000)
    try:
        assert read("memory://genome/") == records * 2
    finally:
        files.rm("/genome", recursive=True)


def test_case_is_kept_unless_capitals_are_asked_for(tmp_path):
    (tmp_path / "in.fa").write_text(">a\nacGTn\n")
    assert read(tmp_path) == ["acGTn"]
    assert read(tmp_path, upper=True) == ["ACGTN"]


def test_blank_lines_and_empty_records_are_no_documents(tmp_path):
    (tmp_path / "in.fa").write_text("\n>a\n\n AC \n\nGT\n>b\n>c\nT")
    source = open_source(tmp_path)
    assert [block.text(i) for block in source.blocks() for i in range(len(block))] == ["ACGT", "T"]
    assert sum(block.tally.left_out.get("empty", 0) for block in source.blocks()) == 1


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("in.fa", "ACGT\n>a\nA\n", "in.fa@0: found 'ACGT', expected a record: a FASTA record begins with >"),
        ("in.fq", ">a\nACGT\n", "in.fq@0: found '>a', expected a record: a FASTQ record begins with @"),
        ("in.fq", "@a\nA\n+\n!\n@b\nAC\nGT\n+\n!!!!\n", "in.fq@9: found 'GT', expected a record: the third line"),
        ("in.fq", "@a\nACG\n+\n!!\n", "in.fq@0: 3 letters and 2 qualities; a FASTQ record has as many of both"),
        ("in.fq", "@a\nACG\n", "in.fq@0: found '', expected a record: the third line"),
    ],
)
def test_what_is_no_record_is_an_error_that_says_where(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError) as error:
        read(tmp_path)
    assert reason.replace('"', "'") in str(error.value).replace('"', "'")


@pytest.mark.parametrize(
    ("name", "content", "bad"),
    [("in.fa", b"x\n>a\nA\xff\n>b\nC\n", 2), ("in.fq", b"@a\nACG\n+\n!!\n@b\nC\n+\n!\n", 1)],
)
def test_what_is_no_record_spoils_no_other(tmp_path, name, content, bad):
    (tmp_path / name).write_bytes(content)
    (block,) = open_source(tmp_path, on_bad_document="skip").blocks()
    assert ([block.text(i) for i in range(len(block))], block.tally.skipped_count) == (["C"], bad)


def test_a_packed_file_that_ends_early_keeps_what_came_before(tmp_path):
    records = sequences(2_000)
    packed = gzip.compress(fasta(records).encode())
    (tmp_path / "in.fa.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(SourceError, match="truncated gzip"):
        read(tmp_path)
    found = read(tmp_path, on_bad_document="skip")
    assert 0 < len(found) < len(records)
    assert found == records[: len(found)]


def test_a_field_to_split_by_is_refused(tmp_path):
    (tmp_path / "in.fa").write_text(">a\nA\n")
    with pytest.raises(SourceError, match="has no field 'species' to group by"):
        open_source(tmp_path, group="species")


@pytest.fixture(scope="module")
def genome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("genome")
    (folder / "a.fa").write_text(fasta(sequences(400, 1)))
    (folder / "b.fq.gz").write_bytes(gzip.compress(fastq(sequences(300, 2)).encode()))
    (folder / "c.fna").write_text(fasta(sequences(300, 3)))
    return folder


def test_prepared_in_pieces_it_is_the_same_for_any_number_of_workers(genome, tmp_path):
    tok = train_bpe(genome, alphabet="ACGT", pretokenizer="none", vocab_size=60)
    options = {"piece_bytes": 20_000, "block_bytes": 8_000, "splits": "train=90,val=10"}
    for workers in (1, 2):
        prepare(genome, tok, out=tmp_path / str(workers), threads=workers, **options)
    assert content(tmp_path / "1") == content(tmp_path / "2")
    found = split_texts(tmp_path / "1", "train", tok) + split_texts(tmp_path / "1", "val", tok)
    assert sorted(found) == sorted(sequences(400, 1) + sequences(300, 2) + sequences(300, 3))


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(genome, tmp_path):
    from test_prepare_faults import kill

    tok = train_bpe(genome, alphabet="ACGT", pretokenizer="none", vocab_size=60)
    report = kill(tmp_path, tok, genome, {"piece_bytes": 50_000, "block_bytes": 20_000}, points=16, random=4)
    assert report["wrong"] == []
    assert report["killed"] >= 16
