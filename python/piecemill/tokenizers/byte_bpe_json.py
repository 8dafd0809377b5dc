"""A tokenizer.json read as plain byte-level BPE, where it says no more than that.

Read so, it can be asked for its merges and bytes, and encoded by gigatoken in ways its own loader does not offer. A
file that says more is `NotPlain` and stays what it is; a file that contradicts itself is a TokenizerError.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from piecemill.errors import TokenizerError
from piecemill.tokenizers.byte_bpe import ByteBPE
from piecemill.tokenizers.byte_level import BYTE_ORDER, CHARACTERS, bytes_of
from piecemill.tokenizers.splits import PATTERNS, Pattern, name_of
from piecemill.tokenizers.vocabulary import Vocabulary, check_special_tokens, checked_merges

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "dropout": (None, 0, 0.0),
    "unk_token": (None,),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (None, False),
    "ignore_merges": (None, False),
}
"The settings of a BPE model that leave ids alone. (fuse_unk does whatever it says, as there is no unk_token.)"


class NotPlain(Exception):
    """Why a tokenizer.json is more than byte-level BPE."""


def byte_bpe(data: dict[str, Any], file: Path, *, training: Mapping[str, Any], beside: Mapping[str, bytes]) -> ByteBPE:
    """The byte-level BPE that `data`, read from `file`, describes."""
    split, pattern = _split(data.get("pre_tokenizer"))
    _check_settings(data)
    return ByteBPE(_vocabulary(data, file), split, pattern, training, beside, data.get("post_processor"))


def _split(pre_tokenizer: Any) -> tuple[str, Pattern | None]:
    """Name and pattern of the split: any sequence of regexes and digits that ends in ByteLevel."""
    given = pre_tokenizer or {}
    steps = given.get("pretokenizers", []) if given.get("type") == "Sequence" else [given]
    patterns = [_step(step) for step in steps]
    if not steps or steps[-1].get("type") != "ByteLevel" or None in patterns:
        raise NotPlain(f"pre_tokenizer {json.dumps(pre_tokenizer)[:200]}")
    regexes = tuple(regex for regex in patterns if regex)
    pattern = regexes[0] if len(regexes) == 1 else regexes or None
    return name_of(pattern), pattern


def _step(step: dict[str, Any]) -> str | None:
    """The regex of one step; empty if it does not cut, None if it does more than a regex can say."""
    if step.get("type") == "ByteLevel" and not step.get("add_prefix_space", True):
        gpt2 = PATTERNS["gpt2"]
        return gpt2 if step.get("use_regex", True) and isinstance(gpt2, str) else ""
    if step.get("type") == "Digits":
        return r"\p{N}" if step.get("individual_digits") else r"\p{N}+"
    if step.get("type") == "Split" and step.get("behavior") == "Isolated" and not step.get("invert"):
        regex = step.get("pattern", {}).get("Regex")
        return regex if isinstance(regex, str) and regex else None
    return None


def _check_settings(data: dict[str, Any]) -> None:
    model = data.get("model") or {}
    if model.get("type") != "BPE":
        raise NotPlain(f"a model of type {model.get('type')!r}")
    for name, neutral in _NEUTRAL.items():
        if model.get(name) not in neutral:
            raise NotPlain(f"model.{name} is {model[name]!r}")
    if data.get("normalizer") is not None:
        raise NotPlain("a normalizer")
    for added in data.get("added_tokens") or []:
        if not added.get("special") or added.get("lstrip") or added.get("rstrip") or added.get("single_word"):
            raise NotPlain(f"added token {added.get('content')!r}")


def _vocabulary(data: dict[str, Any], file: Path) -> Vocabulary:
    vocab: dict[str, int] = data["model"].get("vocab") or {}
    special = {added["content"]: added["id"] for added in data.get("added_tokens") or []}
    check_special_tokens(list(special))
    ids = {**vocab, **special}
    if sorted(ids.values()) != list(range(len(ids))):
        raise NotPlain(f"{len(ids):,} tokens whose ids are not 0 to {len(ids) - 1:,}, each once")
    missing = next((CHARACTERS[byte] for byte in BYTE_ORDER if CHARACTERS[byte] not in ids), None)
    if missing is not None:
        raise NotPlain(f"no token for byte character {missing!r}")
    ranked = [ids[CHARACTERS[byte]] for byte in BYTE_ORDER]
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in data["model"].get("merges") or []]
    try:
        merges = np.array([(vocab[left], vocab[right]) for left, right in pairs], np.uint32)
        # As a dict for its order: an id made a second time keeps its first place.
        ranked = list(dict.fromkeys(ranked + [vocab[left + right] for left, right in pairs]))
    except (KeyError, ValueError) as error:
        raise TokenizerError(f"{file}: a merge names or makes {error}, which is not in the vocabulary.") from None
    spelled = {i: text for text, i in ids.items()}
    reachable = frozenset(ranked)
    unmade = [text for text, i in vocab.items() if i not in reachable and text not in special]
    if unmade:
        raise NotPlain(f"{len(unmade):,} tokens that no merge makes, such as {unmade[0]!r}")
    made = {i: bytes_of(spelled[i]) for i in ranked}
    tokens = [made.get(i) or spelled[i].encode() for i in range(len(ids))]
    return Vocabulary(tokens, checked_merges(merges), special, ranked)
