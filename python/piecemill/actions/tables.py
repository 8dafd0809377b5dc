"""Tables of interactions and items, from files and from memory, as Arrow.

CSV, TSV and RecBole's atomic files are read as text, so that a key such as `0000031852` keeps its zeros; a column of
features in which every value is a whole number as one writes it is then numbers. Files may be packed (.gz, .zst).

Start with `read_table`.
"""

import csv
import io
import json
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.json as pjson
import pyarrow.parquet as pq
from numpy.typing import NDArray

from piecemill.errors import PlanError, SourceError
from piecemill.files import as_path
from piecemill.plans import option, option_of
from piecemill.sources.columns import first_line
from piecemill.sources.streams import PACKINGS, BrokenStream, ByteStream

ENDINGS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".dat": "csv",
    ".data": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".inter": "recbole",
    ".item": "recbole",
    ".user": "recbole",
    ".txt": "lines",
    ".seq": "lines",
}
FORMATS = tuple(dict.fromkeys(ENDINGS.values()))
TEXT_FORMATS = ("csv", "tsv", "recbole")
"Formats that do not say whether a value is text or a number."
Choose = Callable[[list[str]], list[str]]
RECBOLE_TYPES = ("token", "token_seq", "float", "float_seq")


DELIMITERS = {".dat": "::", ".data": "\t"}
"Of files that are named as those of MovieLens, and have no header."
RATING_NAMES = ("user", "item", "rating", "timestamp")
MOVIE_NAMES = ("item", "title", "genres")
U_ITEM_NAMES = ("item", "title", "release_date", "video_release_date", "imdb_url")
"Of u.item, before a column of 0 and 1 for each of `GENRES`."
# fmt: off
GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)
# fmt: on
_INSIDE = "\x1f"
"Stands for a delimiter of several characters while a file is read."


@dataclass(frozen=True)
class Layout:
    """How the cells of a text file are parted, and what its columns are called, where the file does not say it."""

    delimiter: str | None = None
    "None: a tab for .tsv, :: for .dat; else what parts the first line, a comma if it can be one."
    header: tuple[str, ...] = ()
    "Names of the columns of a file whose first line is a row."

    @classmethod
    def of(cls, delimiter: str | None, header: str | Sequence[str] | None) -> "Layout":
        """From options: `header` as `user,item,rating,time`, or as a list."""
        names = header.split(",") if isinstance(header, str) else header or ()
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise PlanError(f"{option('header')}: found {header!r:.60}, expected names of columns, user,item,time.")
        if not isinstance(delimiter, str | None):
            raise PlanError(f"{option('delimiter', delimiter)}: expected text, such as ';'.")
        if delimiter == "":
            raise PlanError(f"{option('delimiter')}: is empty; expected what stands between two cells, such as ';'.")
        return cls({"\\t": "\t", "tab": "\t"}.get(delimiter or "", delimiter), tuple(name.strip() for name in names))

    def within(self, path: str | Path, kind: str, line: bytes) -> tuple[str, list[str], bool]:
        """The delimiter, the names of the columns, and whether `line`, the first of the file, is their header."""
        text = line.decode("utf-8", "replace").rstrip("\r")
        suffix = next((s for s in map(str.lower, reversed(Path(path).suffixes)) if s not in PACKINGS), "")
        delimiter = self.delimiter or DELIMITERS.get(suffix) or ("," if kind == "csv" else "\t")
        if self.delimiter is None and kind == "csv" and delimiter == "," and "," not in text:
            delimiter = max(";\t|", key=text.count) if any(one in text for one in ";\t|") else ","
        if len(delimiter) > 1:
            cells = text.split(delimiter)
        else:
            cells = next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), [])
        if self.header:
            if len(self.header) != len(cells):
                raise PlanError(
                    f"{option('header', ','.join(self.header))}: {len(self.header)} names, but the first line of "
                    f"{path} has {len(cells)} cells: {text[:80]!r}."
                )
            return delimiter, list(self.header), False
        if suffix in DELIMITERS and self.delimiter is None and any(map(_is_number, cells)):
            for names, numbers in ((RATING_NAMES, (0, 1, 3)), (MOVIE_NAMES, (0,))):
                if len(cells) == len(names) and all(_is_number(cells[number]) for number in numbers):
                    return delimiter, list(names), False
            raise SourceError(
                f"{path}, line 1: expected 4 cells (user, item, rating, time) or 3 (item, title, genres) as in a file "
                f"of MovieLens, found {text[:80]!r}. Put a line of names in front; for interactions, "
                f"{option_of('actions split', 'header', 'user,item,...')} names the columns."
            )
        return delimiter, cells, True


def _is_number(cell: str) -> bool:
    return cell.strip().isdigit()


@dataclass(frozen=True)
class Origin:
    """Where rows come from, to say it in an error: lines of a text file from 1, rows of a table from 0."""

    name: str
    path: Path | None = None
    kind: str | None = None
    layout: Layout = Layout()

    @classmethod
    def of(cls, source: Any, format: str | None, name: str, layout: Layout | None = None) -> "Origin":
        """The origin of a path, or of a table in memory by a given name."""
        if isinstance(source, str | Path):
            if not Path(as_path(source)).exists():
                raise SourceError(
                    f"{source}: no such file. Correct the path; a relative one begins in the current folder."
                )
            return cls(str(source), Path(source), format_of(source, format), layout or Layout())
        return cls(name)

    def at(self, row: int) -> str:
        """The place of a row; a text file is read again for it, as blank lines and quotes shift lines."""
        if self.path is None or self.kind not in ("csv", "tsv", "recbole", "jsonl", "lines"):
            return f"{self.name}, row {row:,}"
        data = read_bytes(self.path)
        text, first = data.decode("utf-8", "replace"), _first_line(data)
        header = self.kind not in ("jsonl", "lines")
        if self.kind in ("csv", "tsv"):
            delimiter, _, header = self.layout.within(self.path, self.kind, first)
            if len(delimiter) > 1:
                text, delimiter = text.replace(delimiter, _INSIDE), _INSIDE
            rows = csv.reader(io.StringIO(text, newline=None), delimiter=delimiter)
            lines = (rows.line_num for cells in rows if cells)
        else:
            header = header and not _is_u_item(first)
            lines = (number for number, line in enumerate(text.split("\n"), 1) if line.strip())
        return f"{self.name}, line {next(islice(lines, row + header, None)):,}"


def format_of(path: str | Path, asked: str | None = None) -> str:
    """The format of a file: the requested one, or by its name's ending without the compression."""
    if asked is not None and asked != "auto":
        if asked not in FORMATS:
            raise SourceError(f"{option('format', asked)}: expected auto, {', '.join(FORMATS)}.")
        return asked
    if Path(path).is_dir() and any(Path(path).rglob("*.parquet")):
        return "parquet"  # a folder of parts, as Spark and others write it
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in PACKINGS:
        suffixes.pop()
    if not suffixes or suffixes[-1] not in ENDINGS:
        raise SourceError(
            f"{path}: cannot detect the format from the name; expected one of {' '.join(ENDINGS)}, or "
            f"say {option_of('actions split', 'format', ...)}."
        )
    return ENDINGS[suffixes[-1]]


def read_table(
    path: str | Path, format: str | None = None, choose: Choose | None = None, layout: Layout | None = None
) -> Any:
    """The table of a file; of `.json`, the mapping in it. Columns of a text file are text.

    `choose` says which of the columns are wanted; where others can be passed over without reading them, they are.
    Lines `user item item ...` are no table: `interactions.read_interactions` reads them.
    """
    kind = Origin.of(path, format, "").kind
    try:
        if kind == "parquet":
            parts = pq.ParquetDataset(path, page_checksum_verification=True)
            return _validated(parts.read(None if choose is None else choose(parts.schema.names)), path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot be read as Parquet: {str(error).rstrip('.')}.") from error
    data = read_bytes(path)
    match kind:
        case "csv" | "tsv":
            return _read_csv(data, path, str(kind), layout or Layout(), quoted=True, choose=choose)
        case "recbole" if _is_u_item(_first_line(data)):
            return _u_item(_read_csv(data, path, "csv", Layout("|", _u_item_columns()), quoted=False))
        case "recbole":
            return _atomic(_read_csv(data, path, "tsv", Layout("\t"), quoted=False), path)
        case "jsonl":
            return _read_jsonl(data, path)
        case "json":
            return _read_json(data, path)
        case "arrow":
            return _read_arrow(data, path)
        case _:
            raise SourceError(f"{path}: lines `user item item ...` are histories, not a table with columns.")


def read_bytes(path: str | Path) -> bytes:
    """The unpacked bytes of a file."""
    try:
        with open(path, "rb") as file:
            data = b"".join(ByteStream(file, PACKINGS.get(Path(path).suffix.lower())))
    except BrokenStream as error:
        raise SourceError(f"{path}: {error}.") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}.") from None
    if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise SourceError(f"{path}: is text in UTF-16, expected UTF-8. Convert it: iconv -f UTF-16 -t UTF-8 FILE.")
    return data


def as_table(source: Any, name: str) -> pa.Table:
    """A table in memory as Arrow: Arrow's own, pandas, polars, or anything that speaks Arrow's stream interface."""
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    if hasattr(source, "__arrow_c_stream__") or isinstance(source, dict):
        try:
            return pa.table(source)
        except (pa.ArrowException, TypeError, ValueError) as error:  # a column of several kinds, or there twice
            raise SourceError(f"{name}: columns that make no table: {error}.") from None
    raise SourceError(
        f"{name}: found {type(source).__name__}, expected a mapping, a path, or a table of Arrow, pandas or polars."
    )


def is_row(values: Any) -> bool:
    """Whether `values` are some in an order: a list, an array and the like, but no text, set or mapping."""
    return hasattr(values, "__len__") and not isinstance(values, str | bytes | Set | Mapping)


def plain(values: Any) -> Any:
    """A column in one piece and in few types: text is large_string, lists are large_list, nothing is a dictionary."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
    if isinstance(values, pa.ChunkedArray):  # combine_chunks of text beyond 2 GiB
        values = pa.concat_arrays([chunk.cast(pa.large_string()) for chunk in values.chunks])
    kind = values.type
    if pa.types.is_dictionary(kind):
        return plain(values.dictionary_decode())
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return values.cast(pa.large_string())
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return values.cast(pa.large_list(kind.value_type))
    return values


def as_numbers(values: Any) -> Any:
    """Whole numbers as int64: floats, and text of numbers as one writes them; other values as they were.

    pandas makes floats of whole numbers with a missing value among them, and writes them as 10.0.

    >>> as_numbers(plain(pa.array(["10", "9"]))).to_pylist(), as_numbers(plain(pa.array(["10", "09"]))).to_pylist()
    ([10, 9], ['10', '09'])
    >>> as_numbers(plain(pa.array(["10.0", None]))).to_pylist(), as_numbers(pa.array([2.0, float("nan")])).to_pylist()
    ([10, None], [2, None])
    """
    written = values
    if pa.types.is_floating(values.type):
        written = values.cast(pa.float32()) if pa.types.is_float16(values.type) else values
        written = pc.if_else(pc.is_nan(written), None, written)
        if (pc.max(pc.abs(written)).as_py() or 0) > 1 << 53:  # beyond it, floats of several whole numbers are the same
            return values
    elif pc.all(pc.match_substring_regex(values, _WHOLE_FLOAT)).as_py():
        written = bare_numbers(values)
    try:
        numbers = written.cast(pa.int64())
    except pa.ArrowInvalid:
        return values
    return numbers if numbers.cast(written.type).equals(written) else values


_WHOLE_FLOAT = r"^(-?\d+)\.0$"


def bare_numbers(texts: Any) -> Any:
    """Texts such as 10.0 as 10; other texts as they were."""
    return pc.replace_substring_regex(texts, _WHOLE_FLOAT, r"\1")


def fraction_in(values: Any) -> str | None:
    """The first value of text that is all numbers, and not all whole ones; None of any other text.

    >>> fraction_in(plain(pa.array(["3", "1.50", None]))), fraction_in(plain(pa.array(["3", "1.5a"])))
    ('1.50', None)
    """
    if not pa.types.is_large_string(values.type) or values.null_count == len(values):
        return None
    try:
        numbers = np.asarray(values.drop_null().cast(pa.float64()))
    except pa.ArrowInvalid:
        return None
    return None if (numbers % 1 == 0).all() else str(values.drop_null()[int(np.argmax(numbers % 1 != 0))])


def column_of(table: pa.Table, column: str, origin: Origin) -> Any:
    """A column, as `plain` has it."""
    if column not in table.column_names:
        known = ", ".join(map(repr, table.column_names))
        raise SourceError(f"{origin.name}: no column {column!r}; its columns are {known}.")
    return plain(table.column(column))


def numbers_of(table: pa.Table, column: str, origin: Origin) -> NDArray[np.float64]:
    """A column of numbers; NaN where there is none."""
    return as_floats(column_of(table, column, origin), f"{origin.name}, column {column!r}", pa.float64())


def as_floats(values: Any, where: str, kind: pa.DataType) -> NDArray[Any]:
    """Numbers as floats of a kind, NaN where there is none."""
    try:
        return np.asarray(values.cast(kind).fill_null(np.nan))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SourceError(f"{where}: not all numbers: {error}.") from None


def pick(columns: Sequence[str], wanted: str) -> tuple[str | None, int | None]:
    """The column of a name, and the element of its lists that `name[2]` or `name[-1]` asks for.

    >>> pick(["a", "tags"], "tags[-1]"), pick(["a"], "b")
    (('tags', -1), (None, None))
    """
    if wanted in columns:
        return wanted, None
    match = re.fullmatch(r"(.+)\[(-?\d+)\]", wanted)
    if match is not None and match[1] in columns:
        return match[1], int(match[2])
    return None, None


def cut_list(values: Any, column: str, element: int | None, origin: Origin) -> list[tuple[str, Any]]:
    """A column of lists as columns: an element of each, null where there is none; or all, of lists of one length."""
    if not pa.types.is_large_list(values.type):
        raise SourceError(
            f"{origin.name}: {column}[{element}] asks for an element, but the column is {values.type}, no list."
        )
    starts = np.asarray(values.offsets)[:-1].astype(np.int64)
    lengths: NDArray[np.int64] = np.diff(np.asarray(values.offsets)).astype(np.int64)
    lengths[np.asarray(values.is_null())] = 0
    if element is not None:
        return [(f"{column}[{element}]", _element(values, starts, lengths, element))]
    width = int(lengths[0]) if len(lengths) else 0
    if not width or (lengths != width).any():
        row = int(np.argmax(lengths != width)) if width else 0
        raise SourceError(
            f"{origin.at(row)}: {column!r} holds {lengths[row]} values, the first item {width}; an item has one "
            f"value per category. Take elements, such as {column}[0], or lists of one length."
        )
    return [(f"{column}_{number}", _element(values, starts, lengths, number)) for number in range(width)]


def find_column(columns: Sequence[str], usual: Sequence[str], asked: str | None, name: str, kind: str) -> str:
    """The requested column, or the one with a usual name; else an error with the columns there are."""
    known = ", ".join(map(repr, columns)) or "none"
    if asked is not None:
        if asked not in columns:
            raise SourceError(f"{name}: no column {asked!r}; its columns are {known}.")
        return asked
    found = {column.lower(): column for column in columns}
    for candidate in usual:
        if candidate in found:
            return found[candidate]
    row = ""
    if any(map(_is_number, columns)):
        way = "" if kind == "key" else f", or name the columns: {option_of('actions split', 'header', 'user,item,...')}"
        row = f" If its first line is a row, put a line of names in front{way}."
    asking = option_of("actions features" if kind == "key" else "actions split", kind, ...)
    raise SourceError(f"{name}: which column is the {kind}? Its columns are {known}. Say {asking}.{row}")


def _element(values: Any, starts: NDArray[np.int64], lengths: NDArray[np.int64], element: int) -> Any:
    at = element if element >= 0 else lengths + element
    there = (at >= 0) & (at < lengths)
    rows = pa.array(np.where(there, starts + at, 0), mask=~there)
    return plain(values.values.take(rows))


def _read_csv(
    data: bytes, path: str | Path, kind: str, layout: Layout, *, quoted: bool, choose: Choose | None = None
) -> pa.Table:
    if not data.strip():
        raise SourceError(f"{path}: the file is empty, expected a line of column names.")
    data = data.removeprefix(b"\xef\xbb\xbf")
    line = _first_line(data)
    delimiter, cells, named = layout.within(path, kind, line)
    if (not named and not layout.header) or _is_u_item(line):  # a file of MovieLens: the older ones are not UTF-8
        data = _to_utf8(data)
    if len(delimiter) > 1:
        if _INSIDE.encode() in data:
            raise SourceError(f"{path}: has the byte 1f, so {delimiter!r} cannot part its cells. Take it out first.")
        data, delimiter, quoted = data.replace(delimiter.encode(), _INSIDE.encode()), _INSIDE, False
    header = [cell.strip() for cell in cells]
    if len(set(header)) < len(header):
        raise SourceError(
            f"{path}, line 1: a column name stands twice in {', '.join(map(repr, header))}. If it is "
            "a row, put a line of names in front."
        )
    parse = pcsv.ParseOptions(delimiter=delimiter, quote_char='"' if quoted else False, newlines_in_values=quoted)
    convert = pcsv.ConvertOptions(
        column_types={name: pa.large_string() for name in header}, null_values=[""], strings_can_be_null=True
    )
    convert.include_columns = [] if choose is None else choose(header)
    spaced = named and quoted and re.search(re.escape(delimiter.encode()) + b" ", line) is not None
    for threads in (True, False):  # with threads the reader does not know which line is bad
        try:
            table = pcsv.read_csv(
                io.BytesIO(data),
                pcsv.ReadOptions(use_threads=threads, column_names=header, skip_rows=int(named)),
                parse_options=parse,
                convert_options=convert,
            )
        except pa.ArrowInvalid as error:
            if not threads:
                raise SourceError(f"{path}: {_csv_problem(str(error), len(header))}") from None
        else:
            return _trimmed(table) if spaced else table
    raise AssertionError


def _first_line(data: bytes) -> bytes:
    line: re.Match[bytes] = re.match(rb"[^\r\n]*", data)  # type: ignore[assignment] # it always matches
    return line[0]


def _to_utf8(data: bytes) -> bytes:
    """Latin-1 as UTF-8; what is UTF-8 as it is."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1").encode()
    return data


def _u_item_columns() -> tuple[str, ...]:
    return (*U_ITEM_NAMES, *(f"genre {name}" for name in GENRES))


def _is_u_item(line: bytes) -> bool:
    """Whether the first line of a file is that of MovieLens' u.item, and not the header of an atomic file."""
    cells = line.rstrip(b"\r").split(b"|")
    return len(cells) == len(U_ITEM_NAMES) + len(GENRES) and {*cells[len(U_ITEM_NAMES) :]} <= {b"0", b"1"}


def _u_item(table: pa.Table) -> pa.Table:
    """The table of u.item with the names of an item's genres in one column, as movies.dat has them."""
    yes = pa.scalar("1")
    flags = [np.asarray(pc.equal(plain(column), yes).fill_null(False)) for column in table.columns[-len(GENRES) :]]
    rows = np.stack(flags, axis=1)
    genres = ["|".join(name for name, there in zip(GENRES, row, strict=True) if there) or None for row in rows.tolist()]
    return table.select(list(U_ITEM_NAMES)).append_column("genres", pa.array(genres, pa.large_string()))


def _trimmed(table: pa.Table) -> pa.Table:
    """A table whose header has a space behind each delimiter, without such spaces; what is empty then is nothing."""
    columns: list[Any] = [pc.utf8_trim_whitespace(plain(column)) for column in table.columns]
    columns = [pc.if_else(pc.equal(column, pa.scalar("", column.type)), None, column) for column in columns]
    return pa.table(columns, names=table.column_names)


def _csv_problem(message: str, width: int) -> str:
    match = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", message, re.S)
    if match:
        return f"line {match[1]}: found {match[3]} cells, expected {match[2]} as in the first line: {match[4][:80]!r}."
    if match := re.search(r"Row #(\d+): .*invalid UTF8", message):
        return f"line {match[1]}: not UTF-8. Convert the file first, for example with `iconv -f latin1 -t utf-8`."
    return f"not a table of {width} columns: {message.splitlines()[0]}."


def _atomic(table: pa.Table, path: str | Path) -> pa.Table:
    """RecBole's header `name:type` in place: names without types, sequences as lists."""
    names, arrays = [], []
    for head, column in zip(table.column_names, table.columns, strict=True):
        name, _, kind = head.rpartition(":")
        if kind not in RECBOLE_TYPES or not name:
            raise SourceError(
                f"{path}, line 1: the column {head!r} says no type; an atomic file has name:type with one of "
                f"{', '.join(RECBOLE_TYPES)}, such as user_id:token, separated by tabs."
            )
        values = plain(column)
        if kind.endswith("_seq"):
            values = plain(pc.ascii_split_whitespace(pc.ascii_trim_whitespace(values)))
        names.append(name)
        arrays.append(values)
    return pa.table(arrays, names=names)


def _read_jsonl(data: bytes, path: str | Path) -> pa.Table:
    if not data.strip():
        raise SourceError(f"{path}: the file is empty, expected one JSON object per line.")
    try:
        # A block holds at least the longest line; 1 MiB is the reader's own default.
        options = pjson.ReadOptions(block_size=min(max(len(data), 1), 1 << 26))
        table = pjson.read_json(io.BytesIO(data), options)
        dates = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
        if dates:  # text that reads as a date; a key or a category is what the file says
            parse = pjson.ParseOptions(explicit_schema=pa.schema([(name, pa.string()) for name in dates]))
            table = pjson.read_json(io.BytesIO(data), options, parse).select(table.column_names)
        return _validated(table, path)
    except pa.ArrowException as error:
        raise SourceError(f"{path}{_jsonl_problem(data, str(error))}") from None


def _jsonl_problem(data: bytes, message: str) -> str:
    """Where the file goes wrong: the first line that is no object, or where a field changes its kind."""
    kinds: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            return f", line {number}: not JSON: {error}."
        if not isinstance(row, dict):
            return f", line {number}: found {type(row).__name__}, expected an object."
        for name, value in row.items():
            kind = "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
            if value is None:
                continue
            if (before := kinds.setdefault(name, (kind, number)))[0] != kind:
                return f", line {number}: {name!r} is {value!r}, but it was a {before[0]} in line {before[1]}."
    return f": {message.splitlines()[0]}."


def _read_json(data: bytes, path: str | Path) -> Any:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise SourceError(f"{path}: not JSON: {error}. For one object per line, the ending is .jsonl.") from None
    if not isinstance(found, dict):
        raise SourceError(f"{path}: found {type(found).__name__}, expected one object: item -> its values.")
    return found


def _read_arrow(data: bytes, path: str | Path) -> pa.Table:
    try:
        opened = pa.ipc.open_file(pa.BufferReader(data))
    except (pa.ArrowException, OSError):  # OSError: a damaged footer
        opened = None
    try:
        return _validated((opened or pa.ipc.open_stream(pa.BufferReader(data))).read_all(), path)
    except (pa.ArrowException, OSError) as error:
        kind = "cannot be read as an Arrow file" if opened else "neither an Arrow file nor a stream"
        raise SourceError(f"{path}: {kind}: {first_line(error)}.") from None


def _validated(table: pa.Table, path: str | Path) -> pa.Table:
    """A table whose buffers hold what its types say, checked before any use: Arrow believes the offsets in a file."""
    try:
        table.validate(full=True)
        table.column_names  # noqa: B018 - decodes them
    except UnicodeDecodeError:
        raise SourceError(f"{path}: the name of a column is not UTF-8.") from None
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path}: cannot be read: {first_line(error)}.") from None
    return table
