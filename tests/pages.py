"""The code blocks of README and docs, for the tests that run them."""

import re
from collections.abc import Iterator
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1]


def blocks(page: str) -> Iterator[tuple[int, str, str]]:
    """The line, the language and the code of each block."""
    text = (HOUSE / page).read_text(encoding="utf-8")
    for found in re.finditer(r"^```(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE):
        yield text.count("\n", 0, found.start(2)), found[1], found[2]


def block(page: str, beginning: str) -> str:
    """The one block of the page that begins with this.

    A test that calls this runs the block, so tests/test_documentation.py does not: it searches the tests for calls.
    """
    found = [code for _, _, code in blocks(page) if code.startswith(beginning)]
    assert len(found) == 1, f"{page}: {len(found)} blocks begin with {beginning!r}"
    return found[0]


def claims() -> dict[tuple[str, str], list[str]]:
    """The arguments of each call of `block` in the tests, and the files that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for page, beginning in re.findall(r'\bblock\("([^"]+)", "([^"]+)"\)', path.read_text(encoding="utf-8")):
            found.setdefault((page, beginning), []).append(path.name)
    return found
