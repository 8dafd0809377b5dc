"""The files beside the shards: plan.json, files.jsonl, stats.json and the tokenizer.

stats.json is written last and marks the folder as complete. It has the checksum of every file that neither a manifest
nor an entry covers, and its own. It has one canonical form, so that even a changed space is detected.
"""

import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import ShardError
from piecemill.files import LOCK, SCRATCH, Place, hash_bytes, open_place, parse_json, read_json, read_npy, regular
from piecemill.plans import option, prepared_again, unreadable
from piecemill.shards import counts, manifest
from piecemill.shards.format import MOST_IDS, READABLE, VERSION, is_split_name, npy_bytes
from piecemill.sizes import plural, show_count

if TYPE_CHECKING:
    from piecemill.tokenizers import Tokenizer

Stats = dict[str, Any]
"The content of stats.json."
PLAN, FILES, STATS, TOKENIZER = "plan.json", "files.jsonl", "stats.json", "tokenizer"
# They describe the run, not the data: `check` skips them, and they are not deterministic.
TIMING, CHANGED = "timing.json", ".sources.npy"
UNCHECKED = frozenset({STATS, LOCK, TIMING, CHANGED})

_OPTIONAL = {"groups": list, "options": dict, "source": dict, "tokenizer": dict}
"What a plan need not have, and of which type it is."

# Names that `prepare` gives, by folder.
_TOP = re.compile("|".join(re.escape(name) for name in (PLAN, FILES, STATS, TIMING, CHANGED, LOCK)))
_ENTRY_FILES = re.compile(r"\d+-\d+(\.unique)?(\.[\w-]+)?\.(json|hashes|copies|counts)")
_SHARD_FILES = re.compile(r"manifest\.jsonl|counts\.npy|\d+(-\d+)?(\.unique)?\.(tokens|ends|documents)\.npy")
_ANY = re.compile(r"[^/]+")
_TEMPLATES = "additional_chat_templates"

_EXPECTED = "Expected a folder written by `piecemill prepare`: name that one, or prepare it."


def read_plan(folder: Path | Place, hint: str = _EXPECTED) -> dict[str, Any]:
    """Read plan.json and check the fields that every reader needs.

    `format` (1 or 2), `vocab_size`, `splits` (name -> share, in order), and `bos` and `eos`: the ids before and after
    each document, or null.
    """
    place = open_place(folder)
    return checked_plan(read_json(place, PLAN, hint), f"{place.url}/{PLAN}")


def checked_plan(plan: dict[str, Any], where: str) -> dict[str, Any]:
    """`plan` as `read_plan` gives it; ShardError, beginning with `where`, if something in it is not as expected."""
    if plan.get("format") not in READABLE:
        formats = " and ".join(map(str, READABLE))
        raise ShardError(
            f"{where}: format {plan.get('format')!r}; this version of Piecemill reads formats {formats}. "
            "Use the version that wrote it, or prepare the folder again."
        )
    if (wrong := next(_wrong_in(plan), None)) is not None:
        raise ShardError(f"{where}: {wrong}. The file was changed. {prepared_again()}")
    return plan


def _wrong_in(plan: dict[str, Any]) -> Iterator[str]:
    """What is not as `prepare` writes it; what comes later expects that nothing came before."""
    kinds: dict[str, Any] = {"vocab_size": int, "splits": dict, "bos": int | None, "eos": int | None}
    kinds |= {key: kind for key, kind in _OPTIONAL.items() if plan.get(key) is not None}
    for key, kind in kinds.items():
        if key not in plan or not isinstance(plan[key], kind) or isinstance(plan[key], bool):
            yield f"{key} is {plan.get(key, 'missing')!r:.60}; expected {getattr(kind, '__name__', kind)}"
    for group in plan.get("groups") or ():
        if not _is_group(group):
            yield f"{group!r:.60} is no group of files; expected a pattern (text or null) and a weight of 0 or more"
    for name, share in plan["splits"].items():
        if not is_split_name(name) or not isinstance(share, int | float) or not share > 0:
            expected = f"expected letters, digits, '-' and '_', or its share ({share!r}) is no number above 0"
            yield f"{name!r} cannot be the name of a split, {expected}"
    if not 0 < plan["vocab_size"] <= MOST_IDS:
        yield f"vocab_size is {plan['vocab_size']}; expected 1 to {MOST_IDS:,}"


def _is_group(group: Any) -> bool:
    if not isinstance(group, dict) or not isinstance(group.get("pattern"), str | None):
        return False
    weight = group.get("weight")
    return isinstance(weight, int | float) and not isinstance(weight, bool) and 0 <= weight <= sys.float_info.max


def write_stats(place: Place, stats: Mapping[str, Any]) -> None:
    """Write stats.json: the folder is complete from here on.

    Call it when every manifest, plan.json, files.jsonl and the tokenizer are there. `stats` is anything that JSON can
    hold; the keys `checksums` and `xxh3` are added.
    """
    splits = read_plan(place)["splits"]
    names = [PLAN, FILES, *(f"{TOKENIZER}/{name}" for name in tokenizer_files(place))]
    own = (manifest.NAME, counts.NAME)
    names += [f"{split}/{name}" for split in splits for name in place.sizes(split) if name in own]
    checksums = {name: hash_bytes(place.read(name)) for name in sorted(names)}
    place.write(STATS, render_stats({**stats, "checksums": checksums}))


def read_stats(folder: Path | Place) -> Stats | None:
    """stats.json; None if the folder is not complete."""
    place = open_place(folder)
    content = read_if_there(place, STATS)
    return None if content is None else checked_stats(content, f"{place.url}/{STATS}")


def sealed(place: Place, name: str, stats: Stats) -> bytes | None:
    """A file of a complete folder whose stats.json holds `stats`; None if it has none of this name.

    ShardError if the file is not the one that was there when the folder became complete.
    """
    if (want := stats["checksums"].get(name)) is None:
        return None
    content = read_if_there(place, name)
    if content is None:
        raise ShardError(f"{place.url}/{name} is missing, but {STATS} lists it. {prepared_again()}")
    if hash_bytes(content) != want:
        raise ShardError(f"{place.url}/{name}: was changed or cut after it was written. {prepared_again()}")
    return content


def check_complete(place: Place) -> None:
    """ShardError if a complete folder has lost a shard or part of one, or if any other file of it was changed.

    Reads all that is beside the shards, and lists the shards. Their content is compared by `piecemill check`.
    """
    stats = read_stats(place) or {"checksums": {}}
    manifests: dict[str, list[manifest.ShardEntry]] = {}
    for name in stats["checksums"]:
        content = sealed(place, name, stats)
        split, _, file = name.rpartition("/")
        if content is None or file != manifest.NAME:
            continue
        sizes = place.sizes(split)
        manifests[split] = manifest.parse_manifest(content, f"{place.url}/{name}")
        for shard in manifests[split]:
            for one in shard.files.values():
                if (found := sizes.get(one.name)) != one.bytes:
                    size = "is missing" if found is None else f"has {found:,} bytes"
                    raise ShardError(
                        f"{place.url}/{split}/{one.name} {size}; the manifest says {one.bytes:,} bytes. "
                        f"{prepared_again()}"
                    )
    manifest.check_entries(place, manifests)


def read_if_there(place: Place, name: str) -> bytes | None:
    """A file of a prepared folder; None if there is none of this name, ShardError if it cannot be read."""
    try:
        return place.read(name)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ShardError(f"{place.url}/{name}: {unreadable(error)}") from None


def checked_stats(content: bytes, where: str) -> Stats:
    """The `content` of a stats.json; ShardError, beginning with `where`, unless it is as it was written."""
    stats = parse_json(content, where, prepared_again())
    try:
        sound = render_stats(stats) == content and isinstance(stats.get("checksums"), dict)
    except ValueError:  # NaN or infinity
        sound = False
    if not sound:
        raise ShardError(f"{where}: was changed after it was written. {prepared_again()}")
    return stats


def render_stats(stats: Mapping[str, Any]) -> bytes:
    """The canonical form of stats.json: sorted keys, two spaces, and `xxh3`, the checksum of the rest."""
    rest = {key: value for key, value in stats.items() if key != "xxh3"}
    seal = hash_bytes(_render(rest))
    return _render({**rest, "xxh3": seal})


def _render(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, sort_keys=True, indent=2, allow_nan=False) + "\n").encode()


_loaded: dict[tuple[str, str, str], "Tokenizer"] = {}
"The tokenizer of this process by place, identity and engine."
_loading = threading.Lock()


def saved_tokenizer(place: Place, identity: str, engine: str, given: "Tokenizer | None" = None) -> "Tokenizer":
    """The tokenizer in a prepared folder, loaded once per process; `given` is used if it is already loaded.

    ShardError if its identity differs.
    """
    with _loading:
        if (place.url, identity, engine) in _loaded:
            return _loaded[place.url, identity, engine]
        tokenizer = given or read_tokenizer(place, engine)
        if tokenizer.identity != identity:
            raise ShardError(
                f"{place.url}/{TOKENIZER}: not the tokenizer of this run ({tokenizer.identity}, expected {identity}). "
                f"Restore it, or choose another {option('out')}."
            )
        _loaded.clear()  # a worker serves one run after another
        _loaded[place.url, identity, engine] = tokenizer
        return tokenizer


def read_tokenizer(place: Place, engine: str | None = None) -> "Tokenizer":
    """The tokenizer in a prepared folder."""
    from piecemill.tokenizers import load_tokenizer

    if (local := place.local()) is not None:
        return load_tokenizer(local / TOKENIZER, engine=engine)
    import tempfile

    with tempfile.TemporaryDirectory(prefix="piecemill-") as folder:
        for name in tokenizer_files(place):
            (Path(folder) / name).parent.mkdir(exist_ok=True)
            (Path(folder) / name).write_bytes(place.read(f"{TOKENIZER}/{name}"))
        return load_tokenizer(folder, engine=engine)


def tokenizer_files(place: Place) -> list[str]:
    """The files of the tokenizer in a prepared folder, by their names in its folder."""
    return [*place.sizes(TOKENIZER), *(f"{_TEMPLATES}/{name}" for name in place.sizes(f"{TOKENIZER}/{_TEMPLATES}"))]


def delete_prepared(place: Place) -> None:
    """Delete what `prepare` wrote, plan.json last. ShardError, and nothing is deleted, if there are other files."""
    plan = read_plan(place, f"Choose another {option('out')}.")
    folders = {
        "": _TOP,
        f"{TOKENIZER}/{_TEMPLATES}": _ANY,
        TOKENIZER: _ANY,
        manifest.ENTRIES: _ENTRY_FILES,
        SCRATCH: _ANY,
    }
    folders |= dict.fromkeys(plan["splits"], _SHARD_FILES)
    names = [(folder, name) for folder in folders for name in place.sizes(folder)]
    local = place.local()
    found = {"/".join(filter(None, one)) for one in names} | (set() if local is None else listed(local))
    ours = {"/".join(filter(None, one)) for one in names if folders[one[0]].fullmatch(one[1])}
    if other := sorted(found - ours):
        raise ShardError(
            f"{place.url}: holds {other[0]!r}, which `piecemill prepare` did not write, so nothing is replaced, "
            f"even with {option('force', True)}. Move it, or choose another {option('out')}."
        )
    # stats.json first: the folder is then an unfinished run of its plan, which can be resumed, until plan.json goes.
    for name in sorted(ours - {LOCK, PLAN}, key=lambda name: name != STATS):
        place.delete(name)
    for empty in [] if local is None else [local / folder for folder in folders if folder]:
        if empty.is_dir():
            empty.rmdir()
    place.delete(PLAN)


def nothing_stored(place: Place) -> bool:
    """Whether the folder was begun in the format of this version, and no piece of it had a document to store."""
    plan = read_json(place, PLAN, f"Choose another {option('out')}.")
    begun = plan.get("format") == VERSION and STATS not in place.sizes()
    return begun and not any(entry.shards for entry in manifest.newest_entries(place))


def group_lines(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each weight group; none where there is only one."""
    tokens = max(1, sum(group["tokens"] for group in groups))
    return [
        f"{'all others' if group['pattern'] is None else group['pattern']} (weight {group['weight']:g}): "
        f"{plural(group['documents'], 'document')}, {show_count(group['tokens'])} tokens "
        f"({group['tokens'] / tokens:.2%})"
        for group in (groups if len(groups) > 1 else ())
    ]


def source_files(folder: Path) -> int:
    """How many source files files.jsonl lists."""
    with open(regular(folder / FILES), "rb") as file:
        return sum(1 for _ in file)


def listed(folder: Path) -> set[str]:
    """Every file under `folder`, by relative name; ShardError if one of its folders cannot be listed."""

    def refuse(error: OSError) -> None:
        if isinstance(error, FileNotFoundError):  # nothing was written yet, or it was just deleted
            return
        raise ShardError(f"{error.filename}: {unreadable(error)}") from None

    return {
        os.path.relpath(os.path.join(where, name), folder).replace(os.sep, "/")
        for where, _, names in os.walk(folder, onerror=refuse)
        for name in names
    }


def write_times(place: Place, times: NDArray[np.int64]) -> None:
    """Store when each source file was last changed."""
    place.write(CHANGED, npy_bytes(times))


def begun_times(place: Place, files: int) -> NDArray[np.int64]:
    """When each of the source `files` was last changed, as the run that began the folder saw it."""
    try:
        times: NDArray[np.int64] = read_npy(place.read(CHANGED))
        if times.dtype != np.int64 or times.shape != (files,):
            raise ValueError(f"{times.dtype} of shape {times.shape}, of {files:,} files")
    except (OSError, ValueError) as error:
        raise ShardError(
            f"{place.url}/{CHANGED}: cannot be read ({error}), so it is not known whether the sources are "
            f"the same. Choose another {option('out')}."
        ) from None
    return times
