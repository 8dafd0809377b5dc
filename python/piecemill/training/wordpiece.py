"""Documents -> a WordPiece vocabulary, as BERT has it.

The rules are those of HF `tokenizers`' WordPieceTrainer, whose plain version is `reference/wordpiece.py`: merges by
count, as in BPE, over characters instead of bytes, and a character that continues a word is another symbol (`##a`) than
one that starts it (`a`).

```
documents ─▶ raw words, counted ─▶ symbols of each: normalized, cut, spelled in characters ─▶ merges ─▶ vocabulary
```

Raw words are cut around punctuation and white space of ASCII, where a text can be cut without changing its encoding
(src/encode/wordpiece has the proof). The encoder itself, with a vocabulary of single characters, normalizes, cuts and
spells each distinct raw word. Merging is that of `train_bpe`, with the symbols as the tokens that it starts from.

One rule differs. HF numbers the symbols that continue words in the order of a hash map, which is another one in every
process, and ties go to the smaller id; which of equally frequent characters stay at the limit of the alphabet is as
random. Here symbols are numbered by code point, and the smaller code points stay.
"""

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, fields
from functools import partial
from json.encoder import encode_basestring as quoted
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Never

import numpy as np
from numpy.typing import NDArray

from piecemill import _core
from piecemill.errors import PlanError
from piecemill.executors import Executor, open_executor
from piecemill.plans import FROM_PLAN, checked, did_you_mean, option, with_keywords
from piecemill.sources.options import SourceOptions
from piecemill.tokenizers import Tokenizer
from piecemill.tokenizers.models.config import DEFAULT_CONFIG, TOKENIZER_CONFIG, with_roles
from piecemill.tokenizers.models.tokenizer_json import TokenizerJson
from piecemill.tokenizers.models.writing import added_token
from piecemill.tokenizers.texts import flat_tokens
from piecemill.training.bpe import OnProgress, Run
from piecemill.training.plan import TrainPlan

RAW_WORDS = r"[^ \t\n\r!-/:-@\[-`{-~]+"
PREFIX = "##"
UNK = "[UNK]"
ROLES = {"pad": "[PAD]", "unk": UNK, "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_START = b" "
"Before the bytes of a symbol that starts a word, so that the bytes of two symbols, joined, are those of their merge."
_WORTH_THREADS = 1 << 22
"Fewer symbols in distinct words are merged by one thread."


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class WordPiecePlan(SourceOptions):
    """How documents become a WordPiece vocabulary."""

    vocab_size: int = 30_522
    "Entries in the vocabulary: special tokens, each character as the start of a word and inside one, and merges."

    lowercase: bool = True
    "Convert letters to lower case before words are counted, and when texts are encoded."

    strip_accents: bool | None = None
    "Remove accents from letters; default: as lowercase."

    limit_alphabet: int | None = None
    "Keep at most this many characters, the most frequent ones; words with others are unknown. Default: all."

    special_tokens: tuple[str, ...] = tuple(ROLES.values())
    "Tokens with the first ids, in this order; [UNK] must be one of them. Flags add to the default."

    min_frequency: int = 0
    "Pairs that occur less often are not merged."

    threads: int | None = None
    "Threads that read, count and merge; default: one per core. The result does not depend on it."

    memory: str = "2GiB"
    "Memory for counting words. Beyond it counts go to disk (TMPDIR); the result does not depend on it."

    save_counts: Path | None = None
    "Also write the words and their counts to this Parquet file, to merge and train from later."

    from_counts: tuple[Path, ...] = ()
    "Train from counts saved by this command earlier, on this machine or others, instead of documents."

    def __post_init__(self) -> None:
        if self.bytes or self.integers:
            raise PlanError(f"{option('bytes' if self.bytes else 'integers')}: WordPiece is learned from text only.")
        SourceOptions.__post_init__(self)
        _ = self.counting
        for name in ("vocab_size", "limit_alphabet"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 2**30:
                raise PlanError(f"{option(name, value)}: expected a whole number from 1 to {2**30:,}.")
        for name in ("lowercase", "strip_accents"):
            if type(value := getattr(self, name)) is int and value in (0, 1):  # tokenizer.json has them as they are
                object.__setattr__(self, name, bool(value))

    @property
    def counting(self) -> TrainPlan:
        """The plan by which words are counted."""
        names = (field.name for field in fields(SourceOptions))
        return TrainPlan(
            **{name: getattr(self, name) for name in names},
            vocab_size=2**30,
            pretokenizer=RAW_WORDS,
            special_tokens=self.special_tokens,
            min_frequency=self.min_frequency,
            threads=self.threads,
            memory=self.memory,
            save_counts=self.save_counts,
            from_counts=self.from_counts,
        )


@did_you_mean
def train_wordpiece(
    source: object = None,
    *,
    plan: WordPiecePlan | None = None,
    on_progress: OnProgress | None = None,
    force: bool = False,
    executor: str | Executor | futures.Executor = "local",
    ray_address: str | None = None,
    field: str = FROM_PLAN,
    separator: str | None = FROM_PLAN,
    include: Sequence[str] = FROM_PLAN,
    exclude: Sequence[str] = FROM_PLAN,
    gitignore: bool = FROM_PLAN,
    hidden: bool = FROM_PLAN,
    max_file_bytes: int | str = FROM_PLAN,
    on_bad_document: Literal["stop", "skip"] = FROM_PLAN,
    bytes: bool = FROM_PLAN,
    integers: bool = FROM_PLAN,
    upper: bool = FROM_PLAN,
    storage_option: Sequence[str] = FROM_PLAN,
    vocab_size: int = FROM_PLAN,
    lowercase: bool = FROM_PLAN,
    strip_accents: bool | None = FROM_PLAN,
    limit_alphabet: int | None = FROM_PLAN,
    special_tokens: Sequence[str] = FROM_PLAN,
    min_frequency: int = FROM_PLAN,
    threads: int | None = FROM_PLAN,
    memory: int | str = FROM_PLAN,
    save_counts: str | PathLike[str] | None = FROM_PLAN,
    from_counts: Sequence[str | PathLike[str]] = FROM_PLAN,
    **unknown: Never,
) -> Tokenizer:
    """Learn a WordPiece vocabulary from `source`, for models like BERT; the same for any number of threads.

    Texts are normalized and cut as by `BertNormalizer` and `BertPreTokenizer`: words end at white space and around
    punctuation and ideographs; lower case and accents are options. Keywords from `field` on are the fields of
    `WordPiecePlan`; `source`, `force` and `executor` are as in `train_bpe`.

    >>> tok = train_wordpiece(["Low, lower, lowest"] * 10, vocab_size=24)
    >>> [tok.decode([i]) for i in tok.encode("Lower!")]
    ['lower', '[UNK]']
    """
    plan = with_keywords(plan, WordPiecePlan, locals(), unknown)
    if UNK not in plan.special_tokens:
        raise PlanError(f"special_tokens={plan.special_tokens!r:.80}: {UNK} is missing, the token of unknown words.")
    opened = open_executor(executor, ray_address=ray_address)
    run = _WordPieceRun(plan.counting, on_progress or (lambda _: None), force=force, executor=opened)
    return run.learn(source, plan)


class _WordPieceRun(Run):
    """One training run, with the reading, counting and progress of `train_bpe`."""

    def learn(self, source: object, plan: WordPiecePlan) -> Tokenizer:
        (counted,) = self.count(source)
        data, ends, counts = counted.arrays()
        with self.stages.stage("segment"):
            spell = partial(spelled, data, ends, counts, plan, self.plan.workers)
            words = self.stages.watch(spell, self.progress)
            del data, ends, counts
            initial = Initial.of(words, plan)
            corpus = initial.corpus(words, plan, self.plan.workers)
        learned = self._merge(lambda: corpus.train(self.progress), len(initial.tokens), plan.vocab_size)
        record = self._record(learned)
        own = plan.stored() | {name: record["plan"][name] for name in ("save_counts", "from_counts")}
        record["plan"] = {**record["plan"], "model": "wordpiece", **own}
        return Tokenizer(_model(initial.vocabulary(learned.merges.tolist()), plan, record))


@dataclass(frozen=True, slots=True)
class WordSymbols:
    """Distinct words in symbols."""

    alphabet: list[str]
    "Characters, among which are all that occur, by code point."
    symbols: NDArray[Any]
    "Of all words: the place of a character in the alphabet; for one that continues a word, after the whole alphabet."
    counts: NDArray[np.uint64]
    "How often the word of each symbol occurred, in descending order."


def spelled(
    data: NDArray[np.uint8], ends: NDArray[Any], counts: NDArray[np.uint64], plan: WordPiecePlan, threads: int
) -> WordSymbols:
    """Raw words as the encoder normalizes and cuts them."""
    seen = set(data.tobytes().decode())
    known = {small for c in seen for part in (c, *unicodedata.normalize("NFD", c)) for small in (part, *part.lower())}
    for every in (False, True):
        alphabet = [chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000] if every else sorted(known)
        unknown = 2 * len(alphabet)
        tokens = flat_tokens([*(c.encode() for c in alphabet), *(f"{PREFIX}{c}".encode() for c in alphabet)])
        encoder = _core.Encoder.wordpiece(
            *(*tokens, np.arange(unknown, dtype=np.uint32)),
            unk=unknown,
            prefix=PREFIX,
            max_chars=1 << 28,  # the most that the encoder takes
            clean=True,
            chinese=True,
            strip_accents=plan.lowercase if plan.strip_accents is None else plan.strip_accents,
            lowercase=plan.lowercase,
        )
        symbols, symbol_ends = encoder.encode_flat(
            data, ends.astype(np.int64), bos=None, eos=None, narrow=False, special="plain", threads=threads
        )
        if not (symbols == unknown).any():
            break
        # Python's tables of Unicode are older than those of the core: try again with every code point.
    return WordSymbols(alphabet, symbols, np.repeat(counts, np.diff(symbol_ends, prepend=0)))


@dataclass(frozen=True, slots=True)
class Initial:
    """The entries before the first merge: special tokens, characters that start words, those that continue them."""

    tokens: list[str]
    special: int
    "How many of them are special."
    ids: NDArray[np.int64]
    "The id of each symbol; -1 for those that are left out of their words, as HF does with rare characters."

    @classmethod
    def of(cls, words: WordSymbols, plan: WordPiecePlan, order: Callable[[str], Any] = str) -> "Initial":
        """By the plan; symbols that continue words in the order of code points, or another one."""
        size = len(words.alphabet)
        counts = np.zeros(2 * size, np.uint64)
        np.add.at(counts, words.symbols, words.counts)
        inside = {c for c, count in zip(words.alphabet, counts[size:].tolist(), strict=True) if count}
        total = zip((counts[:size] + counts[size:]).tolist(), words.alphabet, strict=True)
        ranked = sorted((-count, c) for count, c in total if count)
        tokens = list(plan.special_tokens)
        ids = {text: i for i, text in enumerate(tokens)}
        kept = {*(c for _, c in ranked[: plan.limit_alphabet]), *(c for _, c in ranked if c in ids)}
        for text in (*sorted(kept), *(PREFIX + c for c in sorted(kept & inside, key=order))):
            if ids.setdefault(text, len(tokens)) == len(tokens):
                tokens.append(text)
        if len(tokens) > plan.vocab_size:
            raise PlanError(
                f"{option('vocab_size', plan.vocab_size)}: {len(plan.special_tokens)} special tokens and "
                f"{len(kept):,} characters, at the start of words and inside, need {len(tokens):,}. Ask for more, "
                f"or for the most frequent characters only: {option('limit_alphabet', max(1, plan.vocab_size // 5))}."
            )
        found = [
            ids[prefix + c] if c in kept and prefix + c in ids else -1
            for prefix in ("", PREFIX)
            for c in words.alphabet
        ]
        return cls(tokens, len(plan.special_tokens), np.array(found, np.int64))

    def corpus(self, words: WordSymbols, plan: WordPiecePlan, threads: int) -> _core.FlatCorpus:
        """The words as ids, to be merged."""
        ids, number = self.ids[words.symbols], np.cumsum(words.symbols < len(words.alphabet))
        kept = ids >= 0
        ids, number, counts = ids[kept], number[kept], words.counts[kept]
        last = np.flatnonzero(np.diff(number, append=-1))
        corpus = _core.FlatCorpus(
            plan.vocab_size,
            plan.min_frequency,
            None,
            (),
            threads=threads if len(ids) >= _WORTH_THREADS else 1,
            start=([_bytes_of(text) for text in self.tokens], list(range(self.special)), []),
        )
        corpus.add_ids(ids.astype(np.uint32), last + 1, counts[last])
        return corpus

    def vocabulary(self, merges: Sequence[Sequence[int]]) -> list[str]:
        """All entries, by id."""
        tokens = list(self.tokens)
        special = set(tokens[: self.special])
        for left, right in merges:
            text = tokens[left] + tokens[right].removeprefix(PREFIX)
            tokens += [text] * (text not in special)
        return tokens


def _bytes_of(text: str) -> bytes:
    return text[len(PREFIX) :].encode() if text.startswith(PREFIX) else _START + text.encode()


def _model(tokens: Sequence[str], plan: WordPiecePlan, training: Mapping[str, Any]) -> TokenizerJson:
    """The files: tokenizer.json, vocab.txt, and what transformers reads."""
    special = {text: i for i, text in enumerate(plan.special_tokens)}
    roles = {role: text for role, text in ROLES.items() if text in special}
    post_processor = None
    if {"[CLS]", "[SEP]"} <= special.keys():
        texts = [{"Sequence": {"id": "AB"[at], "type_id": at}} for at in (0, 1)]
        cls, *ends = [
            {"SpecialToken": {"id": text, "type_id": at}} for text, at in (("[CLS]", 0), ("[SEP]", 0), ("[SEP]", 1))
        ]
        post_processor = {
            "type": "TemplateProcessing",
            "single": [cls, texts[0], ends[0]],
            "pair": [cls, texts[0], ends[0], texts[1], ends[1]],
            "special_tokens": {
                text: {"id": text, "ids": [special[text]], "tokens": [text]} for text in ("[CLS]", "[SEP]")
            },
        }
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(text, i) for text, i in special.items()],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": plan.strip_accents,
            "lowercase": plan.lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": post_processor,
        "decoder": {"type": "WordPiece", "prefix": PREFIX, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": PREFIX,
            "max_input_chars_per_word": 100,
        },
    }
    vocab = ",\n".join([f"{quoted(text)}:{i}" for i, text in enumerate(tokens)])  # one a line, for `diff`
    content = f'{json.dumps(data, ensure_ascii=False)[:-2]}, "vocab": {{\n{vocab}\n}}}}}}\n'
    config = {
        **DEFAULT_CONFIG,
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": plan.lowercase,
        "strip_accents": plan.strip_accents,
        "tokenize_chinese_chars": True,
    }
    beside = {
        TOKENIZER_CONFIG: with_roles(config, roles, special),
        "vocab.txt": "".join(f"{text}\n" for text in tokens).encode(),
    }
    return TokenizerJson(content.encode(), Path("tokenizer.json"), beside, training)
