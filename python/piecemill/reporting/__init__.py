"""Reporting: what is there, is it whole, which tokenizer is better, and a page about it all.

`describe` gives the facts of anything that Piecemill writes, `check` compares it with what was written, `compare` has
several tokenizers encode the same corpus, and `report` writes one HTML page with the facts of all of these.
"""

from piecemill.reporting.checking import check
from piecemill.reporting.comparing import Comparison, compare
from piecemill.reporting.describing import Description, describe
from piecemill.reporting.reports import Report, report

__all__ = ["Comparison", "Description", "Report", "check", "compare", "describe", "report"]
