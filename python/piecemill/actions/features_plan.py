"""Which features the items get: one flat record that gives flags, TOML keys and help."""

import re
from dataclasses import dataclass, fields

from piecemill.errors import PlanError
from piecemill.plans import checked, option

FAISS_SEED = 1234
"The seed that faiss takes by itself."
MAX_BUCKETS = 1 << 20


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturesPlan:
    """Which features the items get."""

    key: str | None = None
    "Column with the key of the item; default: item, item_id, asin, or another usual name."

    columns: tuple[str, ...] = ()
    "Columns of text or whole numbers; tags[0] is an element. Default: all, or none beside embeddings or semantic ids."

    bins: tuple[str, ...] = ()
    "Numbers to put into equally full bins, such as price=8."

    many: tuple[str, ...] = ()
    "Columns of several values, such as genres=3: that many features, of the commonest. Lists, or text with | between."

    missing: tuple[str, ...] = ()
    "Value of an item that has none in a column: one for all, or column=value; default: that is an error."

    semantic_ids: str | None = None
    "A .npy of whole numbers with a row per item; ids in a column of lists are taken with columns."

    embeddings: str | None = None
    "A .npy with a row per item, or a column of lists of one length, to be made codes of."

    train_on: str | None = None
    "File of training histories: only their items teach the codebooks; default: all items do."

    pca: int | None = None
    "Components of the embeddings to keep; default: 128, or as many as there are. 0: take them as they are."

    codebooks: int = 4
    "Codes per embedding."

    bits: int = 8
    "Bits of a code: 8 gives 256 values."

    hash_buckets: str = "auto"
    "Values of the last feature, which distinguishes equal items: a number, auto (the next power of two), or none."

    seed: int = FAISS_SEED
    "Another seed gives other codebooks and other hashes."

    like: str | None = None
    "A vocabulary, or a file of items: give each value the code that it has there, and make no coding anew."

    unknown_value: tuple[str, ...] = ()
    "With like, a value that is not known: error, drop (leave the item out), or a known one; or column= one of these."

    def __post_init__(self) -> None:
        for name in ("missing", "unknown_value"):
            given = getattr(self, name)
            listed = () if given is None else (given,) if isinstance(given, str | int) else tuple(given)
            object.__setattr__(self, name, tuple(map(str, listed)))
        object.__setattr__(self, "hash_buckets", str(self.hash_buckets))  # a number says the same
        own = ("key", "embeddings", "semantic_ids", "like", "unknown_value")
        for field in fields(self) if self.like is not None else ():
            if field.name not in own and getattr(self, field.name) != field.default:
                raise PlanError(
                    f"{option(field.name)}: {option('like', self.like)} takes the coding as it is. Leave it out."
                )
        if self.unknown_value and self.like is None:
            raise PlanError(
                f"{option('unknown_value')}: every value is known where the coding is made; give it with like."
            )
        if self.codebooks < 1 or not 1 <= self.bits <= 16:
            raise PlanError(
                f"{option('codebooks', self.codebooks)}, {option('bits', self.bits)}: expected 1 or more, and 1 to "
                "16 bits."
            )
        if self.pca is not None and self.pca < 0:
            raise PlanError(f"{option('pca', self.pca)}: expected a number of components, or 0 for none.")
        if not 0 <= self.seed < 1 << 31:
            raise PlanError(f"{option('seed', self.seed)}: expected 0 to 2147483647.")
        if self.hash_buckets not in ("auto", "none") and not (
            self.hash_buckets.isdigit() and 1 <= int(self.hash_buckets) <= MAX_BUCKETS
        ):
            raise PlanError(
                f"{option('hash_buckets', self.hash_buckets)}: expected auto, none, or 1 to {MAX_BUCKETS:,}."
            )
        for one in self.bins:
            parse_bin(one)
        for one in self.many:
            parse_many(one)


def parse_bin(text: str) -> tuple[str, int]:
    """The column and the number of bins in `price=8`."""
    column, _, count = text.rpartition("=")
    if not column or not count.isdigit() or not 2 <= int(count) <= 1 << 16:
        raise PlanError(f"{option('bins', text)}: expected a column and 2 bins or more, such as price=8.")
    return column, int(count)


def parse_many(text: str) -> tuple[str, int, str]:
    """The column, the number of features and what stands between values in `genres=3` or `tags=2;`.

    >>> parse_many("genres=3"), parse_many("tags=2, ")
    (('genres', 3, '|'), ('tags', 2, ', '))
    """
    match = re.fullmatch(r"(.+)=(\d+)(\D*)", text)
    if match is None or not 1 <= int(match[2]) <= 64:
        raise PlanError(f"{option('many', text)}: expected a column and 1 to 64 features, such as genres=3.")
    return match[1], int(match[2]), match[3] or "|"
