"""Piecemill turns raw corpora into training batches.

>>> import piecemill as pm
>>> tok = pm.train_bpe(["low lower lowest"] * 10, vocab_size=262, pretokenizer="gpt2")
>>> tok.decode(tok.encode("lower"))
'lower'
"""

from typing import TYPE_CHECKING, Any

from piecemill._core import __version__

if TYPE_CHECKING:
    from piecemill.actions.tokenizer import ActionTokenizer
    from piecemill.actions.training import train_actions
    from piecemill.actions.training_plan import ActionsPlan
    from piecemill.preparing import PreparePlan, Summary, prepare
    from piecemill.pretraining import PretrainPlan, PretrainSummary, pretrain
    from piecemill.reporting.checking import check
    from piecemill.reporting.comparing import Comparison, compare
    from piecemill.reporting.describing import Description, describe
    from piecemill.reporting.reports import Report, report
    from piecemill.shards import Shards, open_shards
    from piecemill.shards.export import ExportPlan, export
    from piecemill.tokenizers import Tokenizer, load_tokenizer
    from piecemill.training import TrainPlan, count_words, train_bpe
    from piecemill.training.pruning import Pruned, prune
    from piecemill.training.wordpiece import WordPiecePlan, train_wordpiece

__all__ = [
    "ActionTokenizer",
    "ActionsPlan",
    "Comparison",
    "Description",
    "ExportPlan",
    "PreparePlan",
    "PretrainPlan",
    "PretrainSummary",
    "Pruned",
    "Report",
    "Shards",
    "Summary",
    "Tokenizer",
    "TrainPlan",
    "WordPiecePlan",
    "__version__",
    "check",
    "compare",
    "count_words",
    "describe",
    "export",
    "load_tokenizer",
    "open_shards",
    "prepare",
    "pretrain",
    "prune",
    "report",
    "train_actions",
    "train_bpe",
    "train_wordpiece",
]

# Verbs are imported when first used: `import piecemill` costs nothing, and a loader never pays for a trainer.
_ROOMS = {
    "ActionTokenizer": "piecemill.actions.tokenizer",
    "ActionsPlan": "piecemill.actions.training_plan",
    "train_actions": "piecemill.actions.training",
    "Comparison": "piecemill.reporting.comparing",
    "Description": "piecemill.reporting.describing",
    "Report": "piecemill.reporting.reports",
    "compare": "piecemill.reporting.comparing",
    "report": "piecemill.reporting.reports",
    "check": "piecemill.reporting.checking",
    "describe": "piecemill.reporting.describing",
    "ExportPlan": "piecemill.shards.export",
    "export": "piecemill.shards.export",
    "Shards": "piecemill.shards",
    "open_shards": "piecemill.shards",
    "PreparePlan": "piecemill.preparing",
    "Summary": "piecemill.preparing",
    "prepare": "piecemill.preparing",
    "PretrainPlan": "piecemill.pretraining",
    "PretrainSummary": "piecemill.pretraining",
    "pretrain": "piecemill.pretraining",
    "Tokenizer": "piecemill.tokenizers",
    "load_tokenizer": "piecemill.tokenizers",
    "TrainPlan": "piecemill.training",
    "count_words": "piecemill.training",
    "train_bpe": "piecemill.training",
    "Pruned": "piecemill.training.pruning",
    "prune": "piecemill.training.pruning",
    "WordPiecePlan": "piecemill.training.wordpiece",
    "train_wordpiece": "piecemill.training.wordpiece",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        from importlib import import_module

        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module 'piecemill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
