"""Tokenizers: text to token ids and back.

A `Tokenizer` holds a vocabulary and knows its files; an engine (one file each) does the encoding. Importing
this room, building a tokenizer from merges and saving it need numpy and nothing heavier: an engine is
imported when the first text is encoded.

Start with `Tokenizer` and `load_tokenizer`.
"""

from piecemill.tokenizers.loading import load_tokenizer
from piecemill.tokenizers.tokenizer import Tokenizer

__all__ = ["Tokenizer", "load_tokenizer"]
