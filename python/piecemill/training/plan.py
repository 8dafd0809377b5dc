"""What to learn, from what, within which limits: one flat record that gives flags, TOML keys and help."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from piecemill._core import resolve_split
from piecemill.errors import PlanError
from piecemill.machine import cores
from piecemill.sizes import parse_size
from piecemill.sources.options import SourceOptions
from piecemill.tokenizers.models.config import parse_roles

LEAST_MEMORY = 64 * 2**20
SPLIT = "cl100k"
"The split where none is asked for and none is known."
AUTO = "auto"
"Of `alphabet`: the bytes that occur."


def alphabet_bytes(characters: str) -> bytes:
    """The bytes of these characters in UTF-8, each once, in ascending order."""
    return bytes(sorted(set(characters.encode())))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan(SourceOptions):
    """How documents become a vocabulary."""

    vocab_size: int = 32_768
    "Entries in the vocabulary: special tokens, the 256 bytes (or the alphabet), and one for each merge."

    start: str | None = None
    (
        "Tokenizer to go on from: a folder, tokenizer.json, .tiktoken file or hub id (byte-level BPE without a "
        "normalizer). Its ids stay, new tokens follow after the last one."
    )

    pad_to: int = 1
    "Round the vocabulary up to a multiple of this with reserved special tokens, <|reserved_ID|>."

    split: str | None = None
    (
        "Where words end: gpt2, cl100k, o200k, qwen2, qwen3.5, tekken, deepseek-v3, digits-then-gpt2, "
        "none (a document is one word), or a regex in fancy-regex syntax; default: that of --start or --from-counts, "
        "else cl100k."
    )

    alphabet: str | None = None
    (
        "Tokens for these characters only, such as ACGT, instead of all 256 bytes; auto: for those that occur. A "
        "document with another one is a bad document."
    )

    special_tokens: tuple[str, ...] = ("<|endoftext|>",)
    "Tokens with ids of their own, the first ones, that training never makes or cuts. Flags add to the default."

    roles: tuple[str, ...] = ()
    (
        "What a special token is for: eos=TOKEN, bos=, pad=, unk=, sep=, cls= or mask=. The token becomes a special "
        "one if it is none. Without it, eos is <|endoftext|>."
    )

    chat_template: Path | None = None
    "File with the Jinja template of a chat, saved with the tokenizer as chat_template.jinja."

    min_frequency: int = 0
    "Pairs that occur less often are not merged."

    max_token_bytes: int | None = None
    "No token is longer than this many bytes."

    threads: int | None = None
    "Threads that read, count and merge; default: one per core. The result does not depend on it."

    memory: str = "2GiB"
    "Memory for counting words. Beyond it counts go to disk (TMPDIR); the result does not depend on it."

    save_counts: Path | None = None
    "Also write the words and their counts to this Parquet file, to merge and train from later."

    from_counts: tuple[Path, ...] = ()
    "Train from counts saved earlier, on this machine or others, instead of documents."

    def __post_init__(self) -> None:
        SourceOptions.__post_init__(self)  # not super(): a class with slots is made twice
        if isinstance(self.roles, Mapping):
            object.__setattr__(self, "roles", tuple(f"{role}={text}" for role, text in self.roles.items()))
        for name in ("special_tokens", "from_counts", "roles"):
            if not isinstance(value := getattr(self, name), tuple):
                raise PlanError(f"{name}={value!r}: expected a list{f', such as [{str(value)!r}]' if value else ''}.")
        named = dict.fromkeys(text for text in parse_roles(self.roles).values() if text not in self.special_tokens)
        object.__setattr__(self, "special_tokens", (*self.special_tokens, *named))
        if self.alphabet is not None and (not isinstance(self.alphabet, str) or not self.alphabet):
            raise PlanError(f"alphabet={self.alphabet!r}: expected characters, such as 'ACGT', or 'auto'.")
        if self.alphabet is not None and self.start is not None:
            raise PlanError(
                "alphabet and start: the alphabet of the start tokenizer is kept as it is. Give one of them."
            )
        if self.integers:
            self._check_integers()
        base = (
            1
            if self.integers
            else 256
            if self.alphabet is None
            else 1
            if self.alphabet == AUTO
            else len(alphabet_bytes(self.alphabet))
        )
        least = base + len(self.special_tokens)
        for name, lowest, highest in (
            ("vocab_size", 0, 2**30),
            ("min_frequency", 0, 2**63),
            ("max_token_bytes", 1, 2**32 - 1),
            ("threads", 1, 1024),
            ("pad_to", 1, 2**20),
        ):
            value = getattr(self, name)
            if value is None and name in ("max_token_bytes", "threads"):
                continue
            if not isinstance(value, int) or not lowest <= value <= highest:
                raise PlanError(f"{name}={value!r}: expected a whole number from {lowest} to {highest:,}.")
        if self.vocab_size < least and self.start is None:
            raise PlanError(
                f"vocab_size={self.vocab_size}: the {base} bytes and {len(self.special_tokens)} special tokens alone "
                f"need {least}. Ask for more, or for fewer special tokens."
            )
        if not isinstance(self.split, str | None):
            raise PlanError(f"split={self.split!r}: expected the name of a split, or a regex.")
        if self.split is not None and (name := resolve_split(self.split)[0]) != "regex":
            object.__setattr__(self, "split", name)  # an alias, or the pattern of a named split
        if self.bytes and self.split not in (None, "none"):
            raise PlanError(f"bytes and split={self.split!r}: a split needs text. Bytes are trained with split='none'.")
        if not LEAST_MEMORY <= self.memory_bytes < 2**63:
            raise PlanError(f"memory={self.memory!r}: counting needs at least 64MiB, and no more than there is.")

    def _check_integers(self) -> None:
        """Refuse what is about text."""
        unset = {
            "split": (None, "none"),
            "alphabet": (None,),
            "start": (None,),
            "save_counts": (None,),
            "from_counts": ((),),
        }
        for name, values in unset.items():
            if (value := getattr(self, name)) not in values:
                raise PlanError(f"integers and {name}={value!r}: {name} is for text. Leave it out.")

    @property
    def memory_bytes(self) -> int:
        """`memory` as a number."""
        return parse_size(self.memory, "memory")

    @property
    def workers(self) -> int:
        """`threads`, or as many as there are cores this process may use."""
        return self.threads or cores()
