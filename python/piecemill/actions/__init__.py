"""Actions: interactions and items -> vocabularies and batches for generative recommenders.

An item is a set of features, one of each column; a history is the items of one user in order of time.

Start with `read_interactions` and `Items`; then `ActionTokenizer`.
"""

from piecemill.actions.items import Items
from piecemill.actions.tokenizer import ActionTokenizer
from piecemill.actions.vocabulary import ActionVocabulary

__all__ = ["ActionTokenizer", "ActionVocabulary", "Items"]
