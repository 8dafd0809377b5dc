"""Tokenizers: text to token ids and back.

A `Tokenizer` holds a model (the vocabulary and its files, as data) and an engine, which encodes. Importing this
package, building a tokenizer from merges and saving it only need numpy: an engine is imported when the first text is
encoded.

Start with `Tokenizer` and `load_tokenizer`; `verify` compares an engine with the library a tokenizer comes from.
"""

from piecemill.tokenizers.loading import load_tokenizer
from piecemill.tokenizers.special import resolve_bos, resolve_eos
from piecemill.tokenizers.tokenizer import Tokenizer
from piecemill.tokenizers.verify import verify

__all__ = ["Tokenizer", "load_tokenizer", "resolve_bos", "resolve_eos", "verify"]
