"""Piecemill turns raw corpora into training batches."""

from piecemill._core import __version__

__all__ = ["__version__"]
