"""The output folder: is it new, begun or complete, and was it begun with the same plan, tokenizer and source?

plan.json is created first, atomically, so only one of several runs creates it; a run that finds another plan stops
before it changes anything. Besides the files of docs/shards.md there is `.sources.npy`, the modification time of each
source file.

Start with `begin`.
"""

import json
import os
from contextlib import suppress
from typing import Any, Literal

from piecemill.cancelling import threads
from piecemill.errors import PlanError, ShardError, SourceError
from piecemill.files import LOCK, SCRATCH, Place, can_write, read_json
from piecemill.plans import another_out, check_same, option
from piecemill.preparing.plan import PIECE_DOCUMENTS
from piecemill.shards import folder as prepared
from piecemill.shards.folder import CHANGED, FILES, PLAN, STATS, TIMING, TOKENIZER, delete_prepared
from piecemill.shards.format import VERSION
from piecemill.shards.manifest import ENTRIES, whole_entries
from piecemill.sources import Source
from piecemill.sources.unchanged import changed_times, check_content, check_files, file_lines
from piecemill.tokenizers import Tokenizer
from piecemill.tokenizers.saving import TRAINING

_OURS = frozenset({PLAN, FILES, STATS, TOKENIZER, LOCK, SCRATCH, CHANGED, TIMING, ENTRIES})


def begin(
    place: Place, plan: dict[str, Any], source: Source, tokenizer: Tokenizer, *, alone: bool, force: bool = False
) -> Literal["new", "begun", "complete"]:
    """Begin or resume a run; an error if the folder has other files, or another plan, tokenizer or source.

    With `force`, output of another plan, tokenizer or source is deleted; data in memory always counts as another
    source. A folder without a stored document is begun again if this run holds the lock alone (`alone`)."""
    local = place.local()
    names = set(place.sizes() if local is None else os.listdir(local))
    if PLAN not in names and (foreign := sorted(names - _OURS)):
        raise ShardError(
            f"{place.url}: holds {foreign[0]!r} and was not made by `piecemill prepare`. "
            "Choose an empty or a new folder."
        )
    with suppress(ShardError):  # a damaged entry, or files of someone else: then it is compared as any other folder
        if alone and PLAN in names and prepared.nothing_stored(place):
            delete_prepared(place)
            names = set()
    new = PLAN not in names and place.create(PLAN, (json.dumps(plan, indent=2) + "\n").encode())
    if not new:
        try:
            _check_begun(place, plan, source, names)
            replace = force and not source.files
        except (PlanError, ShardError, SourceError):
            replace = force
            if not force:
                raise
        if replace:
            delete_prepared(place)
            return begin(place, plan, source, tokenizer, alone=False)
    missing = {} if FILES in names else {FILES: file_lines(source)}
    if STATS not in names:  # each time, so that what is sealed at the end is the tokenizer of the run
        kept = {TRAINING} & set(prepared.tokenizer_files(place))  # how it was trained, and no part of what it is
        missing |= {f"{TOKENIZER}/{name}": data for name, data in tokenizer.model.files().items() if name not in kept}
    with threads(len(missing) + 1) as pool_map:  # at once, because each waits for a disk or a store
        writing = pool_map(lambda name: place.write(name, missing[name]), missing)
        if CHANGED not in names:
            prepared.write_times(place, changed_times(source.files))
        list(writing)
    return "complete" if STATS in names else "new" if new else "begun"


def _check_begun(place: Place, plan: dict[str, Any], source: Source, names: set[str]) -> None:
    old = read_json(place, PLAN, f"Choose another {option('out')}.")
    if old.get("format") != VERSION:
        raise ShardError(
            f"{place.url}: in format {old.get('format')!r}, of another version of Piecemill; this one writes "
            f"format {VERSION}. It can be read, but not gone on with: {another_out()}"
        )
    prepared.checked_plan(old, f"{place.url}/{PLAN}")
    plan = json.loads(json.dumps(plan))
    # Options first: a message about what the user typed is clearer than one about a derived value. Files before sums.
    check_same(place.url, "options", old.get("options"), plan["options"], force=True)
    if (was := (old.get("tokenizer") or {}).get("identity")) != (now := plan["tokenizer"]["identity"]):
        raise ShardError(
            f"{place.url}: made with another tokenizer (identity was {was}, is {now}). Resuming needs the same one: "
            f"use {place.url}/{TOKENIZER}, {another_out()}"
        )
    for name in sorted({*old, *plan} - {"options", "source"}):
        check_same(place.url, name, old.get(name), plan.get(name), force=True)
    if FILES in names:
        check_files(source, place.read(FILES), place.url)
    had, has = old.get("source") or {}, plan["source"]
    if had != has:
        raise SourceError(
            f"{place.url}: made from {had.get('bytes')} bytes that could be read, found {has['bytes']} now. It is "
            "another source, or a file of it was broken then and is not now, or the other way round. Resuming needs "
            f"the same source: restore it, {another_out()}"
        )
    if STATS in names:
        prepared.check_complete(place)
    if CHANGED in names and source.files:
        was, piece = prepared.begun_times(place, len(source.files)), plan["options"]["piece_bytes"]
        pieces = ((entry.task, entry.piece, entry.content, entry.last) for entry in whole_entries(place, []))
        now = check_content(source, was, pieces, piece, PIECE_DOCUMENTS)
        if (now != was).any() and can_write(place):
            prepared.write_times(place, now)
