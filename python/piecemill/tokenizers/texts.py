"""Texts in the flat form: all bytes in one buffer, and where each text ends.

Lists, Arrow arrays and anything with the Arrow PyCapsule interface come out the same. Arrow data is not copied
where its offsets are already 64 bits wide.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import TokenizerError
from piecemill.integers import as_integers, text_of

Flat = tuple[NDArray[np.uint8], NDArray[np.int64]]

_REPAIR = "Expected valid UTF-8; repair it first, for example with decode('utf-8', 'replace')."


def flatten(texts: Any) -> Flat:
    """`texts` in the flat form; see `Tokenizer.encode_batch` for what may be given.

    Bytes are not checked to be UTF-8 here: the engine does that.
    """
    if isinstance(texts, str | bytes):
        raise TokenizerError("encode_batch: got one text; expected a list of texts. Use encode, or pass [text].")
    if hasattr(texts, "__arrow_c_stream__") or hasattr(texts, "__arrow_c_array__"):
        return _from_arrow(texts)
    return _from_list(texts if isinstance(texts, Sequence) else list(_iterable(texts)))


def digits(documents: Iterable[Any]) -> list[bytes]:
    """Documents of integers as text: lists or arrays of integers, or text already."""
    found = []
    for i, one in enumerate(_iterable(documents)):
        values = as_integers(one)
        if values is not None:
            found.append(text_of(values))
        elif isinstance(one, str | bytes):
            found.append(one.encode(errors="surrogatepass") if isinstance(one, str) else one)
        else:
            raise TokenizerError(
                f"texts[{i}] is {type(one).__name__}; expected integers of 64 bits: a list, an array, or their digits."
            )
    return found


def flat_arrays(data: Any, ends: Any) -> Flat:
    """`data` and `ends` as arrays of the right types; what they hold is not looked at."""
    data, ends = np.asarray(data), np.asarray(ends)
    if data.dtype != np.uint8 or data.ndim != 1 or ends.ndim != 1 or (ends.dtype.kind not in "iu" and len(ends)):
        raise TokenizerError(
            f"encode_flat: got data of type {data.dtype} and shape {data.shape}, ends of type {ends.dtype} and shape "
            f"{ends.shape}; expected one row of uint8 and one of int64."
        )
    return np.ascontiguousarray(data), np.ascontiguousarray(ends, np.int64)


def check_flat(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> Flat:
    """`data` and `ends`, if the ends are in order and every text is valid UTF-8.

    For engines that are not Piecemill's own, which checks both itself.
    """
    if len(ends) and (ends[0] < 0 or (np.diff(ends) < 0).any()):
        at = 0 if ends[0] < 0 else int((np.diff(ends) < 0).argmax()) + 1
        raise TokenizerError(f"encode_flat: ends[{at}] is {ends[at]}, before the end of the text before it.")
    if (int(ends[-1]) if len(ends) else 0) != len(data):
        raise TokenizerError(
            f"encode_flat: the last text ends at {ends[-1] if len(ends) else 0:,}, the data at {len(data):,}; "
            "expected the same."
        )
    _check_utf8(data, ends)
    return data, ends


def check_text(text: Any, where: str) -> str:
    """`text` as a `str`, if it is one that UTF-8 can hold, or bytes of valid UTF-8."""
    if not isinstance(text, str | bytes):
        raise TokenizerError(f"{where} is {type(text).__name__}; expected str or bytes.")
    try:
        if isinstance(text, bytes):
            return text.decode()
        if not text.isascii():
            text.encode()
        return text
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        what = "character" if isinstance(text, str) else "byte"
        raise TokenizerError(
            f"{where}: {what} {error.start:,} is {text[error.start : error.start + 1]!r}: {error.reason}. {_REPAIR}"
        ) from None


def texts_of(data: NDArray[np.uint8], ends: NDArray[np.int64], errors: str = "strict") -> list[str]:
    """The flat form as Python strings, for libraries that take nothing else."""
    whole = data.data
    starts = [0, *ends[:-1].tolist()] if len(ends) else []
    return [str(whole[start:end], "utf-8", errors) for start, end in zip(starts, ends.tolist(), strict=True)]


def flat_tokens(tokens: Iterable[bytes]) -> Flat:
    """Byte strings in the flat form."""
    listed = list(tokens)
    return np.frombuffer(b"".join(listed), np.uint8), np.cumsum([len(one) for one in listed], dtype=np.int64)


def finish(rows: Iterable[Any], *, bos: int | None, eos: int | None, narrow: bool) -> tuple[Any, NDArray[np.int64]]:
    """Rows of ids one after another with `bos` and `eos` around each, and where each ends; uint16 if `narrow`."""
    dtype = np.uint16 if narrow else np.uint32
    before = [] if bos is None else [np.array([bos], dtype)]
    after = [] if eos is None else [np.array([eos], dtype)]
    parts: list[NDArray[Any]] = [np.empty(0, dtype)]
    sizes: list[int] = []
    for row in rows:
        ids = np.asarray(row, dtype)
        parts += (*before, ids, *after)
        sizes.append(len(before) + len(ids) + len(after))
    return np.concatenate(parts), np.cumsum(sizes, dtype=np.int64)


def first_difference(
    one: tuple[NDArray[Any], NDArray[np.int64]], other: tuple[NDArray[Any], NDArray[np.int64]]
) -> int | None:
    """The first text that has other ids in `one` than in `other`; None if all are equal."""
    (ids, ends), (other_ids, other_ends) = one, other
    lengths = np.diff(ends, prepend=0) != np.diff(other_ends, prepend=0)
    # Up to the first text of another length, both have the same ends.
    text = int(lengths.argmax()) if lengths.any() else len(ends)
    same = int(ends[text - 1]) if text else 0
    unequal = ids[:same] != other_ids[:same]
    if unequal.any():
        return int(np.searchsorted(ends, unequal.argmax(), side="right"))
    return text if text < len(ends) else None


def _iterable(texts: Any) -> Iterable[Any]:
    if not isinstance(texts, Iterable):
        raise TokenizerError(
            f"encode_batch: got {type(texts).__name__}; expected a list of texts, or an Arrow array of text."
        )
    return texts


def _from_list(texts: Sequence[Any]) -> Flat:
    encoded = []
    for i, text in enumerate(texts):
        try:
            encoded.append(text if type(text) is bytes else text.encode())
        except (UnicodeEncodeError, AttributeError):
            encoded.append(check_text(text, f"texts[{i}]").encode())
    return flat_tokens(encoded)


def _from_arrow(texts: Any) -> Flat:
    import pyarrow as pa

    given: Any = texts if isinstance(texts, pa.Array | pa.ChunkedArray) else _imported(texts)
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
        if isinstance(given, pa.ChunkedArray):
            given = pa.concat_arrays(given.chunks)
    kind = given.type.value_type if isinstance(given.type, pa.DictionaryType) else given.type
    if pa.types.is_null(kind) and len(given) == 0:
        kind = pa.string()
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not text and not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)):
        raise TokenizerError(
            f"encode_batch: got an Arrow array of {given.type}; expected text (string or binary of any width). "
            "Of a table, pass the column: table['text']."
        )
    if given.null_count:
        at = next(i for i, value in enumerate(given) if not value.is_valid)
        raise TokenizerError(f"texts[{at}] is null; expected text. Drop the null rows, or fill them with ''.")
    wide = given.cast(pa.large_string() if text else pa.large_binary())
    offsets_at, data_at = wide.buffers()[1:]
    if len(wide) == 0 or offsets_at is None:
        return np.empty(0, np.uint8), np.empty(0, np.int64)
    offsets = np.frombuffer(offsets_at, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    whole = np.frombuffer(data_at, np.uint8) if data_at is not None else np.empty(0, np.uint8)
    return whole[offsets[0] : offsets[-1]], offsets[1:] - offsets[0]


def _imported(texts: Any) -> Any:
    import pyarrow as pa

    try:
        # A stream may hold several chunks, an array only one; a stream is preferred.
        return pa.chunked_array(texts) if hasattr(texts, "__arrow_c_stream__") else pa.array(texts)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError) as error:
        raise TokenizerError(
            f"encode_batch: {type(texts).__name__} could not be read as an Arrow array ({error}); expected a column of "
            "text. Of a table, pass the column: table['text']."
        ) from error


def _check_utf8(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
    whole, start = data.tobytes(), 0
    if whole.isascii():
        return
    for i, end in enumerate(ends.tolist()):
        check_text(whole[start:end], f"texts[{i}]")
        start = end
