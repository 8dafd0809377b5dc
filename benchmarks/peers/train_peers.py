"""The trainers that `train.py`, `wordpiece.py` and `balance.py` compare.

`train` is the process that is timed: it reads the corpus, trains, saves in the tool's own format, and ends, as a user's
script would. `merges` is not timed, and called by `train.py` itself: it reads what was saved and gives a list of [left,
right] in hex, or of [token] where the tool does not say which parts made it, so that answers can be compared.
"""

import json

from worker import Peer, files, texts, worker

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
    from piecemill.tokenizers.models.byte_level import bytes_of

    return [[bytes_of(part).hex() for part in pair] for pair in pairs]


class Trainer(Peer):
    """One that returns what it `learned` and leaves saving to the user: each merge as its parts, or as the token alone.

    Of a token alone it is not known which two parts made it. Working it out from the earlier tokens was tried and
    dropped: fast-bpe-rs learns tokens that its own earlier tokens do not build.
    """

    promises = "none"  # no order among equal counts; or `hf`: HF's merges, in order; or `other rules`: not comparable
    splits = ("gpt2", "none")
    build_with = ()  # installed first, for tools that build from source with what is there

    def train(self, args):
        saved = [[bytes(part).hex() for part in merge] for merge in self.learned(args)]
        (args.out / "saved.json").write_text(json.dumps(saved))

    def merges(self, out):
        return [merge for merge in json.loads((out / "saved.json").read_text()) if len("".join(merge)) > 2]


class Piecemill(Trainer):
    """The command line is timed; for WordPiece, the Python function. The file is HF's format and read as HF's is."""

    name, promises, splits = "piecemill", "hf", ("gpt2", "none", "cl100k")

    def merges(self, out):
        return in_hex(json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"])

    def train_wordpiece(self, args):
        from piecemill import train_wordpiece

        train_wordpiece(args.corpus, vocab_size=args.vocab, special_tokens=args.special).save(args.out)


class Tokenizers(Piecemill):
    """Hugging Face `tokenizers`: the order of merges the others are compared with."""

    name, version, splits = "tokenizers", "0.23.3", Trainer.splits

    def bpe(self, use_regex=True):
        from tokenizers import Tokenizer, models, pre_tokenizers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
        return tokenizer, {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}

    def train(self, args):
        from tokenizers import trainers

        tokenizer, how = self.bpe(use_regex=args.split == "gpt2")
        # Not `train(files)`: that cuts documents into lines, so a run of whitespace never crosses a line end.
        tokenizer.train_from_iterator(texts(args.corpus), trainers.BpeTrainer(vocab_size=args.vocab, **how))
        tokenizer.save(str(args.out / "tokenizer.json"))

    def train_wordpiece(self, args):
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer, tokenizer.decoder = normalizers.BertNormalizer(), decoders.WordPiece()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=args.vocab, special_tokens=args.special, show_progress=False)
        tokenizer.train_from_iterator(texts(args.corpus), trainer)
        tokenizer.save(str(args.out / "tokenizer.json"))

    def train_balanced(self, args):
        """A target rate of 1 for each group means bytes per token."""
        from tokenizers import trainers

        groups = {}
        with args.corpus.open(encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                groups.setdefault(line["group"], []).append(line["text"])
        tokenizer, how = self.bpe()
        given = [iter(groups[name]) for name in sorted(groups)]
        trainer = trainers.ParityBpeTrainer(num_merges=args.vocab - 256, **how)
        trainer.train_from_iterator(tokenizer, given, ratio=[1.0] * len(groups))
        tokenizer.save(str(args.out / "tokenizer.json"))


class Gigatoken(Trainer):
    """Promises HF's order of merges. It has one pretokenizer for training, GPT-2's."""

    name, version, promises, splits = "gigatoken", "0.10.0", "hf", ("gpt2",)

    def learned(self, args):
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

    def merges(self, out):
        lines = (out / "merges.txt").read_text(encoding="utf-8").split("\n")
        return in_hex(line.split(" ")[:2] for line in lines if line and not line.startswith("#version"))


class Rustbpe(Trainer):
    name, version = "rustbpe", "0.1.0"

    def learned(self, args):
        import rustbpe

        tokenizer = rustbpe.Tokenizer()
        tokenizer.train_from_iterator(texts(args.corpus), args.vocab, pattern=pattern(args))
        return ([token] for token, _ in sorted(tokenizer.get_mergeable_ranks(), key=lambda entry: entry[1]))


class FastBpeRs(Trainer):
    name, version = "fast-bpe-rs", "0.6.1"

    def learned(self, args):
        from fast_bpe_rs import BPE

        bpe = BPE(pattern(args))
        bpe.train(args.vocab, list(texts(args.corpus)))
        # It can neither save nor list what it learned; decoding each id gives the tokens in order.
        return ([bpe.decode([rank])] for rank in range(args.vocab))


class QuickBPE(Trainer):
    """Re-Pair in C over one flat array."""

    name, version, build_with = "quickbpe", "2.1", ("numpy", "regex", "setuptools", "wheel")

    def learned(self, args):
        import numpy as np
        from QuickBPE import RegexTokenizerFast
        from QuickBPE.fastfuncs.funcs import trainFast

        def whole(text):  # a document as one word, in the form `presplit` gives: ids, and a 0 after each word
            return np.frombuffer(text.encode() + b"\0", dtype=np.uint8).astype(np.int32)

        # Document by document, because its own `train` takes one string and would join words across documents.
        split = whole if args.split == "none" else RegexTokenizerFast(GPT2).presplit
        merges, vocab = trainFast(np.concatenate([split(text) for text in texts(args.corpus)]), args.vocab)
        return [(vocab[a], vocab[b]) for a, b in sorted(merges, key=merges.__getitem__)]


class Bpeasy(Trainer):
    name, version = "bpeasy", "0.1.6"

    def learned(self, args):
        import bpeasy

        vocab = bpeasy.train_bpe(texts(args.corpus), pattern(args), 2**31, args.vocab)
        return ([token] for token in sorted(vocab, key=vocab.__getitem__))


class OverCharacters(Trainer):
    promises = "other rules"

    def merges(self, out):
        return []


class YouTokenToMe(OverCharacters):
    """BPE between white space."""

    name, version, build_with = "youtokentome", "1.0.6", ("cython", "setuptools", "wheel")

    def train(self, args):
        import youtokentome

        # It reads one text file only, so making that file is part of using it.
        path, model, given = args.out / "corpus.txt", str(args.out / "yttm.model"), texts(args.corpus)
        with path.open("w", encoding="utf-8", newline="") as handle:
            handle.writelines((unspaced(text) + "\n" for text in given) if args.split == "none" else given)
        youtokentome.BPE.train(str(path), model, vocab_size=args.vocab, coverage=1.0, n_threads=args.threads)
        path.unlink()


class SentencePiece(OverCharacters):
    """BPE over lines as sentences, with its own pretokenizer."""

    name, version = "sentencepiece", "0.2.2"
    # It ends on a longer word: a place in one is 16 bits. Longer documents are several words to it.
    LONGEST = 65_000

    def train(self, args):
        import sentencepiece

        as_it_is = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "character_coverage": 1.0}
        how = {"model_type": "bpe", "byte_fallback": True, "max_sentence_length": 1 << 30, "minloglevel": 2, **as_it_is}
        if args.split == "none":
            words = map(unspaced, texts(args.corpus))
            lines = (word[at : at + self.LONGEST] for word in words for at in range(0, len(word), self.LONGEST))
            how |= {"split_by_unicode_script": False, "split_by_number": False}
        else:
            lines = (line for text in texts(args.corpus) for line in text.split("\n") if line)
        made = {"model_prefix": str(args.out / "sentencepiece"), "vocab_size": args.vocab, "num_threads": args.threads}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, **made, **how)


if __name__ == "__main__":
    worker(Trainer.tools)
