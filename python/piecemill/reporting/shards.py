"""The facts of a prepared folder, and the page of `show`.

Memory is bounded for any number of documents: lengths are counted, and content hashes are compared one range of hash
values at a time.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import ShardError, TokenizerError
from piecemill.files import LocalPlace, Place, lock_owner
from piecemill.objects import ObjectPlace
from piecemill.plans import prepared_again
from piecemill.shards import folder as prepared
from piecemill.shards.folder import group_lines
from piecemill.shards.manifest import newest_entries
from piecemill.shards.reader import Shards, open_shards
from piecemill.sizes import plural, show_bytes, show_count
from piecemill.tokenizers import Tokenizer

RARE = 100
"A token that occurs fewer times than this is hardly trained."
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
_HASHES_AT_ONCE = 16_000_000
_CACHE_BYTES = "4GiB"
_ROWS, _ROW_TOKENS = 3, 64


def describe_shards(folder: str | Path) -> dict[str, Any]:
    """The facts of a prepared folder. Of one in an object store, arrays are downloaded."""
    if isinstance(folder, Path):
        return _describe(folder, LocalPlace(folder), partial(open_shards, folder))
    from piecemill.shards.remote import fetch_small_files

    with tempfile.TemporaryDirectory(prefix="piecemill-") as copy:
        fetch_small_files(ObjectPlace(folder), Path(copy))
        if not (Path(copy) / prepared.PLAN).exists():
            raise ShardError(f"{folder} has no {prepared.PLAN}. Name a folder written by `piecemill prepare`.")
        opened = partial(open_shards, folder, cache=Path(copy) / "cache", cache_bytes=_CACHE_BYTES)
        return _describe(Path(copy), ObjectPlace(folder), opened)


def _describe(path: Path, place: Place, opened: Callable[..., Shards]) -> dict[str, Any]:
    plan = prepared.read_plan(path)
    splits = {name: opened(name, unfinished=True) for name in plan["splits"]}
    documents, tokens = sum(map(len, splits.values())), sum(shards.tokens for shards in splits.values())
    tokenizer = cache(next(iter(splits.values())).tokenizer)  # loaded at most once, and not for empty splits
    stats = prepared.read_stats(path)
    told = {key: value for key, value in (stats or {}).items() if key not in ("checksums", "xxh3")}
    return {
        "complete": stats is not None,
        "finished": None if stats is not None else _finished(place),
        "written_by": None if stats is not None else lock_owner(path),
        "documents": documents,
        "tokens": tokens,
        **_duplicates(list(splits.values())),
        "groups": _describe_groups(plan, list(splits.values())),
        "splits": {name: _describe_split(shards, documents, tokens, tokenizer) for name, shards in splits.items()},
        "plan": plan,
        "stats": told,
    }


def _describe_groups(plan: dict[str, Any], splits: list[Shards]) -> list[dict[str, Any]]:
    """The weight groups of the plan, with the documents and tokens of each."""
    groups = plan.get("groups", [])
    counts = np.zeros((2, len(groups)), np.int64)
    for shards in splits if len(groups) > 1 else ():
        for number in range(len(shards.entries)):
            shard = shards.shard(number)
            of, lengths = shard.documents["group"], np.diff(shard.ends, prepend=0)
            outside = of[(of < 0) | (of >= len(groups))]
            if len(outside):
                raise ShardError(
                    f"{shards.url}/{prepared.PLAN}: {len(groups)} groups, and a document is of group {outside[0]}. "
                    f"Run `piecemill check {shards.url}`. {prepared_again()}"
                )
            for row, weights in enumerate((None, lengths)):
                counts[row] += np.bincount(of, weights, len(groups)).astype(np.int64)
    if len(groups) == 1:
        counts[:, 0] = sum(map(len, splits)), sum(shards.tokens for shards in splits)
    columns = zip(groups, *counts.tolist(), strict=True)
    return [{**group, "documents": documents, "tokens": tokens} for group, documents, tokens in columns]


def _finished(place: Place) -> dict[str, int]:
    """Totals of the finished pieces of an unfinished run, from entries: manifests are written at its end."""
    shards = [shard for entry in newest_entries(place) for shard in entry.shards.values()]
    return {"documents": sum(shard.documents for shard in shards), "tokens": sum(shard.tokens for shard in shards)}


def _describe_split(shards: Shards, documents: int, tokens: int, tokenizer: Callable[[], Tokenizer]) -> dict[str, Any]:
    return {
        "shards": len(shards.entries),
        "identity": shards.identity,
        "documents": len(shards),
        "tokens": shards.tokens,
        "text_bytes": shards.text_bytes,
        "bytes_per_token": shards.text_bytes / shards.tokens if shards.tokens else None,
        "share_of_documents": len(shards) / documents if documents else None,
        "share_of_tokens": shards.tokens / tokens if tokens else None,
        "lengths": length_percentiles(shards),
        "token_counts": _used(shards.token_counts()),
        "rows": _first_rows(shards, tokenizer),
    }


def _used(counts: NDArray[np.uint64] | None) -> dict[str, int] | None:
    """How many tokens of the vocabulary a split uses; None without exact counts."""
    if counts is None:
        return None
    return {
        "used": int(np.count_nonzero(counts)),
        "never": int((counts == 0).sum()),
        f"under_{RARE}": int(((counts > 0) & (counts < RARE)).sum()),
    }


def distinct_lengths(splits: Iterable[Shards]) -> NDArray[np.int64]:
    """Distinct lengths of documents, rising, and how many have each: two rows, little memory for any corpus."""
    lengths, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for shards in splits:
        for number in range(len(shards.entries)):
            new, often = np.unique(np.diff(shards.checked_ends(number), prepend=0), return_counts=True)
            lengths, inverse = np.unique(np.concatenate([lengths, new]), return_inverse=True)
            counts = np.bincount(inverse, np.concatenate([counts, often]), len(lengths)).astype(np.int64)
    return np.stack([lengths, counts])


def length_percentiles(shards: Shards) -> dict[str, int]:
    """Percentiles of tokens per document, and the maximum."""
    lengths, counts = distinct_lengths([shards])
    if not len(lengths):
        return {}
    reached = np.cumsum(counts)
    ranks = {f"p{p}": max(0, -(-p * len(shards) // 100) - 1) for p in PERCENTILES}
    found = {name: int(lengths[np.searchsorted(reached, rank, side="right")]) for name, rank in ranks.items()}
    return {**found, "max": int(lengths[-1])}


def _duplicates(splits: list[Shards]) -> dict[str, int]:
    """Number of documents whose text occurred before, and of distinct texts in more than one split."""
    total = sum(map(len, splits))
    passes = -(-total // _HASHES_AT_ONCE) or 1
    repeated = shared = 0
    for part in range(passes):
        hashes, owners = [np.zeros((0, 2), np.uint64)], [np.zeros(0, np.int16)]
        for owner, shards in enumerate(splits):
            for number in range(len(shards.entries)):
                records = shards.shard(number).documents
                mine = records["hash_low"] % np.uint64(passes) == part
                hashes.append(np.stack([records["hash_low"][mine], records["hash_high"][mine]], axis=1))
                owners.append(np.full(len(hashes[-1]), owner, np.int16))
        low, high = np.concatenate(hashes).T
        owner_of = np.concatenate(owners)
        order = np.lexsort((owner_of, high, low))
        low, high, owner_of = low[order], high[order], owner_of[order]
        same = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
        repeated += int(same.sum())
        text = np.concatenate([np.zeros(1, np.int64), np.cumsum(~same)])
        shared += len(np.unique(text[1:][same & (owner_of[1:] != owner_of[:-1])]))
    return {"duplicates": repeated, "texts_in_several_splits": shared}


def _first_rows(shards: Shards, tokenizer: Callable[[], Tokenizer]) -> list[str]:
    try:
        return [tokenizer().decode(shards.document(i)[:_ROW_TOKENS]) for i in range(min(_ROWS, len(shards)))]
    except TokenizerError as error:
        raise ShardError(f"{shards.url}/{shards.split}: {error} Run `piecemill check {shards.url}`.") from error


def lines(path: str, found: Mapping[str, Any]) -> list[str]:
    """The page for people."""
    state, count = "complete", found
    if (finished := found["finished"]) is not None:
        todo = "run the same prepare to its end"
        if found["written_by"] is not None:
            todo = f"process {found['written_by']} is at work on it"
        state, count = f"in finished pieces; not complete: {todo}", finished
    documents, tokens = plural(count["documents"], "document"), "tokens"
    if found["plan"].get("kind") == "actions":
        documents, tokens = f"{count['documents']:,} histories", "items"
    page = [
        f"{path}: {documents}, {show_count(count['tokens'])} {tokens}; {state}",
        f"duplicates  documents that repeat an earlier text: {found['duplicates']:,}; "
        f"texts that are in more than one split: {found['texts_in_several_splits']:,}",
        "",
        f"{'split':<8}{'target':>8}{'documents':>16}{'share':>8}{'tokens':>12}{'share':>8}{'text':>11}{'bytes/token':>13}"
        f"{'shards':>8}",
    ]
    asked = found["plan"]["splits"]
    for name, split in found["splits"].items():
        page.append(
            f"{name:<8}{asked[name]:>8}{split['documents']:>16,}{_percent(split['share_of_documents']):>8}"
            f"{show_count(split['tokens']):>12}{_percent(split['share_of_tokens']):>8}{show_bytes(split['text_bytes']):>11}"
            f"{split['bytes_per_token'] or 0:>13.2f}{split['shards']:>8,}"
        )
    page += [
        "",
        "tokens per document",
        f"{'split':<8}" + "".join(f"{f'p{p}':>9}" for p in PERCENTILES) + f"{'max':>12}",
    ]
    for name, split in found["splits"].items():
        lengths = split["lengths"]
        if lengths:
            row = "".join(f"{lengths[f'p{p}']:>9,}" for p in PERCENTILES)
            page.append(f"{name:<8}{row}{lengths['max']:>12,}")
    page += ["", "use of the vocabulary", *(_use_line(name, split) for name, split in found["splits"].items())]
    if groups := group_lines(found["groups"]):
        page += ["", "groups", *groups]
    page += ["", "first rows"]
    width = max(40, shutil.get_terminal_size().columns - 10)
    page += [f"{name:<8}{row!r:.{width}}" for name, split in found["splits"].items() for row in split["rows"]]
    page += ["", "plan"]
    return [*page, *_plan_lines(found["plan"])]


def _plan_lines(plan: Mapping[str, Any], indent: int = 2) -> Iterator[str]:
    """A line for each value, whole, and as one would type it."""
    for key, value in plan.items():
        if isinstance(value, Mapping) and value:
            yield f"{'':<{indent}}{key}"
            yield from _plan_lines(value, indent + 2)
        else:
            several = value if isinstance(value, list) else [value]
            shown = ", ".join(_as_typed(one) for one in several) or "none"
            yield f"{'':<{indent}}{key:<{22 - indent}}{shown}"


def _as_typed(value: object) -> str:
    if isinstance(value, Mapping):  # a weight group
        return " ".join(f"{key}={_as_typed(one)}" for key, one in value.items())
    if isinstance(value, str):
        return value if value.isprintable() and value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _use_line(name: str, split: Mapping[str, Any]) -> str:
    used = split["token_counts"]
    if used is None:
        return f"{name:<8}no token counts: the folder is not complete, or an earlier version wrote it"
    rare = used[f"under_{RARE}"]
    return f"{name:<8}{used['used']:,} tokens occur, {rare:,} of them under {RARE} times; {used['never']:,} never occur"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"
