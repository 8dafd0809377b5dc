"""Hugging Face `tokenizers`: the order of merges the others are compared with."""

from protocol import documents, merges_of_tokenizer_json, peer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def train(args):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=args.split == "gpt2")
    trainer = trainers.BpeTrainer(
        vocab_size=args.vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    # Not `train(files)`: that cuts documents into lines, so a run of whitespace never crosses a line end.
    tokenizer.train_from_iterator(documents(args.corpus), trainer)
    tokenizer.save(str(args.out / "tokenizer.json"))


peer(train, lambda out: merges_of_tokenizer_json(out / "tokenizer.json"))
