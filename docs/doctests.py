"""Extension of griffe, the docstring reader of `make docs`: shows the examples in docstrings as code.

Docstrings are Markdown, where a line that starts with `>>>` would be a quotation. A block of them, to the next empty
line, gets fences.
"""

import re

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


class Doctests(griffe.Extension):
    """Fences the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Called with each module, class, function and attribute, but not with the package itself."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Called with the package."""
        self.on_object(obj=pkg)
