"""Interactions: rows of (user, item, time) -> the history of every user.

The rules, each of which counts what it did in `report["read"]`:
- a history is in order of time; at one time, the order of the file decides (`ties`);
- the same user, item and time again is one event written twice, and left out (`duplicates`); without times nothing is;
- an item may come back at another time, and stays (`repeated_items`), unless `repeats="first"`;
- a row without user, item or time stops with its place, or is left out with `on_bad_row="skip"` (`bad_rows`).
Users and items are numbered by their first row.

Start with `read_interactions`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import chain
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from piecemill._core import invalid_documents
from piecemill.actions.histories import Histories, from_lists
from piecemill.actions.items import as_keys, first_repeat
from piecemill.actions.tables import (
    Layout,
    Origin,
    as_numbers,
    as_table,
    find_column,
    is_row,
    numbers_of,
    plain,
    read_bytes,
    read_table,
)
from piecemill.errors import PlanError, SourceError
from piecemill.plans import did_you_mean, option, option_of
from piecemill.sizes import plural

USERS = ("user", "user_id", "userid", "uid", "reviewerid", "customer_id", "session_id", "sessionid")
ITEMS = ("item", "item_id", "itemid", "iid", "parent_asin", "asin", "product_id", "movieid", "items", "history")
TIMES = ("time", "timestamp", "ts", "unixreviewtime", "date", "datetime")
RATINGS = ("rating", "overall", "stars", "score")


@did_you_mean
def read_interactions(
    source: Any,
    *,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    format: str = "auto",
    rating: str | None = None,
    min_rating: float | None = None,
    duplicates: Literal["drop", "keep", "stop"] = "drop",
    repeats: Literal["keep", "first"] = "keep",
    on_bad_row: Literal["stop", "skip"] = "stop",
    delimiter: str | None = None,
    header: str | Sequence[str] | None = None,
    time_format: str | None = None,
) -> Histories:
    """The histories in a file or table of interactions.

    `source` is a path (Parquet, Arrow, CSV, TSV, JSON lines, RecBole `.inter`, or `user item item ...` lines in order
    of time as .txt; packed or not), a table of Arrow, pandas or polars, or a mapping user -> items (also as .json).
    `user`, `item` and `time` name the columns where they have no usual name; `time="none"` says that the order of the
    file is the order of time. `delimiter` and `header` (`user,item,rating,time`) are for text files that part cells
    otherwise or have no line of names; MovieLens' `u.data` and `ratings.dat` need neither. `time_format` is for dates
    that are not ISO, such as `%d/%m/%Y`. A table with a list of items in each row holds histories already.
    `min_rating` leaves out rows rated lower.

    >>> table = pa.table({"user": ["u", "v", "u"], "item": [7, 8, 9], "time": [2, 1, 1]})
    >>> read_interactions(table).lists()
    [[9, 7], [8]]
    """
    for name, value, known in (
        ("duplicates", duplicates, ("drop", "keep", "stop")),
        ("repeats", repeats, ("keep", "first")),
        ("on_bad_row", on_bad_row, ("stop", "skip")),
    ):
        if value not in known:
            raise PlanError(f"{option(name, value)}: expected {', '.join(known[:-1])} or {known[-1]}.")
    for name, column in (("user", user), ("item", item), ("time", time), ("rating", rating)):
        if not isinstance(column, str | None):
            raise PlanError(f"{option(name)}: found {type(column).__name__}, expected the name of a column.")
    layout = Layout.of(delimiter, header)
    origin = Origin.of(source, format, "interactions", layout)
    if origin.kind == "lines":
        return _read_lines(origin, repeats)
    found = _Columns(origin.name, user, item, time, rating, min_rating is not None)
    table = read_table(source, format, found.choose, layout) if origin.path is not None else source
    if isinstance(table, Mapping) and not found.are_in(table):
        return _of_mapping(table, origin, repeats)
    table = as_table(table, origin.name)
    found.choose(table.column_names)
    user, item = found.names["user"], found.names["item"]
    users, items = _keys(table, user), _keys(table, item)
    if pa.types.is_large_list(items.type):
        return _read_list_column(users, items, user, item, origin, repeats)
    counts = {"rows": len(items)}
    keep: NDArray[np.bool_] = np.ones(len(items), bool)
    times = None
    if time != "none":
        times = _times(table, found.time, origin, on_bad_row, time_format)
    for name, values in ((user, users), (item, items), *([] if times is None else [times])):
        _drop_nulls(name, values, keep, origin, on_bad_row)
    counts["bad_rows"] = int((~keep).sum())
    if min_rating is not None:
        rated = numbers_of(table, found.names["rating"], origin)
        low = keep & ~(rated >= min_rating)
        counts["rated_lower"] = int(low.sum())
        keep &= ~low
    kept = pa.array(keep)
    users, items = as_keys(users.filter(kept), origin.name, user), as_keys(items.filter(kept), origin.name, item)
    when = None if times is None else np.asarray(times[1].filter(kept))
    return _in_order(users, items, when, np.flatnonzero(keep), origin, counts, duplicates, repeats)


class _Columns:
    """Which columns are which: those that were named, else those with usual names."""

    def __init__(
        self, name: str, user: str | None, item: str | None, time: str | None, rating: str | None, rated: bool
    ) -> None:
        self._name, self._time = name, time
        self._asked = [("user", USERS, user), ("item", ITEMS, item)]
        if rated:
            self._asked.append(("rating", RATINGS, rating))
        self.names: dict[str, str] = {}
        self._all: list[str] = []

    def choose(self, columns: list[str]) -> list[str]:
        """The columns that are needed, of all there are; which those are is then in `names`."""
        if "item_id_list" in columns:
            raise SourceError(
                f"{self._name}: 'item_id_list' holds training prefixes, one per row. Give the plain interactions "
                f"instead: prefixes are made when batches are."
            )
        self._all = self._all or columns  # before those that are not needed were passed over
        self.names = {kind: find_column(columns, usual, asked, self._name, kind) for kind, usual, asked in self._asked}
        # Whether there must be times is known once the items are seen: lists of items have none.
        times = {column for column in columns if column == self._time or column.lower() in TIMES}
        return [column for column in columns if column in {*self.names.values(), *times}]

    def are_in(self, table: Mapping[Any, Any]) -> bool:
        """Whether a mapping is one of columns; else it is one of users."""
        known = {str(name).lower() for name in table}
        return all(asked in table or known & set(usual) for _, usual, asked in self._asked)

    @property
    def time(self) -> str:
        """The column of the time."""
        if self._time is None and not {column.lower() for column in self._all} & set(TIMES):
            known = ", ".join(map(repr, self._all))
            asking = option_of("actions split", "time", ...)
            raise SourceError(
                f"{self._name}: which column is the time? Its columns are {known}. Say {asking}, or "
                f"{option('time', 'none')} if the rows of each user are in order of time already."
            )
        return find_column(self._all, TIMES, self._time, self._name, "time")


def _of_mapping(source: Mapping[Any, Any], origin: Origin, repeats: str) -> Histories:
    """Histories from a mapping user -> items in order of time."""
    for user, items in source.items():
        if not is_row(items):
            raise SourceError(f"{origin.name}: user {user!r} has {items!r}, expected a list of items in order of time.")
    flat = as_keys(list(chain.from_iterable(source.values())), origin.name, None)
    ends = np.cumsum(np.fromiter(map(len, source.values()), np.int64, len(source)))
    return _of_lists(as_keys(list(source), origin.name, None), flat, ends, origin, repeats)


def _of_lists(users: Any, flat: Any, ends: NDArray[np.int64], origin: Origin, repeats: str) -> Histories:
    """Histories from a list of items for each user."""
    built = from_lists(users, flat, ends, origin.name, {"rows": len(ends)})
    return _repeats(built, repeats, {key: built.report["read"][key] for key in ("rows", "empty_histories")})


def _in_order(
    users: Any,
    items: Any,
    when: NDArray[Any] | None,
    rows: NDArray[np.int64],
    origin: Origin,
    counts: dict[str, int],
    duplicates: str,
    repeats: str,
) -> Histories:
    """Histories from one user, item and time per row, by sorting once."""
    if not len(items):
        raise SourceError(f"{origin.name}: no interaction is left of {counts['rows']:,} rows, expected at least one.")
    coded_users, coded_items = users.dictionary_encode(), items.dictionary_encode()
    who = np.asarray(coded_users.indices).astype(np.int64)
    what = np.asarray(coded_items.indices).astype(np.int64)
    # Both sorts are stable, so the order of the file breaks ties.
    order = np.argsort(who, kind="stable") if when is None else np.lexsort((when, who))
    who, what = who[order], what[order]
    if when is not None:
        when = when[order]
        tied = np.concatenate([[False], (who[1:] == who[:-1]) & (when[1:] == when[:-1])])
        again = _again_in_ties(tied, what)
        counts["duplicates"] = int(again.sum())
        if duplicates == "stop" and again.any():
            place = int(rows[order[int(np.argmax(again))]])
            raise SourceError(
                f"{origin.at(place)}: this user, item and time stood before ({counts['duplicates']:,} such rows). "
                f"{option('duplicates', 'drop')} takes each once, {option('duplicates', 'keep')} every time."
            )
        if duplicates == "drop":
            who, what, tied = who[~again], what[~again], tied[~again]
        counts["ties"] = int(tied.sum())
    ends = np.cumsum(np.bincount(who, minlength=len(coded_users.dictionary))).astype(np.int64)
    built = Histories(coded_users.dictionary, what, ends, coded_items.dictionary)
    return _repeats(built, repeats, counts)


def _again_in_ties(tied: NDArray[np.bool_], what: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which actions have the item of an earlier action of the same user and time; most actions share no time."""
    again = np.zeros(len(what), bool)
    inside = np.flatnonzero(tied | np.append(tied[1:], False))
    run = np.cumsum(~tied)[inside]
    order = np.lexsort((what[inside], run))
    run, item = run[order], what[inside][order]
    same = np.concatenate([[False], (run[1:] == run[:-1]) & (item[1:] == item[:-1])]) if len(run) else run == 1
    again[inside[order[same]]] = True
    return again


def _repeats(built: Histories, repeats: str, counts: dict[str, int]) -> Histories:
    """Counts actions whose user had the item before, and drops them if only the first is wanted."""
    user_of = built.user_of
    order = np.lexsort((built.items, user_of))
    users, items = user_of[order], built.items[order]
    before = np.zeros(len(items), bool)
    before[order[1:]] = (users[1:] == users[:-1]) & (items[1:] == items[:-1])
    counts["repeated_items"] = int(before.sum())
    if repeats == "first":
        built = built.keep_actions(~before)
    return replace(built, report={"read": {**counts, **built.counts}})


def _keys(table: pa.Table, column: str) -> Any:
    """The keys of a column; pandas makes floats of whole numbers beside a missing one, and they are numbers again."""
    values = plain(table.column(column))
    return as_numbers(values) if pa.types.is_floating(values.type) else values


def _times(table: pa.Table, column: str, origin: Origin, on_bad_row: str, time_format: str | None) -> tuple[str, Any]:
    """The times as numbers that sort as they do; null where there is none."""
    values = plain(table.column(column))
    kind = values.type
    if time_format is not None:
        return column, _times_in(values.cast(pa.large_string()), column, origin, on_bad_row, time_format)
    if pa.types.is_large_string(kind):
        return column, _times_of_text(values, column, origin, on_bad_row)
    if pa.types.is_floating(kind):
        return column, pc.if_else(pc.is_nan(values), None, values)
    if pa.types.is_timestamp(kind) or pa.types.is_date64(kind):
        return column, values.cast(pa.int64())
    if pa.types.is_date32(kind):
        return column, values.cast(pa.int32())
    if pa.types.is_integer(kind):
        return column, values
    raise SourceError(f"{origin.name}, column {column!r}: times are {kind}, expected numbers, dates or timestamps.")


_READINGS: Sequence[Any] = (
    *(pa.int64(), pa.float64()),
    *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")),
)

_EXACT_DIGITS = 16
"A number of as many characters, of which one is the point, is never the double of another such number."


def _times_of_text(values: Any, column: str, origin: Origin, on_bad_row: str) -> Any:
    for kind in _READINGS:
        try:
            read = values.cast(kind)
        except pa.ArrowInvalid:
            continue
        if pa.types.is_floating(kind) and (pc.max(pc.utf8_length(values)).as_py() or 0) > _EXACT_DIGITS:
            return _ranks(values, read)
        return read.cast(pa.int64()) if pa.types.is_timestamp(kind) else read
    # One value at a time only now that something is wrong: the kind of the first value is what the others should be.
    kind = next((kind for kind in _READINGS if _reads(values.drop_null()[0], kind)), pa.int64())
    bad = [row for row, value in enumerate(values) if value.is_valid and not _reads(value, kind)]
    if on_bad_row == "stop":
        raise _no_time(values, bad, column, origin, "a number, or a date such as 2024-05-31 or 2024-05-31 12:30:00")
    there = np.ones(len(values), bool)
    there[bad] = False
    return _times_of_text(pc.if_else(pa.array(there), values, None), column, origin, on_bad_row)


def _ranks(values: Any, read: Any) -> Any:
    """Numbers of too many digits for the doubles in `read`: the rank of each, which is in the same order."""
    if not pc.all(pc.is_finite(read)).as_py():
        return read
    coded = values.dictionary_encode()
    numbers = [Decimal(text.strip()) for text in coded.dictionary.to_pylist()]
    ranks = {number: rank for rank, number in enumerate(sorted(set(numbers)))}
    return pa.array([ranks[number] for number in numbers], pa.int64()).take(coded.indices)


def _times_in(values: Any, column: str, origin: Origin, on_bad_row: str, form: str) -> Any:
    """Times that are written in a form of one's own, as `strptime` knows it."""
    read = pc.strptime(values, format=form, unit="us", error_is_null=True).cast(pa.int64())
    bad = np.flatnonzero(np.asarray(pc.and_(read.is_null(), values.is_valid())))
    if len(bad) and on_bad_row == "stop":
        raise _no_time(values, bad.tolist(), column, origin, f"a time in the form {form!r}")
    return read


def _no_time(values: Any, bad: list[int], column: str, origin: Origin, expected: str) -> SourceError:
    remedy = (
        f"{option_of('actions split', 'on_bad_row', 'skip')} leaves them out"
        if len(bad) < len(values)
        else f"{option_of('actions split', 'time_format', '%d/%m/%Y')} reads dates in another form"
    )
    return SourceError(
        f"{origin.at(bad[0])}: {column!r} is {values[bad[0]].as_py()!r}, expected {expected} ({len(bad):,} of "
        f"{plural(len(values), 'row')} without one). Correct them; {remedy}."
    )


def _reads(value: Any, kind: Any) -> bool:
    try:
        value.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _drop_nulls(column: str, values: Any, keep: NDArray[np.bool_], origin: Origin, on_bad_row: str) -> None:
    if not values.null_count:
        return
    lost = np.asarray(values.is_null())
    if on_bad_row == "stop":
        raise SourceError(
            f"{origin.at(int(np.argmax(lost)))}: no {column!r} ({plural(int(lost.sum()), 'such row')}). Every row "
            f"needs one: fix the file; {option_of('actions split', 'on_bad_row', 'skip')} leaves these rows out."
        )
    keep &= ~lost


def _read_list_column(users: Any, items: Any, user: str, item: str, origin: Origin, repeats: str) -> Histories:
    """A table with a row per user."""
    users = as_keys(users, origin.name, user)
    _each_once(users, origin)
    lengths = pc.list_value_length(items).fill_null(0)
    flat = as_keys(items.flatten(), origin.name, item)
    return _of_lists(users, flat, np.cumsum(np.asarray(lengths).astype(np.int64)), origin, repeats)


def _read_lines(origin: Origin, repeats: str) -> Histories:
    """Lines `user item item ...`, split by the column and not by the line."""
    data = read_bytes(origin.path) if origin.path is not None else b""
    try:
        text = pa.array([data], pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:
        at = invalid_documents(np.frombuffer(data, np.uint8), np.array([len(data)]))[0][1]
        line = data.count(b"\n", 0, at) + 1
        raise SourceError(f"{origin.name}, line {line}: invalid UTF-8 at byte {at} of the file.") from None
    lines = pc.ascii_trim_whitespace(pc.split_pattern(text, "\n").flatten())
    lines = lines.filter(pc.not_equal(lines, pa.scalar("", lines.type)))
    if not len(lines):
        raise SourceError(f"{origin.name}: the file is empty, expected lines `user item item ...`.")
    words = pc.ascii_split_whitespace(lines)
    borders = np.asarray(words.offsets).astype(np.int64)
    first = np.zeros(len(words.values), bool)
    first[borders[:-1]] = True
    users = plain(words.values.filter(pa.array(first)))
    _each_once(users, origin)
    flat = plain(words.values.filter(pa.array(~first)))
    return _of_lists(users, flat, borders[1:] - np.arange(1, len(borders)), origin, repeats)


def _each_once(users: Any, origin: Origin) -> None:
    if repeat := first_repeat(users):
        again, before = repeat
        raise SourceError(
            f"{origin.at(again)}: user {users[again].as_py()!r} had a history in {origin.at(before)}; expected one "
            "each."
        )
