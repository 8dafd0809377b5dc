"""A `.tiktoken` file: tokens and their ranks. The caller gives the pretokenizer and the special tokens.

For the files OpenAI publishes both are known by the file's hash.
"""

import hashlib
import json
import os
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from piecemill.errors import TokenizerError
from piecemill.tokenizers.malformed import MOST_IDS, check_ids
from piecemill.tokenizers.models import Declared, DecodeTable, Stored, find_id
from piecemill.tokenizers.models.byte_level import bytes_of, characters_of
from piecemill.tokenizers.models.config import END_OF_TEXT
from piecemill.tokenizers.models.tokenizer_json import TokenizerJson
from piecemill.tokenizers.models.vocabulary import check_special_tokens
from piecemill.tokenizers.models.writing import added_token, pre_tokenizer
from piecemill.tokenizers.pretokenizers import PATTERNS, Pattern, pattern_of

_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_END_OF_PROMPT = "<|endofprompt|>"


class Published(NamedTuple):
    """What one of OpenAI's files does not say itself."""

    name: str
    cached: str
    "Its file in the cache of tiktoken: the SHA-1 of the address that tiktoken downloads it from."
    pretokenizer: str
    special_tokens: dict[str, int]


PUBLISHED = {
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": Published(
        "r50k_base", "0ea1e91bbb3a60f729a8dc8f777fd2fc07cd8df4", "gpt2", {END_OF_TEXT: 50256}
    ),
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": Published(
        "cl100k_base",
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "cl100k",
        {END_OF_TEXT: 100257, **{name: 100258 + i for i, name in enumerate(_FIM)}, _END_OF_PROMPT: 100276},
    ),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": Published(
        "o200k_base",
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "o200k",
        {END_OF_TEXT: 199999, _END_OF_PROMPT: 200018},
    ),
}
"By the SHA-256 of the file, the one tiktoken checks."


def published_file(name: str) -> Path | None:
    """OpenAI's file of this name ("o200k" or "o200k_base") in the cache of tiktoken; None for other names.

    TokenizerError if it is not there: nothing is downloaded.
    """
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    import tempfile  # here: every command imports this module

    cache = Path(tempfile.gettempdir(), "data-gym-cache") if folder is None else Path(folder)
    for sha256, known in PUBLISHED.items():
        if name not in (known.name, known.name.removesuffix("_base")):
            continue
        file = cache / known.cached
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == sha256:
            return file
        raise TokenizerError(
            f"{name}: no such file or folder here, and OpenAI's {known.name} is not in the cache of tiktoken, {cache}. "
            f"Give the path of {known.name}.tiktoken or of a tokenizer.json; or have tiktoken fetch it once, with "
            f"network: python -c \"import tiktoken; tiktoken.get_encoding('{known.name}')\" (TIKTOKEN_CACHE_DIR says "
            "where to)."
        )
    return None


@dataclass(frozen=True, eq=False)
class Ranks(Stored):
    """A `.tiktoken` file with its pretokenizer and special tokens."""

    content: bytes
    file: Path
    "Where it came from, for messages."
    pretokenizer: str
    special_tokens: Mapping[str, int]

    kind = "tiktoken file"
    exact = True

    def __post_init__(self) -> None:
        # Read now, as the ranks are, so that a wrong pretokenizer or a broken line is an error when loading.
        _ = self.pattern
        check_ids(self.file, self.ranks)
        check_ids(self.file, self.special_tokens, len(self.ranks))
        taken = {*self.ranks.values()}
        for text, i in self.special_tokens.items():
            if not text or i < 0 or i in taken:
                raise TokenizerError(
                    f"{self.file}: special token {text!r} with id {i}: expected a text, and an id that no rank and "
                    f"no other special token has ({max(taken) + 1:,} and up are free)."
                )
            taken.add(i)

    @property
    def pattern(self) -> Pattern | None:
        return pattern_of(self.pretokenizer)

    @property
    def home(self) -> str:
        # tiktoken has one pattern, not a sequence of them.
        return "tokenizers" if isinstance(self.pattern, tuple) or find_spec("tiktoken") is None else "tiktoken"

    @cached_property
    def ranks(self) -> dict[bytes, int]:
        """The rank, which is the id, of each token."""
        ranks: dict[bytes, int] = {}
        for number, line in enumerate(self.content.splitlines(), 1):
            if not line:
                continue
            try:
                token, rank = line.split()
                ranks[a2b_base64(token, strict_mode=True)] = int(rank)
            except (ValueError, Base64Error):
                raise TokenizerError(
                    f"{self.file}: line {number} is {line[:40]!r}; expected a token in base64, a space and its rank."
                ) from None
        missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
        if missing is not None:
            raise TokenizerError(f"{self.file}: no rank for byte 0x{missing:02x}; expected all 256.")
        if len(set(ranks.values())) != len(ranks):
            raise TokenizerError(f"{self.file}: two tokens have the same rank; expected each rank once.")
        return ranks

    @cached_property
    def vocab_size(self) -> int:
        return max(*self.ranks.values(), *self.special_tokens.values()) + 1

    @property
    def declared(self) -> Declared:
        return Declared(END_OF_TEXT if END_OF_TEXT in self.special_tokens else None)

    def identity(self) -> str:
        # By the pattern, not the name: "cl100k" and its regex are the same tokenizer.
        record = {"pattern": self.pattern, "special_tokens": dict(sorted(self.special_tokens.items()))}
        return hashlib.sha256(self.content + json.dumps(record).encode()).hexdigest()

    def files(self) -> dict[str, bytes]:
        record = {
            "pretokenizer": self.pretokenizer,
            "pattern": self.pattern,
            "special_tokens": dict(self.special_tokens),
        }
        text = json.dumps(record, ensure_ascii=False, indent=2)
        return {"ranks.tiktoken": self.content, "encoding.json": f"{text}\n".encode()}

    def with_special(self, texts: Sequence[str]) -> TokenizerJson:
        """The same as a tokenizer.json: a .tiktoken file has no place for special tokens, roles or templates."""
        check_special_tokens(texts)
        special = {**self.special_tokens}
        for text in texts:
            special[text] = self.ranks.get(bytes_of(text) or b"", max([self.vocab_size - 1, *special.values()]) + 1)
        return TokenizerJson(replace(self, special_tokens=special).tokenizer_json(special).encode(), self.file)

    def id_of(self, token: str | bytes) -> int | None:
        return find_id(self.special_tokens, token, self.ranks.get)

    def decode_table(self) -> DecodeTable:
        tokens: list[bytes | None] = [None] * self.vocab_size
        for token, rank in self.ranks.items():
            tokens[rank] = token
        for text, i in self.special_tokens.items():
            tokens[i] = text.encode()
        return DecodeTable(tokens)

    def merges(self) -> list[tuple[bytes, bytes]]:
        """The tokens that are joined, best first, as far as merges make the tokens."""
        ranked = sorted((rank, token) for token, rank in self.ranks.items() if len(token) > 1)
        found = (halves(token, self.ranks) for _, token in ranked)
        return [(left, right) for left, right in found if left]

    def grown(self, made: Mapping[int, tuple[bytes, bytes]], unmade: Iterable[bytes]) -> bytes | None:
        """The file with the tokens of new merges; None if ranks would give other ids than the merges do.

        A rank joins any two tokens that spell its token, a merge only its own two. They do the same if ranks leave just
        these two of the token's bytes, and never two of a token that no merge makes.
        """
        ids = [max(self.ranks.values()), *made]
        ranks = self.ranks | {left + right: i for i, (left, right) in made.items()}
        same = all(halves(left + right, ranks) == (left, right) for left, right in made.values())
        if ids != sorted(set(ids)) or not same or any(halves(token, ranks)[0] for token in unmade):
            return None
        lines = [b"%b %d" % (b2a_base64(left + right, newline=False), i) for i, (left, right) in made.items()]
        return b"\n".join([self.content.rstrip(b"\n"), *lines, b""])

    def tokenizer_json(self, parse: Collection[str]) -> str:
        """The same tokenizer as a tokenizer.json that finds the special tokens in `parse` in texts."""
        special = {text: i for text, i in self.special_tokens.items() if text in parse}
        model = {
            "type": "BPE",
            # tiktoken looks a whole pretoken up before it merges.
            "ignore_merges": True,
            # Special tokens too: HF numbers an added token itself if it is not in the vocabulary.
            "vocab": {**{characters_of(token): rank for token, rank in self.ranks.items()}, **special},
            "merges": [[characters_of(left), characters_of(right)] for left, right in self.merges()],
        }
        return json.dumps(
            {
                "version": "1.0",
                "added_tokens": [added_token(text, i) for text, i in special.items()],
                "pre_tokenizer": pre_tokenizer(self.pattern),
                "decoder": pre_tokenizer(PATTERNS["gpt2"]),
                "model": model,
            },
            ensure_ascii=False,
        )


def halves(token: bytes, ranks: Mapping[bytes, int], below: int = MOST_IDS) -> tuple[bytes, bytes]:
    """The two tokens whose merge makes `token`: what merging by ranks `below` one leaves of it; empty if never two.

    Inside a longer text it is the same two, because until `token` is made, no merge goes beyond its ends. One of them
    may have a larger rank than `token`: 107 tokens of Llama 3 are made so.
    """
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        best, at = min((ranks.get(parts[i] + parts[i + 1], below), i) for i in range(len(parts) - 1))
        if best >= below:
            return b"", b""
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]
