"""Loading a tokenizer from disk: a folder saved by Piecemill, or a tokenizer.json of plain byte-level BPE.

A setting that would change ids and that this library does not carry out is an error, never ignored.
"""

import json
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from piecemill.errors import TokenizerError
from piecemill.tokenizers.byte_level import BYTE_ORDER, CHARACTERS, bytes_of
from piecemill.tokenizers.splits import PATTERNS, name_of
from piecemill.tokenizers.tokenizer import Tokenizer
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


def load_tokenizer(path: str | PathLike[str]) -> Tokenizer:
    """The tokenizer saved at `path`: a folder with a tokenizer.json, or such a file itself."""
    given = Path(path)
    file = given / "tokenizer.json" if given.is_dir() else given
    data = _read(file)
    split, pattern = _split(data.get("pre_tokenizer"), file)
    _check_settings(data, file)
    record = file.parent / "training.json"
    training = _read(record) if given.is_dir() and record.exists() else None
    return Tokenizer(_vocabulary(data, file), split=split, pattern=pattern, training=training)


def _read(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise TokenizerError(
            f"{file}: no such file; expected a folder saved with Tokenizer.save, or a tokenizer.json."
        ) from None
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{file}: could not be read as JSON ({error}).") from error
    if not isinstance(data, dict):
        raise TokenizerError(f"{file}: holds a JSON {type(data).__name__}; expected an object.")
    return data


def _split(pre_tokenizer: Any, file: Path) -> tuple[str, str | None]:
    """Name and pattern of the split; exactly the forms that `tokenizer_json.pre_tokenizer` writes, and HF's own."""
    given = pre_tokenizer or {}
    steps = given.get("pretokenizers", []) if given.get("type") == "Sequence" else [given]
    kinds = [step.get("type") for step in steps]
    byte_level = steps[-1] if steps else {}
    plain = kinds in (["ByteLevel"], ["Split", "ByteLevel"]) and not byte_level.get("add_prefix_space", True)
    if plain and kinds == ["ByteLevel"]:
        return ("gpt2", PATTERNS["gpt2"]) if byte_level.get("use_regex", True) else ("none", None)
    if plain and not byte_level.get("use_regex", True):
        pattern = steps[0].get("pattern", {}).get("Regex")
        if isinstance(pattern, str) and steps[0].get("behavior") == "Isolated" and not steps[0].get("invert"):
            return name_of(pattern), pattern
    raise TokenizerError(
        f"{file}: pre_tokenizer {json.dumps(pre_tokenizer)[:200]} is not supported; "
        "expected ByteLevel without prefix space, alone or after one isolating Split by a regex."
    )


def _check_settings(data: dict[str, Any], file: Path) -> None:
    model = data.get("model") or {}
    if model.get("type") != "BPE":
        raise TokenizerError(f"{file}: the model is of type {model.get('type')!r}; expected byte-level 'BPE'.")
    for name, neutral in _NEUTRAL.items():
        if model.get(name) not in neutral:
            raise TokenizerError(
                f"{file}: model.{name} is {model[name]!r}, which is not supported; expected {neutral[0]!r}."
            )
    for name in ("normalizer", "truncation", "padding"):
        if data.get(name) is not None:
            raise TokenizerError(f"{file}: it has a {name}, which is not supported; expected none.")
    post = data.get("post_processor")
    if post is not None and post.get("type") != "ByteLevel":  # ByteLevel moves offsets, not ids.
        raise TokenizerError(f"{file}: post_processor {post.get('type')!r} is not supported; expected none.")
    for added in data.get("added_tokens") or []:
        if not added.get("special") or added.get("lstrip") or added.get("rstrip") or added.get("single_word"):
            raise TokenizerError(
                f"{file}: added token {added.get('content')!r} is not supported; "
                "expected special tokens only, without lstrip, rstrip and single_word."
            )


def _vocabulary(data: dict[str, Any], file: Path) -> Vocabulary:
    vocab: dict[str, int] = data["model"].get("vocab") or {}
    special = {added["content"]: added["id"] for added in data.get("added_tokens") or []}
    check_special_tokens(list(special))
    ids = {**vocab, **special}
    if sorted(ids.values()) != list(range(len(ids))):
        raise TokenizerError(f"{file}: its {len(ids):,} tokens do not have the ids 0 to {len(ids) - 1:,}, each once.")
    try:
        ranked = [ids[CHARACTERS[byte]] for byte in BYTE_ORDER]
    except KeyError as error:
        raise TokenizerError(f"{file}: byte character {error} is not in the vocabulary; expected all 256.") from None
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
        raise TokenizerError(
            f"{file}: {len(unmade):,} tokens are made by no merge, such as {unmade[0]!r}; "
            "expected every token to be a byte, a special token, or made by a merge."
        )
    made = {i: bytes_of(spelled[i]) for i in ranked}
    tokens = [made.get(i) or spelled[i].encode() for i in range(len(ids))]
    return Vocabulary(tokens, checked_merges(merges), special, ranked)
