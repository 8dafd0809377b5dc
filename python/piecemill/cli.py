"""The command line: parse, call one verb, print one result.

Results go to stdout (`--json` for machines), progress and errors to stderr. Exit 0 done, 1 failed, 2 wrong use,
130 stopped. An option can also stand in a TOML file, `--config`, under its field's name: flag beats file beats default.
"""

import io
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from cyclopts import App, Parameter
from cyclopts.config import Dict

from piecemill._core import __version__
from piecemill.actions import commands as actions
from piecemill.command import Flag, as_flags, print_result
from piecemill.errors import PiecemillError, PlanError, SplitError
from piecemill.executors import ExecutorOptions, PartOptions
from piecemill.plans import speaking_flags
from piecemill.preparing.plan import PreparePlan
from piecemill.pretraining import commands as pretraining
from piecemill.shards import commands as shards
from piecemill.sources.remote import Url, is_url
from piecemill.training.plan import TrainPlan


def _shown(default: object) -> str | None:
    """A default as help shows it: as one would type it, and not at all if it is nothing, no or empty."""
    if default is None or default is False or default == ():
        return None
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


_STDIN = "<standard input>"  # `-` among the sources, which the parser would take for an option

app = App(
    name="piecemill",
    version=__version__,
    version_flags=["--version", "-V"],
    help="Turn raw corpora into training batches.",
    default_parameter=Parameter(negative_iterable=(), show_default=_shown, consume_multiple=True),
    suppress_keyboard_interrupt=False,
)
as_flags(
    TrainPlan,
    special_tokens=Parameter(name=("--special-token", "--special-tokens"), negative="--no-special-tokens"),
)
as_flags(PreparePlan, weight=Parameter(name="--weight"))
app.meta.suppress_keyboard_interrupt = False  # what stopped the command is for `__main__` to say


@app.command
def train(
    *sources: str,
    out: Path | None = None,
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
        Folders, files or globs: text and code, .jsonl(.gz|.zst), .parquet, .arrow, .feather; or - for a text on
        standard input, which --separator cuts into documents.
    out
        Folder for the tokenizer. Without it, and with --save-counts, words are only counted.
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
        check_target(out.resolve(), force)  # before the work, not after it
    if TrainPlan().special_tokens[0] not in plan.special_tokens and plan.special_tokens and not quiet:
        given = ", ".join(plan.special_tokens)
        sys.stderr.write(
            f"note: special tokens are {given}; the default, {TrainPlan().special_tokens[0]}, is not one\n"
        )
    if (note := cuts_otherwise(plan.split)) and not quiet:
        sys.stderr.write(f"note: {note}\n")
    if out is None:
        with Display(quiet=quiet) as display:
            counted = count_words(source, plan=plan, on_progress=display, force=force, **asdict(where))
        print_result(counted.as_json() if json else counted.as_text())
        return
    with Display(quiet=quiet) as display:
        tokenizer = train_bpe(source, plan=plan, on_progress=display, force=force, **asdict(where))
        tokenizer.save(out, force=force)
    print_result(as_json(tokenizer, out) if json else as_text(tokenizer, out))


@app.command
def prepare(
    *sources: str,
    tokenizer: str,
    out: str,
    engine: str | None = None,
    tokenizer_split: str | None = None,
    force: Flag = False,
    quiet: Flag = False,
    json: Flag = False,
    where: Annotated[PartOptions, Parameter(name="*")] = PartOptions(),  # noqa: B008 - as plan
    plan: Annotated[PreparePlan, Parameter(name="*")] = PreparePlan(),  # noqa: B008 - frozen, and cyclopts reads it
) -> None:
    """Encode SOURCES into token shards under OUT. Run the same command again to resume.

    Parameters
    ----------
    sources
        Folders, files or globs: text and code, .jsonl(.gz|.zst), .parquet, .arrow, .feather; or - for a text on
        standard input, which --separator cuts into documents.
    tokenizer
        A folder saved by `piecemill train`, a tokenizer.json, .model or .tiktoken file, or a Hugging Face hub id.
    engine
        What encodes: piecemill, tokenizers, sentencepiece or tiktoken; default: the fastest that gives the same ids.
    tokenizer_split
        Split of a .tiktoken file, which does not carry one: a name that `piecemill train --help` lists, or a regex.
    out
        Folder for the shards, or its URL (s3://, gs://, az://): new, empty, or of an earlier run of the same command.
    force
        If OUT holds shards of other sources, options or another tokenizer, delete them and begin anew.
    quiet
        No progress on stderr.
    json
        Print the result as JSON.
    """
    from piecemill.preparing.run import prepare as run
    from piecemill.progress import Display
    from piecemill.tokenizers import load_tokenizer

    if not sources:
        raise PlanError("no source was given: name folders, files or globs.")
    loaded = load_tokenizer(tokenizer, engine=engine, split=tokenizer_split)
    with Display(quiet=quiet) as display:
        source = read_sources(sources, plan.separator)
        summary = run(source, loaded, out=out, force=force, plan=plan, on_progress=display, **asdict(where))
    print_result(summary.as_json() if json else summary.as_text())


@app.command
def verify(
    tokenizer: str,
    *,
    on: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    documents: int = 1000,
    engine: str | None = None,
    tokenizer_split: str | None = None,
    json: Flag = False,
) -> None:
    """Compare the ids of TOKENIZER's engine with those of its home library; exit 1 and show both if they differ.

    Parameters
    ----------
    tokenizer
        A folder saved by `piecemill train`, a tokenizer.json, .model or .tiktoken file, or a Hugging Face hub id.
    on
        Folders, files or globs whose documents are compared too; without it only the nasty strings are.
    documents
        Compare at most this many documents; 0 for all.
    engine
        What is compared: piecemill, tokenizers or tiktoken; default: the one that would encode.
    tokenizer_split
        Split of a .tiktoken file, which does not carry one: a name that `piecemill train --help` lists, or a regex.
    json
        Print the result as JSON.
    """
    from piecemill.sources import open_source
    from piecemill.tokenizers import load_tokenizer
    from piecemill.tokenizers import verify as run

    loaded = load_tokenizer(tokenizer, engine=engine, split=tokenizer_split)
    corpus = open_source(paths(on)) if on else ()
    verified = run(loaded, corpus, most=documents or None)
    print_result(verified.to_dict() if json else str(verified))


@app.command
def demo(*, out: Path = Path("demo"), vocab_size: int = 8192, pretrain: bool = True) -> None:
    """Train, prepare, check and load this interpreter's own standard library; pretrain where torch is installed.

    Parameters
    ----------
    out
        Folder for what the demo makes: new, empty, or of an earlier demo, which is replaced.
    vocab_size
        Entries in the vocabulary.
    pretrain
        Train a small model too, about a minute on two cores, if torch and transformers are installed.
    """
    from piecemill.demo import run

    run(out, vocab_size=vocab_size, pretrain=pretrain)


@app.command
def show(what: str, *, engine: str | None = None, split: str | None = None, json: Flag = False) -> None:
    """Say what WHAT is: prepared shards, a tokenizer, a vocabulary or shards of actions, a pretraining run.

    Parameters
    ----------
    what
        A folder written by a command of Piecemill (of shards also its URL: s3://, gs://, az://), a tokenizer file,
        or a Hugging Face hub id.
    engine
        Of a tokenizer: force piecemill, tokenizers, sentencepiece or tiktoken.
    split
        Of a .tiktoken file, which does not say it: a name that `piecemill train --help` lists, or a regex.
    json
        Print everything as JSON.
    """
    from piecemill import folders

    if (kind := folders.kind_of(Path(what))) in ("shards", "tokenizer", None):
        return shards.show(what, engine=engine, split=split, json=json)
    found, text = folders.describe(Path(what), kind)
    print_result(found if json else text)


@app.command
def check(folder: str, *, sample: int = 1000, json: Flag = False) -> None:
    """Compare everything in FOLDER with what was written; exit 1 and say where if it differs.

    Parameters
    ----------
    folder
        A folder written by a command of Piecemill: shards (or their URL: s3://, gs://, az://), a tokenizer, a
        vocabulary or shards of actions, a run.
    sample
        Of shards: documents of each split to decode and compare with the hash of their text.
    json
        Print the findings as JSON.
    """
    from piecemill import folders

    if (kind := folders.kind_of(Path(folder))) in ("shards", None):
        return shards.check(folder, sample=sample, json=json)
    problems = folders.check(Path(folder), kind)
    if json:
        print_result({"folder": folder, "kind": kind, "sound": not problems, "problems": problems})
    else:
        print_result("\n".join(problems) if problems else f"{folder} is sound: {folders.KINDS[kind]}")
    if problems:
        sys.exit(1)


app.command(actions.app)
app.command(shards.export)
app.command(pretraining.pretrain)


def paths(sources: tuple[str, ...]) -> list[PathLike[str]]:
    """Sources as paths, so that none is taken for a text; URLs as `Url`, as a Path would drop a slash."""
    return [Url(name) if is_url(name) else Path(name) for name in sources]


def read_sources(sources: tuple[str, ...], separator: str | None) -> list[PathLike[str]] | Iterator[bytes]:
    """Sources as paths; of the text on standard input, its documents."""
    if _STDIN not in sources:
        return paths(sources)
    if len(sources) > 1:
        raise PlanError("-: standard input is the only source where it is named; name files beside it in another run.")
    return _cut(sys.stdin.buffer, separator)


def _cut(stream: BinaryIO, separator: str | None) -> Iterator[bytes]:
    """The documents of a stream of text: one, or several with `separator` between them."""
    if not separator:
        yield stream.read()
        return
    cut, rest = separator.encode(), b""
    while chunk := stream.read(1 << 20):
        *whole, rest = (rest + chunk).split(cut)
        yield from whole
    yield rest


@app.meta.default
def _with_config(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)], config: Path | None = None
) -> None:
    """Runs a command with the options in `config` in place of their defaults.

    Parameters
    ----------
    config
        TOML file with options of the command, such as vocab_size = 50_000. A flag beats the file.
    """
    if config is not None:
        app.config = (Dict(_options(config), source=str(config), use_commands_as_keys=False),)
    app([_STDIN if word == "-" else word for word in tokens])


def _options(path: Path) -> dict[str, Any]:
    try:
        options = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"--config {path}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise PlanError(f"--config {path}: not TOML: {error}.") from error
    for key, value in options.items():
        if isinstance(value, dict):
            raise PlanError(f"--config {path}: [{key}] is a table; expected options only, such as vocab_size = 50_000.")
    return options


def run() -> None:
    """Runs the command of `sys.argv`: errors in one line, and the exit code that says what happened."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr has it: a file name need not be Unicode
    words = sys.argv[1:]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if words and not words[0].startswith("-") and words[0] not in app:
        words = words[:1]  # not even help: there is no such command
    try:
        with speaking_flags():
            app.meta(words)
    except (PlanError, SplitError) as error:
        _fail(error, 2)
    except PiecemillError as error:
        _fail(error, 1)
    except OSError as error:
        names = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        _fail(f"{names}: {error.strerror}." if names and error.strerror else error.strerror or error, 1)


def _fail(error: Exception | str, code: int) -> None:
    sys.stderr.write(f"piecemill: {error}\n")
    sys.exit(code)
