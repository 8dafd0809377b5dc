"""The tokens of a vocabulary as people can read them: spelled out, with the two that each was merged from.

Start with `tokens_of`; `select` chooses what `piecemill vocab` lists, a `Listing`.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PlanError
from piecemill.plans import option
from piecemill.tokenizers.models import Model
from piecemill.tokenizers.models.byte_bpe import ByteBPE, merge_pairs
from piecemill.tokenizers.models.integers import IntegerBPE
from piecemill.tokenizers.models.ranks import Ranks
from piecemill.tokenizers.models.tokenizer_json import TokenizerJson
from piecemill.tokenizers.tokenizer import Tokenizer

Sort = Literal["id", "length", "count", "merge"]


class Token(NamedTuple):
    """One entry of a vocabulary."""

    id: int
    token: bytes
    "Its bytes; of a tokenizer whose tokens are not bytes, the UTF-8 of what it decodes to."
    special: bool
    merge: int | None = None
    "The number of the merge that makes it, from 0."
    parts: tuple[int, int] | None = None
    "The ids that are merged."


def show_token(token: bytes, most: int = 24) -> str:
    r"""A token as people can read it: text in quotes, with escapes for what does not show.

    >>> show_token(b" return"), show_token(b"\n\n"), show_token(b"\xe2\x82")
    ("' return'", "'\\n\\n'", "b'\\xe2\\x82'")
    """
    try:
        shown = repr(token.decode())
    except UnicodeDecodeError:
        shown = repr(token)
    return shown if len(shown) <= most else shown[: most - 2] + "…" + shown[-1]


def tokens_of(tokenizer: Tokenizer) -> list[Token]:
    """Every token, by id; ids that a vocabulary leaves out are not listed."""
    special = {i: text.encode() for text, i in tokenizer.special_tokens.items()}
    table = tokenizer.model.decode_table()
    if table is not None:
        spelled = list(enumerate(table.tokens))
    else:
        spelled = [(i, tokenizer.decode([i]).encode("utf-8", "surrogatepass")) for i in range(tokenizer.vocab_size)]
    found = {i: Token(i, special.get(i, token), i in special) for i, token in spelled if token is not None}
    for number, (left, right, made) in enumerate(_merges(tokenizer.model)):
        if made in found and found[made].merge is None:
            found[made] = found[made]._replace(merge=number, parts=(left, right))
    return list(found.values())


def _merges(model: Model) -> Iterator[tuple[int, int, int]]:
    """The ids that each merge joins, best first, and the id that it makes."""
    if isinstance(model, ByteBPE):
        tokens, ids = model.vocabulary.tokens, model.vocabulary.ids
        yield from (
            (left, right, ids[tokens[left] + tokens[right]]) for left, right in model.vocabulary.merges.tolist()
        )
    elif isinstance(model, IntegerBPE):
        first = len(model.first) + len(model.values)
        yield from ((left, right, first + row) for row, (left, right) in enumerate(model.merges.tolist()))
    elif isinstance(model, Ranks):
        ranks = model.ranks
        yield from ((ranks[left], ranks[right], ranks[left + right]) for left, right in model.merges())
    elif isinstance(model, TokenizerJson) and model.data["model"].get("type") == "BPE":
        vocab, prefix = model.vocab, model.data["model"].get("continuing_subword_prefix") or ""
        for left, right in merge_pairs(model.data["model"]):
            yield vocab[left], vocab[right], vocab[left + right.removeprefix(prefix)]


def select(
    tokens: Sequence[Token],
    *,
    search: bytes = b"",
    merges: bool = False,
    sort: Sort = "id",
    counts: NDArray[np.int64] | None = None,
) -> list[Token]:
    """The tokens that contain `search`, the longest or most frequent first, or in the order of ids or merges."""
    if sort == "count" and counts is None:
        raise PlanError(f"{option('sort', 'count')}: counts are not known; name the shards ({option('counts')}).")
    if merges and all(token.merge is None for token in tokens):
        raise PlanError(f"{option('merges')}: this tokenizer has no merges to list; leave it out.")
    chosen = [token for token in tokens if search in token.token and (token.merge is not None or not merges)]
    keys: Mapping[str, Any] = {
        "id": lambda token: token.id,
        "merge": lambda token: (token.merge is None, token.merge, token.id),
        "length": lambda token: (-len(token.token), token.id),
        "count": lambda token: (-int(counts[token.id]) if counts is not None else 0, token.id),
    }
    return sorted(chosen, key=keys["merge" if merges and sort == "id" else sort])


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What `piecemill vocab` lists: `str()` is a table, `to_dict()` and `to_csv()` have the same rows for programs."""

    vocab_size: int
    tokens: Sequence[Token]
    "All tokens of the vocabulary."
    chosen: Sequence[Token]
    "Those to list, in order."
    counts: NDArray[np.int64] | None = None
    "How often each id occurs, if that is known."
    first: int | None = None
    "List at most this many, 0 for all; None: 50 in the table, and all for programs."

    def to_dict(self) -> dict[str, Any]:
        """A row for each token: bytes that are not UTF-8 are written as in Python's `b'\\xe2'`."""
        spelled = {token.id: token.token for token in self.tokens}
        rows = [
            {
                "id": token.id,
                "token": _text(token.token),
                "bytes": len(token.token),
                "special": token.special,
                "merge": token.merge,
                "parts": None if token.parts is None else [_text(spelled[part]) for part in token.parts],
                **({} if self.counts is None else {"count": int(self.counts[token.id])}),
            }
            for token in (self.chosen[: self.first] if self.first else self.chosen)
        ]
        return {"vocab_size": self.vocab_size, "tokens": rows}

    def to_csv(self) -> str:
        """The rows as CSV, with a header; the parts in two columns."""
        rows = self.to_dict()["tokens"]
        file = io.StringIO()
        names = ["id", "token", "bytes", "special", "merge", "left", "right", "count"]
        writer = csv.DictWriter(file, [name for name in names if name != "count" or (rows and "count" in rows[0])])
        writer.writeheader()
        for row in rows:
            left, right = row["parts"] or ("", "")
            others = {name: value for name, value in row.items() if name != "parts"}
            writer.writerow({**others, "left": left, "right": right})
        return file.getvalue().rstrip("\r\n")

    def __str__(self) -> str:
        """A line about all tokens that were chosen, and a table."""
        chosen, spelled = self.chosen, {token.id: token.token for token in self.tokens}
        shown = chosen[: 50 if self.first is None else self.first or None]
        lengths = np.array([len(token.token) for token in chosen] or [0])
        lines = [
            f"{len(chosen):,} of {len(self.tokens):,} tokens; bytes of a token: {lengths.min()} to {lengths.max()}, "
            f"{lengths.mean():.2f} on average, {int(np.median(lengths))} in the median"
        ]
        for token in shown:
            count = "" if self.counts is None else f"{int(self.counts[token.id]):>13,}"
            parts = "special" if token.special else ""
            if token.parts is not None:
                parts = " + ".join(show_token(spelled[part], 30) for part in token.parts)
            lines.append(
                f"{token.id:>8}{count}{len(token.token):>6}  {show_token(token.token, 40):<40}  {parts}".rstrip()
            )
        if len(shown) < len(chosen):
            lines.append(f"... and {len(chosen) - len(shown):,} more: {option('first', 0)} lists all")
        return "\n".join(lines)


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return repr(token)
