"""Features: what is known of the items -> one code per item and column.

Columns come in this order: codes of embeddings (`pq_0`, ...), semantic ids (`id_0`, ...), columns of the table, numbers
in bins, and last `hash`, which tells apart items that are equal in all others.

Start with `make_items`.
"""

from collections.abc import Mapping
from dataclasses import asdict
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from piecemill._core import hash_documents
from piecemill.actions.embeddings import check_finite, quantize, read_embeddings, whiten
from piecemill.actions.features_plan import FeaturesPlan, parse_bin
from piecemill.actions.histories import Histories
from piecemill.actions.items import KEY_NAMES, Items, as_keys, items_of, keys_alone
from piecemill.actions.tables import Origin, as_table, find_column, pick, plain, read_table
from piecemill.errors import PlanError, SourceError

Part = tuple[list[str], NDArray[np.int64], list[list[Any] | None]]


def make_items(source: Any, *, plan: FeaturesPlan | None = None, train: Any = None, **options: Any) -> Items:
    """Items with features made by `plan`, or by its options as keywords; `items.made` says how, with counts.

    `source` is what `Items.of` takes: a table or file with a row per item, or a mapping. A table of interactions will
    do too, where all rows of an item say the same of it. `train` are histories whose items teach the codebooks.

    >>> items = make_items({"a": ["red"], "b": ["red"], "c": ["blue"]}, hash_buckets="2")
    >>> items.columns, items.made["hash"]["largest_collision"], len({tuple(row) for row in items.codes.tolist()})
    (('f0', 'hash'), 2, 3)
    """
    if plan is not None and options:
        raise PlanError(f"plan and {', '.join(options)}: give one or the other.")
    plan = plan or FeaturesPlan(**options)
    origin = Origin.of(source, None, "items")
    if isinstance(source, Items | Mapping) or origin.kind == "json":
        return _finished(_of_mapping(source, plan, origin), plan, {})
    table = read_table(source) if origin.path is not None else as_table(source, origin.name)
    key = find_column(table.column_names, KEY_NAMES, plan.key, origin.name, "key")
    keys = as_keys(table.column(key), origin.name, key)
    table, made = _row_per_item(table, keys, key, plan, origin)
    if made:
        keys = as_keys(table.column(key), origin.name, key)
        origin = Origin(origin.name, None, origin.kind)  # its rows are items now, and no longer lines
    parts: list[Part] = []
    if plan.embeddings is not None:
        part, told = _embedded(table, keys, plan, origin, train)
        parts.append(part)
        made["embeddings"] = told
    if plan.semantic_ids is not None:
        parts.append(_semantic_ids(plan.semantic_ids, len(keys)))
    special = {pick(table.column_names, parse_bin(one)[0])[0] for one in plan.bins} | {key, plan.embeddings}
    others = [] if parts else [name for name in table.column_names if name not in special]
    if plan.columns or others:
        # By name a column is what it is called; all there are must be fit to be taken.
        rest = table.select([key, *others]) if not plan.columns else table
        taken = items_of(rest, origin, key, plan.columns or None, plan.missing)
        parts.append((list(taken.columns), taken.codes, list(taken.labels)))
    parts += [_binned(table, one, keys, plan.missing, origin) for one in plan.bins]
    if not parts:
        raise SourceError(
            f"{origin.name}: no column beside the key {key!r}; expected at least one feature of the items."
        )
    names = [name for part in parts for name in part[0]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PlanError(f"columns: {twice!r} would be there twice; name it once.")
    labels = [one for part in parts for one in part[2]]
    items = Items(keys.to_pylist(), np.concatenate([part[1] for part in parts], axis=1), tuple(names), tuple(labels))
    return _finished(items, plan, made)


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


def as_text(items: Items, out: Path | str) -> str:
    """The result of `piecemill actions features` for people."""
    values = ", ".join(
        f"{name} {len(np.unique(items.codes[:, number])):,}" for number, name in enumerate(items.columns)
    )
    lines = [f"{len(items):,} items with {len(items.columns)} features in {out}; values: {values}"]
    made = items.made
    if made.get("repeated_rows"):
        lines.append(f"note: {made['repeated_rows']:,} rows say again what was said of an item")
    if told := made.get("embeddings"):
        kept = (
            f"{told['components']} components with {told['variance']:.1%} of the variance" if told["pca"] else "no PCA"
        )
        lines.append(
            f"  embeddings: {told['dimensions']} dimensions, {kept}; {told['codebooks']} codebooks of {told['bits']} "
            f"bits learned from {told['learned_from']:,} items"
        )
        if not told["train_items_only"]:
            lines.append("note: all items taught the codebooks; --train-on takes the items of the training part only")
        if told["learned_from"] < 39 << told["bits"]:  # what faiss itself asks for
            lines.append(f"note: {told['learned_from']:,} items are few for {1 << told['bits']} codes a codebook")
    told = made["hash"]
    taken = f"{told['buckets']:,} buckets" if told["buckets"] else "no hash feature"
    lines.append(
        f"  collisions: {told['collisions']:,} groups of {told['colliding_items']:,} items, the largest of "
        f"{told['largest_collision']:,}; {taken}"
    )
    if told["largest_collision"] > 1 and not told["buckets"]:
        lines.append("note: equal items cannot be told apart in what a model generates")
    return "\n".join(lines)


def _of_mapping(source: Any, plan: FeaturesPlan, origin: Origin) -> Items:
    wrong = [name for name in ("bins", "semantic_ids", "embeddings") if getattr(plan, name)]
    if wrong:
        raise PlanError(f"{origin.name}: {', '.join(wrong)} need a table with a row per item, found a mapping.")
    return Items.of(source, columns=plan.columns or None, missing=plan.missing)


def _finished(items: Items, plan: FeaturesPlan, made: dict[str, Any]) -> Items:
    """Items with the hash feature, and how they were made."""
    rank, counts = collisions(items.codes)
    largest = counts["largest_collision"]
    buckets = 0
    if plan.hash_buckets == "auto":
        buckets = 1 << (largest - 1).bit_length() if largest > 1 else 0
    elif plan.hash_buckets != "none":
        buckets = int(plan.hash_buckets)
        if buckets < largest:
            row = int(np.argmax(rank == largest - 1))
            raise PlanError(
                f"hash_buckets={buckets}: {largest:,} items are equal in all other features, the last of them "
                f"{items.keys[row]!r}. Take {largest:,} or more, or auto."
            )
    codes, columns, labels = items.codes, items.columns, items.labels
    if buckets:
        if "hash" in columns:
            raise PlanError(
                "columns: 'hash' is the name of the feature that is added; rename yours, or hash_buckets=none."
            )
        hashed = hash_feature(codes, rank, buckets, plan.seed)
        codes, columns, labels = np.column_stack([codes, hashed]), (*columns, "hash"), (*labels, None)
    options = {name: list(one) if isinstance(one, tuple) else one for name, one in asdict(plan).items()}
    return Items(items.keys, codes, columns, labels, {"plan": options, **made, "hash": {**counts, "buckets": buckets}})


def _row_per_item(
    table: pa.Table, keys: Any, key: str, plan: FeaturesPlan, origin: Origin
) -> tuple[pa.Table, dict[str, Any]]:
    """The first row of every item, once it is sure that the other rows say the same."""
    coded = keys.dictionary_encode()
    number = np.asarray(coded.indices).astype(np.int64)
    count = len(coded.dictionary)
    if count == len(keys):
        return table, {}
    if plan.semantic_ids is not None or (plan.embeddings or "").endswith(".npy"):
        again = int(np.argmax(number != np.arange(len(number))))
        raise SourceError(f"{origin.at(again)}: the item {keys[again].as_py()!r} again; a .npy needs one row per item.")
    first = np.empty(count, np.int64)
    first[number[::-1]] = np.arange(len(keys))[::-1]
    before = pa.array(first[number])
    wanted = [*plan.columns, *(parse_bin(one)[0] for one in plan.bins), *filter(None, [plan.embeddings])]
    names = [pick(table.column_names, one)[0] or one for one in wanted] or table.column_names
    for name in dict.fromkeys(names):
        if name not in table.column_names or name == key:
            continue
        values = plain(table.column(name))
        if pa.types.is_nested(values.type):
            raise SourceError(
                f"{origin.name}: {name!r} holds lists and items stand in several rows; give one row per item."
            )
        same = pc.equal(values, values.take(before))
        both = pc.and_(pc.is_null(values), pc.is_null(values.take(before)))
        differs = ~np.asarray(pc.or_(same.fill_null(False), both))
        if differs.any():
            row = int(np.argmax(differs))
            raise SourceError(
                f"{origin.at(row)}: the item {keys[row].as_py()!r} has {name}={values[row].as_py()!r}, but it had "
                f"{values[int(first[number[row]])].as_py()!r} before. Take columns that say one thing of an item."
            )
    return table.take(first), {"repeated_rows": len(keys) - count}


def _embedded(
    table: pa.Table, keys: Any, plan: FeaturesPlan, origin: Origin, train: Any
) -> tuple[Part, dict[str, Any]]:
    name = str(plan.embeddings)
    if name in table.column_names:
        vectors, name = _list_column(plain(table.column(name)), name, origin), f"{origin.name}, column {name!r}"
    else:
        if not name.endswith(".npy"):
            known = ", ".join(map(repr, table.column_names))
            raise PlanError(
                f"embeddings={name!r}: neither a .npy file nor a column of {origin.name}, which has {known}."
            )
        vectors = read_embeddings(name)
    if len(vectors) != len(keys):
        raise SourceError(
            f"{name}: {len(vectors):,} rows for {len(keys):,} items; expected one per item, in their order."
        )
    check_finite(vectors, name)
    train = plan.train_on if train is None else train
    learn_from = np.arange(len(keys))
    if train is not None:
        histories = Histories.of(train)
        learn_from = np.sort(keys_alone(keys).index(histories.keys.take(pa.array(histories.used))))
    if plan.pca == 0:
        white, variance = np.ascontiguousarray(vectors, dtype=np.float32), 1.0
    else:
        white, variance = whiten(vectors, plan.pca, plan.codebooks)
    codes = quantize(white, learn_from, codebooks=plan.codebooks, bits=plan.bits, seed=plan.seed)
    told = {
        "dimensions": vectors.shape[1],
        "pca": plan.pca != 0,
        "components": white.shape[1],
        "variance": variance,
        "codebooks": plan.codebooks,
        "bits": plan.bits,
        "learned_from": len(learn_from),
        "train_items_only": train is not None,
    }
    return ([f"pq_{number}" for number in range(plan.codebooks)], codes, [None] * plan.codebooks), told


def _list_column(values: Any, name: str, origin: Origin) -> NDArray[np.float32]:
    if not pa.types.is_large_list(values.type):
        raise SourceError(f"{origin.name}: the column {name!r} is {values.type}, expected lists of numbers.")
    lengths = np.asarray(pc.list_value_length(values).fill_null(0))
    if not lengths[0] or (lengths != lengths[0]).any():
        row = int(np.argmax(lengths != lengths[0]))
        raise SourceError(f"{origin.at(row)}: {name!r} holds {lengths[row]} numbers, the first item {lengths[0]}.")
    flat = values.flatten()
    try:
        numbers = np.asarray(flat.cast(pa.float32()).fill_null(np.nan))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SourceError(f"{origin.name}, column {name!r}: not all numbers: {error}.") from None
    return numbers.reshape(len(values), int(lengths[0]))


def _semantic_ids(path: str, count: int) -> Part:
    ids = read_embeddings(path)
    if ids.dtype.kind not in "iu" or len(ids) != count or (ids.size and int(ids.min()) < 0):
        raise SourceError(
            f"{path}: {ids.dtype} of shape {ids.shape}, expected whole numbers of 0 and more, one row for each of the "
            f"{count:,} items in their order."
        )
    return [f"id_{number}" for number in range(ids.shape[1])], np.array(ids, np.int64), [None] * ids.shape[1]


def _binned(table: pa.Table, text: str, keys: Any, missing: str | None, origin: Origin) -> Part:
    """A column of numbers in bins that are about equally full; equal numbers are never parted."""
    column, count = parse_bin(text)
    if column not in table.column_names:
        raise SourceError(
            f"{origin.name}: no column {column!r}; its columns are {', '.join(map(repr, table.column_names))}."
        )
    try:
        numbers = np.asarray(plain(table.column(column)).cast(pa.float64()).fill_null(np.nan))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SourceError(f"{origin.name}, column {column!r}: bins need numbers: {error}.") from None
    there = ~np.isnan(numbers)
    if missing is None and not there.all():
        row = int(np.argmin(there))
        raise SourceError(
            f"{origin.at(row)}: the item {keys[row].as_py()!r} has no {column!r} ({int((~there).sum()):,} items have "
            f"none). Fill it in, or say missing=... to give them a bin of their own."
        )
    known = numbers[there]
    edges = np.unique(np.quantile(known, np.arange(1, count) / count, method="higher")) if len(known) else known
    edges = edges[edges > known.min()] if len(known) else edges
    codes = np.searchsorted(edges, numbers, side="right").astype(np.int64)
    labels = [f"from {low!r}" for low in [float(known.min()), *edges.tolist()]] if len(known) else []
    codes[~there] = len(labels)
    return [column], codes[:, None], [[*labels, str(missing)] if not there.all() else labels]
