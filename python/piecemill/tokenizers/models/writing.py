"""A vocabulary and a pretokenizer as the text of a tokenizer.json.

Written by hand: saving then needs no tokenizer library, and one token and one merge a line lets `diff` compare two
vocabularies, for which `json.dumps` would need its slow, indenting encoder.
"""

import json
from collections.abc import Mapping
from typing import Any

from piecemill.tokenizers.pretokenizers import PATTERNS, Pattern

DIGITS = {r"\p{N}": True, r"\p{N}+": False}
"Regexes for which tokenizer.json has a dedicated step, and whether it cuts digits one by one."


def complete(body: str, added_tokens: Mapping[str, int], pattern: Pattern | None, post_processor: Any = None) -> str:
    """A tokenizer.json around the `body`: vocabulary and merges, the large part, which does not depend on the rest."""
    head = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(text, i) for text, i in added_tokens.items()],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer(pattern),
        "post_processor": post_processor,
        "decoder": _byte_level(use_regex=True),
    }
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    head_text = json.dumps(head, ensure_ascii=False)[:-1]
    model_text = json.dumps(model)[:-1]
    return f'{head_text},\n"model": {model_text},\n{body}}}}}\n'


def added_token(text: str, i: int) -> dict[str, Any]:
    """How tokenizer.json writes a special token."""
    return {
        "id": i,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def pre_tokenizer(pattern: Pattern | None) -> dict[str, Any]:
    """How tokenizer.json writes a pretokenizer."""
    if pattern == PATTERNS["gpt2"]:
        return _byte_level(use_regex=True)
    if pattern == PATTERNS["digits-then-gpt2"]:
        # As the models that have it write it.
        digits = {"type": "Digits", "individual_digits": True}
        return {"type": "Sequence", "pretokenizers": [digits, _byte_level(use_regex=True)]}
    steps = [_split(regex) for regex in ((pattern,) if isinstance(pattern, str) else pattern or ())]
    steps.append(_byte_level(use_regex=False))
    # A sequence even of one: gigatoken 0.10 reads a bare ByteLevel as the GPT-2 pretokenizer whatever `use_regex` says
    # and gives other ids; it refuses a sequence without a pretokenizer.
    return {"type": "Sequence", "pretokenizers": steps}


def _split(regex: str) -> dict[str, Any]:
    if regex in DIGITS:
        return {"type": "Digits", "individual_digits": DIGITS[regex]}
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
