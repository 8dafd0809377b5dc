"""Pruning: removes the least used tokens that no other token needs, one by one.

Removing a token removes its entry and the merge that makes it. A token is needed while a token that is merged from it
stays; bytes, special and added tokens always stay. Of the others, the token with the smallest count is removed; among
equal counts, first one that no merge makes, then that of the later merge, then the larger id. Its count is added to
those of the two tokens that it was merged from, because they take its place; otherwise they would seem unused.

A tokenizer.json can list several merges that make one token. Only one of them ever applies: the last one when the
token's own bytes are merged (merges around a token do not change those inside it). Only its two parts are needed.

So removing a token that no other token needs leaves all others reachable: its merge took no part in making them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import inf
from os import PathLike
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from piecemill.errors import PlanError
from piecemill.plans import did_you_mean, option
from piecemill.shards.reader import count_tokens
from piecemill.sizes import plural, show_bytes, show_count
from piecemill.sources import open_source
from piecemill.tokenizers import Tokenizer, load_tokenizer
from piecemill.tokenizers.malformed import malformed
from piecemill.tokenizers.models.byte_bpe import ByteBPE, NotPlain, byte_bpe, merge_pairs
from piecemill.tokenizers.models.byte_level import CHARACTERS
from piecemill.tokenizers.models.config import MAPPING, TOKENIZER_CONFIG
from piecemill.tokenizers.models.ranks import Ranks
from piecemill.tokenizers.models.tokenizer_json import TokenizerJson
from piecemill.tokenizers.models.vocabulary import Vocabulary, checked_merges
from piecemill.tokenizers.models.writing import added_token
from piecemill.training.growing import Known, file_of, is_kept, json_of_ranks, known_of, mapping_json, with_data

Model = ByteBPE | TokenizerJson


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The result of `prune`."""

    tokenizer: Tokenizer
    mapping: Mapping[int, Sequence[int]]
    "The new ids of each old id: one for a token that was kept; for a removed one, what its bytes encode to."
    removed: int
    "Tokens removed."
    reserved: int
    "Ids below the last that no token has any more, or never had: reserved special tokens."
    tokens: int
    "Tokens that the counts are of, special and added ones left out."
    removed_tokens: int
    "How many of them are occurrences of removed tokens."
    bytes_per_token: tuple[float, float]
    "Before, exactly; after, an estimate: as if each removed token had become what its bytes alone encode to."
    measured: tuple[int, int, int] | None
    "Bytes of the documents of `on`, and their tokens before and after."

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        size, *tokens = self.measured or (0, 0, 0)
        return {
            "vocab_size": self.tokenizer.vocab_size,
            "identity": self.tokenizer.identity,
            "removed": self.removed,
            "reserved": self.reserved,
            "counted": {"tokens": self.tokens, "removed": self.removed_tokens},
            "bytes_per_token": dict(zip(("before", "after_estimated"), self.bytes_per_token, strict=True)),
            "measured": self.measured and {"bytes": size, "tokens_before": tokens[0], "tokens_after": tokens[1]},
        }

    def __str__(self) -> str:
        before, after = self.bytes_per_token
        share = self.removed_tokens / max(1, self.tokens)
        held = f" and {plural(self.reserved, 'reserved id')}" if self.reserved else ""
        lines = [
            f"{self.tokenizer.vocab_size - self.reserved:,} tokens{held}; "
            f"{plural(self.removed, 'token')} removed, which were {share:.3%} of {show_count(self.tokens)} counted",
            f"bytes per token by the counts: {before:.3f}, then about {after:.3f} (each removed token as what its "
            "bytes alone encode to)",
        ]
        if self.measured:
            size, *tokens = self.measured
            old, new = (size / max(1, number) for number in tokens)
            lines.append(f"bytes per token measured on {show_bytes(size)}: {old:.3f}, then {new:.3f}")
        return "\n".join(lines)


@did_you_mean
def prune(
    tokenizer: Tokenizer | str | PathLike[str],
    *,
    counts: ArrayLike | str | PathLike[str] | Sequence[str | PathLike[str]],
    vocab_size: int,
    ids: Literal["dense", "stable"] = "dense",
    on: object = None,
) -> Pruned:
    """The tokenizer with its least used tokens removed, until `vocab_size` are left; every text still encodes.

    `counts` are folders of shards that were prepared with it, or a number for each id. With `ids="dense"` the tokens
    that stay are numbered anew, in the order of their ids. With "stable" they keep their ids, and an id that was freed
    below the last becomes a reserved special token, `<|reserved_ID|>`, which is not counted in `vocab_size`.
    The new tokenizer carries `mapping.json`: the new ids of each old one. `on` is a source whose documents are encoded
    with both tokenizers, to measure what pruning costs.

    >>> import piecemill as pm
    >>> tok = pm.train_bpe(["low lower lowest"] * 10, vocab_size=262, pretokenizer="gpt2")
    >>> pruned = prune(tok, counts=np.ones(262), vocab_size=260)
    >>> pruned.tokenizer.vocab_size, [pruned.tokenizer.bytes_of(i) for i in pruned.mapping[261]]
    (260, [b's', b't'])
    """
    if ids not in ("dense", "stable"):
        raise PlanError(f"{option('ids', ids)}: expected dense or stable.")
    old = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(tokenizer)
    with malformed(file_of(old)):
        model = _prunable(old)
        known = known_of(model)
        plan = _Plan(model, known)
    used = _counts(counts, old)
    removed = plan.choose(used, vocab_size)
    kept = [i for i in plan.entries if i not in removed]
    holes = set(range(kept[-1] + 1)).difference(kept) if ids == "stable" else set()
    number = {i: i if ids == "stable" else at for at, i in enumerate(kept)}
    new, mapping = old, {i: [i] for i in plan.entries}
    if removed or any(i != at for i, at in number.items()):
        spelled = _spelled(known, removed)
        mapping = {i: [number[part] for part in spelled.get(i, [i])] for i in plan.entries}
        with malformed(file_of(old)):
            smaller = _smaller(model, known, number, holes)
        beside = {name: _renumbered_config(name, content, number) for name, content in model.beside.items()}
        beside = {name: content for name, content in beside.items() if is_kept(name)} | {MAPPING: mapping_json(mapping)}
        record = {"identity": old.identity, "vocab_size": old.vocab_size, "removed": len(removed), "ids": ids}
        training = {**model.training, "vocab_size": smaller.vocab_size, "pruned": record}
        with malformed(file_of(old)):
            new = Tokenizer(_plain(replace(smaller, beside=beside, training=training)))
    measured = None if on is None else _measure(on, old, new)
    return _result(plan, used, new, mapping, removed, 0 if new is old else len(holes), measured)


class _Plan:
    """Which tokens there are, which must stay, and what each was made from."""

    def __init__(self, model: Model, known: Known) -> None:
        self.tokens = known.tokens
        if isinstance(model, ByteBPE):
            bytes_ = {i for i in known.ordinary if len(known.tokens[i]) == 1}
            added = list(model.special_tokens.values())
            self.entries = list(range(model.vocab_size))
        else:
            bytes_, added = {model.vocab[character] for character in CHARACTERS}, list(model.added_ids.values())
            if (unknown := model.data["model"].get("unk_token")) in model.vocab:
                added.append(model.vocab[unknown])
            self.entries = sorted({*model.vocab.values(), *added})
        self.added, self.fixed = frozenset(added), {*bytes_, *added}
        named = {known.tokens[i]: i for i in known.ordinary}
        making: dict[int, list[tuple[int, int]]] = {}
        for left, right in known.merges:
            making.setdefault(named[known.tokens[left] + known.tokens[right]], []).append((left, right))
        # Special tokens need not be spelled with bytes; those that merges make are ordinary as well.
        left_out = self.fixed - frozenset(known.ordinary) | bytes_
        others = [i for i in self.entries if known.tokens[i] and i not in left_out]
        whole = dict(zip(others, known.merged(others), strict=True))
        self.dead = frozenset(i for i in others if whole[i] != [i])  # merges never make these
        parts = {i: list(pairs[0]) for i, pairs in making.items()} | {i: whole[i] for i in self.dead}
        several = [i for i, pairs in making.items() if len(pairs) > 1 and i not in self.dead]
        self.parts = parts | dict(zip(several, known.merged(several, most=2), strict=True))
        rank = {pair: at for at, pair in enumerate(known.merges)}
        self.place = {i: rank[pair[0], pair[1]] for i, pair in self.parts.items() if i not in self.dead}

    def choose(self, counts: NDArray[np.int64], vocab_size: int) -> frozenset[int]:
        """The tokens to remove."""
        if not isinstance(vocab_size, int) or vocab_size > len(self.entries):
            raise PlanError(
                f"{option('vocab_size', vocab_size)}: there are {len(self.entries):,} tokens; expected a whole number "
                "up to that."
            )
        used, removed = counts.tolist(), set[int]()
        needs = Counter(part for i, parts in self.parts.items() if i not in self.dead for part in parts)

        def entry(i: int) -> tuple[float, float, int]:
            return used[i], -self.place.get(i, inf), -i  # of equal counts, what no merge makes goes first

        queue = [entry(i) for i in self.entries if not needs[i] and i not in self.fixed]
        heapify(queue)
        while len(self.entries) - len(removed) > vocab_size:
            if not queue:
                raise PlanError(
                    f"{option('vocab_size', vocab_size)}: {len(self.entries) - len(removed):,} tokens must stay: the "
                    "bytes, special and added tokens, and those that they are made of. Ask for at least as many."
                )
            found = heappop(queue)
            i = -found[2]
            if found[0] < used[i]:  # others were removed that consist of it
                heappush(queue, entry(i))
                continue
            removed.add(i)
            for part in self._standing(self.parts.get(i, ()), removed):
                used[part] += used[i]
                if i not in self.dead:
                    needs[part] -= 1
                    if not needs[part] and part not in self.fixed:
                        heappush(queue, entry(part))
        return frozenset(removed)

    def _standing(self, parts: Iterable[int], removed: set[int]) -> list[int]:
        """`parts`, with each removed one replaced by its own: tokens that only whole words become keep none."""
        found: list[int] = []
        for part in parts:
            found += self._standing(self.parts[part], removed) if part in removed else [part]
        return found


def _spelled(known: Known, removed: frozenset[int]) -> dict[int, list[int]]:
    """What the bytes of each removed token encode to without the removed tokens."""
    ordinary = [i for i in known.ordinary if i not in removed]
    left = replace(known, ordinary=ordinary, merges=[pair for pair, _ in _merges_left(known, removed)])
    given = [i for i in sorted(removed) if known.tokens[i]]
    return {i: [] for i in removed} | dict(zip(given, left.merged(given), strict=True))


def _merges_left(known: Known, removed: Iterable[int]) -> list[tuple[tuple[int, int], int]]:
    """The merges whose parts and result all stay, and what each makes."""
    gone = frozenset(removed)
    named = {known.tokens[i]: i for i in known.ordinary}
    made = (named[known.tokens[left] + known.tokens[right]] for left, right in known.merges)
    return [(pair, i) for pair, i in zip(known.merges, made, strict=True) if not {*pair, i} & gone]


def _prunable(tokenizer: Tokenizer) -> Model:
    model = tokenizer.model
    if isinstance(model, ByteBPE):
        return model
    if isinstance(model, Ranks):
        return json_of_ranks(model)
    if isinstance(model, TokenizerJson) and model.data["model"].get("type") == "BPE" and model.byte_level:
        settings = model.data["model"]
        affixes = any(settings.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix"))
        if not affixes and all(character in model.vocab for character in CHARACTERS):
            ids = {**model.vocab, **model.added_ids}
            if len(set(ids.values())) < len(ids):
                raise PlanError(f"{model.file}: two tokens have the same id; expected an id of its own for each token.")
            pairs = merge_pairs(settings)
            known = {*CHARACTERS, *(left + right for left, right in pairs)}
            unmade = next((part for pair in pairs for part in pair if part not in known), None)
            if unmade is not None and not settings.get("ignore_merges"):
                raise PlanError(
                    f"{model.file}: a merge needs {unmade!r:.40}, which no merge makes; expected one before."
                )
            return model
    raise PlanError(
        f"a {tokenizer.kind} cannot be pruned: without some tokens it could not encode every text, or not by merges. "
        "Expected byte-level BPE: what this library trains, a tokenizer.json such as that of GPT-2 or Llama 3, or a "
        ".tiktoken file."
    )


def _counts(given: Any, tokenizer: Tokenizer) -> NDArray[np.int64]:
    size = tokenizer.vocab_size
    folders = [given] if isinstance(given, str | PathLike) else given
    if isinstance(folders, Sequence) and folders and all(isinstance(one, str | PathLike) for one in folders):
        return sum((count_tokens(folder, tokenizer) for folder in folders), np.zeros(size, np.int64))
    counts = np.asarray(given)
    if counts.shape != (size,) or counts.dtype.kind not in "iuf" or (counts < 0).any() or (counts >= 2**63).any():
        raise PlanError(
            f"{option('counts')}: {given!r:.60}; expected folders of shards, or a number of 0 or more for each of the "
            f"{size:,} ids."
        )
    return counts.astype(np.int64)


def _smaller(model: Model, known: Known, number: Mapping[int, int], holes: Iterable[int]) -> Model:
    """The model with the tokens that have a new `number`, and reserved tokens at `holes`."""
    reserved: dict[str, int] = {}
    for i in sorted(holes):
        name = f"<|reserved_{i}|>"
        while model.id_of(name) in number:
            name = f"<{name}>"
        reserved[name] = i
    left = _merges_left(known, set(range(len(known.tokens))).difference(number))
    if isinstance(model, ByteBPE):
        old = model.vocabulary
        by_id = {number[i]: token for i, token in enumerate(old.tokens) if i in number}
        by_id |= {i: text.encode() for text, i in reserved.items()}
        merges = np.array([[number[i] for i in pair] for pair, _ in left], np.uint32)
        special = {text: number[i] for text, i in old.special_tokens.items()} | reserved
        bytes_ = [i for i in old.ranked if len(old.tokens[i]) == 1]
        ranked = list(dict.fromkeys(number[i] for i in (*bytes_, *(made for _, made in left))))
        vocabulary = Vocabulary([by_id[i] for i in range(len(by_id))], checked_merges(merges), special, ranked)
        return replace(model, vocabulary=vocabulary, post_processor=_renumbered(model.post_processor, special, number))
    data = model.data
    ids = {text: number[i] for text, i in (*model.vocab.items(), *model.added_ids.items()) if i in number} | reserved
    added = [one | {"id": ids[one["content"]]} for one in model.added_tokens if one["content"]]
    pairs = [pair for pair in merge_pairs(data["model"]) if {*pair, "".join(pair)} <= ids.keys()]
    changed = {
        **data,
        "added_tokens": [*added, *(added_token(text, i) for text, i in reserved.items())],
        "model": {**data["model"], "vocab": dict(sorted(ids.items(), key=lambda item: item[1])), "merges": pairs},
        "post_processor": _renumbered(data.get("post_processor"), ids, number),
    }
    if isinstance(padding := data.get("padding"), dict):
        changed["padding"] = padding | {"pad_id": ids.get(padding.get("pad_token", ""), padding.get("pad_id"))}
    return with_data(model, changed)


def _plain(model: Model) -> Model:
    """The model as it is loaded again: without tokens that no merge makes, it may be plain."""
    if isinstance(model, ByteBPE):
        return model
    try:
        return byte_bpe(model.content, model.file, training=model.training, beside=model.beside)
    except NotPlain:
        return model


def _renumbered(post_processor: Any, ids: Mapping[str, int], number: Mapping[int, int]) -> Any:
    """A post-processor with the new ids of the tokens that it puts around texts."""
    if not isinstance(post_processor, dict):
        return post_processor
    changed = dict(post_processor)
    if "processors" in changed:
        changed["processors"] = [_renumbered(step, ids, number) for step in changed["processors"]]
    for name in ("sep", "cls"):  # RobertaProcessing, BertProcessing
        if isinstance(pair := changed.get(name), list):
            changed[name] = [pair[0], ids.get(pair[0], pair[1])]
    if isinstance(special := changed.get("special_tokens"), dict):  # TemplateProcessing
        changed["special_tokens"] = {
            name: one | {"ids": [number.get(i, i) for i in one["ids"]]} for name, one in special.items()
        }
    return changed


def _renumbered_config(name: str, content: bytes, number: Mapping[int, int]) -> bytes:
    if name != TOKENIZER_CONFIG or not (listed := (config := json.loads(content)).get("added_tokens_decoder")):
        return content
    config["added_tokens_decoder"] = {str(number.get(int(i), int(i))): one for i, one in listed.items()}
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _measure(on: object, *tokenizers: Tokenizer) -> tuple[int, int, int]:
    size, tokens = 0, [0, 0]
    for block in open_source(on).blocks():
        size += block.nbytes
        for at, tokenizer in enumerate(tokenizers):
            tokens[at] += len(tokenizer.encode_flat(block.data, block.ends)[0])
    return size, tokens[0], tokens[1]


def _result(
    plan: _Plan,
    counts: NDArray[np.int64],
    tokenizer: Tokenizer,
    mapping: Mapping[int, Sequence[int]],
    removed: frozenset[int],
    reserved: int,
    measured: tuple[int, int, int] | None,
) -> Pruned:
    used = {i: int(counts[i]) for i in plan.entries if i not in plan.added}
    total = sum(used.values())
    size = sum(count * len(plan.tokens[i]) for i, count in used.items())
    after = sum(count * len(mapping[i]) for i, count in used.items())
    return Pruned(
        tokenizer=tokenizer,
        mapping=mapping,
        removed=len(removed),
        reserved=reserved,
        tokens=total,
        removed_tokens=sum(used[i] for i in removed),
        bytes_per_token=(size / max(1, total), size / max(1, after)),
        measured=measured,
    )
