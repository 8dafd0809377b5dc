"""Reporting: what is there, is it whole, which tokenizer is better, and a page about it all.

`describe` gives the facts of anything that Piecemill writes, `check` compares it with what was written.
"""

from piecemill.reporting.checking import check
from piecemill.reporting.describe import Description, describe

__all__ = ["Description", "check", "describe"]
