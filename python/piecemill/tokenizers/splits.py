"""The named splits, as the patterns that go into a tokenizer.json.

These spellings matter: gigatoken recognises a split by its exact text, and of the spellings in use only
these mean the same to Oniguruma (HF `tokenizers`), fancy-regex (tiktoken) and gigatoken. The newer cl100k
pattern of tiktoken, with `\\s++$`, does not: `$` is the end of a line in Oniguruma and of the text elsewhere.
"""

from piecemill.errors import TokenizerError

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
}

WHOLE_DOCUMENT = r"[\s\S]+"
"What to give a library that insists on a pattern where the split is `none`."


def pattern_of(split: str, pattern: str | None) -> str | None:
    """The pattern of `split`: the one given, else that of the name, else `split` itself; None for `none`."""
    if split == "none":
        if pattern is not None:
            raise TokenizerError(
                f"split='none' takes no pattern, got {pattern!r}. Name the regex as the split instead."
            )
        return None
    return pattern or PATTERNS.get(split) or split


def name_of(pattern: str | None) -> str:
    """The split that `pattern` belongs to; an unknown pattern is its own name."""
    if pattern is None:
        return "none"
    return next((name for name, known in PATTERNS.items() if known == pattern), pattern)
