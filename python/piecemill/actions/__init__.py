"""Actions: interactions and items -> vocabularies and batches for generative recommenders.

An item is a set of features, one of each column; a history is the items of one user in order of time.

Start with `read_interactions` and `make_items`; then `ActionTokenizer`.
"""

from piecemill.actions.features import FeaturesPlan, make_items
from piecemill.actions.histories import Histories, Split, k_core, leave_out, max_items, show_report
from piecemill.actions.interactions import read_interactions
from piecemill.actions.items import Items
from piecemill.actions.tokenizer import ActionTokenizer
from piecemill.actions.vocabulary import ActionVocabulary

__all__ = [
    "ActionTokenizer",
    "ActionVocabulary",
    "FeaturesPlan",
    "Histories",
    "Items",
    "Split",
    "k_core",
    "leave_out",
    "make_items",
    "max_items",
    "read_interactions",
    "show_report",
]
