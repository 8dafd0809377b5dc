"""Word counts on disk: count on many machines, train on one.

A Parquet file with a row per distinct word (`word`: binary, `count`: uint64), most frequent first, and in its
metadata what the counts were made with. Counts made with different pretokenizers cannot be added up: that is checked.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from piecemill._core import WordCounter, WordCounts
from piecemill.errors import PlanError, SourceError
from piecemill.files import check_writable
from piecemill.plans import new_names, option
from piecemill.sources import Skipped, Source, Tally

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_KEY = b"piecemill.counts"
_ROWS = 1 << 20
_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Corpus:
    """What was counted: enough to decide whether two corpora are the same."""

    documents: int
    bytes: int
    fingerprint: tuple[int, int]
    "Sum of all documents' xxh3-128 hashes, modulo 2**64 by half: the same for any order of reading."

    def __add__(self, other: "Corpus") -> "Corpus":
        first, second = ((a + b) % 2**64 for a, b in zip(self.fingerprint, other.fingerprint, strict=True))
        return Corpus(self.documents + other.documents, self.bytes + other.bytes, (first, second))

    @property
    def hex(self) -> str:
        return f"{self.fingerprint[0]:016x}{self.fingerprint[1]:016x}"


NOTHING = Corpus(0, 0, (0, 0))


def check_files(save: Path | None, load: Sequence[Path], *, force: bool) -> None:
    """Check files before any work: the one to save must be writable, and none to load may be given twice."""
    seen: dict[Path, Path] = {}
    for path in map(Path, load):
        if (first := seen.setdefault(path.resolve(), path)) is not path:
            raise PlanError(f"{option('from_counts')}: {path} is {first} once more; its words would be counted twice.")
    if save is None:
        return
    name = option("save_counts", str(save))
    if save.is_dir():
        raise PlanError(f"{name}: is a folder; name a file in it.")
    if save.exists() and not save.is_file():
        raise PlanError(f"{name}: is a pipe or a device, which a file would take the place of. Name a file.")
    if save.resolve() in seen:
        raise PlanError(f"{name}: is one of from_counts, and is never replaced. Choose another name.")
    if os.path.lexists(save) and not force:
        raise PlanError(f"{name}: exists. Choose another name, or replace it with {option('force', True)}.")
    check_writable(save)


def check_not_a_source(save: Path, source: Source) -> None:
    """Refuse to overwrite a source file with counts, also through links."""
    if not save.exists():
        return
    size = save.stat().st_size
    for file in source.files:
        if file.size == size and os.path.exists(file.path) and save.samefile(file.path):
            raise PlanError(f"{option('save_counts', str(save))}: is {file.path} of the source, and is never replaced.")


def not_read(tally: Tally) -> dict[str, Any]:
    """What was left out and skipped, ready for JSON; the same for any number of threads."""
    return {
        "left_out": {rule: count for rule, count in sorted(tally.left_out.items()) if count},
        "skipped": tally.skipped_count,
        "skipped_documents": [list(skip) for skip in tally.skipped],
    }


def write_counts(counts: WordCounts, file: BinaryIO, pretokenizer: str, corpus: Corpus, tally: Tally) -> None:
    """Write `counts` to `file` as Parquet, with metadata: the corpus, and what of it was not read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data, ends, numbers = counts.arrays()
    about = {"version": 2, "pretokenizer": pretokenizer, "corpus": asdict(corpus), "not_read": not_read(tally)}
    about |= {"words": len(numbers), "occurrences": int(numbers.sum())}
    columns: list[pa.Field[Any]] = [pa.field("word", pa.large_binary()), pa.field("count", pa.uint64())]
    schema = pa.schema(columns, metadata={_KEY: json.dumps(about).encode()})
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    words = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(ends), [None, pa.py_buffer(offsets.data), pa.py_buffer(data.data)]
    )
    table = pa.table([words, pa.array(numbers)], schema=schema)
    with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
        for start, end in _groups(offsets):
            writer.write_table(table.slice(start, end - start), row_group_size=_ROWS)


def _batches(file: "pq.ParquetFile") -> Iterator["pa.RecordBatch"]:
    for group in range(file.num_row_groups):  # of all at once, a batch would have rows of many
        yield from file.iter_batches(batch_size=_ROWS, row_groups=[group], columns=["word", "count"])


def _groups(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Row groups, limited in rows and bytes (but at least one word), that can be read back one at a time."""
    start, rows = 0, len(offsets) - 1
    while start < rows:
        fit = int(np.searchsorted(offsets, offsets[start] + _BYTES, side="right")) - 1
        end = min(max(fit, start + 1), start + _ROWS, rows)
        yield start, end
        start = end


def load_counts(paths: Sequence[Path], counter: WordCounter, *, pretokenizer: str) -> tuple[Corpus, Tally]:
    """Add the counts in all `paths` to `counter`, one row group at a time; returns the corpus and the tally."""
    corpus, tally = NOTHING, Tally()
    for path in paths:
        about = add_counts(path, str(path), counter, pretokenizer=pretokenizer)
        corpus, tally = corpus + _corpus(about), tally + _tally(about)
    return corpus, tally


def counted_by(path: Path) -> str:
    """The pretokenizer that the words in a counts file were cut with."""
    with _opened(path, str(path)) as file:
        return str(_about(str(path), file.schema_arrow.metadata)["pretokenizer"])


@contextmanager
def _opened(file: Path | BinaryIO, name: str) -> Iterator["pq.ParquetFile"]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if isinstance(file, Path) and file.exists() and not file.is_file():
        raise SourceError(f"{name}: no regular file; expected one of {option('save_counts')}.")
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            yield opened
    except FileNotFoundError:
        raise SourceError(f"{name}: no such file; expected one of {option('save_counts')}.") from None
    except (OSError, pa.ArrowException, IndexError, UnicodeDecodeError) as error:  # the last two: of a damaged footer
        raise SourceError(
            f"{name}: cannot be read as Parquet: {error}. Expected a whole file of {option('save_counts')}; "
            "copy it again, or count again."
        ) from error


def add_counts(
    file: Path | BinaryIO, name: str, counter: WordCounter, *, pretokenizer: str, tags: NDArray[np.uint16] | None = None
) -> dict[str, Any]:
    """Add the counts in one file to `counter`, one row group at a time; returns the file's metadata.

    If its words have tags, `tags` has the one that each is in `counter`.
    """
    import pyarrow as pa

    with _opened(file, name) as opened:
        about = _about(name, opened.schema_arrow.metadata)
        if about["pretokenizer"] != pretokenizer:
            raise SourceError(
                f"{name}: counted with pretokenizer={about['pretokenizer']!r}, requested {pretokenizer!r}. "
                f"They fit that one only: pass {option('pretokenizer', about['pretokenizer'])}, or count again."
            )
        found = {"words": 0, "occurrences": 0}
        for batch in _batches(opened):
            words = batch.column(0).cast(pa.large_binary())
            _, offsets, data = (memoryview(buffer or b"") for buffer in words.buffers())
            bounds = np.frombuffer(offsets, np.int64)[words.offset : words.offset + len(words) + 1]
            bytes_ = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
            if tags is not None:
                bytes_, starts = bytes_.copy(), bounds[:-1] - bounds[0]
                here = tags[bytes_[starts].astype(np.uint16) << 8 | bytes_[starts + 1]]
                bytes_[starts], bytes_[starts + 1] = here >> 8, here & 255
            counts = np.ascontiguousarray(batch.column(1).to_numpy())
            counter.add_counts(bytes_, bounds[1:] - bounds[0], counts)
            found["words"] += len(counts)
            found["occurrences"] += int(counts.sum())
        for what, number in found.items():  # Parquet has checksums of pages, and none of which pages there are
            if about.get(what, number) != number:  # older files do not record them
                raise SourceError(
                    f"{name}: holds {number:,} {what}; {about[what]:,} were counted. The file was changed: copy it "
                    "again, or count again."
                )
    return about


def _about(name: str, metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """The metadata of a counts file; an error if it is not one."""
    try:
        about: dict[str, Any] = new_names(json.loads((metadata or {}).get(_KEY, b"{}")))
        if about["version"] not in (1, 2) or not isinstance(about["pretokenizer"], str):
            raise ValueError
        _tally(about)
        _corpus(about)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise SourceError(
            f"{name}: not a counts file: no piecemill counts in its metadata. Make one with {option('save_counts')}."
        ) from None
    return about


def _corpus(about: Mapping[str, Any]) -> Corpus:
    stored = about["corpus"]
    first, second = map(int, stored["fingerprint"])
    return Corpus(int(stored["documents"]), int(stored["bytes"]), (first, second))


def _tally(about: Mapping[str, Any]) -> Tally:
    if not (missing := about.get("not_read")):  # older files do not record it
        return Tally()
    skipped = tuple(Skipped(name, reason) for name, reason in missing["skipped_documents"])
    return Tally(left_out=dict(missing["left_out"]), skipped_count=int(missing["skipped"]), skipped=skipped)
