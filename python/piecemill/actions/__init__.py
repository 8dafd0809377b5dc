"""Actions: sequences of items, each a set of features, as tokens for recommender models.

Start with `ActionTokenizer` and `ActionVocabulary`.
"""

from piecemill.actions.vocabulary import ActionVocabulary

__all__ = ["ActionVocabulary"]
