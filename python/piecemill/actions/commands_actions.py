"""`piecemill actions`: parse, call one verb, print one result."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from piecemill.actions import commands_encode, commands_features
from piecemill.actions.training_plan import ActionsPlan
from piecemill.command import Flag, Json, Quiet, print_result

app = App(name="actions", help="Vocabularies and tokens of recommender action sequences (ActionPiece).")

app.command(commands_features.split)
app.command(commands_features.features)


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
    commands_features.check_new(target, force)  # before the work, not after it
    with Display(quiet=quiet) as display:
        tokenizer = train_actions(sequences, items, plan=plan, on_progress=display)
        tokenizer.save(target)
    trained = TrainedActions(tokenizer, target)
    print_result(trained.to_dict() if json else str(trained))


app.command(commands_encode.encode)
app.command(commands_encode.show)
