"""The commands of this room: parse, call one verb, print one result."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from piecemill.command import Flag, Json, PretokenizerName, Quiet, TokenizerName, print_result, unescaped
from piecemill.shards.export import ExportPlan


def vocab(
    tokenizer: TokenizerName,
    *,
    search: Annotated[str, Parameter(converter=unescaped)] = "",
    sort: Literal["id", "length", "count"] = "id",
    merges: Flag = False,
    counts: str | None = None,
    first: int | None = None,
    pretokenizer: PretokenizerName = None,
    csv: Flag = False,
    json: Flag = False,
) -> None:
    """List the tokens of TOKENIZER: id, bytes, spelling, what each was merged from, and how often it occurs.

    Parameters
    ----------
    search
        Only tokens that contain this text; \\n, \\t, \\xHH and \\uHHHH are understood.
    sort
        The order: by id, the longest first, or the most frequent first.
    merges
        Only tokens that a merge makes, in the order of the merges.
    counts
        Shards prepared with this tokenizer, whose tokens are counted; default: those that TOKENIZER is a part of.
    first
        List at most this many, 0 for all; default: 50, and all as CSV or JSON.
    csv
        Print the tokens as CSV.
    json
        Print the tokens as JSON.
    """
    from piecemill.shards import folder
    from piecemill.shards.reader import count_tokens
    from piecemill.tokenizers import listing, load_tokenizer

    loaded = load_tokenizer(tokenizer, pretokenizer=pretokenizer)
    own = Path(tokenizer).resolve()
    own = own.parent if own.is_file() else own
    if counts is None and own.name == folder.TOKENIZER and (own.parent / folder.STATS).is_file():
        counts = str(own.parent)
    counted = None if counts is None else count_tokens(counts, loaded)
    tokens = loaded.tokens
    chosen = listing.select(tokens, search=search.encode(), merges=merges, sort=sort, counts=counted)
    found = listing.Listing(vocab_size=loaded.vocab_size, tokens=tokens, chosen=chosen, counts=counted, first=first)
    print_result(found.to_csv() if csv else found.to_dict() if json else str(found))


def export(
    folder: str,
    *,
    out: str,
    quiet: Quiet = False,
    json: Json = False,
    plan: Annotated[ExportPlan, Parameter(name="*")] = ExportPlan(),  # noqa: B008 - frozen, and cyclopts reads it
) -> None:
    """Write prepared FOLDER as rows for other loaders under OUT. Run it again to make what is missing.

    Parameters
    ----------
    folder
        A folder written by `piecemill prepare`.
    out
        Folder for the rows; new, or that of the same export.
    """
    from piecemill.shards.export import export as export_shards

    def tell(part: Any, done: int, parts: int) -> None:
        if not quiet:
            sys.stderr.write(f"export  {done:,}/{parts:,} parts   {part.name}   {part.windows:,} rows\n")

    done = export_shards(folder, out=out, plan=plan, on_part=tell)
    print_result(done.to_dict() if json else str(done))
