"""What to make of interactions, items and histories: flat records that give flags, TOML keys and help.

In the order of the commands: `SplitPlan`, `FeaturesPlan`, `ActionsPlan` (of training), `EncodePlan`.
"""

import math
import re
from dataclasses import dataclass, fields
from typing import Literal

from piecemill.errors import PlanError
from piecemill.machine import cores
from piecemill.plans import checked, option

FAISS_SEED = 1234
"The seed that faiss takes by itself."
MAX_BUCKETS = 1 << 20


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """How interactions become histories, and which part of them is learned from."""

    user: str | None = None
    "Column of the user; default: user, user_id, reviewerID, or another usual name."

    item: str | None = None
    "Column of the item; default: item, item_id, asin, or another usual name."

    time: str | None = None
    "Column of the time; default: time, timestamp, or another usual name. none: the rows are in order."

    format: Literal["auto", "parquet", "arrow", "csv", "tsv", "jsonl", "recbole", "lines"] = "auto"
    "Format of the file; default: by its name. lines: user item item ..., one history a line."

    delimiter: str | None = None
    "What stands between two cells of a text file, such as ';', '::' or tab; default: by name and first line."

    header: tuple[str, ...] = ()
    "Names of the columns, user,item,rating,time, of a file whose first line is a row. u.data, ratings.dat: not needed."

    time_format: str | None = None
    "Form of dates that are not ISO, such as %d/%m/%Y."

    rating: str | None = None
    "Column of the rating, for min_rating; default: rating, overall, or another usual name."

    min_rating: float | None = None
    "Leave out rows rated lower, or not at all."

    duplicates: Literal["drop", "keep", "stop"] = "drop"
    "Rows with the user, item and time of an earlier one."

    repeats: Literal["keep", "first"] = "keep"
    "An item that a user comes back to: keep every time, or the first only."

    on_bad_row: Literal["stop", "skip"] = "stop"
    "What to do with a row without user, item or time: stop with its place, or skip and count it."

    k_core: int = 0
    "Keep users and items with at least this number of actions, repeated until all have it; 0: all."

    leave_out: Literal[1, 2] = 2
    "Items at the end of each history that are held back: 2 for validation and test, 1 for test only."

    max_history: int | None = None
    "Items that validation and test predict from, at most. The training part is never cut."

    items: str | None = None
    "File of items that the histories may hold; default: no check."

    unknown: Literal["stop", "drop"] = "stop"
    "Actions with an item that is not among them: stop with the first, or drop and count them."

    def __post_init__(self) -> None:
        if self.k_core < 0:
            raise PlanError(f"{option('k_core', self.k_core)}: expected 1 or more, or 0 for all users and items.")
        if self.max_history is not None and self.max_history < 1:
            raise PlanError(f"{option('max_history', self.max_history)}: expected 1 or more.")


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


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ActionsPlan:
    """How sequences of items become a vocabulary."""

    vocab_size: int = 40_000
    "Entries in the vocabulary: padding, the features of all items, and one for each merge."

    counts: Literal["published", "current"] = "published"
    "Weight of a pair that vanishes from a sequence: stays (as in published vocabularies), or goes (the paper's text)."

    arithmetic: Literal["exact", "float64"] = "exact"
    "Whole numbers and ties to the smallest pair, or float64 in the published order, to reproduce a published file."

    min_pair_weight: float = 0.0
    "Pairs of less weight are never queued, which saves memory; training ends when only such are left."

    threads: int | None = None
    "Threads that count pairs at the start; default: one per core. The result does not depend on it."

    def __post_init__(self) -> None:
        for name, choices in (("counts", ("published", "current")), ("arithmetic", ("exact", "float64"))):
            if getattr(self, name) not in choices:
                raise PlanError(f"{option(name, getattr(self, name))}: expected {' or '.join(choices)}.")
        if self.arithmetic == "float64" and self.counts == "current":
            raise PlanError(
                f"{option('arithmetic', 'float64')} reproduces published files, and those have "
                f"{option('counts', 'published')}. Use one of both without the other."
            )
        for number, lowest, highest in (("vocab_size", 2, 2**31), ("threads", 1, 1024)):
            value = getattr(self, number)
            if value is None and number == "threads":
                continue
            if type(value) is not int or not lowest <= value <= highest:
                raise PlanError(f"{option(number, value)}: expected a whole number from {lowest} to {highest:,}.")
        weight = self.min_pair_weight
        if not isinstance(weight, int | float) or not math.isfinite(weight) or weight < 0:
            raise PlanError(f"{option('min_pair_weight', weight)}: expected a number of 0 or more.")

    @property
    def workers(self) -> int:
        """`threads`, or as many as there are cores this process may use."""
        return self.threads or cores()


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class EncodePlan:
    """How histories become tokens, and what they are written as."""

    to: Literal["jsonl", "npy", "shards"] = "jsonl"
    "jsonl: a line per history; npy: a folder with ids.npy and ends.npy; shards: a folder to make batches from."
    seed: int | None = None
    "Segment at random, by set permutation regularisation with this seed; without it, by weight and without chance."
    epoch: int = 0
    "Of the random segmentation: each has its own draws."
    marks: bool = False
    "Put bos before and eos behind each sequence."
    unknown: Literal["stop", "drop"] = "stop"
    "Actions with an item that the tokenizer does not know: stop with the first, or drop and count them."

    def __post_init__(self) -> None:
        if self.to not in ("jsonl", "npy", "shards"):
            raise PlanError(f"{option('to', self.to)}: expected jsonl, npy or shards.")
        if self.unknown not in ("stop", "drop"):
            raise PlanError(f"{option('unknown', self.unknown)}: expected stop or drop.")
        if self.seed is None and self.epoch:
            raise PlanError(
                f"{option('epoch', self.epoch)}: epochs differ only where segmentation is random. Give "
                f"{option('seed', ...)} too."
            )
        if self.to == "shards" and (self.seed is not None or self.marks):
            raise PlanError(
                f"{option('to', 'shards')}: shards hold items, which batches segment anew each epoch. Leave out "
                f"{option('seed')} and {option('marks')}."
            )
