"""Actions: interactions and items -> vocabularies and batches for generative recommenders.

An item is a set of features, one of each column; a history is the items of one user in order of time.

Start with `read_interactions` and `make_items`; then `ActionTokenizer`, and `action_batches`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from piecemill.actions.batches import action_batches
    from piecemill.actions.coding import code_like
    from piecemill.actions.features import make_items
    from piecemill.actions.histories import Histories, LeaveOutSplit, k_core, leave_out, max_items, show_report
    from piecemill.actions.interactions import read_interactions
    from piecemill.actions.items import Items
    from piecemill.actions.plan import ActionsPlan, FeaturesPlan
    from piecemill.actions.shards import open_action_shards, write_action_shards
    from piecemill.actions.tokenizer import ActionTokenizer
    from piecemill.actions.training import train_actions
    from piecemill.actions.vocabulary import ActionVocabulary

__all__ = [
    "ActionTokenizer",
    "ActionVocabulary",
    "ActionsPlan",
    "FeaturesPlan",
    "Histories",
    "Items",
    "LeaveOutSplit",
    "action_batches",
    "code_like",
    "k_core",
    "leave_out",
    "make_items",
    "max_items",
    "open_action_shards",
    "read_interactions",
    "show_report",
    "train_actions",
    "write_action_shards",
]

# Imported when first used, as in `piecemill`: the command line needs only the plans.
_FILES = {
    "ActionTokenizer": "tokenizer",
    "ActionVocabulary": "vocabulary",
    "ActionsPlan": "plan",
    "FeaturesPlan": "plan",
    "Items": "items",
    "action_batches": "batches",
    "code_like": "coding",
    "make_items": "features",
    "open_action_shards": "shards",
    "read_interactions": "interactions",
    "train_actions": "training",
    "write_action_shards": "shards",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f"piecemill.actions.{_FILES.get(name, 'histories')}"), name)
    raise AttributeError(f"module 'piecemill.actions' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
