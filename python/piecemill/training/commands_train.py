"""The command of this room: parse, call one verb, print one result."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from piecemill.command import (
    Flag,
    Json,
    PretokenizerName,
    Quiet,
    SourceName,
    as_flags,
    paths,
    print_result,
    read_sources,
)
from piecemill.errors import PlanError
from piecemill.executors import ExecutorOptions
from piecemill.tokenizers.commands_tokenizer import check_out
from piecemill.training.plan import TrainPlan
from piecemill.training.wordpiece import WordPiecePlan

as_flags(
    TrainPlan,
    special_tokens=Parameter(name=("--special-token", "--special-tokens")),
    roles=Parameter(name=("--role", "--roles")),
    weight=Parameter(name="--weight"),
)
as_flags(WordPiecePlan, special_tokens=Parameter(name=("--special-token", "--special-tokens")))


def train(
    *sources: SourceName,
    out: Path | None = None,
    no_special_tokens: Flag = False,
    force: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
    where: Annotated[ExecutorOptions, Parameter(name="*")] = ExecutorOptions(),  # noqa: B008 - as plan
    plan: Annotated[TrainPlan, Parameter(name="*")] = TrainPlan(),  # noqa: B008 - frozen, and cyclopts reads it
) -> None:
    """Learn a BPE vocabulary from SOURCES and save the tokenizer under OUT.

    Parameters
    ----------
    out
        Folder for the tokenizer. Without it, and with --save-counts, words are only counted.
    no_special_tokens
        Leave out <|endoftext|>: only tokens of --special-token and --role are special.
    force
        Replace a tokenizer that is in OUT already, and a file at --save-counts.
    """
    from piecemill.progress import Display
    from piecemill.tokenizers.engines.tokenizers import cuts_otherwise
    from piecemill.training.bpe import count_words, train_bpe
    from piecemill.training.result import Trained

    source = read_sources(sources, plan.separator) or None
    if out is None and plan.save_counts is None:
        raise PlanError("--out is missing: name the folder for the tokenizer (or --save-counts to only count).")
    if out is not None:
        if plan.save_counts is not None and out.resolve() in plan.save_counts.resolve().parents:
            raise PlanError(f"--save-counts {plan.save_counts}: is in --out, which holds the tokenizer only.")
        check_out(out, force)
    if plan.start is not None and no_special_tokens:
        raise PlanError("--no-special-tokens: the special tokens of --start are kept as they are.")
    (default,), special = TrainPlan().special_tokens, plan.special_tokens
    if no_special_tokens:
        plan = replace(plan, special_tokens=tuple(token for token in special if token != default))
    elif default not in special:  # flags add to it
        plan = replace(plan, special_tokens=(default, *special))
    pretokenizer = plan.superword_pretokenizer or (None if plan.two_stages else plan.pretokenizer)
    if pretokenizer and (note := cuts_otherwise(pretokenizer)) and not quiet:
        sys.stderr.write(f"note: {note}\n")
    if out is None:
        with Display(quiet=quiet) as display:
            counted = count_words(source, plan=plan, on_progress=display, force=force, **asdict(where))
        print_result(counted.to_dict() if json else str(counted))
        return
    with Display(quiet=quiet) as display:
        tokenizer = train_bpe(source, plan=plan, on_progress=display, force=force, **asdict(where))
        tokenizer.save(out, force=force)
    trained = Trained(tokenizer, out)
    print_result(trained.to_dict() if json else str(trained))


def train_wordpiece(
    *sources: SourceName,
    out: Path,
    force: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
    where: Annotated[ExecutorOptions, Parameter(name="*")] = ExecutorOptions(),  # noqa: B008 - as plan
    plan: Annotated[WordPiecePlan, Parameter(name="*")] = WordPiecePlan(),  # noqa: B008 - frozen, and cyclopts reads it
) -> None:
    """Learn a WordPiece vocabulary (BERT's) from SOURCES and save the tokenizer under OUT.

    Parameters
    ----------
    out
        Folder for the tokenizer.
    force
        Replace a tokenizer that is in OUT already, and a file at --save-counts.
    """
    from piecemill.progress import Display
    from piecemill.training.result import Trained
    from piecemill.training.wordpiece import train_wordpiece as run

    source = read_sources(sources, plan.separator) or None
    check_out(out, force)
    plan = replace(plan, special_tokens=tuple(dict.fromkeys((*WordPiecePlan().special_tokens, *plan.special_tokens))))
    with Display(quiet=quiet) as display:
        tokenizer = run(source, plan=plan, on_progress=display, force=force, **asdict(where))
        tokenizer.save(out, force=force)
    trained = Trained(tokenizer, out)
    print_result(trained.to_dict() if json else str(trained))


def prune(
    tokenizer: str,
    *,
    counts: tuple[str, ...],
    vocab_size: int,
    out: Path,
    ids: Literal["dense", "stable"] = "dense",
    on: tuple[str, ...] = (),
    pretokenizer: PretokenizerName = None,
    force: Flag = False,
    json: Json = False,
) -> None:
    """Remove the least used tokens of TOKENIZER that no other token needs, and save it under OUT.

    Parameters
    ----------
    tokenizer
        A folder saved by `piecemill train`, a tokenizer.json or .tiktoken file, or a Hugging Face hub id: byte-level
        BPE.
    counts
        Folders of shards prepared with TOKENIZER, in which tokens are counted.
    vocab_size
        Tokens that stay: bytes, special and added tokens always do.
    out
        Folder for the new tokenizer, with mapping.json: the new ids of each old one.
    ids
        Dense: tokens that stay are numbered anew. Stable: they keep their ids, and those that were freed below the
        last become reserved special tokens, <|reserved_ID|>.
    on
        Folders, files or globs that are encoded before and after, to measure bytes per token; without it, the figure
        after is an estimate from the counts.
    force
        Replace a tokenizer that is in OUT already.
    """
    from piecemill.tokenizers import load_tokenizer
    from piecemill.training.pruning import prune as run

    check_out(out, force)
    loaded = load_tokenizer(tokenizer, pretokenizer=pretokenizer)
    pruned = run(loaded, counts=counts, vocab_size=vocab_size, ids=ids, on=paths(on) or None)
    pruned.tokenizer.save(out, force=force)
    print_result({"out": str(out), **pruned.to_dict()} if json else f"{out}: {pruned}")
