"""Features: what is known of the items -> one code per item and column.

Columns come in this order: codes of embeddings (`pq_0`, ...), semantic ids (`id_0`, ...), columns of the table, columns
of several values, numbers in bins, and last `hash`, which distinguishes items that are equal in all others.

Start with `make_items`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Never

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from piecemill.actions.coding import (
    code_like,
    coding_of,
    collisions,
    hash_feature,
    in_slots,
    read_ids,
    value_lists,
    vectors_of,
)
from piecemill.actions.embeddings import Codebooks, quantize, whiten
from piecemill.actions.histories import Histories
from piecemill.actions.items import (
    KEY_NAMES,
    Items,
    by_column,
    encode,
    items_of,
    keys_alone,
    row_per_item,
    values_coding,
)
from piecemill.actions.plan import FeaturesPlan, parse_bin, parse_many
from piecemill.actions.tables import Origin, as_table, find_column, numbers_of, read_table
from piecemill.errors import PlanError, SourceError
from piecemill.plans import FROM_PLAN, did_you_mean, option, with_keywords
from piecemill.sizes import plural

Part = tuple[list[str], NDArray[np.int64], list[list[Any] | None], list[dict[str, Any]]]
"Names of columns, codes, labels, and the coding that makes the same of other items."


@did_you_mean
def make_items(
    source: Any,
    *,
    plan: FeaturesPlan | None = None,
    train: Any = None,
    key: str | None = FROM_PLAN,
    columns: Sequence[str] = FROM_PLAN,
    bins: Sequence[str] = FROM_PLAN,
    many: Sequence[str] = FROM_PLAN,
    missing: str | int | Sequence[str] = FROM_PLAN,
    semantic_ids: str | None = FROM_PLAN,
    embeddings: str | None = FROM_PLAN,
    train_on: str | None = FROM_PLAN,
    pca: int | None = FROM_PLAN,
    codebooks: int = FROM_PLAN,
    bits: int = FROM_PLAN,
    hash_buckets: str = FROM_PLAN,
    seed: int = FROM_PLAN,
    like: str | None = FROM_PLAN,
    unknown_value: str | int | Sequence[str] = FROM_PLAN,
    **unknown: Never,
) -> Items:
    """Items with features; `items.made` says how they were made, with counts.

    `source` is what `Items.of` takes: a table or file with a row per item, or a mapping. A table of interactions will
    do too, where all rows of an item say the same of it. `train` are histories whose items teach the codebooks.
    Keywords from `key` on are the fields of `FeaturesPlan`, which describes each and its default; they override those
    of `plan`.

    >>> items = make_items({"a": ["red"], "b": ["red"], "c": ["blue"]}, hash_buckets="2")
    >>> items.columns, items.made["hash"]["largest_collision"], len({tuple(row) for row in items.codes.tolist()})
    (('f0', 'hash'), 2, 3)
    """
    plan = with_keywords(plan, FeaturesPlan, locals(), unknown)
    if plan.like is not None:
        return _like(source, plan)
    origin = Origin.of(source, None, "items")
    if isinstance(source, Items | Mapping) or origin.kind == "json":
        return _finished(_of_mapping(source, plan, origin), plan, {})
    table = read_table(source) if origin.path is not None else as_table(source, origin.name)
    key = find_column(table.column_names, KEY_NAMES, plan.key, origin.name, "key")
    binned, several = [parse_bin(one)[0] for one in plan.bins], [parse_many(one)[0] for one in plan.many]
    wanted = [*plan.columns, *binned, *filter(None, [plan.embeddings]), *several]
    npy = plan.semantic_ids is not None or (plan.embeddings or "").endswith(".npy")
    table, keys, origin, repeated = row_per_item(table, key, wanted, origin, npy=npy)
    made: dict[str, Any] = {"repeated_rows": repeated} if repeated else {}
    parts: list[Part] = []
    books: Codebooks | None = None
    if plan.embeddings is not None:
        part, told, books = _embedded(table, keys, plan, origin, train)
        parts.append(part)
        made["embeddings"] = told
    if plan.semantic_ids is not None:
        parts.append(_semantic_ids(plan.semantic_ids, len(keys)))
    others = [] if parts else [name for name in table.column_names if name not in (key, *wanted)]
    if double := set(binned) & set(plan.columns):
        raise PlanError(
            f"{option('columns')} and {option('bins')}: {min(double)!r} would be there twice. Name it only in "
            f"{option('bins')}, which gives it a code already."
        )
    if plan.columns or others:
        # By name a column is what it is called; all there are must be fit to be taken.
        rest = table.select([key, *others]) if not plan.columns else table
        taken = items_of(rest, origin, key, plan.columns or None, plan.missing)
        parts.append((list(taken.columns), taken.codes, list(taken.labels), (taken.coding or {})["columns"]))
    for one, name in zip(plan.many, several, strict=True):
        part, left_out = _several(table, one, origin)
        parts.append(part)
        made.setdefault("values_left_out", {})[name] = left_out
    empty = by_column(plan.missing, dict(zip(binned, binned, strict=True)), table.column_names, "missing")
    parts += [_binned(table, one, keys, empty[name], origin) for one, name in zip(plan.bins, binned, strict=True)]
    if not parts:
        raise SourceError(
            f"{origin.name}: no column beside the key {key!r}; expected at least one feature of the items."
        )
    names = [name for part in parts for name in part[0]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PlanError(f"columns: {twice!r} would be there twice; name it once.")
    labels = [one for part in parts for one in part[2]]
    codes = np.concatenate([part[1] for part in parts], axis=1)
    coding: dict[str, Any] = {"columns": [one for part in parts for one in part[3]]}
    if books is not None:
        coding["embeddings"] = books.to_json()
    return _finished(Items(keys.to_pylist(), codes, tuple(names), tuple(labels), {}, coding), plan, made)


@dataclass(frozen=True, slots=True)
class MadeItems:
    """The result of `piecemill actions features`: the items, and where they were saved."""

    items: Items
    out: Path | str

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        items = self.items
        return {"out": str(self.out), "items": len(items), "columns": list(items.columns), **items.made}

    def __str__(self) -> str:
        """One line, and more for how the features were made."""
        items = self.items
        values = ", ".join(
            f"{name} {len(np.unique(items.codes[:, number])):,}" for number, name in enumerate(items.columns)
        )
        count, width = plural(len(items), "item"), plural(len(items.columns), "feature")
        lines = [f"{count} with {width} in {self.out}; values: {values}"]
        made = items.made
        if "like" in made:
            if made["dropped"]:
                lines.append(f"note: {plural(made['dropped'], 'item')} with unknown values left out")
            if made["shared_hashes"]:
                lines.append(
                    f"note: {made['shared_hashes']:,} items share their hash with an item that is equal to them"
                )
            lines += [
                f"note: {plural(count, 'unknown value')} of {name}" for name, count in made["unknown_values"].items()
            ]
            return "\n".join(lines)
        if made.get("repeated_rows"):
            lines.append(f"note: {made['repeated_rows']:,} rows say again what was said of an item")
        lines += [
            f"note: {plural(count, 'value')} of {name} left out: their items have more than there are features"
            for name, count in made.get("values_left_out", {}).items()
            if count
        ]
        if told := made.get("embeddings"):
            kept = (
                f"{told['components']} components with {told['variance']:.1%} of the variance"
                if told["pca"]
                else "no PCA"
            )
            lines.append(
                f"  embeddings: {told['dimensions']} dimensions, {kept}; {told['codebooks']} codebooks of "
                f"{told['bits']} bits learned from {told['learned_from']:,} items"
            )
            if not told["train_items_only"]:
                lines.append(
                    f"note: all items taught the codebooks; {option('train_on')} takes those of the training part only"
                )
            if told["learned_from"] < 39 << told["bits"]:  # the minimum that faiss recommends
                lines.append(f"note: {told['learned_from']:,} items are few for {1 << told['bits']} codes a codebook")
        told = made["hash"]
        taken = f"{told['buckets']:,} buckets" if told["buckets"] else "no hash feature"
        lines.append(
            f"  collisions: {plural(told['collisions'], 'group')} of {told['colliding_items']:,} items, the largest of "
            f"{told['largest_collision']:,}; {taken}"
        )
        if told["largest_collision"] > 1 and not told["buckets"]:
            lines.append("note: equal items cannot be distinguished in what a model generates")
        return "\n".join(lines)


def _like(source: Any, plan: FeaturesPlan) -> Items:
    """Items with the codes of those that `plan.like` names."""
    return code_like(
        source,
        items_at(str(plan.like)),
        key=plan.key,
        embeddings=plan.embeddings,
        semantic_ids=plan.semantic_ids,
        unknown_value=plan.unknown_value,
    )


def items_at(path: str) -> Items:
    """The items of a vocabulary, or those of a file that `actions features` wrote."""
    from piecemill.actions.tokenizer import ActionTokenizer

    if path.endswith(".parquet") and Path(path).is_file():
        return Items.load(path)
    return ActionTokenizer.load(path).known_items


def _of_mapping(source: Any, plan: FeaturesPlan, origin: Origin) -> Items:
    wrong = [name for name in ("bins", "many", "semantic_ids", "embeddings") if getattr(plan, name)]
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
                f"{option('hash_buckets', buckets)}: {largest:,} items are equal in all other features, the last of "
                f"them {items.keys[row]!r}. Take {largest:,} or more, or auto."
            )
    codes, columns, labels = items.codes, items.columns, items.labels
    coding = coding_of(items)
    if buckets:
        if "hash" in columns:
            raise PlanError(
                "columns: 'hash' is the name of the feature that is added; rename yours, or hash_buckets=none."
            )
        hashed = hash_feature(codes, rank, buckets, plan.seed)
        codes, columns, labels = np.column_stack([codes, hashed]), (*columns, "hash"), (*labels, None)
        coding["columns"] = [
            *coding["columns"],
            {**_numbered("hash", "hash", hashed), "buckets": buckets, "seed": plan.seed},
        ]
    options = {name: list(one) if isinstance(one, tuple) else one for name, one in asdict(plan).items()}
    told = {"plan": options, **made, "hash": {**counts, "buckets": buckets}}
    return Items(items.keys, codes, columns, labels, told, coding)


def _embedded(
    table: pa.Table, keys: Any, plan: FeaturesPlan, origin: Origin, train: Any
) -> tuple[Part, dict[str, Any], Codebooks]:
    vectors = vectors_of(str(plan.embeddings), table, len(keys), origin)
    train = plan.train_on if train is None else train
    learn_from = np.arange(len(keys))
    if train is not None:
        histories = Histories.of(train)
        learn_from = np.sort(keys_alone(keys).index(histories.keys.take(pa.array(histories.used))))
    if plan.pca == 0:
        white, variance = np.ascontiguousarray(vectors, dtype=np.float32), 1.0
    else:
        white, variance, (mean, weights) = whiten(vectors, plan.pca, plan.codebooks)
    codes, books = quantize(white, learn_from, codebooks=plan.codebooks, bits=plan.bits, seed=plan.seed)
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
    if plan.pca != 0:
        books = replace(books, mean=mean, weights=weights)
    names = [f"pq_{number}" for number in range(plan.codebooks)]
    column = plan.embeddings if plan.embeddings in table.column_names else ""
    coding = [_numbered("embedding", name, codes[:, number], made_from=column) for number, name in enumerate(names)]
    return (names, codes, [None] * plan.codebooks, coding), told, books


def _semantic_ids(path: str, count: int) -> Part:
    ids = read_ids(path, count)
    names = [f"id_{number}" for number in range(ids.shape[1])]
    coding = [_numbered("ids", name, ids[:, number]) for number, name in enumerate(names)]
    return names, ids, [None] * len(names), coding


def _numbered(kind: str, name: str, codes: NDArray[np.int64], **more: Any) -> dict[str, Any]:
    """The coding of a column whose codes have no names."""
    return {**values_coding(name, None, codes, **more), "kind": kind}


def _several(table: pa.Table, text: str, origin: Origin) -> tuple[Part, int]:
    """A column of several values as some features of one, and how many values did not find a place."""
    column, slots, separator = parse_many(text)
    lists = value_lists(table, column, separator, origin)
    counts = Counter(value for values in lists for value in values)
    order = sorted(counts, key=lambda value: (-counts[value], value))
    names = [f"{column}_{slot}" for slot in range(slots)]
    codes, labels, coding = [], [], []
    for slot, (name, values) in enumerate(zip(names, in_slots(lists, order, slots), strict=True)):
        numbers, meaning = encode(pa.array(values, pa.large_string()), name)
        codes.append(numbers)
        labels.append(meaning)
        own = {"kind": "many", "slot": slot, "slots": slots, "separator": separator, "order": order}
        coding.append({**values_coding(name, meaning, numbers, made_from=column), **own})
    left_out = sum(max(0, len(values) - slots) for values in lists)
    return (names, np.stack(codes, axis=1), labels, coding), left_out


def _binned(table: pa.Table, text: str, keys: Any, missing: str | None, origin: Origin) -> Part:
    """A column of numbers in bins that are about equally full; equal numbers are never parted."""
    column, count = parse_bin(text)
    numbers = numbers_of(table, column, origin)
    there = ~np.isnan(numbers)
    if missing is None and not there.all():
        row = int(np.argmin(there))
        raise SourceError(
            f"{origin.at(row)}: the item {keys[row].as_py()!r} has no {column!r} "
            f"({plural(int((~there).sum()), 'such item')}). Fill it in, or {option('missing', ...)} gives them a bin "
            "of their own."
        )
    known = numbers[there]
    edges = np.unique(np.quantile(known, np.arange(1, count) / count, method="higher")) if len(known) else known
    edges = edges[edges > known.min()] if len(known) else edges
    codes = np.searchsorted(edges, numbers, side="right").astype(np.int64)
    labels = [f"from {low!r}" for low in [float(known.min()), *edges.tolist()]] if len(known) else []
    codes[~there] = len(labels)
    labels += [] if there.all() else [str(missing)]
    coding = {**values_coding(column, labels, codes, missing=missing), "kind": "bins", "edges": edges.tolist()}
    return [column], codes[:, None], [labels], [coding]
