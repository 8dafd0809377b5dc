"""sentencepiece BPE: characters, lines as sentences, its own splits. Other rules, so its merges are not compared."""

import sentencepiece
from protocol import documents, peer, unspaced

# It ends on a longer word: a place in one is 16 bits. Longer documents are several words to it.
LONGEST = 65_000


def train(args):
    if args.split == "none":
        words = map(unspaced, documents(args.corpus))
        lines = (word[at : at + LONGEST] for word in words for at in range(0, len(word), LONGEST))
        splits = {"split_by_unicode_script": False, "split_by_number": False}
    else:
        lines = (line for text in documents(args.corpus) for line in text.split("\n") if line)
        splits = {}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_prefix=str(args.out / "sentencepiece"),
        model_type="bpe",
        vocab_size=args.vocab,
        byte_fallback=True,
        num_threads=args.threads,
        # The closest to the question: keep every character and line as it is, however long.
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        max_sentence_length=1 << 30,
        minloglevel=2,
        **splits,
    )


peer(train, lambda out: [])
