"""Texts that are hard for an encoder of words: every script, odd borders, words at the limits of tables, huge words."""

import random

ALPHABETS = (
    "aaasStTlLvVeErRdDmM''''  \n\n\r\t\u00a0\u3000123४٣/!.-\u0301\u0300\u05d0你好ǅʰſéÉñЖж🎉\u200d\u2028",
    "'sStTrReEvVlLmMdD xX",
    "\r\n \t",
    "0123456789 ٣४½²",
    "👩‍👩‍👧‍👦🏽🎉❤️🇩🇪 a",
    "\u0301\u0300\u0483\u20dd\u093e aZ!",
    "\x00\x01\x02\x7f\x1b\x85\ufeff\ufffd\u200b a",
    "你好世界，。 的a",
    "абвгд АБВ ё'с",
    "/\n\r!/. a'S",
    "   \u00a0\u2003\u202f\n",
    "def return(self):_=+-*\n    ",
)
WORDS = ("the", "don", "Hello", "WORLD", "camelCase", "x1", "2024", "naïve", "Straße", "你好", "🎉")
# Where a word stops to fit: in the table, in the lists of a kernel, in a tile, on the device at all.
LIMITS = (
    14,
    15,
    16,
    17,
    31,
    32,
    33,
    34,
    63,
    64,
    65,
    66,
    127,
    128,
    129,
    511,
    512,
    513,
    700,
    1023,
    1024,
    1025,
    2049,
    4096,
)
RUNS = ("a", " ", "\n", "!", "1", "\t", "é", "你", "\u0301", "'s", "ab", "aB", "A", " \n", "-=", "🎉")
HUGE = (
    *("a" * 60_000, " " * 50_000, "1" * 70_000, "ab" * 30_000, "\n" * 40_000 + "x", " " * 30_000 + "x"),
    *("!" * 20_000, "é" * 20_000, "\r\n" * 9_999 + " a"),
)


def adversarial(size: int, seed: int = 3) -> list[bytes]:
    """Documents of at least `size` bytes in all, in a random order."""
    rng = random.Random(seed)
    texts = ["", " ", "\n", "a", "'", "'s", "\r\n", "\u3000", "''", *HUGE]
    texts += ["".join(rng.choices("acgt", k=50_000)), "".join(rng.choices("的一是不了人我在", k=20_000))]
    for limit in LIMITS:
        for run in RUNS:
            word = (run * limit)[:limit]
            texts += [word, f"x{word} y", f" {word}z\n"]
        for letters in ("abcdefghijklmnopqrstuvwxyz", "的一是不了人我在有他这为之大来", "()[]{}<>!@#$%^&*"):
            texts += ["".join(rng.choices(letters, k=limit)) for _ in range(6)]
    documents = [text.encode() for text in texts]
    left = size - sum(map(len, documents))
    while left > 0:
        documents.append(_random(rng).encode())
        left -= len(documents[-1])
    rng.shuffle(documents)
    return documents


def _random(rng: random.Random) -> str:
    length, kind = rng.choice([0, 1, 2, 3, 5, 8, 20, 60, 200, 1000]), rng.random()
    if kind < 0.75:
        letters = rng.choice(ALPHABETS)
        some = rng.sample(letters, min(len(letters), rng.randint(1, 6))) if rng.random() < 0.5 else letters
        return "".join(rng.choices(some, k=length))
    if kind < 0.9:
        points = (rng.randrange(rng.choice([0x80, 0x800, 0x10000, 0x110000])) for _ in range(length))
        return "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)
    return "".join(rng.choice([" ", "\n", "'", ".", ""]) + rng.choice(WORDS) for _ in range(length))
