"""Going on from a vocabulary: a corpus as the tokens it has, and what was learned appended to it.

Old merges keep their ranks, so the finished tokenizer applies all of them before the first new one: its encoding of a
text is the old one, merged further. That holds for any pretokenizer, as long as the corpus is cut by the one that the
finished tokenizer encodes with. Ids stay; new tokens follow after the last one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import Encoder
from piecemill.errors import PlanError
from piecemill.plans import option
from piecemill.tokenizers import Tokenizer, load_tokenizer
from piecemill.tokenizers.malformed import malformed
from piecemill.tokenizers.models.byte_bpe import ByteBPE, NotPlain, merge_pairs, pretokenizer_of
from piecemill.tokenizers.models.byte_level import CHARACTERS, bytes_of, characters_of
from piecemill.tokenizers.models.config import BESIDE, CHAT_TEMPLATE, MAPPING, TEMPLATES, TOKENIZER_CONFIG
from piecemill.tokenizers.models.integers import IntegerBPE
from piecemill.tokenizers.models.ranks import Ranks
from piecemill.tokenizers.models.tokenizer_json import TokenizerJson
from piecemill.tokenizers.models.vocabulary import Vocabulary, checked_merges
from piecemill.tokenizers.models.writing import pre_tokenizer
from piecemill.tokenizers.pretokenizers import name_of, pattern_of
from piecemill.tokenizers.texts import flat_tokens
from piecemill.training.plan import TrainPlan

Growable = ByteBPE | TokenizerJson


@dataclass(frozen=True, slots=True)
class Known:
    """What merging needs to know of a vocabulary."""

    tokens: list[bytes]
    "The bytes of each id, of a special token those that its text is spelled with; empty if there are none."
    ordinary: list[int]
    "Ids that are found in ordinary text."
    merges: list[tuple[int, int]]
    whole_words: bool
    "Whether a word that is a token is that token before any merging."

    @property
    def special(self) -> list[int]:
        ordinary = frozenset(self.ordinary)
        return [i for i in range(len(self.tokens)) if i not in ordinary]

    def encoder(self, *, whole_words: bool) -> Encoder:
        """Encodes words: a text is one, whatever the pretokenizer."""
        place = {i: at for at, i in enumerate(self.ordinary)}
        merges = np.array([(place[left], place[right]) for left, right in self.merges], np.uint32).reshape(-1, 2)
        tokens = flat_tokens(self.tokens[i] for i in self.ordinary)
        return Encoder.bpe(*tokens, np.array(self.ordinary, np.uint32), merges, split=[], whole_words=whole_words)

    def unreachable(self) -> list[int]:
        """Ordinary tokens that merges alone do not make out of their bytes."""
        return [i for i, made in zip(self.ordinary, self.merged(self.ordinary), strict=True) if made != [i]]

    def merged(self, ids: Sequence[int], *, most: int = 1) -> list[list[int]]:
        """What merges alone make of the bytes of each token; with `most=2`, before those two are joined."""
        if most == 1:
            flat, ends = _encode(self.encoder(whole_words=False), *flat_tokens(self.tokens[i] for i in ids))
            return [flat[start:end].tolist() for start, end in pairwise([0, *ends.tolist()])]
        named = {self.tokens[i]: i for i in self.ordinary}
        rank = {pair: at for at, pair in enumerate(self.merges)}
        return [_merged([named[bytes([byte])] for byte in self.tokens[i]], rank, self.tokens, named, most) for i in ids]


def _encode(encoder: Encoder, data: NDArray[np.uint8], ends: NDArray[np.int64], threads: int = 0) -> Any:
    return encoder.encode_flat(data, ends, bos=None, eos=None, narrow=False, special="plain", threads=threads)


def _merged(
    word: list[int],
    rank: Mapping[tuple[int, int], int],
    tokens: Sequence[bytes],
    named: Mapping[bytes, int],
    most: int,
) -> list[int]:
    """`word` after the merges, the best first, that leave at most `most` tokens."""
    while len(word) > most:
        best, at = min((rank.get(pair, len(rank)), at) for at, pair in enumerate(pairwise(word)))
        if best == len(rank):
            break
        word[at : at + 2] = [named[tokens[word[at]] + tokens[word[at + 1]]]]
    return word


def file_of(tokenizer: Tokenizer) -> object:
    """What a tokenizer was read from, for messages."""
    return getattr(tokenizer.model, "file", f"the {tokenizer.kind}")


class Start:
    """A tokenizer to go on from, and the pretokenizer that the finished one will have."""

    def __init__(self, given: Any, pretokenizer: str | None) -> None:
        self.tokenizer = given if isinstance(given, Tokenizer) else load_tokenizer(given)
        with malformed(file_of(self.tokenizer)):
            self._open(pretokenizer)

    def _open(self, pretokenizer: str | None) -> None:
        model = _growable(self.tokenizer)
        self._ranks = self.tokenizer.model if isinstance(self.tokenizer.model, Ranks) else None
        if pretokenizer is None:
            pretokenizer = _pretokenizer(model)
        elif pretokenizer != _pretokenizer(model, known=False):
            model = _with_pretokenizer(model, pretokenizer)
        self.pretokenizer = pretokenizer
        self._model = model
        self._known = known_of(model)
        self._encoder = self._known.encoder(whole_words=self._known.whole_words)

    @property
    def vocab_size(self) -> int:
        return len(self._known.tokens)

    @property
    def note(self) -> str | None:
        """What of its encoding training does not see."""
        added = self._model.added_tokens if isinstance(self._model, TokenizerJson) else []
        found = [one["content"] for one in added if not one.get("special")]
        if not found:
            return None
        return (
            f"{len(found)} added tokens that are not special, such as {found[0]!r}, are cut out of every text that the "
            "tokenizer encodes, but training treats them as ordinary text"
        )

    def for_merging(self) -> tuple[list[bytes], list[int], list[int]]:
        """As `_core.FlatCorpus` takes it."""
        return self._known.tokens, self._known.special, self._known.unreachable()

    def segment(
        self, data: NDArray[np.uint8], ends: NDArray[Any], threads: int = 1
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Words, each as the tokens that the merges so far make of it, and where each ends."""
        ids, id_ends = _encode(self._encoder, data, ends.astype(np.int64, copy=False), threads)
        return ids, id_ends

    def grown(self, merges: NDArray[np.uint32], reserved: int, training: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer with `merges`, pairs of final ids, and as many reserved tokens after them."""
        tokens, pairs = list(self._known.tokens), [(left, right) for left, right in merges.tolist()]
        special = {tokens[i]: i for i in self._known.special}
        made: list[int] = []
        for left, right in pairs:
            token = tokens[left] + tokens[right]
            made.append(special.get(token, len(tokens)))
            if made[-1] == len(tokens):
                tokens.append(token)
        old = self.vocab_size
        parts = {i: [i] for i in range(old)}
        for (left, right), i in zip(pairs, made, strict=True):
            parts[i] = parts[left] + parts[right] if i >= old else parts[i]
        mapping = {i: parts.get(i, []) for i in range(old, len(tokens) + reserved)}
        ranks = self._grown_ranks(tokens, pairs, made)
        if not mapping and not pairs:
            return Tokenizer(replace(self._model, beside={**self._model.beside, **ranks}, training=training))
        model = _append(self._model, tokens, pairs, made)
        beside = {name: content for name, content in model.beside.items() if is_kept(name)} | ranks
        beside[MAPPING] = mapping_json(mapping)
        return padded(Tokenizer(replace(model, beside=beside, training=training)), reserved)

    def _grown_ranks(
        self, tokens: Sequence[bytes], pairs: Sequence[tuple[int, int]], made: list[int]
    ) -> dict[str, bytes]:
        """The file of ranks, if the start was one and the result can be said by ranks too."""
        if self._ranks is None:
            return {}
        halves = {i: (tokens[left], tokens[right]) for i, (left, right) in zip(made, pairs, strict=True)}
        content = self._ranks.grown(halves, (tokens[i] for i in self._known.unreachable()))
        return {} if content is None else {"ranks.tiktoken": content}


def start_of(plan: TrainPlan) -> Start:
    """The vocabulary to continue; options it does not support are rejected before the work starts."""
    start = Start(plan.start, plan.pretokenizer)
    if plan.vocab_size < start.vocab_size:
        raise PlanError(
            f"{option('vocab_size', plan.vocab_size)}: {option('start')} has {start.vocab_size:,} tokens already, and "
            "none is taken away. Ask for more than that."
        )
    if plan.superwords is not None and plan.superwords < start.vocab_size:
        raise PlanError(
            f"{option('superwords', plan.superwords)}: {option('start')} has {start.vocab_size:,} tokens already. The "
            "second stage begins there or later."
        )
    default = TrainPlan().special_tokens
    new = [token for token in plan.special_tokens if token not in (*start.tokenizer.special_tokens, *default)]
    if new:
        raise PlanError(
            f"special token {new[0]!r}: {option('start')} has none of that name, and its special tokens are kept as "
            "they are. Add it first (`piecemill edit --add-special`), then continue from that tokenizer."
        )
    return start


def padded(tokenizer: Tokenizer, reserved: int) -> Tokenizer:
    """`tokenizer` with `reserved` more special tokens, which no text contains and nothing uses yet."""
    model = tokenizer.model
    if not reserved or not isinstance(model, ByteBPE | IntegerBPE | TokenizerJson):
        return tokenizer
    names = (f"<|reserved_{i}|>" for i in count(tokenizer.vocab_size))
    return Tokenizer(model.with_special(list(islice((name for name in names if model.id_of(name) is None), reserved))))


def mapping_json(mapping: Mapping[int, Sequence[int]]) -> bytes:
    """A mapping of ids as JSON, one on a line."""
    lines = ",\n".join(f'"{i}": {list(ids)}' for i, ids in mapping.items())
    return f"{{\n{lines}\n}}\n".encode()


def is_kept(name: str) -> bool:
    """Whether a file beside the old vocabulary still holds: vocab.json and the like do not."""
    return name in (*BESIDE, CHAT_TEMPLATE, "chat_template.json") or name.startswith(f"{TEMPLATES}/")


def _growable(tokenizer: Tokenizer) -> Growable:
    model = tokenizer.model
    if isinstance(model, ByteBPE):
        return model
    if isinstance(model, Ranks):
        return json_of_ranks(model)
    if not isinstance(model, TokenizerJson) or model.data["model"].get("type") != "BPE":
        raise PlanError(_refusal(tokenizer, "it is not byte-level BPE"))
    if model.data.get("normalizer") == {"type": "Sequence", "normalizers": []}:  # DeepSeek's: does nothing
        model = with_data(model, {**model.data, "normalizer": None})
    if model.data.get("normalizer") is not None:
        raise PlanError(_refusal(tokenizer, "it normalizes texts, and training counts them as they are"))
    if not model.exact:
        raise PlanError(_refusal(tokenizer, "it does not keep every byte of a text"))
    return model


def _refusal(tokenizer: Tokenizer, why: str) -> str:
    return (
        f"{option('start')}: a {tokenizer.kind} cannot be continued: {why}. Expected byte-level BPE without a "
        "normalizer: what this library trains, a tokenizer.json such as that of GPT-2 or Llama 3, or a .tiktoken file."
    )


def _pretokenizer(model: Growable, *, known: bool = True) -> str | None:
    """The name of its pretokenizer, or its regex; with `known` an error if it has none that training could use."""
    try:
        if isinstance(model, ByteBPE):
            pretokenizer = model.pretokenizer
        else:
            pretokenizer, _ = pretokenizer_of(model.data.get("pre_tokenizer"))
    except NotPlain as reason:
        pretokenizer, why = "sequence", str(reason)
    else:
        why = "several regexes that are no named pretokenizer"
    if pretokenizer != "sequence":
        return pretokenizer
    if known:
        raise PlanError(
            f"{option('start')}: words cannot be counted as it cuts them ({why}). Name another pretokenizer, which the "
            f"new tokenizer will have: {option('pretokenizer', 'cl100k')}."
        )
    return None


def _with_pretokenizer(model: Growable, pretokenizer: str) -> Growable:
    pattern = pattern_of(pretokenizer)
    config = model.config() if isinstance(model, ByteBPE) else model.beside.get(TOKENIZER_CONFIG)
    if config is not None:  # classes such as GPT2Tokenizer bring the pretokenizer of their model
        changed = {**json.loads(config), "tokenizer_class": "PreTrainedTokenizerFast"}
        config = (json.dumps(changed, indent=2, ensure_ascii=False) + "\n").encode()
    beside = {**model.beside, **({} if config is None else {TOKENIZER_CONFIG: config})}
    if isinstance(model, ByteBPE):
        return replace(model, pretokenizer=name_of(pattern), pattern=pattern, beside=beside)
    return with_data(replace(model, beside=beside), {**model.data, "pre_tokenizer": pre_tokenizer(pattern)})


def with_data(model: TokenizerJson, data: Mapping[str, Any]) -> TokenizerJson:
    return replace(model, content=json.dumps(data, ensure_ascii=False).encode())


def json_of_ranks(model: Ranks) -> TokenizerJson:
    """The tokenizer.json that gives the ids of a .tiktoken file: merges as they follow from the ranks."""
    config = ByteBPE(
        Vocabulary([], checked_merges(np.empty(0, np.uint32)), dict(model.special_tokens), []), "none", None
    )
    return replace(model.with_special([]), beside={TOKENIZER_CONFIG: config.config()})


def known_of(model: Growable) -> Known:
    if isinstance(model, ByteBPE):
        vocabulary = model.vocabulary
        tokens, ordinary = list(vocabulary.tokens), frozenset(vocabulary.ranked)
        for text, i in vocabulary.special_tokens.items():
            if i not in ordinary:
                tokens[i] = bytes_of(text) or b""
        return Known(tokens, vocabulary.ranked, list(map(tuple, vocabulary.merges.tolist())), whole_words=False)
    # Of a merge listed twice, HF takes the rank of the last.
    pairs = list(dict.fromkeys(map(tuple, reversed(merge_pairs(model.data["model"])))))[::-1]
    whole_words = bool(model.data["model"].get("ignore_merges"))
    found = dict.fromkeys([*CHARACTERS, *(left + right for left, right in pairs)])
    if whole_words:
        found |= dict.fromkeys(text for text in model.vocab if text not in model.added_ids and bytes_of(text))
    tokens = [b""] * model.vocab_size
    for text, i in (*model.vocab.items(), *model.added_ids.items()):
        tokens[i] = bytes_of(text) or b""
    ids = model.vocab
    merges = [(ids[left], ids[right]) for left, right in pairs]
    return Known(tokens, [ids[text] for text in found], merges, whole_words)


def _append(model: Growable, tokens: Sequence[bytes], merges: list[tuple[int, int]], made: list[int]) -> Growable:
    """The model with new tokens and merges; `made` is the id that each merge makes."""
    if isinstance(model, ByteBPE):
        old = model.vocabulary
        meant = [*old.tokens, *tokens[len(old.tokens) :]]
        for i in made:
            meant[i] = tokens[i]
        joined = checked_merges(np.concatenate([old.merges, np.array(merges, np.uint32).reshape(-1, 2)]))
        return replace(model, vocabulary=Vocabulary(meant, joined, old.special_tokens, [*old.ranked, *made]))
    # With the added tokens in the vocabulary: HF would number them anew.
    settings = {**model.data["model"], "vocab": {**model.vocab, **model.added_ids}}
    settings["vocab"].update((characters_of(tokens[i]), i) for i in made)
    new = [[characters_of(tokens[left]), characters_of(tokens[right])] for left, right in merges]
    settings["merges"] = [*merge_pairs(settings), *new]
    return with_data(model, {**model.data, "model": settings})
