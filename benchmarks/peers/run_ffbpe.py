"""ffbpe, asked for HF's alphabet and ties."""

from ffbpe import BpeTrainer, PreTokenizer
from protocol import GPT2, byte_of_letter, documents, peer


def train(args):
    trainer = BpeTrainer([], initial_alphabet="byte_level", tie_break="smallest_pair_id")
    if args.split == "none":
        trainer.add_words([(text, 1) for text in documents(args.corpus)])
    else:
        counter = PreTokenizer([], pat_str=GPT2).word_counter()
        counter.add_source(documents(args.corpus))
        trainer.add_word_counter(counter)
    trainer.train(args.vocab)
    trainer.validate_model().save_files(args.out / "vocab.json", args.out / "merges.txt", format="gpt2")


def merges(out):
    letters = byte_of_letter()
    found = []
    for line in (out / "merges.txt").read_text(encoding="utf-8").split("\n"):
        if line and not line.startswith("#version"):
            left, right = line.split(" ")[:2]
            found.append((bytes(letters[c] for c in left), bytes(letters[c] for c in right)))
    return found


peer(train, merges)
