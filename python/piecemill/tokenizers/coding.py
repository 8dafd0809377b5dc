"""Texts and ids as files and streams have them: what `piecemill encode` and `piecemill decode` read and write.

Ids are text (a line for each document), JSON (a line with a list for each document), or an .npy. A batch of documents
is held at a time, and one document whole: where it could be cut is known only by reading all of it.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PlanError, TokenizerError
from piecemill.files import read_npy
from piecemill.plans import option
from piecemill.tokenizers.engines import Encoded
from piecemill.tokenizers.tokenizer import Special, Tokenizer

Form = Literal["text", "json", "npy"]
Ids = NDArray[np.integer[Any]]

_BATCH_BYTES = 4 << 20
_CHUNK = 1 << 18
"Ids that are written or decoded at a time."

_NUMBERS = b"0123456789 \t\r\n\f\v"
"What a line of ids as text consists of."


def encode_documents(
    tokenizer: Tokenizer,
    documents: Iterable[bytes],
    where: str,
    *,
    bos: int | None = None,
    eos: int | None = None,
    special: Special = "plain",
) -> Iterator[Encoded]:
    """Ids and ends of the documents of `where`, in batches."""
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    for first, batch in _batches(documents):
        try:
            yield tokenizer.encode_batch(batch, bos=bos, eos=eos, dtype=dtype, special=special)
        except TokenizerError as error:
            if (found := re.match(r"texts\[(\d+)\]", said := str(error))) is None:
                raise
            place = f"{where}, document {first + int(found[1]) + 1:,}"
            raise TokenizerError(place + said[found.end() :]) from None


def _batches(documents: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    first, size, batch = 0, 0, list[bytes]()
    for document in documents:
        batch.append(document)
        size += len(document) + 8
        if size >= _BATCH_BYTES:
            yield first, batch
            first, size, batch = first + len(batch), 0, []
    if batch:
        yield first, batch


def write_ids(file: BinaryIO, batches: Iterable[Encoded], form: Form) -> tuple[int, int]:
    """Write the ids of all documents in one form; how many documents and ids there were."""
    if form == "npy":
        return _write_npy(file, batches)
    begin, between, end = (b"[", ", ", b"]\n") if form == "json" else (b"", " ", b"\n")
    documents = total = 0
    for ids, ends in batches:
        start = 0
        for stop in ends.tolist():
            file.write(begin)
            for at in range(start, stop, _CHUNK):
                shown = between.join(map(str, ids[at : min(at + _CHUNK, stop)].tolist()))
                file.write((between * (at > start) + shown).encode())
            file.write(end)
            start = stop
        documents, total = documents + len(ends), total + len(ids)
    return documents, total


def _write_npy(file: BinaryIO, batches: Iterable[Encoded]) -> tuple[int, int]:
    documents = total = 0
    dtype: np.dtype[Any] = np.dtype(np.uint16)
    for ids, ends in batches:
        if not documents:
            _write_header(file, ids.dtype, 0)
        file.write(ids.data)
        documents, total, dtype = documents + len(ends), total + len(ids), ids.dtype
    file.seek(0)
    _write_header(file, dtype, total)
    return documents, total


def _write_header(file: BinaryIO, dtype: np.dtype[Any], count: int) -> None:
    """As long for any count, as numpy leaves room for the longest."""
    said = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, said)


def read_ids(file: BinaryIO, where: str) -> Iterator[tuple[str, Ids]]:
    """A row for each line of ids, as text or a list in JSON, and where it stood."""
    for number, line in enumerate(file, 1):
        place = f"{where}, line {number:,}"
        for row in _rows(line, place):
            yield place, row


def parse_ids(text: str) -> list[tuple[str, Ids]]:
    """The row that a command line gives, as `read_ids` has it."""
    return [("ids", row) for row in _rows(text.encode(), "ids")]


def _rows(line: bytes, where: str) -> list[Ids]:
    if line.lstrip().startswith(b"["):
        try:
            given = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TokenizerError(f"{where}: not JSON: {error}. Expected a list of ids on each line.") from None
        lists = given if given and all(isinstance(one, list) for one in given) else [given]
        for one in lists:
            if bad := [i for i in one if type(i) is not int or not 0 <= i < 1 << 62]:
                _refuse(where, json.dumps(bad[0]))
        return [_narrow(np.array(one, np.int64)) for one in lists]
    text = line.replace(b",", b" ").strip()
    if text.translate(None, _NUMBERS):
        _refuse(where, next(word for word in text.split() if not word.isdigit()).decode("utf-8", "replace"))
    return [_narrow(np.fromstring(text, np.int64, sep=" ") if text else np.empty(0, np.int64))]


def _narrow(ids: NDArray[np.int64]) -> Ids:
    """As the decoder takes them at once; too large ones as they are, for it to refuse."""
    return ids if ids.size and ids.max() >> 32 else ids.astype(np.uint32)


def _refuse(where: str, found: str) -> None:
    raise TokenizerError(
        f"{where}: {found[:60]!r} is no id; expected whole numbers with spaces or commas between them."
    )


def load_ids(file: Path) -> Iterator[tuple[str, Ids]]:
    """The rows of an .npy, and where each stands."""
    try:
        array = read_npy(file)
    except ValueError as error:
        raise TokenizerError(f"{file}: cannot be read as .npy: {error}.") from None
    if array.ndim not in (1, 2) or array.dtype.kind not in "iu":
        raise TokenizerError(
            f"{file}: holds {array.dtype} in the shape {array.shape}; expected whole numbers in one row or in rows."
        )
    if array.ndim == 1:
        yield str(file), array
    else:
        yield from ((f"{file}, row {number:,}", row) for number, row in enumerate(array, 1))


def decode_rows(tokenizer: Tokenizer, rows: Iterable[tuple[str, Ids]]) -> Iterator[Iterator[bytes]]:
    """The bytes of each row of ids, in pieces; a row is cut only where every id has the same bytes anywhere."""
    table = tokenizer.model.decode_table()
    table = table if table is not None and table.rows else None
    decode = tokenizer.decode_bytes if table is not None else lambda ids: tokenizer.decode(ids).encode()
    alone = table is not None and table.first is None
    for where, ids in rows:
        yield _pieces(decode, where, ids, _CHUNK if alone else max(len(ids), 1))


def _pieces(decode: Callable[[Ids], bytes], where: str, ids: Ids, size: int) -> Iterator[bytes]:
    for start in range(0, len(ids), size):
        try:
            yield decode(ids[start : start + size])
        except TokenizerError as error:
            place = re.search(r"ids\[([\d,]+)\](.*)", str(error))
            if place is None:
                raise TokenizerError(f"{where}: {error}") from None
            number = start + int(place[1].replace(",", "")) + 1
            raise TokenizerError(f"{where}: id {number:,}{place[2]}") from None


def form_of(out: Path | None, as_json: bool) -> Form:
    """How ids are written to a file of this name, or to standard output."""
    ending = "" if out is None else out.suffix
    if as_json and ending == ".npy":
        raise PlanError(f"{option('out', out)}: an .npy, and {option('json')} asks for JSON. Give one of them.")
    return "npy" if ending == ".npy" else "json" if as_json or ending in (".json", ".jsonl") else "text"
