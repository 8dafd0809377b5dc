"""Reporting: what is there, is it whole, which tokenizer is better, and a page about it all.

`describe` gives the facts of anything that Piecemill writes, `check` compares it with what was written, `compare` has
several tokenizers encode the same corpus.
"""

from piecemill.reporting.checking import check
from piecemill.reporting.compare import Comparison, compare
from piecemill.reporting.describe import Description, describe

__all__ = ["Comparison", "Description", "check", "compare", "describe"]
