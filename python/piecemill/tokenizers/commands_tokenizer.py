"""The commands of this room: parse, call one verb, print one result."""

import json as json_format
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from cyclopts import Parameter

from piecemill.command import (
    STDIN,
    Engine,
    Flag,
    Json,
    PretokenizerName,
    TokenizerName,
    cut_documents,
    print_result,
    unescaped,
)
from piecemill.errors import PlanError, TokenizerError
from piecemill.sizes import plural

_Separator = Annotated[str | None, Parameter(converter=unescaped)]


def edit(
    tokenizer: TokenizerName,
    *,
    out: Path,
    add_special: tuple[str, ...] = (),
    role: Annotated[tuple[str, ...], Parameter(name=("--role", "--roles"))] = (),
    chat_template: Path | None = None,
    pretokenizer: PretokenizerName = None,
    force: Flag = False,
    json: Json = False,
) -> None:
    """Give TOKENIZER more special tokens, roles for them or a chat template, and save it under OUT. No id changes.

    Parameters
    ----------
    out
        Folder for the new tokenizer.
    add_special
        Special tokens to add, after the last id; one whose text is a token already becomes special with its id.
    role
        What a special token is for, such as eos=<|im_end|>: eos, bos, pad, unk, sep, cls or mask. It is added if there
        is no such token.
    chat_template
        File with a Jinja template of chats.
    force
        Replace a tokenizer that is in OUT already.
    """
    from piecemill.tokenizers.loading import load_tokenizer
    from piecemill.tokenizers.models.config import read_template

    if not (add_special or role or chat_template):
        raise PlanError("nothing to change: give --add-special, --role or --chat-template.")
    check_out(out, force)
    template = None if chat_template is None else read_template(chat_template)
    old = load_tokenizer(tokenizer, pretokenizer=pretokenizer)
    new = old.edit(add_special=add_special, roles=role, chat_template=template)
    new.save(out, force=force)
    added = {text: i for text, i in new.special_tokens.items() if text not in old.special_tokens}
    found = {"out": str(out), "vocab_size": new.vocab_size, "added": added, "roles": new.roles}
    if json:
        return print_result({**found, "identity": new.identity})
    shown = f"{len(added)} added: " + ", ".join(f"{text} {i}" for text, i in added.items()) if added else "none added"
    roles = ", ".join(f"{name} {text}" for name, text in new.roles.items()) or "none"
    print_result(f"{out}: {new.vocab_size:,} tokens, {shown}; roles {roles}")


def check_out(out: Path, force: bool) -> None:
    """Before the work, not after it: stop if something else than a tokenizer to replace is at `out`."""
    from piecemill.tokenizers.saving import check_target

    try:
        check_target(out.resolve(), force)
    except TokenizerError as error:
        raise PlanError(str(error)) from None


def encode(
    tokenizer: TokenizerName,
    *texts: str,
    out: Path | None = None,
    special: Literal["plain", "parse", "stop"] = "plain",
    bos: str = "none",
    eos: str = "none",
    separator: _Separator = None,
    engine: Engine = None,
    pretokenizer: PretokenizerName = None,
    force: Flag = False,
    json: Flag = False,
) -> None:
    """Print the ids of TEXTS, a line for each document.

    Parameters
    ----------
    texts
        Texts, or files with text, or - for standard input; default: standard input. Each is one document.
    out
        File for the ids: .npy for one row of numbers, .json for lists, any other for text; default: standard output.
    special
        The text of a special token in a document: plain text, parse it as the token, or stop with an error.
    bos
        Put before each document: none, auto (what the tokenizer's library would do), or a special token.
    eos
        Put after each document: none, auto (what the tokenizer declares), or a special token.
    separator
        Cut files and standard input into documents at this string; the flag knows \\n, \\r, \\t and \\0.
    force
        Replace a file at OUT.
    json
        Print a list in JSON for each document.
    """
    from piecemill.tokenizers import coding
    from piecemill.tokenizers.loading import load_tokenizer
    from piecemill.tokenizers.special import resolve_bos, resolve_eos

    form = coding.form_of(out, json)
    loaded = load_tokenizer(tokenizer, engine=engine, pretokenizer=pretokenizer)
    around: Any = {"bos": resolve_bos(loaded, bos), "eos": resolve_eos(loaded, eos), "special": special}

    def batches() -> Iterator[Any]:
        for where, documents in _documents(texts or (STDIN,), separator):
            yield from coding.encode_documents(loaded, documents, where, **around)

    with _output(out, force) as file:
        documents, ids = coding.write_ids(file, batches(), form)
        if form == "npy" and documents > 1 and around["bos"] is None and around["eos"] is None:
            raise PlanError(
                f"--out {out}: nothing in one row of ids would say where each of {documents:,} documents ends. "
                "Give --eos (or --bos), or write lines: another ending than .npy."
            )
    if out is not None:
        print_result(f"{plural(documents, 'document')}, {plural(ids, 'id')} in {out}")


def decode(
    tokenizer: TokenizerName,
    *ids: str,
    out: Path | None = None,
    separator: _Separator = "\n",
    pretokenizer: PretokenizerName = None,
    force: Flag = False,
    json: Flag = False,
) -> None:
    """Print the text of IDS, exactly: no line break is added at the end, except on a terminal.

    Parameters
    ----------
    ids
        Ids of one document; or files with them, or - for standard input, which is the default. A file is an .npy, or a
        text with a document on each line, as numbers or a list in JSON.
    out
        File for the text; default: standard output.
    separator
        Put between documents; the flag knows \\n, \\r, \\t and \\0.
    force
        Replace a file at OUT.
    json
        Print each text as a string in JSON, one on a line.
    """
    from piecemill.tokenizers import coding
    from piecemill.tokenizers.loading import load_tokenizer

    loaded = load_tokenizer(tokenizer, pretokenizer=pretokenizer)
    given = " ".join(ids)
    rows: Iterable[Any] = _id_files(ids or (STDIN,))
    if re.fullmatch(r"[\s\d,\[\]]+", given):
        rows = coding.parse_ids(given)
    between = b"\n" if json else (separator or "").encode()
    with _output(out, force) as file:
        number = 0
        for number, pieces in enumerate(coding.decode_rows(loaded, rows), 1):
            file.write(between if number > 1 else b"")
            if json:
                file.write(json_format.dumps(b"".join(pieces).decode("utf-8", "replace")).encode())
            else:
                file.writelines(pieces)
        if out is None and (json or sys.stdout.isatty()):
            file.write(b"\n")
    if out is not None:
        print_result(f"{plural(number, 'document')} in {out}")


def _documents(texts: Iterable[str], separator: str | None) -> Iterator[tuple[str, Iterable[bytes]]]:
    """Where each text, file or stream is, and its documents."""
    for number, text in enumerate(texts, 1):
        if text == STDIN:
            yield text, cut_documents(sys.stdin.buffer, separator)
        elif _is_file(text):
            with open(text, "rb") as file:
                yield text, cut_documents(file, separator)
        elif re.fullmatch(r"\S*/\S*|\S+\.(txt|md|py|jsonl?|npy|gz|zst)", text):
            raise PlanError(
                f"{text}: no such file. Expected a text, or a file that exists; if it is the text, give it on standard "
                "input (-)."
            )
        else:
            yield f"text {number:,}", [os.fsencode(text)]


def _id_files(names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    from piecemill.tokenizers import coding

    for name in names:
        if name == STDIN:
            yield from coding.read_ids(sys.stdin.buffer, name)
        elif not _is_file(name):
            raise PlanError(f"{name}: no such file, and no ids. Expected numbers, or files with them.")
        elif name.endswith(".npy"):
            yield from coding.load_ids(Path(name))
        else:
            with open(name, "rb") as file:
                yield from coding.read_ids(file, name)


def _is_file(name: str) -> bool:
    try:
        if os.path.isdir(name):
            raise PlanError(f"{name}: a folder; expected files. `piecemill prepare` encodes folders.")
        return os.path.exists(name)
    except ValueError:  # a text with a zero byte
        return False


def _output(out: Path | None, force: bool) -> AbstractContextManager[BinaryIO]:
    from piecemill.files import check_writable, new_file

    if out is None:
        return nullcontext(sys.stdout.buffer)
    if out.is_dir():
        raise PlanError(f"--out {out}: is a folder; expected a file, such as {out / 'ids.txt'}.")
    if out.exists() and not force:
        raise PlanError(f"--out {out}: exists. Choose another name, or replace it with --force.")
    check_writable(out)
    return new_file(out)
