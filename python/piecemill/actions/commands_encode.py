"""The commands that use a vocabulary, `actions encode` and `actions show`: parse, call one verb, print one result."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from piecemill.actions.encoding_plan import EncodePlan
from piecemill.command import Flag, Json, Quiet, print_result
from piecemill.errors import PlanError


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


def _load(tokenizer: Path, vocab_size: int | None, items: Path | None, unknown_value: tuple[str, ...] = ()) -> Any:
    from piecemill.actions.tokenizer import ActionTokenizer

    if unknown_value and items is None:
        raise PlanError("--unknown-value: is for the values of --items, which is not given.")
    return ActionTokenizer.load(tokenizer, vocab_size, items=items, unknown_value=unknown_value)
