"""The named pretokenizers, as the core's table has them, and as the patterns that go into a tokenizer.json.

A pattern is one regex, several that are applied one after another (a sequence: each cuts the pieces of the one before
as if they were whole texts), or None for the pretokenizer `none`. Names, patterns and properties come from
`_core.splits()`; nothing here repeats them.
"""

from typing import TypeAlias

from piecemill._core import resolve_split, splits
from piecemill.errors import PlanError, PretokenizerError, TokenizerError
from piecemill.plans import option

Pattern: TypeAlias = str | tuple[str, ...]

NAMED = {row["name"]: row for row in splits()}
"The table: a row for each named pretokenizer."

NAMES = ", ".join(NAMED)
"For messages."


def _pattern(patterns: tuple[str, ...]) -> Pattern | None:
    return patterns[0] if len(patterns) == 1 else patterns or None


PATTERNS: dict[str, Pattern] = {
    name: pattern for name, row in NAMED.items() if (pattern := _pattern(row["patterns"])) is not None
}
"The pattern of each named pretokenizer, `none` left out."

WHOLE_DOCUMENT = r"[\s\S]+"
"What to give a library that insists on a pattern where the pretokenizer is `none`."


def pattern_of(pretokenizer: str, pattern: Pattern | None = None) -> Pattern | None:
    """The pattern of `pretokenizer`: the one given, else that of the name or regex; None for `none`.

    Anything that is neither a name nor a regex is a PretokenizerError that suggests the nearest name.

    >>> pattern_of("regex:x"), len(pattern_of("deepseek-v3"))
    ('x', 3)
    """
    if not isinstance(pretokenizer, str):
        raise PretokenizerError(f"pretokenizer: found {type(pretokenizer).__name__}, expected a name or a regex.")
    if not isinstance(pattern, str | tuple | list | None) or not all(isinstance(one, str) for one in pattern or ()):
        raise PretokenizerError(f"pattern: found {pattern!r:.60}, expected a regex, or a tuple of them.")
    if pretokenizer == "none" and pattern is not None:
        raise TokenizerError(
            f"pretokenizer='none' takes no pattern, got {pattern!r}. Name the regex as the pretokenizer instead."
        )
    return pattern or _pattern(resolve_split(pretokenizer)[1])


def specs_of(pattern: Pattern | None) -> list[str]:
    """`pattern` as the core takes a pretokenizer: a list of what to apply one after another."""
    patterns = (pattern,) if isinstance(pattern, str) else pattern or ()
    return [f"regex:{regex}" for regex in patterns]


def name_of(pattern: Pattern | None) -> str:
    """The pretokenizer that `pattern` belongs to; an unknown regex is its own name, an unknown sequence "sequence".

    >>> name_of(r"\\d+"), name_of("x"), name_of(PATTERNS["cl100k"])
    ('\\\\d+', 'regex:x', 'cl100k')
    """
    name = resolve_split(specs_of(pattern))[0]
    if name != "regex" or not isinstance(pattern, str):
        return name
    try:
        return pattern if resolve_split(pattern)[1] == (pattern,) else f"regex:{pattern}"
    except PretokenizerError:
        return f"regex:{pattern}"


def superword_pretokenizer(pretokenizer: str) -> str:
    """That of the second stage where `pretokenizer` is that of the first: the same words, joined within a line.

    >>> superword_pretokenizer("cl100k")
    'cl100k-superwords'
    """
    if (name := f"{pretokenizer}-superwords") in NAMED:
        return name
    names = ", ".join(name.removesuffix("-superwords") for name in NAMED if name.endswith("-superwords"))
    raise PlanError(
        f"{option('pretokenizer', pretokenizer)}: none of a second stage belongs to it, as there is for {names}. "
        f"Give one: {option('superword_pretokenizer', 'cl100k-superwords')}, or a regex."
    )
