"""HF `tokenizers` as the tests ask it: the same calls for 0.2x and for the inference-only 1.0.

What the trainers of 0.2x made can be kept in a folder, PIECEMILL_TRAINED, from which tests with 1.0 take it.
"""

import json
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
import tokenizers

TRAINERS = hasattr(tokenizers, "Regex")
"Whether this is 0.2x: 1.0 has no trainers, and shows neither normalizers nor pre-tokenizers."

needs_trainers = pytest.mark.skipif(not TRAINERS, reason="needs tokenizers 0.2x: 1.0 can only encode")

OWN_REGEX = TRAINERS or int(tokenizers.__version__.split(".")[0]) > 1
"Whether it carries out a regex of one's own; 1.0.0rc3 does not."

needs_own_regex = pytest.mark.skipif(not OWN_REGEX, reason="tokenizers 1.0 carries out no regex but the named ones")


class HF:
    """A tokenizer.json in the library."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.json = json.loads(text)
        if TRAINERS:
            self.loaded = tokenizers.Tokenizer.from_str(text)
            self.loaded.no_truncation()
        else:
            with NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as file:
                file.write(text)
                file.flush()
                self.loaded = tokenizers.Tokenizer.from_file(file.name)
            self.loaded.truncation = None

    def ids(self, texts: Sequence[str], *, plain: bool = False) -> list[list[int]]:
        """Without what a post-processor adds; special tokens as text if `plain`."""
        if TRAINERS:
            self.loaded.encode_special_tokens = plain
            return [one.ids for one in self.loaded.encode_batch(list(texts), add_special_tokens=False)]
        options = {"add_special_tokens": False, "encode_special_tokens": plain}
        return [list(one.ids) for one in self.loaded.encode_batch(list(texts), **options)]

    def decode(self, ids: Sequence[int]) -> str:
        return self.loaded.decode(list(ids), skip_special_tokens=False)

    @property
    def spelled(self) -> dict[int, str]:
        """Each id as the file spells it."""
        added = {one["id"]: one["content"] for one in self.json["added_tokens"]}
        return {i: text for text, i in self.json["model"]["vocab"].items()} | added


def trained(name: str, make: Callable[[], "tokenizers.Tokenizer"]) -> str:
    """The tokenizer.json that `make` trains; kept in PIECEMILL_TRAINED, where that is set."""
    folder = os.environ.get("PIECEMILL_TRAINED")
    file = Path(folder) / f"{sha256(name.encode()).hexdigest()[:20]}.json" if folder else None
    if file is not None and file.exists():
        return file.read_text(encoding="utf-8")
    if not TRAINERS:
        pytest.skip("needs the trainers of tokenizers 0.2x, or what they made in PIECEMILL_TRAINED")
    text = make().to_str()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return text
