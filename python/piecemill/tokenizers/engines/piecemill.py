"""Encoding with Piecemill's own encoder, `_core.Encoder`: byte-level BPE, SentencePiece BPE and WordPiece.

Here each model becomes the arrays and options of the encoder, or a reason why it is left to its home library.
Byte-level BPE with a named pretokenizer is exact by test, in whatever file it comes. Everything else is compared with
the home library on the nasty strings when it is loaded (see `choose`).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np

from piecemill._core import Encoder, __version__
from piecemill.tokenizers.engines.integers import IntegerEngine
from piecemill.tokenizers.engines.json_settings import Left, encoder_of_json, has_named_pretokenizer
from piecemill.tokenizers.models.byte_bpe import ByteBPE
from piecemill.tokenizers.models.integers import IntegerBPE
from piecemill.tokenizers.models.ranks import Ranks
from piecemill.tokenizers.models.sentencepiece import SPACE, PieceType, SentencePiece, VocabularyPiece
from piecemill.tokenizers.models.tokenizer_json import TokenizerJson
from piecemill.tokenizers.pretokenizers import NAMED, name_of, specs_of
from piecemill.tokenizers.texts import flat_tokens

name = "piecemill"
reads = (ByteBPE, IntegerBPE, Ranks, TokenizerJson, SentencePiece)

AnyModel = ByteBPE | Ranks | TokenizerJson | SentencePiece
Build = partial[Encoder]

_SPECIAL = 1
"Flag of an added token: only found where special tokens are parsed."

_found: "WeakKeyDictionary[AnyModel, Build | str]" = WeakKeyDictionary()
"What reading each model came to, from `can_encode` to `load`."


def can_encode(model: AnyModel | IntegerBPE) -> str | None:
    """Why the model is left to its home library; None if it is not."""
    if isinstance(model, IntegerBPE):
        return None
    found = _read(model)
    return found if isinstance(found, str) else None


def exact(model: AnyModel | IntegerBPE) -> bool:
    """Whether tests prove its ids equal to the home library's: byte-level BPE, named pretokenizer (or `none`)."""
    if isinstance(model, IntegerBPE):
        return True
    if isinstance(model, ByteBPE | Ranks):
        return name_of(model.pattern) in NAMED
    return isinstance(model, TokenizerJson) and has_named_pretokenizer(model)


def load(model: AnyModel | IntegerBPE) -> "PiecemillEngine | IntegerEngine":
    """The engine, its tables built."""
    return IntegerEngine(model) if isinstance(model, IntegerBPE) else PiecemillEngine(build_of(model)())


def build_of(model: AnyModel) -> Build:
    """What makes the encoder, once; `Left` says why nothing does."""
    found = _read(model)
    _found.pop(model, None)  # the arrays will be in the encoder
    if isinstance(found, str):
        raise Left(found)
    return found


class PiecemillEngine:
    """One `_core.Encoder`; threads may share it."""

    name = name
    why = ""
    version = __version__

    def __init__(self, encoder: Encoder) -> None:
        # The encoder's own methods: a call for one short text takes about a microsecond, a wrapper would double it.
        self.encode = encoder.encode
        self.encode_flat = encoder.encode_flat
        self.encoder = encoder


def _read(model: AnyModel) -> Build | str:
    if model not in _found:
        try:
            _found[model] = _build(model)
        except Left as left:
            _found[model] = str(left)
    return _found[model]


def _build(model: AnyModel) -> Build:
    if isinstance(model, ByteBPE):
        return _byte_bpe(model)
    if isinstance(model, Ranks):
        return _ranks(model)
    if isinstance(model, SentencePiece):
        return _sentencepiece(model)
    return encoder_of_json(model)


def _byte_bpe(model: ByteBPE) -> Build:
    vocabulary = model.vocabulary
    # Only what ordinary text can reach: a special token may have the bytes of a learned one.
    ids = np.array(vocabulary.ranked, np.uint32)
    place = np.zeros(len(vocabulary.tokens), np.uint32)
    place[ids] = np.arange(len(ids), dtype=np.uint32)
    tokens = flat_tokens(vocabulary.tokens[i] for i in vocabulary.ranked)
    merges = place[vocabulary.merges]
    return partial(
        Encoder.bpe,
        *(*tokens, ids, merges),
        split=specs_of(model.pattern),
        whole_words=False,
        added=_special(model.special_tokens.items()),
    )


def _ranks(model: Ranks) -> Build:
    ranked = sorted(model.ranks.items(), key=lambda item: item[1])
    return partial(
        Encoder.bpe,
        *(*flat_tokens(token for token, _ in ranked), np.array([rank for _, rank in ranked], np.uint32), None),
        split=specs_of(model.pattern),
        whole_words=True,
        added=_special(model.special_tokens.items()),
    )


def _special(tokens: Iterable[tuple[str, int]]) -> list[tuple[str, int, int]]:
    return [(text, i, _SPECIAL) for text, i in tokens]


def _sentencepiece(model: SentencePiece) -> Build:
    read = model.read
    if read.model_type != "BPE":
        raise Left(f"Piecemill has no encoder for {read.model_type} models")
    if read.charsmap:
        raise Left("this model replaces characters before encoding (nmt_nfkc and the like)")
    if read.extra_spaces:
        raise Left("this model removes extra spaces before encoding")
    if not read.plain_spaces:
        raise Left("this model does not write spaces as U+2581 at the start of words")
    of_type: dict[PieceType, list[int]] = {kind: [] for kind in PieceType}
    for i, piece in enumerate(read.pieces):
        of_type[piece.type].append(i)
    if of_type[PieceType.UNUSED]:
        raise Left(f"piece {read.pieces[of_type[PieceType.UNUSED][0]].text!r} is marked as unused")
    added = _user_defined(model, of_type[PieceType.USER_DEFINED])
    ranked = _by_score([(i, read.pieces[i]) for i in of_type[PieceType.NORMAL]])
    byte_ids = {int(read.pieces[i].text[3:5], 16): i for i in of_type[PieceType.BYTE]}
    if read.byte_fallback and len(byte_ids) < 256:
        raise Left("this model has byte fallback, but not all 256 byte pieces")
    unknown = of_type[PieceType.UNKNOWN]
    if not read.byte_fallback and len(unknown) != 1:
        raise Left("this model has no piece for unknown characters")
    fallback = np.array([byte_ids[byte] for byte in range(256)], np.uint32) if read.byte_fallback else None
    return partial(
        Encoder.characters,
        *(*flat_tokens(read.pieces[i].text.encode() for i in ranked), np.array(ranked, np.uint32), None),
        byte_ids=fallback,
        unk=unknown[0] if unknown else None,
        fuse_unk=True,
        prefix="first" if read.dummy_prefix else "never",
        added=added,
    )


def _by_score(pieces: list[tuple[int, VocabularyPiece]]) -> list[int]:
    """Ids of the pieces, best score first.

    Of two possible merges with one score, sentencepiece takes the left one, where the encoder goes by rank. So pieces
    may only share a score as the space runs of Llama and Mistral do, for which `_space_runs` finds ranks.
    """
    ranked = sorted(pieces, key=lambda item: -item[1].score)
    scores = Counter(piece.score for _, piece in pieces if len(piece.text) > 1)
    shared = [score for score, times in scores.items() if times > 1]
    if not shared:
        return [i for i, _ in ranked]
    runs = {len(piece.text): i for i, piece in ranked if len(piece.text) > 1 and not piece.text.strip(SPACE)}
    alone = [piece for _, piece in pieces if len(piece.text) > 1 and piece.text.strip(SPACE)]
    if shared != [min(scores)] or scores[shared[0]] != len(runs) or any(SPACE * 2 in piece.text for piece in alone):
        raise Left(f"two pieces have the same score, {shared[0]:g}, so their position in the text decides which merges")
    order = _space_runs(frozenset(runs))
    return [i for i, _ in ranked if i not in runs.values()] + [runs[length] for length in order]


@cache
def _space_runs(lengths: frozenset[int]) -> list[int]:
    """An order of merging in which runs of spaces come out as if the leftmost possible merge were always taken.

    They merge after everything else, and no other piece has two spaces in a row, so only the length of a run decides.
    """
    largest = max(lengths)
    powers = [1 << n for n in range(1, largest.bit_length()) if 1 << n in lengths]
    # What the powers leave of a run (8 + 4 + 2 + 1) is joined from the left.
    joined = [sum(sorted(powers, reverse=True)[at : at + count]) for at in range(len(powers)) for count in range(2, 9)]
    order = list(dict.fromkeys([*powers, *(one for one in joined if one in lengths), *sorted(lengths)]))
    for length in range(2, 4 * largest + 2):
        if _merged(length, lengths, lambda made: order.index(made)) != _merged(length, lengths, lambda made: 0):
            raise Left("pieces of several spaces have the same score, so their position decides which merges")
    return order


def _merged(length: int, lengths: frozenset[int], rank: Callable[[int], int]) -> list[int]:
    """A run of spaces after merging: the best rank first, of equal ones the leftmost."""
    run = [1] * length
    while True:
        made = [(rank(one + two), at) for at, (one, two) in enumerate(pairwise(run)) if one + two in lengths]
        if not made:
            return run
        _, at = min(made)
        run[at : at + 2] = [run[at] + run[at + 1]]


def _user_defined(model: SentencePiece, ids: list[int]) -> list[tuple[str, int, int]]:
    """User-defined pieces as added tokens: sentencepiece finds them in every text and never merges them."""
    tokens: list[tuple[str, int, int]] = [(model.read.pieces[i].text, i, 0) for i in ids]
    if tokens and model.read.dummy_prefix:
        raise Left("this model has user-defined pieces and puts a space before the text, also before such a piece")
    if any(SPACE in text or " " in text for text, _, _ in tokens):  # a plain one is never found
        raise Left("a user-defined piece contains a space")
    return tokens
