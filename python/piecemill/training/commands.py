"""The command of this room: parse, call one verb, print one result."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from piecemill.command import Flag, as_flags, print_result, read_sources
from piecemill.errors import PlanError, TokenizerError
from piecemill.executors import ExecutorOptions
from piecemill.training.plan import TrainPlan

as_flags(
    TrainPlan,
    special_tokens=Parameter(name=("--special-token", "--special-tokens")),
    roles=Parameter(name=("--role", "--roles")),
)


def train(
    *sources: str,
    out: Path | None = None,
    no_special_tokens: Flag = False,
    force: Flag = False,
    quiet: Flag = False,
    json: Flag = False,
    where: Annotated[ExecutorOptions, Parameter(name="*")] = ExecutorOptions(),  # noqa: B008 - as plan
    plan: Annotated[TrainPlan, Parameter(name="*")] = TrainPlan(),  # noqa: B008 - frozen, and cyclopts reads it
) -> None:
    """Learn a BPE vocabulary from SOURCES and save the tokenizer under OUT.

    Parameters
    ----------
    sources
        Folders, files or globs: text and code, .jsonl(.gz|.zst), .parquet, .arrow, .feather, FASTA and FASTQ; or - for
        a text on standard input, which --separator cuts into documents.
    out
        Folder for the tokenizer. Without it, and with --save-counts, words are only counted.
    no_special_tokens
        Leave out <|endoftext|>: only tokens of --special-token and --role are special.
    force
        Replace a tokenizer that is in OUT already, and a file at --save-counts.
    quiet
        No progress on stderr.
    json
        Print the result as JSON.
    """
    from piecemill.progress import Display
    from piecemill.tokenizers.engines.tokenizers import cuts_otherwise
    from piecemill.tokenizers.saving import check_target
    from piecemill.training.bpe import count_words, train_bpe
    from piecemill.training.result import as_json, as_text

    source = read_sources(sources, plan.separator) or None
    if out is None and plan.save_counts is None:
        raise PlanError("--out is missing: name the folder for the tokenizer (or --save-counts to only count).")
    if out is not None:
        if plan.save_counts is not None and out.resolve() in plan.save_counts.resolve().parents:
            raise PlanError(f"--save-counts {plan.save_counts}: is in --out, which holds the tokenizer only.")
        try:
            check_target(out.resolve(), force)  # before the work, not after it
        except TokenizerError as error:  # something else is there: wrong use, as of every command
            raise PlanError(str(error)) from None
    if plan.start is not None and no_special_tokens:
        raise PlanError("--no-special-tokens: the special tokens of --start are kept as they are.")
    (default,), special = TrainPlan().special_tokens, plan.special_tokens
    if no_special_tokens:
        plan = replace(plan, special_tokens=tuple(token for token in special if token != default))
    elif default not in special:  # flags add to it
        plan = replace(plan, special_tokens=(default, *special))
    if plan.split and (note := cuts_otherwise(plan.split)) and not quiet:
        sys.stderr.write(f"note: {note}\n")
    if out is None:
        with Display(quiet=quiet) as display:
            counted = count_words(source, plan=plan, on_progress=display, force=force, **asdict(where))
        print_result(counted.to_dict() if json else str(counted))
        return
    with Display(quiet=quiet) as display:
        tokenizer = train_bpe(source, plan=plan, on_progress=display, force=force, **asdict(where))
        tokenizer.save(out, force=force)
    print_result(as_json(tokenizer, out) if json else as_text(tokenizer, out))
