"""Bytes written as printable characters, the way GPT-2 did it.

tokenizer.json is JSON and cannot hold arbitrary bytes, so each of the 256 bytes has a character of its own:
itself where it is printable in Latin-1, else the next one from U+0100 on. None of them is white space or a
control character.
"""

from itertools import accumulate, count, pairwise

import numpy as np


def _characters() -> tuple[str, ...]:
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    stand_in = count(0x100)
    return tuple(chr(byte if byte in printable else next(stand_in)) for byte in range(256))


CHARACTERS = _characters()
"The character of each byte."

BYTE_ORDER = tuple(sorted(range(256), key=CHARACTERS.__getitem__))
"All bytes in the order of their characters; trained vocabularies list them so, as HF `tokenizers` does."

# Every character that stands for a byte becomes the Latin-1 character of that byte; any other one, none of Latin-1.
_LATIN = dict.fromkeys(range(256), "\uffff") | {ord(one): byte for byte, one in enumerate(CHARACTERS)}

_BYTES = np.full(0x200, 256, np.uint16)  # by character, of which those of bytes come first; 256 for any other
_BYTES[[ord(one) for one in CHARACTERS]] = range(256)


def characters_of(token: bytes) -> str:
    """`token` with each byte as its character."""
    return "".join([CHARACTERS[byte] for byte in token])


def bytes_of(characters: str) -> bytes | None:
    """The bytes that `characters` stand for; None if one of them stands for no byte."""
    try:
        return characters.translate(_LATIN).encode("latin-1")
    except UnicodeEncodeError:
        return None


def bytes_of_all(texts: list[str]) -> list[bytes | None]:
    """`bytes_of` for each text, in a tenth of the time: a byte has one character, so all can be looked up together."""
    places = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    found = _BYTES[np.minimum(places, len(_BYTES) - 1)]
    if found.size and found.max() > 255:
        return [bytes_of(text) for text in texts]
    data = found.astype(np.uint8).tobytes()
    return [data[start:end] for start, end in pairwise(accumulate(map(len, texts), initial=0))]
