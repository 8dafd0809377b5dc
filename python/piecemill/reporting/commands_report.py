"""The commands of this room: parse, call one verb, print one result."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from piecemill.command import Flag, paths, print_result, read_sources
from piecemill.reporting.plan import ComparePlan


def compare(
    *tokenizers: str,
    on: Annotated[tuple[str, ...], Parameter(consume_multiple=True)],
    json: Flag = False,
    plan: Annotated[ComparePlan, Parameter(name="*")] = ComparePlan(),  # noqa: B008 - frozen, and cyclopts reads it
) -> None:
    """Encode a corpus with each of TOKENIZERS and compare: compression, words kept whole, fairness, speed, by group.

    Parameters
    ----------
    tokenizers
        Folders saved by `piecemill train`, tokenizer.json, .model or .tiktoken files, or Hugging Face hub ids.
    on
        Folders, files or globs whose documents are encoded.
    json
        Print everything as JSON.
    """
    from piecemill.reporting.comparing import compare as run

    found = run(tokenizers, on=read_sources(on, plan.separator), plan=plan)
    print_result(found.to_dict() if json else str(found))


def report(
    *about: Annotated[str, Parameter(name="paths")],
    out: Path = Path("report.html"),
    against: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    on: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    language: str | None = None,
    histories: Path | None = None,
    sample: str = "16MiB",
    speed: Flag = False,
    threads: int | None = None,
    json: Flag = False,
) -> None:
    """Write one HTML page about PATHS (tokenizers, prepared shards, actions, runs), and its facts as JSON beside it.

    Parameters
    ----------
    about
        Folders written by commands of Piecemill, or tokenizer files.
    out
        The page; the facts go to a file with the same name and the ending .facts.json.
    against
        Another tokenizer to compare with, on the same documents; repeat the flag for more.
    on
        Folders, files or globs to compare on; default: documents of the prepared shards.
    language
        Field or column with the language of a document, in the source files of the prepared shards, or in --on.
    histories
        Histories of users that say how a vocabulary of actions is used.
    sample
        Text to compare tokenizers on, taken evenly from the corpus.
    speed
        Add the measured speed of encoding: the page is then not the same twice.
    threads
        Threads that encode; default: all cores.
    json
        Print the facts as JSON.
    """
    from piecemill.reporting.reports import report as run

    made = run(
        about,
        out=out,
        against=against,
        on=paths(on) or None,
        language=language,
        histories=histories,
        sample=sample,
        speed=speed,
        threads=threads,
    )
    print_result(made.to_dict() if json else str(made))
