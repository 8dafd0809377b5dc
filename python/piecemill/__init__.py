"""Piecemill turns raw corpora into training batches.

>>> import piecemill as pm
>>> tok = pm.train_bpe(["low lower lowest"] * 10, vocab_size=262, pretokenizer="gpt2")
>>> tok.decode(tok.encode("lower"))
'lower'
"""

from typing import TYPE_CHECKING, Any

from piecemill._core import __version__

if TYPE_CHECKING:
    from piecemill.actions.plan import ActionsPlan
    from piecemill.actions.tokenizer import ActionTokenizer
    from piecemill.actions.training import train_actions
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
    "actions.tokenizer": ("ActionTokenizer",),
    "actions.training": ("train_actions",),
    "actions.plan": ("ActionsPlan",),
    "preparing": ("PreparePlan", "Summary", "prepare"),
    "pretraining": ("PretrainPlan", "PretrainSummary", "pretrain"),
    "reporting.checking": ("check",),
    "reporting.comparing": ("Comparison", "compare"),
    "reporting.describing": ("Description", "describe"),
    "reporting.reports": ("Report", "report"),
    "shards": ("Shards", "open_shards"),
    "shards.export": ("ExportPlan", "export"),
    "tokenizers": ("Tokenizer", "load_tokenizer"),
    "training": ("TrainPlan", "count_words", "train_bpe"),
    "training.pruning": ("Pruned", "prune"),
    "training.wordpiece": ("WordPiecePlan", "train_wordpiece"),
}


def __getattr__(name: str) -> Any:
    for room, names in _ROOMS.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"piecemill.{room}"), name)
    raise AttributeError(f"module 'piecemill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
