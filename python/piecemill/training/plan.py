"""What to learn, from what, within which limits: one flat record that gives flags, TOML keys and help."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from os import PathLike, fspath
from pathlib import Path

from piecemill._core import resolve_split
from piecemill.errors import PlanError
from piecemill.machine import cores
from piecemill.plans import ANY, checked, option
from piecemill.sizes import parse_size, plural
from piecemill.sources.matching import parse_grouping, parse_weights
from piecemill.sources.options import SourceOptions
from piecemill.tokenizers.models.config import parse_roles

LEAST_MEMORY = 64 * 2**20
DEFAULT_PRETOKENIZER = "cl100k"
"The default pretokenizer if none is requested and none is known."
AUTO = "auto"
"Of `alphabet`: the bytes that occur."


def alphabet_bytes(characters: str) -> bytes:
    """The bytes of these characters in UTF-8, each once, in ascending order."""
    return bytes(sorted(set(characters.encode())))


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan(SourceOptions):
    """How documents become a vocabulary."""

    vocab_size: int = 32_768
    "Entries in the vocabulary: special tokens, the 256 bytes (or the alphabet), and one for each merge."

    start: str | None = dataclass_field(default=None, metadata={ANY: True})
    (
        "Tokenizer to go on from: a folder, tokenizer.json, .tiktoken file or hub id (byte-level BPE without a "
        "normalizer). Its ids stay, new tokens follow after the last one."
    )

    pad_to: int = 1
    "Round the vocabulary up to a multiple of this with reserved special tokens, <|reserved_ID|>."

    pretokenizer: str | None = None
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

    superwords: int | None = None
    (
        "Two stages (SuperBPE): up to this size of the vocabulary tokens are parts of words, from there to "
        "--vocab-size they also span words of one line."
    )

    superword_pretokenizer: str | None = None
    (
        "Where tokens of the second stage end: as for --pretokenizer. The tokenizer encodes with it. Default: "
        "cl100k-superwords for cl100k and so on: line ends, indentation and numbers stay apart."
    )

    max_words: int = 4
    "Most words in a token of the second stage: runs of bytes without space, tab, newline or form feed."

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

    balance: str | None = None
    (
        "Choose each merge for the group of documents that is compressed worst so far. Groups are the values of this "
        "field, such as language; or the first folders under a source: directory, or directory:2."
    )

    balance_on: str | None = None
    (
        "Development set for --balance: a folder, file or glob with the same texts in every group. The group with the "
        "most tokens there is the worst; without it, the one with the fewest bytes per token of the sources."
    )

    balance_after: int = 0
    "With --balance, choose this many merges over all groups together first."

    balance_window: int = 0
    (
        "With --balance, choose at most twice its equal share of this many merges for one group, such as 100: none can "
        "take them all. 0 for no limit."
    )

    weight: tuple[str, ...] = ()
    "What a word counts in the files that match, such as 'src/**=2'; repeat the flag. The first match counts; else 1."

    weight_by: str | None = None
    (
        "Weigh groups instead of files: --weight de=2 is for the documents with the value de of this field; or for the "
        "folder de with directory, or directory:2."
    )

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
        for name in ("special_tokens", "from_counts", "roles", "weight"):
            if not isinstance(value := getattr(self, name), tuple):
                raise PlanError(
                    f"{option(name, value)}: expected a list{f', such as [{str(value)!r}]' if value else ''}."
                )
        named = dict.fromkeys(text for text in parse_roles(self.roles).values() if text not in self.special_tokens)
        object.__setattr__(self, "special_tokens", (*self.special_tokens, *named))
        if self.alphabet is not None and (not isinstance(self.alphabet, str) or not self.alphabet):
            raise PlanError(f"{option('alphabet', self.alphabet)}: expected characters, such as 'ACGT', or 'auto'.")
        if self.alphabet is not None and self.start is not None:
            raise PlanError(
                f"{option('alphabet')} and {option('start')}: the alphabet of the start tokenizer is kept as it is. "
                "Give one of them."
            )
        if self.integers:
            self._check_integers()
        base = 256
        if self.integers or self.alphabet == AUTO:
            base = 1  # at least one occurs
        elif self.alphabet is not None:
            base = len(alphabet_bytes(self.alphabet))
        least = base + len(self.special_tokens)
        for name, lowest, highest in (
            ("vocab_size", 0, 2**30),
            ("min_frequency", 0, 2**63),
            ("max_token_bytes", 1, 2**32 - 1),
            ("threads", 1, 1024),
            ("pad_to", 1, 2**20),
            ("balance_after", 0, 2**30),
            ("balance_window", 0, 2**30),
            ("superwords", least, self.vocab_size),
            ("max_words", 1, 2**32 - 1),
        ):
            value = getattr(self, name)
            if value is not None and not lowest <= value <= highest:
                raise PlanError(f"{option(name, value)}: expected a whole number from {lowest} to {highest:,}.")
        if self.vocab_size < least and self.start is None:
            raise PlanError(
                f"{option('vocab_size', self.vocab_size)}: the {base} bytes and "
                f"{plural(len(self.special_tokens), 'special token')} alone need {least}. Ask for more, or for fewer "
                "special tokens."
            )
        for field in ("pretokenizer", "superword_pretokenizer"):
            if not isinstance(pretokenizer := getattr(self, field), str | None):
                raise PlanError(f"{option(field, pretokenizer)}: expected the name of a pretokenizer, or a regex.")
            if pretokenizer is not None and (name := resolve_split(pretokenizer)[0]) != "regex":
                object.__setattr__(self, field, name)  # an alias, or the pattern of a named pretokenizer
        if self.bytes and self.pretokenizer not in (None, "none"):
            raise PlanError(
                f"bytes and {option('pretokenizer', self.pretokenizer)}: a pretokenizer needs text. Bytes are "
                f"trained with {option('pretokenizer', 'none')}."
            )
        self._check_stages()
        self._check_groups()
        if not LEAST_MEMORY <= self.memory_bytes < 2**63:
            raise PlanError(
                f"{option('memory', self.memory)}: counting needs at least 64MiB, and no more than there is."
            )

    def _check_stages(self) -> None:
        if self.superwords is None:
            if self.superword_pretokenizer is not None:
                raise PlanError(
                    f"{option('superword_pretokenizer')} is for the second stage: {option('superwords')} begins it."
                )
            return
        if self.bytes or self.alphabet is not None:
            name = "bytes" if self.bytes else "alphabet"
            raise PlanError(f"{option('superwords')} with {option(name)}: words and lines are of text in any alphabet.")
        if self.from_counts or self.save_counts is not None:
            raise PlanError(
                f"{option('superwords')} reads documents: counts of words do not record neighbouring words. Train "
                "the first stage from counts, then go on from it with counts of another pretokenizer: "
                f"{option('start', ...)}, {option('from_counts', ...)}."
            )

    def _check_groups(self) -> None:
        parse_weights(self.weight)
        fields = {parse_grouping(self.balance, "balance")[1], parse_grouping(self.weight_by, "weight_by")[1]}
        if len(fields - {None}) > 1:
            raise PlanError(
                f"{option('balance', self.balance)} and {option('weight_by', self.weight_by)}: two fields. Documents "
                "are read with one field for groups: use the same for both, or folders for one."
            )
        if self.weight_by is not None and not self.weight:
            raise PlanError(f"{option('weight_by')} without {option('weight')}: say what the groups weigh.")
        if isinstance(self.balance_on, PathLike):
            object.__setattr__(self, "balance_on", fspath(self.balance_on))
        for name in ("balance_on", "balance_after", "balance_window"):
            if self.balance is None and getattr(self, name):
                raise PlanError(f"{option(name)} without {option('balance')}: say what the groups are.")
        grouped = option("balance" if self.balance else "weight") if self.balance or self.weight else None
        if grouped and (self.save_counts or self.from_counts):
            raise PlanError(
                f"{grouped} with counts on disk: a counts file does not record which documents words are from. Train "
                "from the documents."
            )
        if grouped and self.superwords is not None:
            raise PlanError(
                f"{grouped} with {option('superwords')}: train the first stage with one, then go on from it with "
                f"{option('start', ...)} and another {option('pretokenizer', ...)}."
            )

    @property
    def two_stages(self) -> bool:
        """Whether tokens of a second stage are wanted."""
        return self.superwords is not None and self.superwords < self.vocab_size

    def _check_integers(self) -> None:
        """Refuse what is about text."""
        of_text = ("pretokenizer", "alphabet", "start", "save_counts", "from_counts", "superwords", "balance", "weight")
        for name in of_text:
            value = getattr(self, name)
            if value not in (None, ()) and (name, value) != ("pretokenizer", "none"):
                raise PlanError(f"integers and {option(name, value)}: {name} is for text. Leave it out.")

    @property
    def memory_bytes(self) -> int:
        return parse_size(self.memory, "memory")

    @property
    def workers(self) -> int:
        """`threads`, or as many as there are cores this process may use."""
        return self.threads or cores()
