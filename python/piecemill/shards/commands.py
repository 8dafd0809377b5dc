"""The commands of this room: parse, call one verb, print one result."""

import sys
from typing import Annotated, Any

from cyclopts import Parameter

from piecemill.command import print_result
from piecemill.shards.export import ExportPlan


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

    def tell(part: Any, done: int, parts: int) -> None:
        if not quiet:
            sys.stderr.write(f"export  {done:,}/{parts:,} parts   {part.name}   {part.windows:,} rows\n")

    done = export_shards(folder, out=out, plan=plan, on_part=tell)
    print_result(done.to_dict() if json else str(done))
