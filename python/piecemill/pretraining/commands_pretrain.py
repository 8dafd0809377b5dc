"""The command of this room: parse, call one verb, print one result."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from piecemill.command import Flag, Json, print_result
from piecemill.pretraining.plan import PretrainPlan


def pretrain(
    shards: str,
    *,
    out: Path = Path("run"),
    quiet: Flag = False,
    json: Json = False,
    plan: Annotated[PretrainPlan, Parameter(name="*")] = PretrainPlan(),  # noqa: B008 - frozen, and cyclopts reads it
) -> None:
    """Train a small model on prepared SHARDS, to prove them. Run the same command again to go on.

    Parameters
    ----------
    shards
        A folder written by `piecemill prepare`, with a split to learn from and one for validation.
    out
        Folder for the curve, figures and checkpoints: new, empty, or of an earlier run of the same command.
    quiet
        No plan and no progress on stderr.
    """
    from piecemill.files import local_folder
    from piecemill.pretraining.run import pretrain as run
    from piecemill.progress import Display
    from piecemill.shards.folder import read_plan

    if not quiet:
        chosen = plan.with_splits(read_plan(local_folder(shards, "pretraining"))["splits"])
        sys.stderr.write("".join(f"plan    {line}\n" for line in chosen.resolved().lines()))
        sys.stderr.flush()
    with Display(quiet=quiet) as display:
        summary = run(shards, out=out, plan=plan, on_progress=display)
    print_result(summary.to_dict() if json else str(summary))
