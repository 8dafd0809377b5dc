"""Training: corpora -> vocabularies.

`train_bpe` runs the stages (count words, or load whole documents; then merge) and returns a `Tokenizer`; `TrainPlan`
holds the options. `pruning` takes tokens away from a tokenizer, and `wordpiece` trains vocabularies for BERT. Action
sequences are trained in `actions`, which uses the stages and the time estimate of this package. Nothing here knows how
files are read.

Start with `train_bpe`.
"""

from piecemill.training.bpe import count_words, train_bpe
from piecemill.training.plan import TrainPlan
from piecemill.training.result import Counted

__all__ = ["Counted", "TrainPlan", "count_words", "train_bpe"]
