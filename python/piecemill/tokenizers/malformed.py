"""Malformed tokenizer files: whatever reading one raises becomes a TokenizerError that names the file.

A tokenizer file consists of nested values of any type; checking each where it is used would obscure the code. Libraries
in Rust panic on some of them, which pyo3 raises as an exception that `except Exception` does not catch.

Start with `malformed`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from piecemill.errors import PiecemillError, TokenizerError

MOST_IDS = 1 << 24
"No id is as large as this."

_ALWAYS, _PER_TOKEN = 1 << 20, 16
"Ids below the first are always possible, larger ones below this many for each token."

BROKEN = (
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    RecursionError,
    MemoryError,
    RuntimeError,
    AssertionError,
)
"What code that expects another type or value raises."


@contextmanager
def malformed(where: object, raised: tuple[type[BaseException], ...] = BROKEN) -> Iterator[None]:
    """Turns what a malformed file makes code raise into a TokenizerError that begins with `where`.

    These are panics of libraries written in Rust, whose class cannot be imported, and what else is `raised`.
    """
    try:
        yield
    except (PiecemillError, NotImplementedError):
        raise
    except BaseException as error:
        if not isinstance(error, raised) and type(error).__name__ != "PanicException":
            raise
        said = " ".join(str(error).split())[:200]
        raise TokenizerError(
            f"{where}: it is malformed ({type(error).__name__}: {said}); expected a tokenizer file as its library "
            "writes it. Restore it, or download it again."
        ) from error


def check_ids(where: Path, ids: Mapping[str, int] | Mapping[bytes, int], tokens: int = 0) -> None:
    """TokenizerError if an id is no number from 0 to `MOST_IDS`, or far beyond the number of `tokens`, or of `ids`.

    Tables by id have a place for every id below the largest, whether it exists or not: one wrong id in a small file
    would take gigabytes.
    """
    most = min(MOST_IDS, max(_ALWAYS, _PER_TOKEN * max(tokens, len(ids))))
    for token, i in ids.items():
        if type(i) is not int or not 0 <= i < most:
            raise TokenizerError(
                f"{where}: the id of {token!r:.60} is {i!r:.40}; expected a whole number from 0 to {most - 1:,}."
            )
