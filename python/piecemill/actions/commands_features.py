"""The commands that get data ready, `actions split` and `actions features`: parse, call one verb, print one result."""

import json as json_format
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from piecemill.actions.features_plan import FeaturesPlan
from piecemill.command import Flag, Json, print_result
from piecemill.errors import PlanError
from piecemill.files import check_writable, file_for_user
from piecemill.plans import checked, option


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """How interactions become histories, and which part of them is learned from."""

    user: str | None = None
    "Column of the user; default: user, user_id, reviewerID, or another usual name."

    item: str | None = None
    "Column of the item; default: item, item_id, asin, or another usual name."

    time: str | None = None
    "Column of the time; default: time, timestamp, or another usual name. none: the rows are in order."

    format: Literal["auto", "parquet", "arrow", "csv", "tsv", "jsonl", "recbole", "lines"] = "auto"
    "Format of the file; default: by its name. lines: user item item ..., one history a line."

    delimiter: str | None = None
    "What stands between two cells of a text file, such as ';', '::' or tab; default: by name and first line."

    header: tuple[str, ...] = ()
    "Names of the columns, user,item,rating,time, of a file whose first line is a row. u.data, ratings.dat: not needed."

    time_format: str | None = None
    "Form of dates that are not ISO, such as %d/%m/%Y."

    rating: str | None = None
    "Column of the rating, for min_rating; default: rating, overall, or another usual name."

    min_rating: float | None = None
    "Leave out rows rated lower, or not at all."

    duplicates: Literal["drop", "keep", "stop"] = "drop"
    "Rows with the user, item and time of an earlier one."

    repeats: Literal["keep", "first"] = "keep"
    "An item that a user comes back to: keep every time, or the first only."

    on_bad_row: Literal["stop", "skip"] = "stop"
    "What to do with a row without user, item or time: stop with its place, or skip and count it."

    k_core: int = 0
    "Keep users and items with at least this number of actions, repeated until all have it; 0: all."

    leave_out: Literal[1, 2] = 2
    "Items at the end of each history that are held back: 2 for validation and test, 1 for test only."

    max_history: int | None = None
    "Items that validation and test predict from, at most. The training part is never cut."

    items: str | None = None
    "File of items that the histories may hold; default: no check."

    unknown: Literal["stop", "drop"] = "stop"
    "Actions with an item that is not among them: stop with the first, or drop and count them."

    def __post_init__(self) -> None:
        if self.k_core < 0:
            raise PlanError(f"{option('k_core', self.k_core)}: expected 1 or more, or 0 for all users and items.")
        if self.max_history is not None and self.max_history < 1:
            raise PlanError(f"{option('max_history', self.max_history)}: expected 1 or more.")


def split(
    interactions: Path,
    *,
    out: Path,
    force: Flag = False,
    json: Json = False,
    plan: Annotated[SplitPlan, Parameter(name="*")] = SplitPlan(),
) -> None:
    """Make histories of INTERACTIONS and split them: train.parquet, val.parquet and test.parquet under OUT.

    Parameters
    ----------
    interactions
        Rows of user, item and time: .parquet, .arrow, .csv, .tsv, .jsonl, RecBole .inter, or lines `user item ...`.
    out
        Folder for the parts and report.json.
    force
        Replace the parts that are in OUT already.
    """
    from piecemill.actions.histories import k_core, leave_out
    from piecemill.actions.interactions import read_interactions
    from piecemill.actions.items import keys_alone

    written = [out / name for name in ("report.json", "train.parquet", "val.parquet", "test.parquet")]
    for file in written:
        check_new(file, force)
    histories = read_interactions(
        interactions,
        user=plan.user,
        item=plan.item,
        time=plan.time,
        format=plan.format,
        rating=plan.rating,
        min_rating=plan.min_rating,
        duplicates=plan.duplicates,
        repeats=plan.repeats,
        on_bad_row=plan.on_bad_row,
        delimiter=plan.delimiter,
        header=",".join(plan.header) or None,
        time_format=plan.time_format,
    )
    if plan.items is not None:
        histories = histories.map_to_items(keys_alone(plan.items), unknown=plan.unknown)
    if plan.k_core:
        histories = k_core(histories, plan.k_core)
    parts = leave_out(histories, plan.leave_out, max_history=plan.max_history)
    out.mkdir(parents=True, exist_ok=True)
    for file in written:
        file.unlink(missing_ok=True)
    parts.train.save(out / "train.parquet")
    if parts.val is not None:
        parts.val.save(out / "val.parquet")
    parts.test.save(out / "test.parquet")
    told = {"source": str(interactions), "plan": asdict(plan), "counts": parts.to_dict()}
    with file_for_user(out / "report.json") as report:
        report.write((json_format.dumps(told, indent=1) + "\n").encode())
    made = "train.parquet, val.parquet, test.parquet" if parts.val is not None else "train.parquet, test.parquet"
    print_result({"out": str(out), **told} if json else f"{parts}\n{made} in {out}")


def features(
    source: Path,
    *,
    out: Path,
    force: Flag = False,
    json: Json = False,
    plan: Annotated[FeaturesPlan, Parameter(name="*")] = FeaturesPlan(),  # noqa: B008 - frozen, and cyclopts reads it
) -> None:
    """Give the items of SOURCE one code per feature, and write them to OUT, a Parquet file.

    Parameters
    ----------
    source
        A row per item: .parquet, .arrow, .csv, .tsv, .jsonl, RecBole .item, a .json of item -> values, or interactions
        whose rows say the same of an item.
    out
        The Parquet file: the key, then a column per feature.
    force
        Replace OUT.
    """
    from piecemill.actions.features import MadeItems, make_items

    if out.suffix.lower() not in ("", ".parquet"):
        raise PlanError(f"--out {out}: the items are written as Parquet. Name the file {out.with_suffix('.parquet')}.")
    check_new(out, force)
    made = MadeItems(make_items(source, plan=plan), out)
    made.items.save(out)
    print_result(made.to_dict() if json else str(made))


def check_new(path: Path, force: bool) -> None:
    """Refuse a file that is there already, unless `force` replaces it, and a place that cannot be written to."""
    if path.exists() and not force:
        raise PlanError(f"{path} is there already: choose another --out, or pass --force to replace it.")
    check_writable(path)
