"""The command line: parse, call one verb, print one result.

Results go to stdout (`--json` for machines), progress and errors to stderr. Exit 0 done, 1 failed, 2 wrong use,
130 stopped. An option can also stand in a TOML file, `--config`, under its field's name: flag beats file beats default.
"""

import difflib
import errno
import io
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter, UnknownOptionError

from piecemill._core import __version__
from piecemill.command import (
    CONFIG_SOURCES,
    STDIN,
    Engine,
    Flag,
    Json,
    PretokenizerName,
    Quiet,
    SourceName,
    TokenizerName,
    as_flags,
    print_result,
    read_sources,
    read_value,
)
from piecemill.errors import PiecemillError, PlanError, PretokenizerError
from piecemill.executors import PartOptions
from piecemill.plans import RENAMED, speaking_flags
from piecemill.preparing.plan import PreparePlan


def _shown(default: object) -> str | None:
    """A default as help shows it: as one would type it, and not at all if it is nothing, no or empty."""
    if default is None or default is False or default == ():
        return None
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _panel(error: CycloptsError) -> Any:
    """An error of the parser as it shows it; for an option that was renamed, with the name of today."""
    from cyclopts import CycloptsPanel

    if isinstance(error, UnknownOptionError):
        given = (error.token.keyword or error.token.value).partition("=")[0].strip("-[]").replace("-", "_")
        flag = f"--{RENAMED.get(given, given).replace('_', '-')}"
        known = [name for argument in error.argument_collection for name in argument.names]
        if flag in known and f"--{given}s" not in known:  # `--splits` is nearer
            return CycloptsPanel(f"{str(error).partition(' Did you mean ')[0]} Did you mean {flag}?")
    return CycloptsPanel(error)


app = App(
    name="piecemill",
    version=__version__,
    version_flags=["--version", "-V"],
    help="Turn raw corpora into training batches.",
    default_parameter=Parameter(negative_iterable=(), show_default=_shown, consume_multiple=True, converter=read_value),
    suppress_keyboard_interrupt=False,
    error_formatter=_panel,
)
app.meta.suppress_keyboard_interrupt = False  # what stopped the command is for `__main__` to say
as_flags(PreparePlan, weight=Parameter(name="--weight"))
app.command("piecemill.training.commands_train:train", name="train")  # by name: imported when it is called or described


@app.command
def prepare(
    *sources: SourceName,
    tokenizer: TokenizerName,
    out: str,
    engine: Engine = None,
    pretokenizer: PretokenizerName = None,
    force: Flag = False,
    quiet: Quiet = False,
    json: Json = False,
    where: Annotated[PartOptions, Parameter(name="*")] = PartOptions(),  # noqa: B008 - as plan
    plan: Annotated[PreparePlan, Parameter(name="*")] = PreparePlan(),  # noqa: B008 - frozen, and cyclopts reads it
) -> None:
    """Encode SOURCES into token shards under OUT. Run the same command again to resume.

    Parameters
    ----------
    out
        Folder for the shards, or its URL (s3://, gs://, az://): new, empty, or of an earlier run of the same command.
    force
        If OUT holds shards of other sources, options or another tokenizer, delete them and begin anew.
    """
    from piecemill.preparing.run import prepare as run
    from piecemill.progress import Display
    from piecemill.tokenizers import load_tokenizer

    if not (sources or CONFIG_SOURCES):
        raise PlanError("no source was given: name folders, files or globs before the flags.")
    if where.executor == "ray":
        from piecemill.executors.ray import connect

        connect(where.ray_address)  # now, so that its workers start while the tokenizer is loaded
    loaded = load_tokenizer(tokenizer, engine=engine, pretokenizer=pretokenizer)
    with Display(quiet=quiet) as display:
        source = read_sources(sources, plan.separator)
        summary = run(source, loaded, out=out, force=force, plan=plan, on_progress=display, **asdict(where))
    print_result(summary.to_dict() if json else str(summary))


@app.command
def verify(
    tokenizer: TokenizerName,
    *,
    on: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    documents: int = 1000,
    engine: str | None = None,
    pretokenizer: PretokenizerName = None,
    json: Json = False,
) -> None:
    """Compare the ids of TOKENIZER's engine with those of its home library; exit 1 and show both if they differ.

    Parameters
    ----------
    on
        Folders, files or globs whose documents are compared too; without it only the nasty strings are.
    documents
        Compare at most this many documents; 0 for all.
    engine
        What is compared: piecemill, tokenizers or tiktoken; default: the one that would encode.
    """
    from piecemill.sources import open_source
    from piecemill.tokenizers import load_tokenizer
    from piecemill.tokenizers import verify as run

    loaded = load_tokenizer(tokenizer, engine=engine, pretokenizer=pretokenizer)
    corpus = open_source(read_sources(on, None)) if on else ()
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
def show(what: str, *, engine: str | None = None, pretokenizer: str | None = None, json: Flag = False) -> None:
    """Say what WHAT is: prepared shards, a tokenizer, a vocabulary or shards of actions, a pretraining run.

    Parameters
    ----------
    what
        A folder written by a command of Piecemill (of shards also its URL: s3://, gs://, az://), a tokenizer file,
        or a Hugging Face hub id.
    engine
        Of a tokenizer: force piecemill, tokenizers, sentencepiece or tiktoken.
    pretokenizer
        Of a .tiktoken file, which does not say it: a name that `piecemill train --help` lists, or a regex.
    json
        Print everything as JSON.
    """
    from piecemill.reporting.describing import describe

    found = describe(what, engine=engine, pretokenizer=pretokenizer)
    print_result(found.to_dict() if json else str(found))


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
    from piecemill.reporting.checking import check as run

    found = run(folder, sample=sample)
    print_result(found.to_dict() if json else str(found))
    if not found.sound:
        sys.exit(1)


app.command("piecemill.actions.commands_actions:app", name="actions")
app.command("piecemill.reporting.commands_report:compare", name="compare")
app.command("piecemill.reporting.commands_report:report", name="report")
app.command("piecemill.shards.commands_shards:export", name="export")
app.command("piecemill.shards.commands_shards:vocab", name="vocab")
app.command("piecemill.training.commands_train:train_wordpiece", name="train-wordpiece")
app.command("piecemill.training.commands_train:prune", name="prune")
for _name in ("edit", "encode", "decode"):
    app.command(f"piecemill.tokenizers.commands_tokenizer:{_name}", name=_name)
app.command("piecemill.pretraining.commands_pretrain:pretrain", name="pretrain")


@app.command
def completion(shell: Literal["bash", "zsh", "fish", "powershell"] | None = None, *, install: Flag = False) -> None:
    """Print the script that completes commands and flags in SHELL, for `eval "$(piecemill completion bash)"`.

    Parameters
    ----------
    shell
        The shell; default: the one this command is called from.
    install
        Write the script to where SHELL looks for it, and load it in the shell's startup file, in place of printing it.
    """
    from cyclopts.completion.detect import ShellDetectionError

    try:
        if install:
            return print_result(f"{app.install_completion(shell=shell)}: begin a new shell to complete with TAB")
        print_result(app.generate_completion(shell=shell))
    except ShellDetectionError:
        raise PlanError("the shell is not known: name it, as in `piecemill completion bash`.") from None


@app.meta.default
def _with_config(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)], config: Path | None = None
) -> None:
    """Runs a command with the options in `config` in place of their defaults.

    Parameters
    ----------
    config
        TOML file with options of the command, such as vocab_size = 50_000, or in a table for each command, such as
        [train]; sources = [...] names sources. A flag beats the file.
    """
    CONFIG_SOURCES.clear()
    if config is not None:
        from cyclopts.config import Dict

        options = _options(config, tokens)
        CONFIG_SOURCES.extend(options.pop("sources", ()))
        app.config = (Dict(options, source=str(config), use_commands_as_keys=False),)
    app(tokens)


def _options(path: Path, command: Sequence[str]) -> dict[str, Any]:
    """The options in a TOML file for the command that these words begin with: at its top, and in its table."""
    import tomllib

    try:
        options = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"--config {path}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise PlanError(f"--config {path}: not TOML: {error}.") from error
    found: dict[str, Any] = {}
    table, known, words = options, app, iter(command)
    while True:
        names = [name for name in known if not name.startswith("-")]
        for key in (key for key, value in table.items() if isinstance(value, dict) and key not in names):
            near = difflib.get_close_matches(key, names, 1)
            hint = f"Did you mean [{near[0]}]?" if near else "Expected options, such as vocab_size = 50_000."
            raise PlanError(f"--config {path}: [{key}] is no command. {hint}")
        found |= {key: value for key, value in table.items() if not isinstance(value, dict)}
        if (word := next(words, None)) not in names or word not in table:
            break
        table, known = table[word], known[word]
    sources = found.get("sources", [])
    if not isinstance(sources, list) or not all(isinstance(one, str) for one in sources):
        raise PlanError(f"--config {path}: sources is {sources!r}; expected a list of paths, such as ['corpus'].")
    return found


def run() -> None:
    """Runs the command of `sys.argv`: errors in one line, and the exit code that says what happened."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr has it: a file name need not be Unicode
    words = sys.argv[1:]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if words and not words[0].startswith("-") and words[0] not in app:
        words = words[:1]  # not even help: there is no such command
    if not words or words[0].startswith("-"):
        app.resolved_commands()  # help lists all, and cyclopts would not import those that are named
    words = [STDIN if word == "-" else word for word in words]
    # Only `--config` and help need the outer app, which parses everything once more.
    plain = words[:1] and words[0] in app and not any(word.startswith(("-h", "--help", "--config")) for word in words)
    try:
        with speaking_flags():
            (app if plain else app.meta)(words)
    except (PlanError, PretokenizerError) as error:
        _fail(error, 2)
    except PiecemillError as error:
        _fail(error, 1)
    except BrokenPipeError:
        sys.exit(1)  # the reader of the output has exited, as `head` does: no message can reach it
    except OSError as error:
        names = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        full = " Free some space, or choose another place." if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        _fail(f"{names}{': ' * bool(names)}{error.strerror or error}.{full}", 1)


def _fail(error: Exception | str, code: int) -> None:
    sys.stderr.write(f"piecemill: {error}\n")
    sys.exit(code)
