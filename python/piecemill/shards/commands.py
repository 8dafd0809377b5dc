"""The commands of this room: parse, call one verb, print one result."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from piecemill.command import print_result
from piecemill.objects import is_object_url
from piecemill.shards.export import ExportPlan


def show(what: str, *, engine: str | None = None, split: str | None = None, json: bool = False) -> None:
    """Say what WHAT is: prepared shards, or a tokenizer, with the engine that encodes and why."""
    from piecemill.shards.show import as_text, describe
    from piecemill.tokenizers import describing, load_tokenizer

    if is_object_url(what) or (Path(what).is_dir() and engine is None):
        found = describe(what)
        print_result(found if json else as_text(found))
    else:
        found = describing.describe(load_tokenizer(what, engine=engine, split=split))
        print_result(found if json else describing.as_text(found))


def check(folder: str, *, sample: int = 1000, json: bool = False) -> None:
    """Compare every byte of prepared FOLDER with what was written; exit 1 and say where if it differs."""
    from piecemill.shards.check import as_json, as_text, check_shards

    found = check_shards(folder, sample=sample)
    print_result(as_json(found) if json else as_text(found))
    if not found.sound:
        sys.exit(1)


def export(
    folder: str,
    *,
    out: str,
    quiet: bool = False,
    json: bool = False,
    plan: Annotated[ExportPlan, Parameter(name="*")] = ExportPlan(),  # noqa: B008 - frozen, and cyclopts reads it
) -> None:
    """Write prepared FOLDER as rows for other loaders under OUT. Run it again to make what is missing.

    Parameters
    ----------
    folder
        A folder written by `piecemill prepare`.
    out
        Folder for the rows; new, or that of the same export.
    quiet
        No progress on stderr.
    json
        Print the result as JSON.
    """
    from piecemill.shards.export import export as export_shards
    from piecemill.sizes import plural, show_bytes, show_count

    def tell(part: Any, done: int, parts: int) -> None:
        if not quiet:
            sys.stderr.write(f"export  {done:,}/{parts:,} parts   {part.name}   {part.windows:,} rows\n")

    done = export_shards(folder, out, plan, on_part=tell)
    dropped = f", {done.dropped:,} tokens in dropped tails" if done.dropped else ""
    rows = "documents" if plan.to == "megatron" else "rows"
    print_result(
        asdict(done)
        if json
        else f"{done.windows:,} {rows}, {show_count(done.tokens)} tokens{dropped}; {show_bytes(done.bytes)} in "
        f"{plural(done.parts, 'part')} ({done.made:,} made now) in {done.out}"
    )
