"""Small tokenizers of every kind, trained on the interpreter's own library, and the texts to compare them on."""

import io
from functools import cache
from pathlib import Path

import sentencepiece
import tokenizers

from hf import TRAINERS, trained
from vocabularies import NASTY, library_texts

SCRIPTS = Path(__file__).with_name("scripts.txt").read_text(encoding="utf-8").split("\n")
TEXTS = [*NASTY, *SCRIPTS, *library_texts(8), "<s> a</s>b <unk> [SEP] [CLS]x"]


AS_IT_IS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
"As Llama and Mistral have it; only such models are encoded by Piecemill itself."

if TRAINERS:
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers


@cache
def sentencepiece_model(model_type: str = "bpe", **options: object) -> bytes:
    lines = [line for text in library_texts(12) for line in text.split("\n") if line.strip()] + SCRIPTS
    made = io.BytesIO()
    settings: dict[str, object] = {
        "vocab_size": 1500,
        "character_coverage": 0.99,
        "byte_fallback": model_type == "bpe",
        "hard_vocab_limit": False,
        "num_threads": 1,
        "minloglevel": 2,
        "model_type": model_type,
    }
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=made, **(settings | options))
    return made.getvalue()


def _word_piece() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=1200, special_tokens=special, show_progress=False)
    made.train_from_iterator([*library_texts(6), *SCRIPTS], trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", made.token_to_id("[CLS]")), ("[SEP]", 3)]
    )
    made.enable_truncation(16)
    return made


def _unigram() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=2500, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator([*library_texts(3), *SCRIPTS], trainer)
    return made


def _bpe_with_digits() -> tokenizers.Tokenizer:
    """Digits one at a time, before cl100k."""
    steps = [
        pre_tokenizers.Split(tokenizers.Regex(CL100K), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([*library_texts(8), *SCRIPTS, "1234567890 " * 50], trainer)
    # After training, which learned numbers of three digits: now they must not be used.
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), *steps])
    return made


def tokenizer_json(name: str) -> str:
    """A tokenizer.json: word_piece, unigram or bpe_with_digits."""
    makers = {"word_piece": _word_piece, "unigram": _unigram, "bpe_with_digits": _bpe_with_digits}
    return trained(f"models.{name}", makers[name])


CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TIKTOKEN_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
"How tiktoken 0.14 spells cl100k_base."
