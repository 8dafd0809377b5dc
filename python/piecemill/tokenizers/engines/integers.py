"""Encoding integers with the encoder of characters: each integer of the vocabulary is a character of four bytes."""

from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from piecemill._core import Encoder, __version__, read_integers
from piecemill.errors import TokenizerError
from piecemill.tokenizers.engines import Encoded, EncodeOptions, Parse
from piecemill.tokenizers.models.integers import IntegerBPE
from piecemill.tokenizers.texts import flat_tokens, flatten

_FIRST = 0x10000
"The first code point of four bytes; there are 2**20 of them."
_DENSE = 1 << 22
"Largest range of integers that has a table."


class IntegerEngine:
    """One vocabulary of integers, ready to encode; threads may share it."""

    name = "piecemill"
    why = ""
    version = __version__

    def __init__(self, model: IntegerBPE) -> None:
        self._values = model.values
        special = len(model.first)
        spelled = characters(np.arange(len(model.values)))
        tokens = [one.tobytes() for one in spelled]
        self._spelled = spelled.reshape(-1).view(np.uint32)
        low, high = int(model.values[0]), int(model.values[-1])
        self._table: NDArray[np.uint32] | None = None
        if high - low < _DENSE:  # a look-up takes less time than a search
            self._table = np.zeros(high - low + 1, np.uint32)
            self._table[model.values - low] = self._spelled
        for left, right in model.merges.tolist():
            tokens.append(tokens[left - special] + tokens[right - special])
        ids = np.arange(special, special + len(tokens), dtype=np.uint32)
        self.encoder = Encoder.characters(
            *(*flat_tokens(tokens), ids, model.merges - np.uint32(special)),
            byte_ids=None,
            unk=0,
            fuse_unk=False,
            prefix="never",
        )

    def encode(self, text: str, special: Parse) -> NDArray[np.uint32]:
        data, ends = flatten([text])
        ids, _ = self.encode_flat(data, ends, bos=None, eos=None, narrow=False, special=special, threads=1)
        return ids.astype(np.uint32, copy=False)

    def encode_flat(
        self, data: NDArray[np.uint8], ends: NDArray[np.int64], **options: Unpack[EncodeOptions]
    ) -> Encoded:
        values, value_ends, problems = read_integers(data, ends)
        if problems:
            number, at = problems[0]
            raise TokenizerError(f"texts[{number}]: byte {at:,} begins no integer; expected integers of 64 bits.")
        text = self._characters(values)
        if not text.all():
            at = int((text == 0).argmax())
            number = int(np.searchsorted(value_ends, at, side="right"))
            raise TokenizerError(
                f"texts[{number}]: {values[at]} is not one of the {len(self._values):,} integers of this vocabulary."
            )
        options["special"] = "plain"
        return self.encoder.encode_flat(text.view(np.uint8), 4 * value_ends, **options)

    def _characters(self, values: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The four bytes of each integer's character; 0 if it is not in the vocabulary."""
        low, high = self._values[0], self._values[-1]
        if self._table is None:
            places = np.minimum(np.searchsorted(self._values, values), len(self._values) - 1)
            return np.where(self._values[places] == values, self._spelled[places], np.uint32(0))
        inside = (values >= low) & (values <= high)
        if inside.all():
            found: NDArray[np.uint32] = self._table[values - low]
            return found
        return np.where(inside, self._table[np.where(inside, values, low) - low], np.uint32(0))


def characters(places: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The UTF-8 of the character of each integer, by its place in the vocabulary: rows of four bytes."""
    points = places + _FIRST
    made = np.empty((len(points), 4), np.uint8)
    for at, (shift, mark) in enumerate(((18, 0xF0), (12, 0x80), (6, 0x80), (0, 0x80))):
        made[:, at] = mark | (points >> shift & 0x3F)
    return made
