"""Training: corpora -> vocabularies.

`train_bpe` runs the stages (count or lay out, merge) and gives a `Tokenizer`; `TrainPlan` says what to learn.
Sequences of actions have a room of their own, `actions`, which uses the stages and the time left from here.
Nothing here knows how a tokenizer encodes or how files are read.

Start with `train_bpe`.
"""

from piecemill.training.bpe import count_words, train_bpe
from piecemill.training.plan import TrainPlan
from piecemill.training.result import Counted

__all__ = ["Counted", "TrainPlan", "count_words", "train_bpe"]
