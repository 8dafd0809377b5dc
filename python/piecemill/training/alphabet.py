"""What vocabularies begin with that have no tokens for all 256 bytes: for some bytes only, or for integers.

DNA needs four of the 256. Training counts and merges all 256 bytes. Bytes that do not occur take part in no pair, so
leaving them out afterwards and numbering the rest in the same order gives exactly what training on the smaller alphabet
would give.
"""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill import _core
from piecemill.errors import PlanError
from piecemill.integers import LIMIT
from piecemill.plans import option
from piecemill.sizes import plural
from piecemill.tokenizers.models.byte_level import BYTE_ORDER
from piecemill.training.plan import AUTO, TrainPlan, alphabet_bytes


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What was learned, with the ids of the smaller vocabulary; as `_core.Learned`."""

    merges: NDArray[np.uint32]
    vocab_size: int
    full: bool
    stats: dict[str, Any]
    groups: list[tuple[int, int]]


class Alphabet:
    """The bytes that have tokens: those that were requested, or those that were seen."""

    def __init__(self, asked: str) -> None:
        self.allowed = None if asked == AUTO else alphabet_bytes(asked)
        self._seen: set[int] = set()
        self._lock = threading.Lock()

    def add_bytes(self, data: NDArray[np.uint8]) -> None:
        """Record the bytes in `data`; from any thread. The source has already checked a requested alphabet."""
        if self.allowed is None:
            seen = _core.bytes_seen(data)
            with self._lock:
                self._seen.update(seen)

    @property
    def bytes(self) -> bytes:
        """In ascending order."""
        return bytes(sorted(self._seen)) if self.allowed is None else self.allowed

    def check_words(self, words: NDArray[np.uint8]) -> None:
        """PlanError if words that were counted earlier have other bytes than were requested."""
        self.add_bytes(words)
        strange = set(_core.bytes_seen(words)) - set(self.bytes)
        if strange:
            raise PlanError(
                f"{option('from_counts')}: the words have byte 0x{min(strange):02x} ({chr(min(strange))!r}), which is "
                f"not in {option('alphabet', self.bytes.decode('utf-8', 'replace'))}. Add it, or ask for {AUTO}."
            )

    def size_of_all(self, vocab_size: int, special: int) -> int:
        """The size with all 256 bytes that comes to `vocab_size` with those of the alphabet."""
        base = len(self.bytes)
        if vocab_size < base + special:
            raise PlanError(
                f"{option('vocab_size', vocab_size)}: the {base} bytes of the alphabet and "
                f"{plural(special, 'special token')} alone need {base + special}. Ask for more."
            )
        return vocab_size + 256 - base

    def narrowed(self, learned: _core.Learned, special: int) -> Narrowed:
        """The same merges without ids for other bytes."""
        known = self.bytes
        ids = np.arange(learned.vocab_size, dtype=np.uint32)
        ids[special : special + 256] = special + np.cumsum([0, *(byte in known for byte in BYTE_ORDER)])[:-1]
        ids[special + 256 :] -= 256 - len(known)
        size = learned.vocab_size - 256 + len(known)
        return Narrowed(ids[learned.merges], size, learned.full, learned.stats, learned.groups)


class IntegerCorpus:
    """Documents of integers that were read, held as arrays: 8 bytes for an integer, besides what merging takes.

    The base vocabulary is the distinct integers of the corpus, which are only known when all of it was read.
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._lock = threading.Lock()

    def add(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        """Take in documents as text; from any thread, in any order."""
        values, value_ends, _ = _core.read_integers(data, ends)  # the source has checked them
        with self._lock:
            self._blocks.append((values, value_ends))

    def ready(self, plan: TrainPlan) -> tuple[NDArray[np.int64], _core.FlatCorpus]:
        """The distinct integers in ascending order, and the corpus laid out for merging. The documents are used up."""
        values = np.unique(np.concatenate([np.unique(block) for block, _ in self._blocks]))
        special = len(plan.special_tokens)
        if len(values) > LIMIT:
            raise PlanError(
                f"{option('integers')}: the corpus has {len(values):,} different integers; expected at most {LIMIT:,}. "
                "Map rare ones to one value first."
            )
        if plan.vocab_size < special + len(values):
            raise PlanError(
                f"{option('vocab_size', plan.vocab_size)}: the {len(values):,} different integers of the corpus and "
                f"{plural(special, 'special token')} alone need {special + len(values):,}. Ask for more."
            )
        tokens = [b""] * special + [b"%d " % value for value in values.tolist()]
        limits = (plan.vocab_size, plan.min_frequency, plan.max_token_bytes, ())
        flat = _core.FlatCorpus(*limits, threads=plan.workers, start=(tokens, [], []))
        while self._blocks:
            block, ends = self._blocks.pop()
            flat.add_ids((np.searchsorted(values, block) + special).astype(np.uint32), ends)
        return values, flat
