"""The coding of items: which value of a column has which code, so that new items get the codes that old ones have.

It is saved with the items, and so with a vocabulary: names of values, edges of bins, the value for missing ones,
components and codebooks of embeddings; the items record which hashes are used. Values are matched by name. An unknown
value is an error that names it, or follows a rule: `drop` leaves the item out, any other word is the value to use
instead.

Start with `code_like`.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from piecemill._core import hash_documents
from piecemill.actions.embeddings import Codebooks, check_finite, read_embeddings
from piecemill.actions.items import (
    KEY_NAMES,
    Items,
    by_column,
    from_mapping,
    is_saved,
    row_per_item,
    values_coding,
)
from piecemill.actions.tables import (
    Origin,
    as_floats,
    as_table,
    bare_numbers,
    column_of,
    cut_list,
    find_column,
    numbers_of,
    pick,
    plain,
    read_table,
)
from piecemill.errors import PlanError, SourceError
from piecemill.plans import did_you_mean, option, option_of
from piecemill.sizes import plural

Ints = NDArray[np.int64]
Rules = str | Sequence[str] | None
"What becomes of a value that the coding does not know: error, drop, or a value; or `column=` one of these."
NOTHING = "(none)"
"What a feature of several values says behind the last of them."
_NAMED = 5


@did_you_mean
def code_like(
    source: Any,
    like: Items,
    *,
    key: str | None = None,
    embeddings: str | None = None,
    semantic_ids: str | None = None,
    unknown_value: Rules = None,
) -> Items:
    """The items of `source`, as `Items.of` takes them, with the codes that `like` gives their values.

    Items that have codes already are matched by the names of their values. An item of `like` whose features are the
    same keeps its hash; a new one gets a hash that no item with its features has, or where none is free shares one,
    which is counted (`unknown_value="hash=error"` and `"hash=drop"` forbid it). `embeddings` and `semantic_ids` are
    .npy files with a row per item of `source`, where such made the items of `like`.

    >>> old = Items.of({"a": ["red"], "b": ["blue"], "c": ["green"]})
    >>> code_like({"d": ["red"], "e": ["green"]}, old).codes.tolist(), old.labels
    ([[2], [1]], (['blue', 'green', 'red'],))
    """
    if not isinstance(like, Items):
        raise SourceError(f"like: found {type(like).__name__}, expected Items; `Items.load` reads them.")
    coding = coding_of(like)
    origin = Origin.of(source, None, "items")
    found = read_table(origin.path) if origin.path is not None else source
    if is_saved(found):
        found = Items.of(origin.path if origin.path is not None else found)
    if isinstance(found, Items) and coding_of(found) == coding:
        return found
    rows: _Coded | _Raw
    if isinstance(found, Items):
        rows = _Coded(found, coding, origin)
    else:
        names = [_column_in(one["from"]) for one in coding["columns"] if one["kind"] in ("values", "bins", "many")]
        if isinstance(found, Mapping) and not isinstance(found, pa.Table):
            found, key = from_mapping(found, names, origin.name), ""
        rows = _Raw(as_table(found, origin.name), coding, origin, key, names, embeddings, semantic_ids)
    return _apply(rows, like, coding, unknown_value)


def coding_of(items: Items) -> dict[str, Any]:
    """How the values of `items` became codes: as saved with them, or derived from the items."""
    if items.coding is not None:
        return dict(items.coding)
    columns = []
    for number, (name, labels) in enumerate(zip(items.columns, items.labels, strict=True)):
        one = values_coding(name, labels, items.codes[:, number], missing=items.made.get("missing"))
        lows = [re.fullmatch(r"from (\S+)", str(label)) for label in labels or ()]
        if lows and all(lows[: max(1, len(lows) - 1)]):  # bins; the last label may be that of items without a number
            one |= {"kind": "bins", "edges": [float(low[1]) for low in lows[1:] if low is not None]}
        columns.append(one)
    return {"columns": columns}


def collisions(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], dict[str, int]]:
    """How many items before each are equal to it in all columns, and counts of such items."""
    _, group, sizes = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    rank = np.empty(len(codes), np.int64)
    rank[order] = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    shared = sizes[sizes > 1]
    counts = {"distinct": len(sizes), "collisions": len(shared), "colliding_items": int(shared.sum())}
    return rank, {**counts, "largest_collision": int(sizes.max())}


def hash_feature(codes: NDArray[np.int64], rank: NDArray[np.int64], buckets: int, seed: int) -> NDArray[np.int64]:
    """A bucket for each item: equal items get different ones, as if drawn by lot.

    Item number k of those that share their codes gets element k of a permutation of the buckets that hangs on the codes
    and the seed alone, so an item keeps its bucket when others are added after it.
    """
    told = np.ascontiguousarray(np.column_stack([codes, np.full(len(codes), seed, np.int64)]).astype("<i8"))
    width = told.shape[1] * 8
    hashes = hash_documents(told.view(np.uint8).reshape(-1), np.arange(1, len(told) + 1, dtype=np.int64) * width)
    # start + k * step runs through all buckets before it comes back, if the step has no divisor in common with them.
    steps = np.array([step for step in range(1, max(buckets, 2)) if gcd(step, buckets) == 1], np.uint64)
    start = (hashes[:, 0] % np.uint64(buckets)).astype(np.int64)
    step = steps[hashes[:, 1] % np.uint64(len(steps))].astype(np.int64)
    chosen: NDArray[np.int64] = (start + rank * step) % buckets
    return chosen


class _Raw:
    """Items as a table of values."""

    def __init__(
        self,
        table: pa.Table,
        coding: Mapping[str, Any],
        origin: Origin,
        key: str | None,
        names: list[str],
        embeddings: str | None,
        semantic_ids: str | None,
    ) -> None:
        key = find_column(table.column_names, KEY_NAMES, key, origin.name, "key") if key != "" else key
        npy = semantic_ids is not None or (embeddings or "").endswith(".npy")
        wanted = [*names, *([embeddings] if embeddings in table.column_names else [])]
        for name in names:
            if name not in table.column_names:
                known = ", ".join(map(repr, table.column_names))
                raise SourceError(
                    f"{origin.name}: no column {name!r}, which the items to be coded alike were made from; its columns "
                    f"are {known}."
                )
        self._table, self.keys, self.origin, _ = row_per_item(table, key, wanted, origin, npy=npy)
        self.replaced: dict[str, int] = {}
        self._codes = self._arrays(coding, embeddings, semantic_ids)

    def _arrays(self, coding: Mapping[str, Any], embeddings: str | None, semantic_ids: str | None) -> dict[str, Ints]:
        """The columns that come from embeddings and from semantic ids."""
        kinds: dict[str, list[Any]] = {"embedding": [], "ids": []}
        for one in coding["columns"]:
            kinds.get(one["kind"], []).append(one)
        found: dict[str, Ints] = {}
        given = {"embedding": ("embeddings", embeddings), "ids": ("semantic_ids", semantic_ids)}
        for kind, (name, asked) in given.items():
            if not kinds[kind] and asked is not None:
                raise PlanError(f"{option(name, asked)}: the items to be coded alike have none.")
        if kinds["embedding"]:
            books = Codebooks.from_json(coding["embeddings"])
            asked = embeddings or kinds["embedding"][0]["from"]
            if not asked:
                raise PlanError(
                    f"{self.origin.name}: the items to be coded alike have codes of embeddings; "
                    f"{option_of('actions features', 'embeddings', ...)} gives those of these items."
                )
            vectors = vectors_of(asked, self._table, len(self.keys), self.origin)
            if vectors.shape[1] != books.dimensions:
                raise SourceError(
                    f"{asked}: embeddings of {vectors.shape[1]} dimensions; the codebooks were learned from "
                    f"{books.dimensions}. Give embeddings of the same model."
                )
            codes = books.codes(vectors, [one["values"] for one in kinds["embedding"]])
            found |= {one["name"]: codes[:, number] for number, one in enumerate(kinds["embedding"])}
        if kinds["ids"]:
            if semantic_ids is None:
                raise PlanError(
                    f"{self.origin.name}: the items to be coded alike have semantic ids; "
                    f"{option_of('actions features', 'semantic_ids', ...)} gives those of these items."
                )
            ids = read_ids(semantic_ids, len(self.keys))
            if ids.shape[1] != len(kinds["ids"]):
                raise SourceError(f"{semantic_ids}: {ids.shape[1]} ids per item, expected {len(kinds['ids'])}.")
            found |= {one["name"]: ids[:, number] for number, one in enumerate(kinds["ids"])}
        return found

    def codes(self, one: Mapping[str, Any]) -> Ints | None:
        """The codes of a column that is coded by number; None for one that is matched by name."""
        if one["kind"] in ("embedding", "ids"):
            return self._codes[one["name"]]
        if one["kind"] != "bins":
            return None
        numbers = numbers_of(self._table, one["from"], self.origin)
        codes = np.searchsorted(one["edges"], numbers, side="right").astype(np.int64)
        there = ~np.isnan(numbers)
        empty = -1 if one["missing"] not in one["labels"] else one["labels"].index(one["missing"])
        codes[~there] = empty
        return codes

    def texts(self, one: Mapping[str, Any], rule: str | None) -> Any:
        """The values of a column as text, null where there is none.

        `rule` is what becomes of unknown ones of several values: a known one takes their place before they are put in
        order, and `(none)` leaves them out.
        """
        if one["kind"] == "many":
            lists = value_lists(self._table, one["from"], one["separator"], self.origin)
            if rule not in (None, "error", "drop"):
                lists = self._known(lists, one, str(rule))
            return pa.array(in_slots(lists, one["order"], one["slots"])[one["slot"]], pa.large_string())
        column, element = pick(self._table.column_names, one["from"])
        values = plain(self._table.column(column or one["from"]))
        if element is not None and one.get("width"):
            parts = cut_list(values, str(column), None, self.origin)
            if len(parts) != one["width"]:
                raise SourceError(
                    f"{self.origin.name}: {column!r} holds {len(parts)} values per item, expected {one['width']} as in "
                    f"the items to be coded alike."
                )
            values = parts[element][1]
        elif element is not None:
            ((_, values),) = cut_list(values, str(column), element, self.origin)
        where = f"{self.origin.name}, column {one['from']!r}"
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), None, values)
            try:
                values = values.cast(pa.int64())
            except pa.ArrowInvalid:
                raise SourceError(f"{where}: found {values.type}, expected text or whole numbers.") from None
        if pa.types.is_nested(values.type):
            raise SourceError(f"{where}: found {values.type}, expected a value per item.")
        texts = values.cast(pa.large_string())
        names = pa.array(_names(one), pa.large_string())
        return pc.if_else(pc.is_in(texts, value_set=names), texts, bare_numbers(texts))

    def _known(self, lists: list[list[str]], one: Mapping[str, Any], rule: str) -> list[list[str]]:
        """The values of each item with `rule` in place of unknown ones, which are counted."""
        order = set(one["order"])
        if rule not in {*order, NOTHING}:
            raise PlanError(
                f"{option('unknown_value', rule)}: the column {one['from']!r} has no such value; it knows "
                f"{_some(one['order'])}. Name one of them (as {one['from']}=...), {NOTHING}, or drop."
            )
        self.replaced[one["from"]] = sum(value not in order for values in lists for value in values)
        kept = [[value if value in order else rule for value in values] for values in lists]
        return [[value for value in dict.fromkeys(values) if value != NOTHING] for values in kept]


class _Coded:
    """Items that have codes already, by another coding."""

    def __init__(self, items: Items, coding: Mapping[str, Any], origin: Origin) -> None:
        self.keys, self.origin, self._items = items.known, origin, items
        self.replaced: dict[str, int] = {}
        own = coding_of(items)
        self._own = {one["name"]: one for one in own["columns"]}
        for one in coding["columns"]:
            mine = self._own.get(one["name"])
            if one["kind"] == "hash":
                continue
            if mine is None:
                raise SourceError(
                    f"{origin.name}: no column {one['name']!r} among {', '.join(map(repr, items.columns))}; expected "
                    f"the columns of the items to be coded alike."
                )
            told = f"{origin.name}, column {one['name']!r}"
            remedy = "Code the catalogue itself by the old coding: `piecemill actions features CATALOGUE --like ...`."
            if "bins" in (one["kind"], mine["kind"]) and mine.get("edges") != one.get("edges"):
                raise SourceError(
                    f"{told}: its bins have the edges {_short(mine.get('edges'))}, those to be coded alike "
                    f"{_short(one.get('edges'))}, so a number says something else. {remedy}"
                )
            if "many" in (one["kind"], mine["kind"]) and _places(mine) != _places(one):
                raise SourceError(
                    f"{told}: it holds values in another order, so a value stands in another feature. {remedy}"
                )
            if "embedding" in (one["kind"], mine["kind"]) and own.get("embeddings") != coding.get("embeddings"):
                raise SourceError(f"{told}: codes of other codebooks, so a code says something else. {remedy}")

    def codes(self, one: Mapping[str, Any]) -> Ints | None:
        """The codes of a column that is coded by number; None for one that is matched by name."""
        if one["kind"] not in ("embedding", "ids"):
            return None
        codes: Ints = self._items.codes[:, self._items.columns.index(one["name"])]
        return codes

    def texts(self, one: Mapping[str, Any], _rule: str | None) -> Any:
        """The values of a column as text."""
        number = self._items.columns.index(one["name"])
        labels = self._items.labels[number]
        codes: Any = pa.array(self._items.codes[:, number])
        names = codes if labels is None else pa.array(list(map(str, labels)), pa.large_string()).take(codes)
        return names.cast(pa.large_string())


def _apply(rows: _Raw | _Coded, like: Items, coding: Mapping[str, Any], unknown_value: Rules) -> Items:
    columns = coding["columns"]
    names = [one["name"] for one in columns]
    made_from = {one["name"]: _column_in(one["from"]) for one in columns}
    rules = by_column(unknown_value, made_from, names, "unknown_value")
    # The features of one column follow one rule: unknown values stand in the first of them.
    of_many = {one["from"]: rules[one["name"]] for one in columns if one.get("slot") == 0}
    codes = np.empty((len(rows.keys), len(columns)), np.int64)
    kept = np.ones(len(rows.keys), bool)
    listed = [unknown_value] if isinstance(unknown_value, str) else unknown_value or ()
    made: dict[str, Any] = {"source": rows.origin.name, "like": like.made.get("source"), "shared_hashes": 0}
    replaced: dict[str, int] = {}
    for number, one in enumerate(columns):
        shown: Any = None
        if one["kind"] == "hash":
            codes[:, number], shared = _hashes(rows.keys, codes[:, :number], kept, like, one)
            if f"{one['name']}=error" in listed or f"{one['name']}=drop" in listed:
                codes[shared, number] = -1
            else:
                made["shared_hashes"] = int(shared.sum())
        elif (own := rows.codes(one)) is not None:
            codes[:, number], shown = own, own
            codes[:, number] = np.where(_is_known(own, one), own, -1)
        else:
            shown = rows.texts(one, of_many.get(one["from"]))
            if one["missing"] is not None:
                shown = shown.fill_null(one["missing"])
            codes[:, number] = _by_name(shown, one)
        unknown = (codes[:, number] < 0) & kept
        if not unknown.any():
            continue
        rule = rules[one["name"]]
        if rule in (None, "error"):
            raise SourceError(_unknown(rows, one, unknown, shown))
        if rule == "drop":
            kept &= ~unknown
            continue
        value = int(_by_name(pa.array([str(rule)], pa.large_string()), one)[0])
        if value < 0:
            raise PlanError(
                f"{option('unknown_value', rule)}: the column {one['name']!r} has no such value; it knows "
                f"{_some(_names(one))}. Name one of them (as {one['name']}=...), or drop."
            )
        codes[unknown, number] = value
        replaced[one["name"]] = int(unknown.sum())
    if not kept.any():
        why = "every item has a value that the coding does not know; none is left" if len(kept) else "no item in it"
        raise SourceError(f"{rows.origin.name}: {why}.")
    made |= {"dropped": int((~kept).sum()), "unknown_values": {**rows.replaced, **replaced}}
    keys = rows.keys.filter(pa.array(kept)).to_pylist()
    return Items(keys, codes[kept], tuple(names), like.labels, made, coding)


def _places(one: Mapping[str, Any]) -> tuple[Any, ...]:
    """By what the values of a column of several find their features."""
    return one.get("order"), one.get("slots"), one.get("slot")


def _names(one: Mapping[str, Any]) -> list[str]:
    """The names of the values that a column knows."""
    return [str(name) for name in (one["values"] if one["labels"] is None else one["labels"])]


def _by_name(texts: Any, one: Mapping[str, Any]) -> Ints:
    """The codes of values by their names; -1 for a name that is not known, and for none."""
    names = pa.array(_names(one), pa.large_string())
    if len((alike := _truth(names)).unique()) == len(names):
        texts, names = _truth(texts), alike
    at = np.asarray(pc.index_in(texts, value_set=names).fill_null(-1))
    at = np.where(np.asarray(texts.is_null()), -1, at).astype(np.int64)
    return at if one["labels"] is not None else np.where(at < 0, -1, np.array([*one["values"], -1], np.int64)[at])


def _truth(texts: Any) -> Any:
    """Texts with truth values as JSON and Parquet have them: pandas writes True to CSV, a spreadsheet TRUE."""
    small = pc.utf8_lower(texts)
    return pc.if_else(pc.is_in(small, value_set=pa.array(["true", "false"], small.type)), small, texts)


def _is_known(codes: Ints, one: Mapping[str, Any]) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = codes >= 0 if one["labels"] is not None else np.isin(codes, one["values"])
    return known


def _hashes(
    keys: Any, codes: Ints, kept: NDArray[np.bool_], like: Items, one: Mapping[str, Any]
) -> tuple[Ints, NDArray[np.bool_]]:
    """The hash of each item that is kept, and which of them share it with another item of their features.

    It is that of `like`; for a new item, the first of its permutation that the vocabulary knows and that the fewest
    items with its features have: none, as long as one is free.
    """
    width = codes.shape[1]  # the hash is the last column
    before = like.index(keys, unknown="mark")
    old, old_hash = like.codes[:, :width], like.codes[:, width]
    same = (before >= 0) & (old[before] == codes).all(axis=1)
    hashes = np.where(same, old_hash[before], -1)
    shared = np.zeros(len(codes), bool)
    new = np.flatnonzero(~same & kept)
    if not len(new):
        return hashes, shared
    rows = list(map(tuple, codes[new].tolist()))
    taken: dict[tuple[int, ...], Counter[int]] = {row: Counter() for row in rows}
    for row, own in zip(map(tuple, old.tolist()), old_hash.tolist(), strict=True):
        if row in taken:
            taken[row][own] += 1
    buckets, known = one["buckets"], set(one["values"])
    first, second = (
        hash_feature(codes[new], np.full(len(new), rank), buckets, one["seed"]).tolist() for rank in (0, 1)
    )
    for number, item in enumerate(new.tolist()):
        step = second[number] - first[number]
        permuted = [(first[number] + rank * step) % buckets for rank in range(buckets)]
        used = taken[rows[number]]
        bucket = min((bucket for bucket in permuted if bucket in known), key=lambda one: used[one])
        shared[item] = used[bucket] > 0
        used[bucket] += 1
        hashes[item] = bucket
    return hashes, shared


def _unknown(rows: _Raw | _Coded, one: Mapping[str, Any], unknown: NDArray[np.bool_], shown: Any) -> str:
    """What is wrong with a value, where it stands, what else is, and what to do."""
    row = int(np.argmax(unknown))
    item = rows.keys[row].as_py()
    rules = f"{option('unknown_value', 'drop')} leaves such items out"
    such = plural(int(unknown.sum()), "such item")
    if one["kind"] == "hash":
        return (
            f"{rows.origin.at(row)}: the item {item!r} is equal to others in all features, and none of the "
            f"{len(one['values']):,} values of {one['name']!r} is free to distinguish it ({such}). "
            "Train anew with more hash buckets, or let them share one."
        )
    several = one["kind"] == "many"
    known = f"{one['from']}={NOTHING}" if several else f"{one['name']}={_names(one)[0]}"
    instead = (
        f"{option('unknown_value', known)} {'leaves the values out' if several else 'takes a known value instead'}"
    )
    taken = (shown[int(at)] for at in np.flatnonzero(unknown))
    values = [value.as_py() if isinstance(value, pa.Scalar) else int(value) for value in taken]
    if one["kind"] == "bins" or values[0] is None:
        return (
            f"{rows.origin.at(row)}: the item {item!r} has no {one['name']!r} ({such}), "
            f"and the items to be coded alike all had one. Fill it in; {rules}, "
            f"{instead}."
        )
    counted = Counter(map(str, values)).most_common()
    told = ", ".join(f"{value!r} ({count:,} item{'s' * (count > 1)})" for value, count in counted[:_NAMED])
    more = f" and {len(counted) - _NAMED:,} more" if len(counted) > _NAMED else ""
    return (
        f"{rows.origin.at(row)}: the item {item!r} has {one['name']}={str(values[0])!r}, which the coding does not "
        f"know. Unknown values: {told}{more}; known are {_some(_names(one))}. Train anew with these items; {rules}, "
        f"{instead}."
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more


def _short(edges: Sequence[float] | None) -> str:
    return "none" if not edges else _some([str(edge) for edge in edges]).replace("'", "")


def _column_in(made_from: str) -> str:
    return re.sub(r"\[-?\d+\]$", "", made_from)


def vectors_of(name: str, table: pa.Table, count: int, origin: Origin) -> NDArray[Any]:
    """Embeddings from a column of lists or a .npy file, one per item and all finite."""
    if name in table.column_names:
        vectors: NDArray[Any] = _list_column(plain(table.column(name)), name, origin)
        name = f"{origin.name}, column {name!r}"
    else:
        if not name.endswith(".npy"):
            known = ", ".join(map(repr, table.column_names))
            raise PlanError(
                f"{option('embeddings', name)}: neither a .npy file nor a column of {origin.name}, which has {known}."
            )
        vectors = read_embeddings(name)
    if len(vectors) != count:
        raise SourceError(f"{name}: {len(vectors):,} rows for {count:,} items; expected one per item, in their order.")
    check_finite(vectors, name)
    return vectors


def read_ids(path: str, count: int) -> Ints:
    """Semantic ids from a .npy file, a row per item."""
    ids = read_embeddings(path)
    if ids.dtype.kind not in "iu" or len(ids) != count or (ids.size and int(ids.min()) < 0):
        raise SourceError(
            f"{path}: {ids.dtype} of shape {ids.shape}, expected whole numbers of 0 and more, one row for each of the "
            f"{count:,} items in their order."
        )
    return np.array(ids, np.int64)


def value_lists(table: pa.Table, column: str, separator: str, origin: Origin) -> list[list[str]]:
    """The values of each item in a column of lists, or of text with `separator` between values; each once."""
    values = column_of(table, column, origin)
    if pa.types.is_large_string(values.type):
        values = pc.split_pattern(values, separator)
    elif not pa.types.is_large_list(values.type):
        raise SourceError(
            f"{origin.name}, column {column!r}: found {values.type}, expected lists, or text with {separator!r} "
            "between values."
        )
    rows = ([str(value).strip() for value in row or () if value is not None] for row in values.to_pylist())
    return [list(dict.fromkeys(filter(None, row))) for row in rows]


def in_slots(lists: list[list[str]], order: Sequence[str], slots: int) -> list[list[str]]:
    """Values in `slots` columns: those of an item in the given order, (none) behind the last of them.

    A value that is not in the order comes first, so that it cannot go unseen.

    >>> in_slots([["b", "a"], ["c"]], ["a", "b"], 2)
    [['a', 'c'], ['b', '(none)']]
    """
    rank = {value: place for place, value in enumerate(order)}
    ordered = [sorted(values, key=lambda value: rank.get(value, -1)) for values in lists]
    return [[values[slot] if slot < len(values) else NOTHING for values in ordered] for slot in range(slots)]


def _list_column(values: Any, name: str, origin: Origin) -> NDArray[np.float32]:
    if not pa.types.is_large_list(values.type):
        raise SourceError(f"{origin.name}: the column {name!r} is {values.type}, expected lists of numbers.")
    lengths = np.asarray(pc.list_value_length(values).fill_null(0))
    if not lengths[0] or (lengths != lengths[0]).any():
        row = int(np.argmax(lengths != lengths[0]))
        raise SourceError(f"{origin.at(row)}: {name!r} holds {lengths[row]} numbers, the first item {lengths[0]}.")
    numbers = as_floats(values.flatten(), f"{origin.name}, column {name!r}", pa.float32())
    return numbers.reshape(len(values), int(lengths[0]))
