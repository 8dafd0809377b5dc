"""The definitions: slow, plain versions that every fast path must equal."""

from piecemill.reference import bpe, segments

__all__ = ["bpe", "segments"]
