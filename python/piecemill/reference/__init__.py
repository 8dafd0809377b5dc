"""The definitions: slow, plain versions that every fast path must equal."""

from piecemill.reference import actions, bpe, segments, wordpiece

__all__ = ["actions", "bpe", "segments", "wordpiece"]
