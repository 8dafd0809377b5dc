"""What the kernels read: the vocabulary and the pretokenizer as flat arrays. Start with `tables_of`."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill import _core
from piecemill._core import Encoder
from piecemill.errors import TokenizerError
from piecemill.plans import option

SPLITS = ("gpt2", "digits-then-gpt2", "cl100k", "qwen2", "qwen3.5", "o200k", "tekken", "deepseek-v3")
"In the order of `Split` in kernels/splits.h."

NONE = 0xFFFFFFFF
MOST_SYMBOLS = 1 << 20
"An id has 20 bits in the word table."

_FREE = np.uint64(0xFFFFFFFFFFFFFFFF)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SPECIAL = 1
_IN_UTF8 = np.array([byte for byte in range(0xF5) if byte not in (0xC0, 0xC1)], np.uint8)


@dataclass(frozen=True, eq=False)
class Tables:
    """Arrays for the device; the names are those of `Slot` in kernels/encode.cu."""

    split: str
    class_index: NDArray[np.uint8]
    class_blocks: NDArray[np.uint8]
    pairs: NDArray[np.uint64]
    pair_shift: int
    byte_pairs: NDArray[np.uint32]
    symbol_of_byte: NDArray[np.uint32]
    id_of_symbol: NDArray[np.uint32]
    word_bytes: NDArray[np.uint8]
    "Words that encode to one token; those that merges would not make come first."
    word_ends: NDArray[np.uint32]
    word_ids: NDArray[np.uint32]
    must_be_there: int
    "The first of them, this many, must have an entry in the word table."
    added: tuple[tuple[str, int], ...]
    "Texts that are tokens by themselves, with their flags."

    def looked_for(self, special: Any) -> list[bytes]:
        """The added tokens that a call finds in texts, as they are and as they may be after normalizing."""
        wanted = special if not isinstance(special, str) else ()
        texts = [text for text, flags in self.added if not flags & _SPECIAL or special == "parse" or text in wanted]
        return [form.encode() for text in texts for form in dict.fromkeys((text, _core.normalize(text, [("nfc",)])))]


def why_not(build: partial[Encoder]) -> str | None:
    """Why the device cannot do what the encoder of `build` does; None if it can."""
    if build.func is not Encoder.bpe:
        return "the GPU encodes byte-level BPE only"
    split, _ = _core.resolve_split(list(build.keywords["split"]))
    if split not in SPLITS:
        return f"the GPU knows the pretokenizers {', '.join(SPLITS)}; this tokenizer has {split}"
    if list(build.keywords.get("normalizer", ())) not in ([], [("nfc",)]):
        return "the GPU normalizes no texts, and this tokenizer does"
    if build.keywords.get("prefix", "never") != "never":
        return "this tokenizer puts a space before texts, which the GPU does not"
    data, ends, ids = build.args[:3]
    alone = data[ends[np.diff(ends, prepend=0) == 1] - 1]
    if not np.isin(_IN_UTF8, alone).all():
        return "the GPU takes any text, and this vocabulary has no token for some bytes"
    if max(len(ids), int(ids.max(initial=0)) + 1) > MOST_SYMBOLS:
        return f"the GPU takes ids below {MOST_SYMBOLS:,}"
    return None


def tables_of(build: partial[Encoder], encoder: Encoder) -> Tables:
    """The tables of an encoder that `build` has made."""
    split, _ = _core.resolve_split(list(build.keywords["split"]))
    data, ends, ids, halves, itself = encoder.symbols()
    count = len(ids)
    symbols = np.arange(count, dtype=np.uint32)
    starts = np.concatenate([np.zeros(1, np.uint32), ends[:-1]])
    initial = halves[:, 0] == symbols
    symbol_of_byte = np.zeros(256, np.uint32)  # bytes that UTF-8 never has need no symbol
    symbol_of_byte[data[starts[initial]]] = symbols[initial]
    made = symbols[~initial & (halves[:, 0] < count)]
    left, right = halves[made, 0], halves[made, 1]
    pairs, shift = _hashed(left.astype(np.uint64) << np.uint64(20) | right, made)
    byte_pairs = np.full(1 << 16, NONE, np.uint32)
    of_bytes = initial[left] & initial[right]
    byte_pairs[data[starts[left]].astype(np.uint32)[of_bytes] << 8 | data[starts[right]][of_bytes]] = made[of_bytes]
    words = np.concatenate([symbols[~itself], symbols[itself]]) if build.keywords["whole_words"] else symbols[itself]
    changes = 16 if build.keywords.get("normalizer") else 0
    classes = (_core.code_points() & (15 | changes)).reshape(-1, 256)
    blocks, index = np.unique(classes, axis=0, return_inverse=True)
    if len(blocks) > 256:
        raise TokenizerError(
            f"{len(blocks)} different pages of code points; the GPU takes 256. Use {option('engine', 'piecemill')}."
        )
    lengths = (ends - starts)[words].astype(np.int64)
    at = np.repeat(starts[words].astype(np.int64) - np.cumsum(lengths) + lengths, lengths)
    return Tables(
        split=split,
        class_index=index.reshape(-1).astype(np.uint8),
        class_blocks=np.ascontiguousarray(blocks.reshape(-1)),
        pairs=pairs,
        pair_shift=shift,
        byte_pairs=byte_pairs,
        symbol_of_byte=symbol_of_byte,
        id_of_symbol=np.ascontiguousarray(ids),
        word_bytes=np.append(data[at + np.arange(len(at))], np.zeros(16, np.uint8)),
        word_ends=np.cumsum(lengths).astype(np.uint32),
        word_ids=np.ascontiguousarray(ids[words]),
        must_be_there=int((~itself).sum()) if build.keywords["whole_words"] else 0,
        added=tuple((text, flags) for text, _, flags in build.keywords.get("added", ())),
    )


def _hashed(keys: NDArray[np.uint64], symbols: NDArray[np.uint32]) -> tuple[NDArray[np.uint64], int]:
    """An open-addressing table of `key << 20 | symbol`, and by how much a product is shifted to its place."""
    bits = max(10, int(3 * len(keys)).bit_length())
    table = np.full(1 << bits, _FREE, np.uint64)
    entries = keys << np.uint64(20) | symbols
    place = keys * _MULTIPLIER >> np.uint64(64 - bits)
    left = np.arange(len(keys))
    while len(left):
        # Of those that look at a free place, one gets it; all others look at the next.
        free = left[table[place[left]] == _FREE]
        places, first = np.unique(place[free], return_index=True)
        table[places] = entries[free[first]]
        left = left[table[place[left]] != entries[left]]
        place[left] = place[left] + np.uint64(1) & np.uint64(len(table) - 1)
    return table, 64 - bits
