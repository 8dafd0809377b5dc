"""The trainers that `train.py`, `wordpiece.py` and `balance.py` compare.

`train` is the process that is timed: it reads the corpus, trains, saves in the tool's own format, and ends, as a user's
script would. `merges` is not timed: it reads what was saved and gives a list of [left, right] in hex, or of [token]
where the tool does not say which parts made it, so that answers can be compared.
"""

import json

from worker import Peer, byte_letters, files, texts, train_sentencepiece, worker

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WHOLE = r"(?s).+"  # takes any document whole, for the tools that must have a pattern
_UNSPACED = {number: 0xE000 + at for at, number in enumerate(n for n in range(0x3001) if chr(n).isspace())}


def pattern(args):
    return WHOLE if args.split == "none" else GPT2


def unspaced(text):
    """The text with other characters for white space, one for one: a single word to tools that always cut there."""
    return text.translate(_UNSPACED)


def in_hex(pairs):
    """Merges of stand-in letters."""
    letters = {letter: byte for byte, letter in byte_letters().items()}
    return [[bytes(letters[c] for c in part).hex() for part in pair] for pair in pairs]


class Trainer(Peer):
    promises = "none"  # or `hf`: the merges must be HF's, in order; or `other rules`: not comparable
    splits = ("gpt2", "none")
    build_with = ()  # installed first, for tools that build from source with what is there

    def merges(self, args):
        return []


class Piecemill(Trainer):
    """The command line is timed; for WordPiece, the Python function. The file is HF's format and read as HF's is."""

    name, promises, splits = "piecemill", "hf", ("gpt2", "none", "cl100k")

    def merges(self, args):
        pairs = json.loads((args.out / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
        # Written as ["a", "b"] today and as "a b" by older versions; the stand-in letters contain no space.
        return in_hex([pair.split(" ") if isinstance(pair, str) else pair for pair in pairs])

    def train_wordpiece(self, args):
        from piecemill import train_wordpiece

        train_wordpiece(args.corpus, vocab_size=args.vocab, special_tokens=args.special).save(args.out)


class Tokenizers(Piecemill):
    """Hugging Face `tokenizers`: the order of merges the others are compared with."""

    name, version, splits = "tokenizers", "0.23.3", Trainer.splits

    def train(self, args):
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        tokenizer, alphabet = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel.alphabet()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=args.split == "gpt2")
        trainer = trainers.BpeTrainer(vocab_size=args.vocab, initial_alphabet=alphabet, show_progress=False)
        # Not `train(files)`: that cuts documents into lines, so a run of whitespace never crosses a line end.
        tokenizer.train_from_iterator(texts(args.corpus), trainer)
        tokenizer.save(str(args.out / "tokenizer.json"))

    def train_wordpiece(self, args):
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=args.vocab, special_tokens=args.special, show_progress=False)
        tokenizer.train_from_iterator(texts(args.corpus), trainer)
        tokenizer.save(str(args.out / "tokenizer.json"))

    def train_balanced(self, args):
        """A target rate of 1 for each group means bytes per token."""
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        groups = {}
        with args.corpus.open(encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                groups.setdefault(line["group"], []).append(line["text"])
        tokenizer, alphabet = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel.alphabet()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.ParityBpeTrainer(num_merges=args.vocab - 256, show_progress=False, initial_alphabet=alphabet)
        given = [iter(groups[name]) for name in sorted(groups)]
        trainer.train_from_iterator(tokenizer, given, ratio=[1.0] * len(groups))
        tokenizer.save(str(args.out / "tokenizer.json"))


class SavesPairs(Trainer):
    """Returns its merges and leaves saving to the user."""

    def train(self, args):
        pairs = [(left.hex(), right.hex()) for left, right in self.pairs(args)]
        (args.out / "saved.json").write_text(json.dumps(pairs))

    def merges(self, args):
        return json.loads((args.out / "saved.json").read_text())


class SavesTokens(Trainer):
    """Keeps ranks only; its own order among equal counts, so no equality is claimed.

    Which two parts made a token is not known then. Working it out from the earlier tokens was tried and dropped:
    fast-bpe-rs learns tokens that its own earlier tokens do not build.
    """

    def train(self, args):
        (args.out / "tokens.txt").write_text("\n".join(bytes(token).hex() for token in self.tokens(args)))

    def merges(self, args):
        return [[token] for token in (args.out / "tokens.txt").read_text().split("\n") if len(token) > 2]


class Gigatoken(SavesPairs):
    """Promises HF's order of merges. It has one pretokenizer for training, GPT-2's."""

    name, version, promises, splits = "gigatoken", "0.10.0", "hf", ("gpt2",)

    def pairs(self, args):
        from gigatoken import JsonlFileSource, TextFileSource, train_bpe

        source = TextFileSource(files(args.corpus)) if args.corpus.is_dir() else JsonlFileSource([args.corpus])
        return train_bpe(source, args.vocab, [], tie_breaking="huggingface")[1]


class Ffbpe(Trainer):
    """Asked for HF's alphabet and ties."""

    name, version, promises = "ffbpe", "0.1.10", "hf"

    def train(self, args):
        from ffbpe import BpeTrainer, PreTokenizer

        trainer = BpeTrainer([], initial_alphabet="byte_level", tie_break="smallest_pair_id")
        if args.split == "none":
            trainer.add_words([(text, 1) for text in texts(args.corpus)])
        else:
            counter = PreTokenizer([], pat_str=GPT2).word_counter()
            counter.add_source(texts(args.corpus))
            trainer.add_word_counter(counter)
        trainer.train(args.vocab)
        trainer.validate_model().save_files(args.out / "vocab.json", args.out / "merges.txt", format="gpt2")

    def merges(self, args):
        lines = (args.out / "merges.txt").read_text(encoding="utf-8").split("\n")
        return in_hex(line.split(" ")[:2] for line in lines if line and not line.startswith("#version"))


class Rustbpe(SavesTokens):
    name, version = "rustbpe", "0.1.0"

    def tokens(self, args):
        import rustbpe

        tokenizer = rustbpe.Tokenizer()
        tokenizer.train_from_iterator(texts(args.corpus), args.vocab, pattern=pattern(args))
        return (token for token, _ in sorted(tokenizer.get_mergeable_ranks(), key=lambda entry: entry[1]))


class FastBpeRs(SavesTokens):
    name, version = "fast-bpe-rs", "0.6.1"

    def tokens(self, args):
        from fast_bpe_rs import BPE

        bpe = BPE(pattern(args))
        bpe.train(args.vocab, list(texts(args.corpus)))
        # It can neither save nor list what it learned; decoding each id gives the tokens in order.
        return (bpe.decode([rank]) for rank in range(args.vocab))


class QuickBPE(SavesPairs):
    """Re-Pair in C over one flat array; its own order among equal counts, so no equality is claimed."""

    name, version, build_with = "quickbpe", "2.1", ("numpy", "regex", "setuptools", "wheel")

    def pairs(self, args):
        import numpy as np
        from QuickBPE import RegexTokenizerFast
        from QuickBPE.fastfuncs.funcs import trainFast

        def whole(text):  # a document as one word, in the form `presplit` gives: ids, and a 0 after each word
            return np.frombuffer(text.encode() + b"\0", dtype=np.uint8).astype(np.int32)

        # Document by document, because its own `train` takes one string and would join words across documents.
        split = whole if args.split == "none" else RegexTokenizerFast(GPT2).presplit
        merges, vocab = trainFast(np.concatenate([split(text) for text in texts(args.corpus)]), args.vocab)
        return [(vocab[a], vocab[b]) for a, b in sorted(merges, key=merges.__getitem__)]


class Bpeasy(SavesTokens):
    name, version = "bpeasy", "0.1.6"

    def tokens(self, args):
        import bpeasy

        vocab = bpeasy.train_bpe(texts(args.corpus), pattern(args), 2**31, args.vocab)
        return sorted(vocab, key=vocab.__getitem__)


class YouTokenToMe(Trainer):
    """BPE over characters between white space."""

    name, version, promises = "youtokentome", "1.0.6", "other rules"
    build_with = ("cython", "setuptools", "wheel")

    def train(self, args):
        import youtokentome

        # It reads one text file only, so making that file is part of using it.
        path, model = args.out / "corpus.txt", str(args.out / "yttm.model")
        given = texts(args.corpus)
        with path.open("w", encoding="utf-8", newline="") as handle:
            handle.writelines((unspaced(text) + "\n" for text in given) if args.split == "none" else given)
        youtokentome.BPE.train(str(path), model, vocab_size=args.vocab, coverage=1.0, n_threads=args.threads)
        path.unlink()


class SentencePiece(Trainer):
    """BPE over characters, lines as sentences, its own pretokenizer."""

    name, version, promises = "sentencepiece", "0.2.2", "other rules"
    # It ends on a longer word: a place in one is 16 bits. Longer documents are several words to it.
    LONGEST = 65_000

    def train(self, args):
        more = {"num_threads": args.threads, "max_sentence_length": 1 << 30}
        if args.split == "none":
            words = map(unspaced, texts(args.corpus))
            lines = (word[at : at + self.LONGEST] for word in words for at in range(0, len(word), self.LONGEST))
            more |= {"split_by_unicode_script": False, "split_by_number": False}
        else:
            lines = (line for text in texts(args.corpus) for line in text.split("\n") if line)
        train_sentencepiece(lines, str(args.out / "sentencepiece"), args.vocab, **more)


if __name__ == "__main__":
    worker(Trainer.tools)
