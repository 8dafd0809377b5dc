"""Which settings of a tokenizer.json Piecemill's encoder supports exactly, and which are left to HF `tokenizers`.

In: a `TokenizerJson`. Out: a function that builds the encoder, or `Left` with the reason in plain words. A setting
that is not named here is never ignored: it is a reason. The definition is HF's own code; the comparison on the nasty
strings when a tokenizer is loaded is the second line of defence.
"""

import string
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill._core import Encoder, resolve_split
from piecemill.errors import TokenizerError
from piecemill.tokenizers.models.byte_bpe import merge_pairs
from piecemill.tokenizers.models.byte_level import CHARACTERS, bytes_of
from piecemill.tokenizers.models.tokenizer_json import BYTE_TOKENS, TokenizerJson
from piecemill.tokenizers.pretokenizers import NAMED, PATTERNS
from piecemill.tokenizers.texts import flat_tokens

Step = tuple[str, ...]
Build = partial[Encoder]

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_SIMPLE_STEPS = {
    "NFC": "nfc",
    "NFD": "nfd",
    "NFKC": "nfkc",
    "NFKD": "nfkd",
    "Lowercase": "lowercase",
    "StripAccents": "strip_accents",
}
_KEEP_THE_START = ("nfc", "nfd", "nfkc", "nfkd", "lowercase")
"Normalizers that never remove the first character: without it, HF sees no start of the text in what is left."
_FLAGS = ("special", "normalized", "single_word", "lstrip", "rstrip")
_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}


class Left(TokenizerError):
    """Why a tokenizer is left to its home library."""


def encoder_of_json(model: TokenizerJson) -> Build:
    """How to build the encoder of `model`."""
    kind = model.data["model"].get("type")
    if kind == "WordPiece":
        return _word_piece(model)
    if kind != "BPE":
        raise Left(f"Piecemill has no encoder for {kind or 'unnamed'} models")
    settings = model.data["model"]
    for setting in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if settings.get(setting):
            raise Left(f"model.{setting} is {settings[setting]!r}")
    steps = _flat(model.data.get("pre_tokenizer"), "pretokenizers")
    if steps and steps[-1].get("type") == "ByteLevel":
        return _byte_level(model, steps)
    return _characters(model, steps)


def has_named_pretokenizer(model: TokenizerJson) -> bool:
    """Whether `model`, which Piecemill can encode, is byte-level BPE with a named pretokenizer, perhaps after NFC."""
    steps = _flat(model.data.get("pre_tokenizer"), "pretokenizers")
    if not steps or steps[-1].get("type") != "ByteLevel" or _normalizer(model) not in ([], [("nfc",)]):
        return False
    name, _ = resolve_split(_splits(steps))
    return name in NAMED


# Byte-level BPE


def _byte_level(model: TokenizerJson, steps: list[dict[str, Any]]) -> Build:
    settings = model.data["model"]
    split = _splits(steps)
    prefixed = steps[-1].get("add_prefix_space", True)
    if prefixed and len(steps) > 1:
        raise Left("ByteLevel puts a space before every piece of a Split before it")
    whole_words = bool(settings.get("ignore_merges"))
    if whole_words and (found := _found_as_word(model)) is not None:
        raise Left(f"model.ignore_merges finds the special token {found!r} as a word, too")
    tokens, ids, merges = _tokens(model, bytes_of, CHARACTERS, keep_unmade=whole_words)
    present = {token[0] for token in tokens if len(token) == 1}
    missing = next((byte for byte in range(256) if byte not in present and byte not in _NEVER_IN_UTF8), None)
    if missing is not None:
        raise Left(f"there is no token for byte 0x{missing:02x}")
    return partial(
        Encoder.bpe,
        *(*flat_tokens(tokens), ids, merges),
        split=split,
        whole_words=whole_words,
        prefix="always-unless-space" if prefixed else "never",
        normalizer=_normalizer(model),
        added=_added(model),
    )


def _found_as_word(model: TokenizerJson) -> str | None:
    """A special token that HF can find in a text although it was not found as an added token.

    HF looks whole words up in a vocabulary that has special tokens, too. A word can be the text of one if normalizing
    makes it so, or if the token wants to stand alone.
    """
    normalizes = bool(_normalizer(model))
    for one in model.added_tokens:
        if one.get("special") and one["content"] in model.vocab and (normalizes or one.get("single_word")):
            return str(one["content"])
    return None


def _splits(steps: list[dict[str, Any]]) -> list[str]:
    """What the steps of a pre-tokenizer that ends in ByteLevel cut by, one after another."""
    return [f"regex:{_split(step)}" for step in steps[:-1]] + ["gpt2"] * bool(steps[-1].get("use_regex", True))


def _split(step: dict[str, Any]) -> str:
    kind, pattern = step.get("type"), step.get("pattern") or {}
    if kind == "Digits":
        return r"\p{N}" if step.get("individual_digits") else r"\p{N}+"
    if kind != "Split":
        raise Left(f"Piecemill does not carry out the pre-tokenizer {kind}")
    regex = pattern.get("Regex") if "Regex" in pattern else _escaped(pattern.get("String") or "")
    if not regex or not isinstance(regex, str):
        raise Left("a Split without a pattern")
    behavior, invert = step.get("behavior"), bool(step.get("invert"))
    covers = regex in PATTERNS.values()  # matches every character, so there is nothing between matches to remove
    if behavior != "Isolated" and not (behavior == "Removed" and invert and covers):
        raise Left(f"a Split with behavior {behavior!r}{' and invert' if invert else ''}")
    return regex


def _escaped(text: str) -> str:
    return "".join(f"\\{one}" if one in r"\.+*?()|[]{}^$" else one for one in text)


# BPE over characters, as Llama 2, Mistral and Gemma have it


def _characters(model: TokenizerJson, steps: list[dict[str, Any]]) -> Build:
    settings = model.data["model"]
    normalizer, prefix = _normalizer(model), "never"
    spaces = ("replace", " ", _SPACE)
    if ("prepend", _SPACE) in normalizer:
        normalizer.remove(("prepend", _SPACE))
        prefix = "always"
        after = next((one["content"] for one in model.added_tokens if one.get("normalized")), None)
        if after is not None:
            raise Left(f"the added token {after!r} is matched after normalization, with a space before it")
    kinds = [step.get("type") for step in steps]
    if kinds == ["Metaspace"] and prefix == "never":
        prefix = _metaspace(steps[0])
        shifting = next((step[0] for step in normalizer if step[0] not in _KEEP_THE_START and step != spaces), None)
        if prefix.startswith("first") and shifting is not None:
            raise Left(f"Metaspace looks for the start of the text after the normalizer step {shifting}")
        normalizer.append(spaces)
    elif kinds and not (kinds == ["Split"] and steps[0].get("pattern") == {"String": " "} and spaces in normalizer):
        # A Split at spaces does nothing where the normalizer has replaced them all (Gemma).
        raise Left(f"Piecemill does not carry out the pre-tokenizer {', '.join(map(str, kinds))} without ByteLevel")
    if normalizer[-1:] != [spaces]:
        raise Left("BPE over characters whose spaces are not written as U+2581 at the end of normalization")
    normalizer.pop()  # the encoder itself reads a space as U+2581
    if settings.get("ignore_merges"):
        raise Left("model.ignore_merges is true for BPE over characters")
    byte_ids, unk = _fallback(model)
    tokens, ids, merges = _tokens(model, _without_space, None, keep_unmade=False)
    return partial(
        Encoder.characters,
        *(*flat_tokens(tokens), ids, merges),
        byte_ids=byte_ids,
        unk=unk,
        fuse_unk=bool(settings.get("fuse_unk")),
        prefix=prefix,
        normalizer=normalizer,
        added=_added(model),
    )


def _without_space(text: str) -> bytes | None:
    return None if " " in text else text.encode()


def _metaspace(step: dict[str, Any]) -> str:
    """The encoder's rule for the space that Metaspace puts before a text: none if one is there, or a U+2581."""
    if step.get("replacement", _SPACE) != _SPACE:
        raise Left(f"Metaspace writes spaces as {step['replacement']!r}")
    if step.get("split", True):
        raise Left("Metaspace cuts texts at spaces")
    scheme = step.get("prepend_scheme", "always")
    if step.get("add_prefix_space") is False:
        scheme = "never"  # how files from before 0.16 write it
    return "never" if scheme == "never" else f"{scheme}-unless-space"


def _fallback(model: TokenizerJson) -> tuple[NDArray[np.uint32] | None, int | None]:
    """Ids of the byte tokens, and of the token for unknown characters."""
    settings = model.data["model"]
    unknown = settings.get("unk_token")
    unk = None if unknown is None else model.vocab.get(unknown)
    if settings.get("byte_fallback"):
        if not all(name in model.vocab for name in BYTE_TOKENS):
            raise Left("model.byte_fallback is true, but not all 256 byte tokens are in the vocabulary")
        inside = set(BYTE_TOKENS)
        if any(left in inside or right in inside for left, right in merge_pairs(settings)):
            raise Left("a merge names a byte token")
        return np.array([model.vocab[name] for name in BYTE_TOKENS], np.uint32), unk
    if unknown is not None and any(unknown in pair for pair in merge_pairs(settings)):
        raise Left(f"a merge names the unk_token {unknown!r}")
    if unk is None:
        raise Left("characters without a token are dropped: there is neither byte fallback nor an unk_token")
    return None, unk


# WordPiece


def _word_piece(model: TokenizerJson) -> Build:
    settings, normalizer = model.data["model"], model.data.get("normalizer") or {}
    pre_tokenizer = model.data.get("pre_tokenizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        raise Left(f"WordPiece with the normalizer {normalizer.get('type')}, not BertNormalizer")
    if pre_tokenizer.get("type") != "BertPreTokenizer":
        raise Left(
            f"WordPiece with the pre-tokenizer {pre_tokenizer.get('type')}; only BertPreTokenizer is carried out"
        )
    unk = model.vocab.get(settings.get("unk_token", "[UNK]"))
    if unk is None:
        raise Left("its unk_token is not in the vocabulary")
    prefix = settings.get("continuing_subword_prefix", "##")
    for one in model.added_tokens:
        if one.get("normalized"):
            raise Left(f"the added token {one['content']!r} is matched after normalization")
        alone = one.get("single_word") or len(one["content"]) == 1 or one["content"].startswith(prefix)
        if (alone and one["content"] in model.vocab) or not set(one["content"]) & set(string.punctuation):
            raise Left(f"the added token {one['content']!r} could be a part of a word")
    lowercase = bool(normalizer.get("lowercase", True))
    strip_accents = normalizer.get("strip_accents")
    words = [(text.encode(), i) for text, i in model.vocab.items() if text not in model.special_tokens and text]
    return partial(
        Encoder.wordpiece,
        *(*flat_tokens(token for token, _ in words), np.array([i for _, i in words], np.uint32)),
        unk=unk,
        prefix=prefix,
        max_chars=settings.get("max_input_chars_per_word", 100),
        clean=bool(normalizer.get("clean_text", True)),
        chinese=bool(normalizer.get("handle_chinese_chars", True)),
        strip_accents=lowercase if strip_accents is None else bool(strip_accents),
        lowercase=lowercase,
        added=_added(model),
    )


# What all of them share


def _flat(step: Any, inner: str) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer or normalizer, sequences unfolded."""
    if not step:
        return []
    if step.get("type") == "Sequence":
        return [one for part in step.get(inner) or [] for one in _flat(part, inner)]
    return [step]


def _normalizer(model: TokenizerJson) -> list[Step]:
    steps: list[Step] = []
    for step in _flat(model.data.get("normalizer"), "normalizers"):
        kind = step.get("type")
        if kind in _SIMPLE_STEPS:
            steps.append((_SIMPLE_STEPS[kind],))
        elif kind == "Prepend" and step.get("prepend"):
            steps.append(("prepend", step["prepend"]))
        elif kind == "Replace" and (step.get("pattern") or {}).get("String"):
            steps.append(("replace", step["pattern"]["String"], step.get("content", "")))
        elif kind == "Replace":
            raise Left("a normalizer that replaces a regex")
        else:
            raise Left(f"Piecemill does not carry out the normalizer {kind}")
    return steps


def _added(model: TokenizerJson) -> list[tuple[str, int, int]]:
    added: dict[str, tuple[str, int, int]] = {}
    for one in model.added_tokens:
        text = one["content"]
        if not text:
            continue
        if text in added:
            raise Left(f"the added token {text!r} is listed twice")
        if one["id"] != model.added_ids[text]:
            raise Left(f"HF tokenizers gives the added token {text!r} another id than the file does")
        added[text] = (text, one["id"], sum(1 << bit for bit, flag in enumerate(_FLAGS) if one.get(flag)))
    return list(added.values())


def _tokens(
    model: TokenizerJson, spell: Callable[[str], bytes | None], alphabet: Iterable[str] | None, *, keep_unmade: bool
) -> tuple[list[bytes], NDArray[np.uint32], NDArray[np.uint32]]:
    """Tokens, their ids, and merges as pairs of their places.

    Tokens that no merge makes are left out, as no text can reach them, unless whole words are looked up.
    """
    vocab: Mapping[str, int] = model.vocab
    if len(set(vocab.values())) < len(vocab):
        raise Left("two tokens have the same id, and HF merges ids")
    # Of a merge listed twice, HF takes the rank of the last.
    pairs = list(dict.fromkeys(map(tuple, reversed(merge_pairs(model.data["model"])))))[::-1]
    for left, right in pairs:
        for part in (left, right, left + right):
            if part not in vocab:
                raise Left(f"a merge names or makes {part!r}, which is not in the vocabulary")
    made = dict.fromkeys(left + right for left, right in pairs)
    names = [text for text in alphabet or vocab if len(text) == 1 and text in vocab]
    names += [text for text in made if len(text) > 1]
    if keep_unmade:
        names += [text for text in vocab if len(text) > 1 and text not in made and text not in model.special_tokens]
    spelled = {text: token for text in dict.fromkeys(names) if (token := spell(text))}
    place = {text: i for i, text in enumerate(spelled)}
    merges = [
        (place[left], place[right]) for left, right in pairs if left + right in place and {left, right} <= place.keys()
    ]
    ids = np.array([vocab[text] for text in spelled], np.uint32)
    return list(spelled.values()), ids, np.array(merges, np.uint32).reshape(-1, 2)
