"""What a vocabulary of actions is: its tokens as features with names, and how a corpus uses them.

Whether a token was merged inside an item or across two is not in the file. A token with two features of one category
must be across; for any other, a corpus decides: where its uses begin and end when items are written out in random
orders. Start with `describe`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.actions.histories import Histories
from piecemill.actions.tokenizer import ActionTokenizer, Ids, Ints
from piecemill.actions.vocabulary import ActionVocabulary
from piecemill.errors import PlanError
from piecemill.plans import by_place

_PLAN = ("vocab_size", "counts", "arithmetic", "min_pair_weight", "ended")
"What of the plan is a line for people; all of it is in the JSON."
# A token of this many features says little in a line; the rest are counted.
_FEATURES = 12


@dataclass(frozen=True, slots=True)
class VocabularyDescription:
    """What a vocabulary of actions is. `str()` is the page for people, `to_dict()` everything, ready for JSON."""

    facts: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """What `piecemill actions show --json` prints."""
        return dict(self.facts)

    def __str__(self) -> str:
        found = self.facts
        columns = "   ".join(f"{name} ({count:,} values)" for name, count in found["columns"].items())
        items = "" if found["items"] is None else f", {found['items']:,} items"
        lines = [
            f"{found['vocab_size']:,} tokens: padding, {found['vocab_size'] - found['merges'] - 1:,} features, "
            f"{found['merges']:,} merges{items}; bos {found['bos']}, eos {found['eos']}",
            f"columns  {columns}",
        ]
        if found["plan"]:
            lines.append(
                "plan     " + "   ".join(f"{name}={found['plan'][name]}" for name in _PLAN if name in found["plan"])
            )
        if found["use"] is not None:
            lines += ["", *_use_lines(found["use"])]
        if found["tokens"]:
            lines += ["", f"{'token':>8}{'weight':>14}  {'where':<9}features"]
        lines += [_token_line(entry) for entry in found["tokens"]]
        if found["use"] is None and any(entry["where"] == "unknown" for entry in found["tokens"]):
            way = by_place("describe(tokenizer, histories)", "`piecemill actions show ... --histories FILE`")
            lines.append(f"note: whether a token is found inside items or across them depends on histories: {way}")
        return "\n".join(lines)


def describe(
    tokenizer: ActionTokenizer,
    histories: Any = None,
    *,
    tokens: Iterable[int] | None = None,
    first: int = 20,
    epochs: int = 1,
    seed: int = 0,
) -> VocabularyDescription:
    """What `tokenizer` is, some of its tokens (or its `first` merges), and its use on `histories`, if given."""
    vocabulary = tokenizer.vocabulary
    if first < 0 or epochs < 1:
        raise PlanError(f"first={first}, epochs={epochs}: expected 0 or more tokens, and 1 epoch or more.")
    listed = range(vocabulary.n_init_feats, vocabulary.size)[:first] if tokens is None else list(tokens)
    for token in listed:
        if not 0 <= token < vocabulary.size:
            raise PlanError(f"token {token}: this vocabulary has the tokens 0 to {vocabulary.size - 1}.")
    use = None if histories is None else _use(tokenizer, Histories.of(histories), epochs, seed)
    counts = None if use is None else use.pop("counts")
    facts = {
        "kind": "actions",
        "vocab_size": vocabulary.size,
        "merges": len(vocabulary.merges),
        "bos": vocabulary.bos,
        "eos": vocabulary.eos,
        "columns": {
            vocabulary.column_name(c): int((vocabulary.initial[:, 0] == c).sum())
            for c in range(vocabulary.n_categories)
        },
        "items": None if tokenizer.items is None else len(tokenizer.items),
        "plan": vocabulary.plan,
        "use": use,
        "tokens": [_entry(vocabulary, token, counts) for token in listed],
    }
    return VocabularyDescription(facts)


def features_of(vocabulary: ActionVocabulary, token: int) -> Iterator[tuple[int, int]]:
    """The features (category, value) a token stands for, one at a time: there can be very many."""
    pending = [token]
    while pending:
        entry = vocabulary.entry(pending.pop())
        if len(entry) == 3:
            pending += [entry[2], entry[1]]
        elif entry[0] >= 0:
            yield entry[0], entry[1]


def widths(vocabulary: ActionVocabulary) -> Ints:
    """Features that each token stands for; padding stands for none."""
    count = [0] + [1] * len(vocabulary.initial)
    for a, b in vocabulary.merges.tolist():
        count.append(min(count[a] + count[b], 1 << 62))
    return np.array(count, np.int64)


def _entry(vocabulary: ActionVocabulary, token: int, counts: NDArray[np.int64] | None) -> dict[str, Any]:
    features: list[list[str]] = []
    seen: set[int] = set()
    more, repeated = 0, False
    for category, value in features_of(vocabulary, token):
        repeated = repeated or category in seen
        seen.add(category)
        if len(features) < _FEATURES:
            features.append([vocabulary.column_name(category), vocabulary.value_name(category, value)])
        else:
            more += 1
            if more >= 1000:  # it cannot be an item, and nobody reads on
                break
    entry = vocabulary.entry(token)
    described: dict[str, Any] = {
        "token": token,
        "features": features,
        "more_features": more,
        "merged": list(entry[1:]) if len(entry) == 3 else None,
        "weight": vocabulary.priority[token],
        "where": "padding"
        if token == 0
        else _where(token < vocabulary.n_init_feats, repeated, None if counts is None else counts[token].tolist()),
    }
    if counts is not None:
        inside, across = counts[token].tolist()
        described |= {"inside": inside, "across": across}
    return described


def _where(initial: bool, repeated: bool, counts: list[int] | None) -> str:
    if initial:
        return "feature"
    if repeated:
        return "across"
    inside, across = counts or [0, 0]
    if inside and across:
        return "both"
    return "inside" if inside else "across" if across else "unknown"


def _use(tokenizer: ActionTokenizer, histories: Histories, epochs: int, seed: int) -> dict[str, Any]:
    """How a corpus uses the vocabulary: without chance, after one epoch of random orders, and after all of them."""
    vocabulary = tokenizer.vocabulary
    over = histories.map_to_items(tokenizer.known_items)
    actions, size = len(over.items), vocabulary.size - 1
    width = widths(vocabulary)
    weighed = np.zeros(vocabulary.size, np.int64)
    drawn = np.zeros((vocabulary.size, 2), np.int64)
    for _, items, ends in over.chunks():
        weighed += np.bincount(tokenizer.encode_batch(items, ends)[0], minlength=vocabulary.size)
    random = []
    for epoch in range(epochs):
        for first, items, ends in over.chunks():
            rows = np.arange(first, first + len(ends))
            ids, _ = tokenizer.encode_batch(items, ends, seed=seed, epoch=epoch, rows=rows)
            across = _crosses(ids, width, vocabulary.n_categories)
            for place, mine in enumerate((~across, across)):
                drawn[:, place] += np.bincount(ids[mine], minlength=vocabulary.size)
        total = drawn.sum(axis=1)
        random.append(
            {
                "epochs": epoch + 1,
                "share_used": int((total > 0).sum()) / size,
                "tokens_per_action": int(total.sum()) / (actions * (epoch + 1)),
                "share_across": int(drawn[:, 1].sum()) / max(1, int(total.sum())),
            }
        )
    return {
        "histories": len(over),
        "actions": actions,
        "features_per_action": vocabulary.n_categories,
        "weighed": {"share_used": int((weighed > 0).sum()) / size, "tokens_per_action": int(weighed.sum()) / actions},
        "random": random,
        "counts": drawn,
    }


def _crosses(ids: Ids, width: Ints, n_categories: int) -> NDArray[np.bool_]:
    """Which tokens reach over the border between two items.

    An item is `n_categories` features in a row, whatever their order, so the features before a token say where it is.
    """
    features = np.cumsum(width[ids])
    # All sequences are of whole items, so borders are where they would be in a single one.
    first = features - width[ids]
    return np.asarray((first // n_categories) != ((features - 1) // n_categories))


def _use_lines(use: dict[str, Any]) -> list[str]:
    weighed = use["weighed"]
    lines = [
        f"{use['histories']:,} histories, {use['actions']:,} actions of {use['features_per_action']} features",
        f"{'segmentation':<20}{'tokens used':>14}{'tokens/action':>16}{'across items':>15}",
        f"{'by weight':<20}{weighed['share_used']:>14.2%}{weighed['tokens_per_action']:>16.3f}",
    ]
    for row in use["random"]:
        name = f"random, {row['epochs']} epoch{'s' if row['epochs'] > 1 else ''}"
        lines.append(
            f"{name:<20}{row['share_used']:>14.2%}{row['tokens_per_action']:>16.3f}{row['share_across']:>15.2%}"
        )
    return lines


def _token_line(entry: dict[str, Any]) -> str:
    features = "  ".join(f"{column}={value}" for column, value in entry["features"])
    more = f"  and {entry['more_features']:,} more" if entry["more_features"] else ""
    uses = f"  ({entry['inside']:,} inside, {entry['across']:,} across)" if "inside" in entry else ""
    return f"{entry['token']:>8}{entry['weight']:>14.6g}  {entry['where']:<9}{features or 'padding'}{more}{uses}"
