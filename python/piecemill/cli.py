"""The command line: parse, call one verb, print one result.

Results go to stdout (`--json` for machines), progress and errors to stderr. Exit 0 done, 1 failed, 2 wrong use,
130 stopped.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from piecemill._core import __version__
from piecemill.errors import PiecemillError, PlanError
from piecemill.training.plan import TrainPlan

app = App(name="piecemill", version=__version__, help="Turn raw corpora into training batches.")


@app.command
def train(
    *sources: str,
    out: Path | None = None,
    force: bool = False,
    quiet: bool = False,
    json: bool = False,
    plan: Annotated[TrainPlan, Parameter(name="*")] = TrainPlan(),  # noqa: B008 - frozen, and cyclopts reads it
) -> None:
    """Learn a BPE vocabulary from SOURCES and save the tokenizer under OUT.

    Parameters
    ----------
    sources
        Folders, files or globs: text and code, .jsonl(.gz|.zst), .parquet, .arrow.
    out
        Folder for the tokenizer. Without it, and with --save-counts, words are only counted.
    force
        Replace a tokenizer that is in OUT already.
    quiet
        No progress on stderr.
    json
        Print the result as JSON.
    """
    from piecemill.progress import Display
    from piecemill.tokenizers.saving import check_target
    from piecemill.training.bpe import count_words, train_bpe
    from piecemill.training.result import as_json, as_text

    source = [Path(name) for name in sources] or None  # paths, never texts
    if out is None:
        if plan.save_counts is None:
            raise PlanError("--out is missing: name the folder for the tokenizer (or --save-counts to only count).")
        with Display(quiet=quiet) as display:
            distinct = count_words(source, plan=plan, on_progress=display)
        _print(
            {"counts": str(plan.save_counts), "distinct_words": distinct},
            f"{distinct:,} distinct words in {plan.save_counts}",
            json,
        )
        return
    check_target(out.resolve(), force)  # before the work, not after it
    with Display(quiet=quiet) as display:
        tokenizer = train_bpe(source, plan=plan, on_progress=display)
        tokenizer.save(out, force=force)
    _print(as_json(tokenizer, out), as_text(tokenizer, out), json)


@app.command
def demo(*, out: Path = Path("demo"), vocab_size: int = 8192) -> None:
    """Learn a vocabulary from this interpreter's own standard library, and show what it learned.

    Parameters
    ----------
    out
        Folder for what the demo makes; replaced if it is there.
    vocab_size
        Entries in the vocabulary.
    """
    from piecemill.demo import run

    run(out, vocab_size=vocab_size)


@app.command
def show(tokenizer: str, *, engine: str | None = None, split: str | None = None, json: bool = False) -> None:
    """Say what TOKENIZER is, which engine encodes it and why.

    Parameters
    ----------
    tokenizer
        A folder, a tokenizer.json, a .model, a .tiktoken file, or a Hugging Face hub id.
    engine
        Force gigatoken, tokenizers, sentencepiece or tiktoken.
    split
        For a .tiktoken file, which does not say it: gpt2, cl100k, o200k, none, or a regex.
    json
        Print the result as JSON.
    """
    from piecemill.tokenizers.describing import as_text, describe
    from piecemill.tokenizers.loading import load_tokenizer

    description = describe(load_tokenizer(tokenizer, engine=engine, split=split))
    _print(description, as_text(description), json)


def _print(result: dict[str, Any], text: str, as_json: bool) -> None:
    sys.stdout.write((json.dumps(result) if as_json else text) + "\n")


def main() -> None:
    """The entry point: errors in one line, and the exit code that says what happened."""
    try:
        app()
    except PlanError as error:
        _fail(error, 2)
    except (PiecemillError, OSError) as error:
        _fail(error, 1)
    except KeyboardInterrupt:
        sys.stderr.write("piecemill: stopped; nothing was written\n")
        sys.stderr.flush()
        os._exit(130)  # threads still inside a long native call must not hold up the exit


def _fail(error: Exception, code: int) -> None:
    sys.stderr.write(f"piecemill: {error}\n")
    sys.exit(code)
