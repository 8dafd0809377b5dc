"""The compiled core: its types, and what each function does; `make lint` compares this file with the module."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal, TypeAlias, TypedDict, final, type_check_only

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "HASH_ITEM_BYTES", "HASH_PREFIX_BITS", "ActionSegmenter", "Decoder", "Encoder", "FlatCorpus", "Learned",
    "LearnedActions", "Progress", "TextBuffer", "WordCounter", "WordCounts", "Xxh3", "_Ids", "__version__",
    "bpe_body", "bpe_parts", "bpe_vocabulary", "bytes_seen", "code_points", "count_ids", "cut_text",
    "documents_outside", "extract_lines", "first_match", "first_sequence", "gather_documents", "gather_tokens",
    "gather_windows", "hash_documents", "invalid_documents", "later_copies", "map_file", "normalize", "number_keys",
    "python_set_order", "read_integers", "read_texts", "resolve_split", "sort_hashes", "split_text",
    "split_text_reference", "splits", "take_sequences", "train_actions", "walk_folder", "walk_listing",
    "write_integers",
]  # fmt: skip

__version__: str

@type_check_only
class NamedPretokenizer(TypedDict):
    """A row of the table of pretokenizers; a type only, the core has no such class."""

    name: str
    aliases: tuple[str, ...]
    "Other names for the same."
    patterns: tuple[str, ...]
    """Its regexes, in a form that HF tokenizers reads the same way. Each later one cuts the pieces of the earlier ones
    as if they were whole texts; none means that a text is one pretoken."""
    cuts_at_spaces: bool
    """A text may be cut before a space that follows a visible ASCII character, and before a line feed that follows an
    ASCII letter or digit: the pretokens of the two halves are those of the whole."""

def splits() -> list[NamedPretokenizer]:
    """The named pretokenizers."""

def resolve_split(split: str | Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The name of `split` ("regex" or "sequence" if it has none) and its regexes.

    It is a name or alias in `splits()`, a regex in fancy-regex syntax, or `regex:` and a regex; or a list of these, to
    be applied one after another. What has one of `\\^$|?*+()[]{}` in it is a regex; else it is a name, and a
    PretokenizerError if none has it. A regex that is letter for letter that of a named pretokenizer is that one.
    """

def code_points() -> NDArray[np.uint8]:
    """For each code point the number of its class (`src/pretoken/classes.rs`), and 16 more if NFC may change it."""

def split_text(text: str, split: str | Sequence[str]) -> NDArray[np.int64]:
    """Where each pretoken of `text` ends, in bytes of its UTF-8; the last end is the length of the text.

    `split` is as in `resolve_split`. What a regex matches are pretokens, and so is the text between two matches; an
    empty match only cuts. A regex that does not compile, or that gives up on this text, is a PretokenizerError. Lets go
    of the interpreter.
    """

def split_text_reference(text: str, split: str | Sequence[str]) -> NDArray[np.int64]:
    """As `split_text`, by the regexes that define `split`: the slow twin that `split_text` must equal."""

_Step: TypeAlias = tuple[str, ...]
_AddedToken: TypeAlias = tuple[str, int, int]

@final
class Encoder:
    """One vocabulary, ready to encode. Threads may share it; each thread of a call has a cache of fixed size.

    `added` are text, id and flags of tokens that are found before anything else: 1 special (found only if requested),
    2 normalized (found in the normalized text), 4 single_word, 8 lstrip, 16 rstrip. `normalizer` is a list of steps:
    ("nfc",), ("nfd",), ("nfkc",), ("nfkd",), ("lowercase",), ("strip_accents",), ("prepend", text),
    ("replace", old, new). `prefix` puts a space before the text: "never", "first", "always" (before every stretch
    between added tokens), "first-unless-space" and "always-unless-space" (not where one is already).
    """

    @staticmethod
    def bpe(
        tokens_data: NDArray[np.uint8],
        token_ends: NDArray[np.int64],
        ids: NDArray[np.uint32],
        merges: NDArray[np.uint32] | None,
        *,
        split: Sequence[str],
        whole_words: bool,
        normalizer: Sequence[_Step] = ...,
        added: Sequence[_AddedToken] = ...,
        prefix: str = "never",
        cache_bytes: int = ...,
        instructions: str = "best",
    ) -> Encoder:
        """Byte-level BPE.

        `merges` are pairs of places in `tokens`, best first; None: tokens stand in the order of their ranks, and any
        two neighbours whose concatenation is a token merge. `split` is applied one after another. With `whole_words` a
        pretoken that is a token is that token before any merging. A byte without a token is an error if it occurs.
        """

    def symbols(
        self,
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.bool_]]:
        """The symbols of byte-level BPE: bytes, ends, ids, the two halves of each, and whether its bytes encode to it.

        A symbol of one byte is its own halves; a number past the last symbol: no merge makes it. What merges make comes
        in the order in which they are tried.
        """

    @staticmethod
    def characters(
        tokens_data: NDArray[np.uint8],
        token_ends: NDArray[np.int64],
        ids: NDArray[np.uint32],
        merges: NDArray[np.uint32] | None,
        *,
        byte_ids: NDArray[np.uint32] | None,
        unk: int | None,
        fuse_unk: bool,
        prefix: str,
        normalizer: Sequence[_Step] = ...,
        added: Sequence[_AddedToken] = ...,
        cache_bytes: int = ...,
        instructions: str = "best",
    ) -> Encoder:
        """BPE over characters, as SentencePiece does it; a space in a text is U+2581.

        A character without a token becomes the ids of its bytes, or `unk` without `byte_ids`.
        """

    @staticmethod
    def wordpiece(
        tokens_data: NDArray[np.uint8],
        token_ends: NDArray[np.int64],
        ids: NDArray[np.uint32],
        *,
        unk: int,
        prefix: str,
        max_chars: int,
        clean: bool,
        chinese: bool,
        strip_accents: bool,
        lowercase: bool,
        added: Sequence[_AddedToken] = ...,
        cache_bytes: int = ...,
        instructions: str = "best",
    ) -> Encoder:
        """WordPiece as BERT has it: HF's BertNormalizer, BertPreTokenizer and WordPiece."""

    @property
    def cache_bytes(self) -> int: ...
    @cache_bytes.setter
    def cache_bytes(self, value: int) -> None: ...
    def encode(self, text: str, special: str | Sequence[str]) -> NDArray[np.uint32]:
        """The ids of one text. `special` is "plain", "parse", or the special tokens to parse."""

    def encode_flat(
        self,
        data: NDArray[np.uint8],
        ends: NDArray[np.int64],
        *,
        bos: int | None,
        eos: int | None,
        narrow: bool,
        special: str | Sequence[str],
        threads: int,
    ) -> tuple[NDArray[np.uint32] | NDArray[np.uint16], NDArray[np.int64]]:
        """The ids of all texts with `bos` and `eos` in place, and where each ends; uint16 if `narrow`.

        Checks that the texts are UTF-8. `threads=0` uses all cores. Lets go of the interpreter.
        """

@final
class _Ids:
    """Owns the memory of an array of ids; when the array is garbage, the encoder uses it again."""

@final
class Decoder:
    """Ids to bytes by a table: the bytes of every id, one after another, and where those of each end.

    `first` is what the first id with any bytes gives instead; ids that are `missing` are an error.
    """

    def __new__(
        cls,
        tokens_data: NDArray[np.uint8],
        token_ends: NDArray[np.int64],
        *,
        first: tuple[NDArray[np.uint8], NDArray[np.int64]] | None = None,
        missing: Sequence[int] = ...,
    ) -> Decoder: ...
    def decode(self, ids: ArrayLike) -> bytes:
        """The bytes of a row of ids."""

    def decode_text(self, ids: ArrayLike) -> str:
        """The text of a row of ids; bytes that are not UTF-8 become U+FFFD as in Python's "replace"."""

    def decode_flat(self, ids: ArrayLike, ends: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The bytes of many rows of ids, and where each row ends."""

def normalize(text: str, steps: Sequence[Sequence[str]]) -> str:
    """`text` after the steps of a normalizer: ("nfc",), ("lowercase",), ("replace", old, new), ..."""

@final
class Progress:
    """Counters of a running loop; `stop()` ends it soon after with KeyboardInterrupt."""

    def __new__(cls) -> Progress: ...
    def stop(self) -> None:
        """Ask the loop to end."""
    @property
    def stopped(self) -> bool: ...
    @property
    def merges(self) -> int: ...
    @property
    def occurrences(self) -> int: ...
    @property
    def pair_count(self) -> int: ...
    @property
    def pair(self) -> tuple[int, int]: ...
    @property
    def token(self) -> bytes:
        """The bytes of the token that was made last."""
    @property
    def floor(self) -> int:
        """Below this count the pairs of the present round end and another round begins."""
    @property
    def rounds_begun(self) -> int:
        """Rounds whose lists are being made or are ready."""
    @property
    def rounds_ready(self) -> int:
        """Rounds whose lists are ready."""
    @property
    def round_seconds(self) -> float:
        """Seconds it took to make them."""
    @property
    def pair_weight(self) -> float:
        """Weight of the pair of actions that was merged last."""
    @property
    def visited(self) -> int:
        """Sequences of actions looked at so far; `occurrences` are those that changed."""

@final
class WordCounter:
    """Counts the pretokens of documents, from any number of threads at once."""

    def __new__(cls, split: str | Sequence[str], memory: int, spill_dir: str | PathLike[str]) -> WordCounter: ...
    def add(self, data: NDArray[np.uint8], ends: NDArray[np.int64], tags: NDArray[np.uint16] | None = None) -> None:
        """Count the pretokens of every document in `data`; `ends` has the end of each document, and `tags` its tag.

        Words of documents with different tags are counted apart: each has the two bytes of its tag before it, big end
        first, until `WordCounts.by_group` takes them off.
        """
    def add_counts(self, data: NDArray[np.uint8], ends: NDArray[np.int64], counts: NDArray[np.uint64]) -> None:
        """Add words that were counted elsewhere."""
    def finish(self) -> WordCounts:
        """All counts; the counter is empty afterwards."""
    @property
    def distinct(self) -> int:
        """Distinct words seen so far, counting a word once per thread's table and per spilled run that has it."""
    @property
    def spills(self) -> tuple[int, int]:
        """How often counts were spilled to disk, and the bytes written there."""

@final
class WordCounts:
    """Distinct words and how often each occurred."""

    def __len__(self) -> int: ...
    @property
    def total(self) -> int:
        """Words in all, each as often as it occurred."""
    @property
    def nbytes(self) -> int:
        """Bytes of all distinct words."""
    def by_group(self, tags: Sequence[tuple[int, int]], groups: int) -> list[WordCounts]:
        """The words of each group, where documents had tags: `tags` has the group and the multiplier of each tag."""
    def arrays(self, ties: bool = True) -> tuple[NDArray[np.uint8], NDArray[np.uint64], NDArray[np.uint64]]:
        """Bytes, ends and counts; by falling count, with `ties` equal counts by ascending bytes."""

@final
class FlatCorpus:
    """Whole documents, laid out for merging without any boundary inside them."""

    def __new__(
        cls,
        vocab_size: int,
        min_frequency: int,
        max_token_bytes: int | None,
        special_tokens: Sequence[bytes],
        threads: int = 1,
        start: tuple[Sequence[bytes], Sequence[int], Sequence[int]] | None = None,
        max_words: int | None = None,
    ) -> FlatCorpus:
        """`start` is a vocabulary to go on from: the bytes of each id, and the ids of special tokens and of tokens
        that the merges so far do not make out of their bytes. No merge makes a token of more than `max_words` words:
        runs of bytes without ASCII white space in them."""
    def add(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        """Lay out more documents. Merges do not depend on their order."""
    def add_words(self, words: WordCounts, group: int) -> None:
        """Lay out counted words of a group. Groups come one after another, by their numbers."""
    def add_ids(
        self,
        ids: NDArray[np.uint32],
        ends: NDArray[np.int64],
        counts: NDArray[np.uint64] | None = None,
        group: int | None = None,
    ) -> None:
        """Lay out words of tokens that exist already, and how often each occurred, by falling count (None: once).

        With `group`, they are all words of that group.
        """
    def train(
        self, progress: Progress, balance: tuple[bool, int, int] | None = None, vocab_size: int | None = None
    ) -> Learned:
        """Learn merges, up to a smaller `vocab_size` if that is given; the corpus is used up.

        `balance` chooses each merge for the group that is compressed worst: whether the second half of the groups is a
        development set, by which that is measured; how many merges are chosen over all groups first; and of how many
        merges no group gets more than twice its share, 0 for no such limit.
        """

@final
class Learned:
    """What was learned, and what it cost."""

    @property
    def merges(self) -> NDArray[np.uint32]:
        """Merged pairs of ids, best first: an array of n x 2."""
    @property
    def counts(self) -> NDArray[np.uint64]:
        """The count of each pair when it was merged."""
    @property
    def vocab_size(self) -> int:
        """Entries in the vocabulary."""
    @property
    def full(self) -> bool:
        """Whether the vocabulary has the requested size; if not, no pair was left to merge."""
    @property
    def groups(self) -> list[tuple[int, int]]:
        """Bytes and tokens of each group at the end; none without groups."""
    @property
    def stats(self) -> dict[str, Any]:
        """How merging went: rounds, occurrences, peak_live_pairs, peak_queue, queue_per_mille, peak_places."""

_Listed: TypeAlias = tuple[list[tuple[int, str]], int]
_Bytes: TypeAlias = NDArray[np.uint8]
_Longs: TypeAlias = NDArray[np.int64]
_Documents: TypeAlias = tuple[_Bytes, _Longs, _Longs, int, _Listed]

def walk_folder(
    folder: str | PathLike[str],
    *,
    only: str | None,
    include: Sequence[str],
    exclude: Sequence[str],
    gitignore: bool,
    hidden: bool,
    out: str | PathLike[str] | None = None,
) -> tuple[list[str], list[int], dict[str, int], list[tuple[str, str]], list[int]]:
    """The wanted files under a folder, in order of their paths: paths, sizes, what was left out, what failed, and the
    numbers of the exclude patterns that matched. `out`, relative to the folder, is not looked at."""

def walk_listing(
    paths: Sequence[str],
    sizes: Sequence[int],
    gitignores: Sequence[tuple[str, bytes]],
    *,
    only: str | None,
    include: Sequence[str],
    exclude: Sequence[str],
    gitignore: bool,
    hidden: bool,
    out: str | PathLike[str] | None = None,
) -> tuple[list[str], list[int], dict[str, int], list[tuple[str, str]], list[int]]:
    """As `walk_folder`, over paths and sizes that were listed elsewhere; `gitignores` has (folder, text)."""

def read_texts(paths: Sequence[str], sizes: Sequence[int], named: bool, raw: bool = False) -> tuple[_Documents, int]:
    """Whole text files, or any if `raw`: (data, ends, file numbers, empty, problems), and how many were binary.
    OSError where a file could not be read for a reason that says nothing about the file."""

def number_keys(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    """The group of each number: what `extract_lines` gives for the same number in JSON."""

@final
class TextBuffer:
    """Text that `extract_lines` appends to, and that is taken from its start; `capacity` is what it usually holds."""

    def __new__(cls, capacity: int) -> TextBuffer: ...
    def __len__(self) -> int: ...
    def take(self, size: int) -> _Bytes:
        """The first `size` bytes, without a copy; the others stay."""

def extract_lines(
    lines: _Bytes, text: TextBuffer, field: str, group: str | None = None, integers: bool = False
) -> tuple[tuple[_Longs, _Longs, int, _Listed], int, NDArray[np.uint64], dict[int, str]]:
    """Appends one field of every JSON line to `text`: (ends, line starts, empty, problems), how many line ends there
    were, and, if a field for it is given, the hash of each document's group, and the values that were hashed. With
    `integers`, the field may be an array of them."""

def cut_text(text: bytes, separator: bytes, base: int, last: bool, raw: bool = False) -> tuple[_Documents, int]:
    """The pieces between separators, any bytes if `raw`: (data, ends, starts, empty, problems), and bytes done."""

def take_sequences(
    buffer: bytes, *, fastq: bool, base: int, stop: int | None, last: bool, upper: bool
) -> tuple[_Documents, int, bool]:
    """The letters of FASTA or FASTQ records: (data, ends, starts, empty, problems), bytes done, and whether a record at
    or after byte `stop` was met."""

def first_sequence(buffer: bytes, fastq: bool) -> int | None:
    """Where the first FASTA or FASTQ record after the start of `buffer` starts; None if that cannot be decided yet."""

def write_integers(values: _Longs, ends: _Longs) -> tuple[_Bytes, _Longs]:
    """Documents of integers as text, every number with a space after it, and where each document ends."""

def read_integers(data: _Bytes, ends: _Longs) -> tuple[_Longs, _Longs, list[tuple[int, int]]]:
    """The integers of documents, where each document ends; of those that are something else, the number and where."""

def bytes_seen(data: _Bytes) -> bytes:
    """The bytes that occur in `data`, in order."""

def documents_outside(data: _Bytes, ends: _Longs, allowed: bytes) -> list[tuple[int, int]]:
    """Every document with a byte that is not in `allowed`: its number, and where the first one is in it."""

def invalid_documents(data: _Bytes, ends: _Longs) -> list[tuple[int, int]]:
    """Every document that is not UTF-8: its number, and its first bad byte."""

def hash_documents(data: _Bytes, ends: _Longs) -> NDArray[np.uint64]:
    """The 128-bit xxh3 hash of every document, as rows of (low, high)."""

def count_ids(ids: NDArray[Any], counts: NDArray[np.uint64]) -> None:
    """Add one to `counts[id]` for every id, of type uint16 or uint32; ValueError where one is outside `counts`."""

def gather_documents(data: _Bytes, ends: _Longs, chosen: _Longs) -> tuple[_Bytes, _Longs]:
    """The chosen documents, one after another, and where each ends."""

def gather_tokens(
    ids: NDArray[np.uint32], ends: _Longs, chosen: _Longs, *, bos: int | None, eos: int | None, narrow: bool
) -> tuple[NDArray[Any], _Longs]:
    """The ids of the chosen documents, each between `bos` and `eos`, as uint16 if `narrow`; and where each ends."""

def map_file(path: str | PathLike[str]) -> _Bytes:
    """All bytes of a file, mapped and read-only. No file descriptor stays open, so there may be many."""

def gather_windows(
    tokens: Sequence[NDArray[Any]],
    pieces: _Longs,
    masked: _Longs,
    inputs: NDArray[Any],
    labels: NDArray[Any],
    *,
    pad: int,
) -> None:
    """Fill `inputs` and `labels` (int32 or int64, a row for each window) from pieces of `tokens`.

    A row of `pieces` has four numbers: the row it belongs to, its place in `tokens`, where it begins there, and how
    many tokens it has. A label is the token after its input; the first `masked` labels of a row are -100, and so are
    those of padding. Lets go of the interpreter; may be called from several threads, each with its own rows.
    """

def first_match(patterns: Sequence[str], paths: Sequence[str]) -> NDArray[np.int32]:
    """For each path (from its folder), the number of the first pattern that matches it; -1 for none."""

HASH_PREFIX_BITS: int
"""The first bits of a hash that `sort_hashes` counts by."""

HASH_ITEM_BYTES: int
"""Bytes of one hash in a run."""

def sort_hashes(
    hashes: NDArray[np.uint64],
) -> tuple[NDArray[np.uint32], _Bytes, NDArray[np.uint32]]:
    """The hashes of documents 0, 1, 2, ..., as rows of (low, high): where each prefix starts, the run, the copies.

    The run has `HASH_ITEM_BYTES` for each distinct hash, in their order: high, low, and the number of the first
    document that has it. Copies are the other documents. Hashes with a prefix smaller than n are the first `starts[n]`.
    """

def later_copies(runs: Sequence[_Bytes]) -> tuple[NDArray[np.uint32], _Longs]:
    """The documents whose hash an earlier run has too, run by run and rising; and where those of each run start."""

def train_actions(
    features: NDArray[np.uint32],
    items: NDArray[np.uint32],
    ends: NDArray[np.uint64],
    n_init: int,
    vocab_size: int,
    counts: str,
    arithmetic: str,
    min_pair_weight: float,
    threads: int,
    progress: Progress,
) -> LearnedActions:
    """Learn merges from sequences of items until the vocabulary has `vocab_size` entries or no pair is left.

    `features` has a row of tokens from 1 to `n_init` - 1 for each item, `items` the rows of all sequences one after
    another, `ends` where each sequence ends. `counts` is "published" or "current", `arithmetic` "exact" or "float64".
    Lets go of the interpreter.
    """

def python_set_order(inserted: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The numbers `inserted` as Python iterates over a copy of the set they were added to, one by one."""

@final
class LearnedActions:
    """What was learned, and what it cost."""

    @property
    def merges(self) -> NDArray[np.uint32]:
        """Merged pairs of ids, best first, the smaller id first: an array of n x 2."""
    @property
    def weights(self) -> list[int] | list[float]:
        """The weight of each pair when it was merged: whole numbers over `denominator`, or floats."""
    @property
    def denominator(self) -> int:
        """What weights are to be divided by; 1 for floats."""
    @property
    def touched(self) -> NDArray[np.uint32]:
        """How many sequences each merge changed."""
    @property
    def full(self) -> bool:
        """Whether the vocabulary has the requested size; if not, no pair was left to merge."""
    @property
    def stats(self) -> dict[str, float]:
        """How it went: visited, touched, pairs, queued, peak_queue, listed, count_seconds, merge_seconds."""

_Encoded: TypeAlias = tuple[NDArray[np.uint32], _Longs]
_Vocabulary: TypeAlias = tuple[list[bytes], NDArray[np.uint32], list[int]]

@final
class ActionSegmenter:
    """A vocabulary of actions, ready to encode.

    It takes a table of items (a row of initial tokens each), rows of it, and where each sequence starts and stops among
    these. The interpreter is let go.
    """

    def __new__(cls, first: int, merges: NDArray[np.uint32], priority: NDArray[np.float64]) -> ActionSegmenter: ...
    def encode(
        self,
        table: NDArray[np.uint32],
        items: _Longs,
        starts: _Longs,
        stops: _Longs,
        *,
        way: Literal["given", "weighed"] | tuple[int, int, _Longs],
        threads: int,
    ) -> _Encoded:
        """The tokens of each sequence, and where each ends.

        `way` is how: "given" takes the items as they stand, "weighed" merges by weight, without chance; (seed, epoch,
        rows) puts the features of each item into an order drawn for the two and the row of its sequence.
        """

@final
class Xxh3:
    """The 64-bit xxh3 hash (seed 0) of bytes that come in pieces."""

    def __new__(cls) -> Xxh3: ...
    def update(self, data: _Bytes) -> None:
        """Take in more bytes."""
    def hexdigest(self) -> str:
        """The hash of everything taken in so far, as 16 hexadecimal digits."""

def bpe_parts(content: bytes) -> tuple[str, bytes, bytes] | None:
    """A tokenizer.json without its vocabulary and merges, and these two; None if it is no JSON object with a model."""

def bpe_vocabulary(vocab: bytes, merges: bytes, special: list[tuple[str, int]], partly: bool) -> _Vocabulary | None:
    """Bytes of each id, merges, and reachable ids in the order made; None if that is not plain byte-level BPE."""

def bpe_body(tokens: list[bytes], special: dict[int, str], merges: NDArray[np.uint32]) -> str:
    """Vocabulary and merges as the text of a tokenizer.json; `special` has the texts of special tokens by id."""
