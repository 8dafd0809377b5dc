"""Bytes written as printable characters, the way GPT-2 did it.

tokenizer.json is JSON and cannot hold arbitrary bytes, so each of the 256 bytes is mapped to one character:
itself where it is printable in Latin-1, else the next one from U+0100 on. None of them is white space or a
control character.
"""

from itertools import count


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


def characters_of(token: bytes) -> str:
    """`token` with each byte as its character."""
    return "".join([CHARACTERS[byte] for byte in token])


def bytes_of(characters: str) -> bytes | None:
    """The bytes that `characters` stand for; None if one of them stands for no byte."""
    try:
        return characters.translate(_LATIN).encode("latin-1")
    except UnicodeEncodeError:
        return None
