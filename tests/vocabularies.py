"""Vocabularies to test with, trained by HF `tokenizers` on the interpreter's library, and texts that break things."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import tokenizers

from hf import HF, trained
from piecemill._core import resolve_split
from piecemill.tokenizers import Tokenizer

CUSTOM = r"\p{L}+|\p{N}| ?[^\p{L}\p{N}]+"
SPLITS = ("gpt2", "cl100k", "o200k", "none", CUSTOM)
END = "<|endoftext|>"

SCRIPTS = (
    "Привет, как дела? Ελληνικά. עברית שלום. العربية مرحبا ١٢٣. हिन्दी नमस्ते १२३. ไทยสวัสดี. 日本語テキスト、漢字。 "
    "한국어 텍스트. "
    "ქართული Հայերեն አማርኛ ᠮᠣᠩᠭᠣᠯ தமிழ் বাংলা ລາວ မြန်မာ ខ្មែរ ᏣᎳᎩ ᚠᚢᚦ 𐌰𐌱𐌲 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ǅ ŉ ﬁ ß ẞ İı"
)
NASTY = (
    "",
    " ",
    "\n",
    "a",
    SCRIPTS,
    "👩‍🔬👨‍👩‍👧‍👦🏳️‍🌈🇩🇪👍🏽 text 👩🏾‍🚀",
    "".join(map(chr, range(0x00, 0xA1))),
    "\u0301\u0301 \u0301a\u0301 \u20d7\u20d7",
    "e\u0301 \u00e9 \u1e9b\u0323 \u212b \uff21 \u2460",
    "a" * 3000,
    " " * 3000,
    "\n" * 300 + " " * 17 + "x",
    "ab" * 1000 + "é" * 1000 + "漢" * 700,
    "line\r\nline\r\n\r\n  line \r \r\n\t\tend  \n ",
    "trailing   ",
    "   leading",
    "\u00a0\u2003\u3000\u200b\ufeff\u0085\u2028\u2029 x\u00a0y \u1680",
    "I'm you'RE we'Ll it'S 'ſ don'\u212a '' 'tis'd",
    "1234567890 1,000,000.00 ½ ² ٣٤٥٦ Ⅻ",
    f"{END}{END} x{END}y <|endoftext| > <|ENDOFTEXT|> <|endoftext|",
    "<0x41><0x0A><unk><s>▁▁ ▁a Ġthe ĊĊ",
    "\U0010ffff\ue000\ufffd\ufffe\U000e0001",
    "def f(x):\n    return x  # <!-- http://a.b/c?d=e&f=g#h -->\n\n\n\tif a//b != c/d: pass/\n/",
)


@cache
def library_texts(n_files: int = 25) -> tuple[str, ...]:
    files = sorted(Path(os.__file__).parent.glob("*.py"))[:n_files]
    return tuple(file.read_text(encoding="utf-8") for file in files)


@cache
def trained_by_hf(pretokenizer: str, special_tokens: tuple[str, ...] = (END,), vocab_size: int = 2500) -> HF:
    return HF(
        trained(
            repr((pretokenizer, special_tokens, vocab_size)), lambda: _train(pretokenizer, special_tokens, vocab_size)
        )
    )


def _train(pretokenizer: str, special_tokens: tuple[str, ...], vocab_size: int) -> "tokenizers.Tokenizer":
    from tokenizers import decoders, models, pre_tokenizers, trainers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pretokenizer == "gpt2")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if pretokenizer in ("gpt2", "none"):
        tokenizer.pre_tokenizer = byte_level
    else:
        cuts = [pre_tokenizers.Split(tokenizers.Regex(regex), "isolated") for regex in resolve_split(pretokenizer)[1]]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [*library_texts(), SCRIPTS]
    if pretokenizer == "none":  # HF is slow on whole documents, so short ones
        texts = [part for text in texts[:8] for part in text.split("\n\n")] + [SCRIPTS]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@cache
def merges_of(trained: HF) -> np.ndarray:
    model = trained.json["model"]
    pairs = [(model["vocab"][left], model["vocab"][right]) for left, right in model["merges"]]
    return np.array(pairs, np.uint32).reshape(-1, 2)


@cache
def tokenizer(pretokenizer: str, special_tokens: tuple[str, ...] = (END,), vocab_size: int = 2500) -> Tokenizer:
    merges = merges_of(trained_by_hf(pretokenizer, special_tokens, vocab_size))
    return Tokenizer.from_merges(merges, pretokenizer=pretokenizer, special_tokens=special_tokens)


def rows(batch: tuple[np.ndarray, np.ndarray]) -> Sequence[list[int]]:
    ids, ends = batch
    return [part.tolist() for part in np.split(ids, ends[:-1])] if len(ends) else []
