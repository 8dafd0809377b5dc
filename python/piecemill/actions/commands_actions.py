"""`piecemill actions`: parse, call one verb, print one result."""

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from piecemill.actions.plan import ActionsPlan, EncodePlan, FeaturesPlan, SplitPlan
from piecemill.command import Flag, Json, Quiet, print_result
from piecemill.errors import PlanError
from piecemill.files import check_writable, file_for_user, files_together

app = App(name="actions", help="Vocabularies and tokens of recommender action sequences (ActionPiece).")


@app.command
def split(
    interactions: Path,
    *,
    out: Path,
    force: Flag = False,
    json: Json = False,
    plan: Annotated[SplitPlan, Parameter(name="*")] = SplitPlan(),  # noqa: B008 - frozen, and cyclopts reads it
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
    told = {"source": str(interactions), "plan": asdict(plan), "counts": parts.to_dict()}
    with files_together(written) as aside:
        parts.train.save(aside / "train.parquet")
        if parts.val is not None:
            parts.val.save(aside / "val.parquet")
        parts.test.save(aside / "test.parquet")
        with file_for_user(aside / "report.json") as report:
            report.write((json_format.dumps(told, indent=1) + "\n").encode())
    made = "train.parquet, val.parquet, test.parquet" if parts.val is not None else "train.parquet, test.parquet"
    print_result({"out": str(out), **told} if json else f"{parts}\n{made} in {out}")


@app.command
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


@app.command
def train(
    sequences: Path,
    *,
    items: Path,
    out: Path,
    force: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
    plan: Annotated[ActionsPlan, Parameter(name="*")] = ActionsPlan(),  # noqa: B008 - frozen, and cyclopts reads it
) -> None:
    """Learn a vocabulary of actions from SEQUENCES and save it at OUT in the published format.

    Parameters
    ----------
    sequences
        Histories to learn from, the training part only: train.parquet of `actions split`, or any file of interactions.
    items
        Features of the items: the file of `actions features`, or any file with a row per item.
    out
        The vocabulary file, or a folder for it (as actionpiece.json); plan, names and items go beside it.
    force
        Replace a vocabulary that is there already.
    """
    from piecemill.actions.training import TrainedActions, train_actions
    from piecemill.actions.vocabulary import file_at
    from piecemill.progress import Display

    target = file_at(out)
    check_new(target, force)  # before the work, not after it
    with Display(quiet=quiet) as display:
        tokenizer = train_actions(sequences, items, plan=plan, on_progress=display)
        tokenizer.save(target)
    trained = TrainedActions(tokenizer, target)
    print_result(trained.to_dict() if json else str(trained))


@app.command
def encode(
    histories: Path,
    *,
    tokenizer: Path,
    out: Path,
    force: Flag = False,
    items: Path | None = None,
    unknown_value: tuple[str, ...] = (),
    vocab_size: int | None = None,
    quiet: Quiet = False,
    json: Json = False,
    plan: Annotated[EncodePlan, Parameter(name="*")] = EncodePlan(),  # noqa: B008 - frozen, and cyclopts reads it
) -> None:
    """Encode HISTORIES into tokens, or into shards that batches are made from, at OUT.

    Parameters
    ----------
    histories
        train.parquet, val.parquet or test.parquet of `piecemill actions split`, or interactions as it reads them.
    tokenizer
        A folder or file written by `piecemill actions train`, or a published vocabulary file.
    out
        File (jsonl) or folder (npy, shards) to write; it must not be there yet.
    force
        Replace what an earlier `actions encode` wrote at OUT.
    items
        The items of today, in place of those saved with the vocabulary; their values get its codes, by name.
    unknown_value
        A value of --items that the vocabulary does not know: error, drop (the item), or a known one; or column=one.
    vocab_size
        Use only this number of tokens, the first of the vocabulary.
    """
    from piecemill.actions.encoding import encode_histories
    from piecemill.progress import Display

    loaded = _load(tokenizer, vocab_size, items, unknown_value)
    with Display(quiet=quiet) as display:
        done = encode_histories(histories, loaded, out=out, plan=plan, force=force, on_progress=display)
    print_result(done.to_dict() if json else str(done))


@app.command
def show(
    tokenizer: Path,
    *tokens: int,
    histories: Path | None = None,
    items: Path | None = None,
    vocab_size: int | None = None,
    first: int = 20,
    epochs: int = 1,
    seed: int = 0,
    json: Flag = False,
) -> None:
    """Say what a vocabulary of actions is: its tokens as features with names, and how histories use them.

    Parameters
    ----------
    tokenizer
        A folder or file written by `piecemill actions train`, or a published vocabulary file.
    tokens
        Tokens to show; without any, the first merges.
    histories
        Say how these use the vocabulary: share of tokens used and tokens per action, by weight and at random.
    items
        The items, for a vocabulary file that has none beside it.
    vocab_size
        Use only this number of tokens, the first of the vocabulary.
    first
        Merges to show, where no tokens are named.
    epochs
        Epochs of random segmentation.
    seed
        Of the random segmentation.
    json
        Print everything as JSON.
    """
    from piecemill.actions.show import describe

    loaded = _load(tokenizer, vocab_size, items)
    found = describe(loaded, histories, tokens=tokens or None, first=first, epochs=epochs, seed=seed)
    print_result(found.to_dict() if json else str(found))


def check_new(path: Path, force: bool) -> None:
    """Refuse a file that is there already, unless `force` replaces it, and a place that cannot be written to."""
    if path.exists() and not force:
        raise PlanError(f"{path} is there already: choose another --out, or pass --force to replace it.")
    check_writable(path)


def _load(tokenizer: Path, vocab_size: int | None, items: Path | None, unknown_value: tuple[str, ...] = ()) -> Any:
    from piecemill.actions.tokenizer import ActionTokenizer

    if unknown_value and items is None:
        raise PlanError("--unknown-value: is for the values of --items, which is not given.")
    return ActionTokenizer.load(tokenizer, vocab_size, items=items, unknown_value=unknown_value)
